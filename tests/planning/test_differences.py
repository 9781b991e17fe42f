from dataclasses import replace

import msgspec

import fulcrum
from fulcrum.core.plan.plan_file import PlanFile, to_json
from fulcrum.planning.files.differences import differences, on_digests
from fulcrum.planning.planner import plan
from fulcrum.readers.federation import Federation

NESTED = Federation.from_sizes(
    {"a": [5, 3, 1], "b": [4, 4], "c": [7], "d": [2, 2, 9]}, outer={"country": {"x": ["a", "b"], "y": ["c", "d"]}}
)


def test_a_plan_is_compared_in_memory_or_from_its_file(tmp_path):
    made = plan(NESTED, rounds=10, epsilon=1.0)
    fulcrum.save_plan(made, tmp_path / "plan.json")
    assert differences(made, tmp_path / "plan.json") == ()


def test_regions_that_change_places_are_a_difference():
    def nested(countries):
        return plan(
            Federation.from_sizes({"a": [5], "b": [5], "c": [5]}, outer={"country": countries}), rounds=1, epsilon=1.0
        )

    found = differences(nested({"x": ["a", "b"], "y": ["c"]}), nested({"x": ["a", "c"], "y": ["b"]}))
    assert ("region", "b", "parent") in {(difference.kind, difference.subject, difference.what) for difference in found}


def test_equal_plans_have_no_differences():
    content = plan(NESTED, rounds=10, epsilon=1.0).content()
    assert differences(content, plan(NESTED, rounds=10, epsilon=1.0).content()) == ()


def test_differences_say_what_changed_for_whom():
    before = plan(NESTED, rounds=10, epsilon=1.0).content()
    after = plan(NESTED, rounds=10, epsilon=2.0).content()
    found = {
        (difference.subject, difference.what): (difference.before, difference.after)
        for difference in differences(before, after)
    }
    assert found["settings", "epsilon at region"] == (1.0, 2.0)
    assert ("a", "noise on the sum") in found
    assert ("a", "noise_multiplier") not in found  # that is what each of its silos adds
    assert ("guarantee", "statement") in found
    assert ("a-1", "noise_multiplier") in found
    assert ("a-1", "records") not in found


def test_silos_that_join_or_leave_are_differences():
    smaller = Federation.from_sizes({"a": [5, 3], "b": [4, 4], "c": [7], "d": [2, 2, 9]})
    before = plan(NESTED, rounds=10, epsilon=1.0).content()
    after = plan(smaller, rounds=10, epsilon=1.0).content()
    left = [
        difference
        for difference in differences(before, after)
        if difference.subject == "a-3" and difference.what == "records"
    ]
    assert (left[0].before, left[0].after) == (1, None)
    joined = [
        difference
        for difference in differences(after, before)
        if difference.subject == "a-3" and difference.what == "records"
    ]
    assert (joined[0].before, joined[0].after) == (None, 1)


def test_keys_alone_change_the_digest_and_nothing_that_is_promised():
    before = plan(NESTED, rounds=10, epsilon=1.0)
    after = replace(before, keys={"a": "x25519:" + "A" * 43 + "=", "a-1": "A" * 43 + "="})
    first, second = (msgspec.json.decode(to_json(made.content()), type=PlanFile) for made in (before, after))
    found = differences(first, second)
    assert [(one.kind, one.subject, one.before) for one in found] == [("key of", "a", None), ("key of", "a-1", None)]
    assert on_digests(first, second) == (
        f"Both promise the same, with the same noise. The digest is {second.digest[:12]} in place of "
        f"{first.digest[:12]} since the second carries keys that the first does not, of 2 sites."
    )
    assert "carries other keys, of 2 sites" in on_digests(second, first)
    newer = msgspec.structs.replace(first, made_by="fulcrum 9", digest="f" * 64)
    assert on_digests(first, newer).endswith(f"since the first was made by {first.made_by}, the second by fulcrum 9.")


def test_plans_that_promise_otherwise_need_no_word_on_digests():
    one, other = (plan(NESTED, rounds=10, epsilon=epsilon) for epsilon in (1.0, 2.0))
    keyed = replace(other, keys={"a": "x25519:" + "A" * 43 + "="})
    assert on_digests(one, keyed) == ""
    assert on_digests(one, one) == ""
