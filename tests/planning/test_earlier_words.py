"""Plan files as earlier versions wrote them: those whose words are true keep verifying, false ones are refused."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

import fulcrum
from fulcrum.core.plan.earlier_words import EarlierGuarantee
from fulcrum.core.plan.guarantee import Guarantee
from fulcrum.core.plan.plan_reader import federation_in, read_content
from fulcrum.planning.files.plan_issue import check_signature, new_key, sign_plan
from fulcrum.planning.inputs.execution import Execution
from fulcrum.planning.inputs.past_releases import Past
from fulcrum.planning.planner import make_plan

EARLIER = Path(__file__).parent / "earlier_plans"


def words_of(name):
    return next(check for check in fulcrum.verify(EARLIER / f"{name}.json") if check.name == "words")


@pytest.mark.parametrize(
    "name",
    [
        "trusted",
        "target-on-an-outer-tier",
        "one-group-of-one-region",
        "one-group-with-colluders",
        "masked",
        "sizes-secret",
        "masked-with-colluders",
        "masked-below-countries",
    ],
)
def test_earlier_words_that_are_true_still_verify(name):
    assert words_of(name).holds


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("one-group", "a silo of another region is outside the region, sees the global sum and knows its own noise"),
        ("masked-with-a-lone-silo", "in its smallest masked group somebody sees a single update"),
        ("sizes-secret-with-weights", "weights are public, and weights in proportion to sizes show the sizes that are"),
        ("replanned", "privacy filters prove targets, and no epsilon of an observer without a target"),
        ("replanned-with-both-targets", "privacy filters prove targets, and no epsilon below its target"),
        ("masked-with-a-pair", "in its smallest masked group somebody sees a single update"),
    ],
)
def test_earlier_words_that_are_false_are_refused_with_the_reason_and_the_remedy(name, reason):
    check = words_of(name)
    assert not check.holds
    assert check.detail.startswith(f"not true: {reason}")
    assert check.detail.endswith(". Make the plan again with: fulcrum plan")


@pytest.mark.parametrize(("silos", "seen"), [(3, True), (4, False)])
def test_helpers_of_every_region_uncover_an_update_of_a_small_group(silos, seen):
    """Two regions, one colluder in each: of three silos in one sum the server and two helpers see the third."""
    masked = {"aggregation": "masked", "masked_tier": "federation", "regions": 2, "colluders": 1}
    words = Guarantee(
        rounds=1, delta=1e-5, innermost="region", worst={"region": 1.0, "silo": 1.0}, smallest_group=silos, **masked
    )
    assert bool(EarlierGuarantee.of(words).untrue) is seen


@pytest.mark.parametrize(("silo", "true"), [(30.0, True), (29.9999999999, True), (29.9999, False), (3.02, False)])
def test_filters_prove_an_epsilon_that_is_its_target_and_no_smaller_one(silo, true):
    worst, targets = {"region": 2.0, "silo": silo}, {"region": 2.0, "silo": 30.0}
    words = Guarantee(rounds=3, delta=1e-5, innermost="region", worst=worst, targets=targets, follows=True)
    assert (EarlierGuarantee.of(words).untrue == "") is true


def test_earlier_words_of_a_replanned_file_verify_where_every_epsilon_is_its_target():
    federation = fulcrum.Federation.from_sizes({"north": [100, 100, 100], "south": [100]})
    past = Past(spent={tier: np.full(4, 1e-3) for tier in ("silo", "region", "federation")})
    target = fulcrum.plan(federation, rounds=3, epsilon={"region": 1.0, "aggregator": 1.5}).target
    content = make_plan(federation, target, Execution(), past).content()
    for tier, epsilon in (("region", 1.0), ("silo", 1.5)):
        assert max(entry.epsilon[tier] for entry in content.silos) == epsilon
    earlier = (
        "what was released before is counted in; a plan made after its outputs were seen rests on privacy filters "
        "(Smith and Thakurta 2022)"
    )
    assumptions = [
        earlier if text.startswith("what was released before") else text for text in content.guarantee.assumptions
    ]
    guarantee = msgspec.structs.replace(content.guarantee, assumptions=assumptions)
    checks = fulcrum.verify(msgspec.structs.replace(content, guarantee=guarantee))
    [words] = [check for check in checks if check.name == "words"]
    assert (words.holds, words.detail) == (True, "statement, adjacency, assumptions, in earlier words that are true")


def test_an_earlier_file_keeps_its_digest_and_its_signature(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes((EARLIER / "trusted.json").read_bytes())
    before = read_content(path).digest
    issuer = new_key(tmp_path / "issuer.key")
    sign_plan(path, tmp_path / "issuer.key")
    check_signature(path, issuer)
    assert all(check.holds for check in fulcrum.verify(path))
    assert fulcrum.read_plan(path).digest == before


def test_a_plan_of_today_is_in_words_of_today():
    """The earlier words are for files that exist; no new plan has them."""
    federation = federation_in(read_content(EARLIER / "one-group.json"))
    plan = fulcrum.plan(federation, rounds=3, epsilon={"federation": 1.0}, aggregation="masked")
    assert next(check for check in fulcrum.verify(plan) if check.name == "words").detail == (
        "statement, adjacency, assumptions"
    )


def test_an_observer_has_the_same_words_under_the_old_name():
    words = fulcrum.Guarantee(rounds=1, delta=1e-5, innermost="region", worst={"region": 1.0, "silo": 1.0})
    with pytest.warns(DeprecationWarning, match=r"Guarantee\.whom goes with version 0\.3\. Use describe_observer"):
        observer = words.whom("region")
    assert observer == words.describe_observer("region")


def test_a_plan_answers_to_earlier_attributes_with_a_warning():
    plan = fulcrum.plan("consortium", rounds=3, epsilon=1.0)
    with pytest.warns(DeprecationWarning, match=r"Plan\.whom goes with version 0\.3\. Use fulcrum\.guarantee_of\(plan"):
        assert plan.whom("silo") == fulcrum.guarantee_of(plan).describe_observer("silo")
    with pytest.warns(DeprecationWarning, match=r"Plan\.follows .* Use plan\.continues_previous_plan"):
        assert plan.follows is plan.continues_previous_plan is False
    with pytest.warns(DeprecationWarning, match=r"Plan\.changed .* Use fulcrum\.verified_plan\(plan\)"):
        assert plan.changed is False
    with pytest.warns(DeprecationWarning, match=r"Plan\.file_digest .* Use plan\.digest"):
        assert plan.file_digest == plan.digest
    with pytest.warns(DeprecationWarning, match=r"Plan\.cost .* Use fulcrum\.verified_plan\(plan\)\.release_cost"):
        inner_cost = plan.cost(0)[plan.federation.innermost.name]
    assert inner_cost == pytest.approx(4 / plan.effective_multiplier()[0] ** 2, rel=1e-12)
    with pytest.warns(DeprecationWarning, match=r"Plan\.with_noise"):
        assert plan.with_noise("own", 2 * plan.noise_multiplier).noise_budget == pytest.approx(4 * plan.noise_budget)
    object.__setattr__(plan, "rounds", 4)
    with pytest.warns(DeprecationWarning, match=r"Plan\.changed"):
        assert plan.changed is True
    with pytest.warns(DeprecationWarning, match=r"Plan\.statement"):
        assert plan.statement.startswith("Over ")
