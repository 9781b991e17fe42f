from fulcrum.federation.structure import Federation
from fulcrum.planning.differences import differences
from fulcrum.planning.making import plan

NESTED = Federation.from_sizes(
    {"a": [5, 3, 1], "b": [4, 4], "c": [7], "d": [2, 2, 9]}, outer={"country": {"x": ["a", "b"], "y": ["c", "d"]}}
)


def test_a_plan_is_compared_in_memory_or_from_its_file(tmp_path):
    made = plan(NESTED, rounds=10, epsilon=1.0)
    made.save(tmp_path / "plan.json")
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
    assert ("a", "noise_multiplier") in found
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
