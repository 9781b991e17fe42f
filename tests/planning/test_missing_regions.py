"""The epsilon of an outer tier counts on a region's noise only where every round holds that region's sum."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import fulcrum
from fulcrum.aggregation.presence import aggregation_of
from fulcrum.audit.replays.played_observers import stages_of
from fulcrum.core.plan.figures import outermost_complete_tier
from fulcrum.core.plan.plan_file import content_digest
from fulcrum.core.plan.verification import verify
from fulcrum.planning.files.exports import export_plan
from fulcrum.planning.inputs.execution import Execution
from fulcrum.planning.inputs.past_releases import Past
from fulcrum.planning.planner import make_plan

HOSPITALS = fulcrum.Federation.from_sizes({"north": [1200, 800, 900, 700], "south": [1500]})
TREE = fulcrum.Federation.from_sizes(
    {"a": [5, 3, 1], "b": [4, 4], "c": [7], "d": [2, 2, 9]}, outer={"country": {"x": ["a", "b"], "y": ["c", "d"]}}
)
EARLIER = Path(__file__).parent / "earlier_plans"
DEPLOYMENT = {"purpose": "deployment", "parameters": 6}


def test_a_deployed_plan_states_the_regional_epsilon_for_the_global_sum():
    plan = fulcrum.plan(HOSPITALS, rounds=10, epsilon=1.0, **DEPLOYMENT)
    everyone = fulcrum.plan(HOSPITALS, rounds=10, epsilon=1.0)
    assert outermost_complete_tier(plan) != "federation"
    assert plan.epsilon("federation").tolist() == plan.epsilon("region").tolist()
    # A round without the south shows an observer of the model the north's sum, at the north's noise.
    assert everyone.epsilon("federation").max() < 0.9 < plan.epsilon("federation").max()


def test_a_target_on_the_global_sum_makes_every_round_hold_every_region():
    plan = fulcrum.plan(HOSPITALS, rounds=10, epsilon={"region": 2.0, "federation": 1.0}, **DEPLOYMENT)
    assert outermost_complete_tier(plan) == "federation"
    assert plan.worst_epsilon("federation") <= 1.0 < plan.worst_epsilon("region")


@pytest.mark.parametrize(
    ("epsilon", "complete"),
    [({"region": 1.0}, "region"), ({"region": 2.0, "country": 1.0}, "country"), ({"aggregator": 9.0}, "region")],
)
def test_tiers_outside_the_outermost_target_have_its_epsilon(epsilon, complete):
    plan = fulcrum.plan(TREE, rounds=3, epsilon=epsilon, **DEPLOYMENT)
    inner = TREE.tier_names[: TREE.tier_names.index(complete) + 1]
    for tier in TREE.tier_names:
        stated = plan.epsilon(tier)
        seen = tier if tier in inner else complete
        # Enumerated: the noise of the silos that share the node of the tier that is always complete.
        node_of = TREE.membership(seen)
        noise = [plan.noise_variance[node_of == node].sum() for node in node_of]
        multiplier = np.sqrt(noise) / plan.weights
        true = fulcrum.epsilon_of(multiplier, rounds=3, delta=plan.target.accounted_delta, accountant="renyi")
        assert stated == pytest.approx(true, rel=1e-12)
    assert [check for check in verify(plan.content()) if not check.holds] == []
    assert {stage.tier for stage in stages_of(plan)} == set(inner)


def test_a_deployed_plan_file_that_counts_on_missing_regions_does_not_verify():
    plan = fulcrum.plan(HOSPITALS, rounds=10, epsilon=1.0, **DEPLOYMENT)
    content = plan.content()
    smaller = [msgspec.structs.replace(entry, epsilon=entry.epsilon | {"federation": 0.9}) for entry in content.silos]
    forged = msgspec.structs.replace(content, silos=smaller)
    forged = msgspec.structs.replace(forged, digest=content_digest(forged))
    assert [check.name for check in verify(forged) if not check.holds] == ["epsilon at federation"]


def test_the_exported_table_has_the_epsilon_of_incomplete_sums():
    plan = fulcrum.plan(HOSPITALS, rounds=10, epsilon=1.0, **DEPLOYMENT)
    rows = list(csv.DictReader(io.StringIO(export_plan(plan, "csv"))))
    assert [row["epsilon_federation"] for row in rows] == [row["epsilon_region"] for row in rows]


@pytest.mark.parametrize(
    ("epsilon", "together", "countries", "lacks"),
    [
        ({"region": 1.0}, ["a", "b", "c", "d"], ["x", "y"], "region"),
        ({"region": 2.0, "country": 1.0}, ["ab", "cd"], ["x", "y"], "country"),
        ({"region": 2.0, "federation": 1.0}, ["abcd"], ["xy"], ""),
    ],
)
def test_the_sums_that_a_round_adds_are_complete_where_the_words_say(epsilon, together, countries, lacks):
    plan = fulcrum.plan(TREE, rounds=3, epsilon=epsilon, **DEPLOYMENT)
    for logical, senders in ((True, together), (False, countries)):
        joint = aggregation_of(fulcrum.verified_plan(plan), logical=logical).joint_senders()
        assert joint == tuple(map(frozenset, senders))
    assert (outermost_complete_tier(plan) == "federation") is (together == ["abcd"])
    words = [
        text.partition(" that has no sum")[0]
        for text in fulcrum.guarantee_of(plan).assumptions
        if "that has no sum" in text
    ]
    assert words == ([f"a round goes on without a {lacks}"] if lacks else [])


def test_the_words_say_how_far_out_a_round_is_complete():
    region = fulcrum.plan(HOSPITALS, rounds=10, epsilon=1.0, **DEPLOYMENT)
    whole = fulcrum.plan(HOSPITALS, rounds=10, epsilon={"region": 2.0, "federation": 1.0}, **DEPLOYMENT)
    research = fulcrum.plan(HOSPITALS, rounds=10, epsilon=1.0)
    assert any(
        text.startswith("a round goes on without a region that has no sum")
        for text in fulcrum.guarantee_of(region).assumptions
    )
    assert not any(
        "has no sum" in text
        for text in (*fulcrum.guarantee_of(whole).assumptions, *fulcrum.guarantee_of(research).assumptions)
    )


@pytest.mark.parametrize("recipe", ["paper", "joint"])
@pytest.mark.parametrize(("outside", "smaller"), [(0.01, False), (0.001, True)])
def test_a_smaller_epsilon_further_out_is_not_denied_where_less_was_spent_there(recipe, outside, smaller):
    """The epsilon of the global sum is that of the region in these rounds, with another past."""
    first = fulcrum.plan(HOSPITALS, rounds=10, epsilon=1.0, recipe=recipe, **DEPLOYMENT)
    execution = Execution(
        **{name: getattr(first, name) for name in ("purpose", "server", "shrink")}, weights=first.weights_rule
    )
    spent = {"silo": 0.02, "region": 0.01, "federation": outside}
    past = Past(spent={tier: np.full(5, value) for tier, value in spent.items()}, reserve=first.target.reserve)
    plan = make_plan(HOSPITALS, replace(first.target, rounds=3), execution, past)
    assert (plan.worst_epsilon("federation") < plan.worst_epsilon("region")) is smaller
    assert any("is claimed further out" in text for text in fulcrum.guarantee_of(plan).assumptions) is not smaller
    assert (
        any(
            "; in these rounds an observer further out is counted as " in text
            for text in fulcrum.guarantee_of(plan).assumptions
        )
        is smaller
    )
    assert [check for check in verify(plan.content()) if not check.holds] == []


def test_the_sum_of_one_masked_group_is_complete_for_planner_and_verifier():
    """A requirement of no noise on the root makes one group of all silos, whose one sum has every region's noise."""
    plan = fulcrum.plan(HOSPITALS, rounds=10, epsilon={"server+silo": 20.0}, aggregation="masked", **DEPLOYMENT)
    whole = replace(plan, required_multiplier={**plan.required_multiplier, "federation": 0.0})
    assert (whole.one_group, whole.absent_regions, whole.outermost_complete_tier) == (True, True, "federation")
    assert [check for check in verify(whole.content()) if not check.holds] == []
    assert not any("has no sum" in text for text in fulcrum.guarantee_of(whole).assumptions)
    seen = np.sqrt(whole.noise_variance.sum()) / whole.weights
    for tier in ("region", "federation"):
        assert whole.effective_multiplier(tier) == pytest.approx(seen, rel=1e-12)


def test_a_file_that_says_nothing_of_absent_regions_has_every_region_in_every_round():
    plan = fulcrum.read_plan(EARLIER / "trusted.json")
    assert (plan.purpose, plan.absent_regions) == ("deployment", False)
    assert outermost_complete_tier(plan) == "federation"
    assert all(check.holds for check in verify(EARLIER / "trusted.json"))
    assert plan.epsilon("federation").max() < plan.epsilon("region").max()


def test_a_file_that_goes_on_without_regions_may_not_count_on_them():
    content = fulcrum.read_plan(EARLIER / "trusted.json").content()
    careless = msgspec.structs.replace(content.settings, absent_regions=True)
    forged = msgspec.structs.replace(content, settings=careless, digest="")
    failed = [check.name for check in verify(forged) if not check.holds]
    assert failed == ["epsilon at federation", "words"]
