"""What trained federations give away of silos' classes and records, with noise and without."""

import math

import msgspec
import numpy as np
import pytest
from error_codes import coded
from faults import made
from scipy import stats

import fulcrum
from fulcrum.audit.evidence.findings import CONSISTENT, VIOLATED
from fulcrum.audit.learning.baselines import baseline_plans
from fulcrum.audit.learning.property_inference import (
    NO_PRIVACY,
    drawn_concentrations,
    information_at_least,
    property_findings,
)
from fulcrum.audit.learning.record_attacks import record_findings
from fulcrum.audit.replays.canary_game import audit
from fulcrum.planning.comparisons.comparison import least_influence
from fulcrum.planning.content.plan_figures import with_noise, with_uniform_noise
from fulcrum.planning.theory.prior import lateral_floor
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.views.terminal.audit_tables import reasons_of

TRAINING = LocalTraining(learning_rate=0.3)
SIZES = {"north": [100] * 6, "west": [100]}


def two_classes(records=4_000, features=6, seed=1):
    """Records of two classes that lie apart."""
    drawn = np.random.default_rng(seed)
    labels = drawn.integers(0, 2, records)
    values = drawn.standard_normal((records, features)) + np.where(labels[:, None] == 1, 0.7, -0.7)
    return Task(
        name="two classes",
        features_train=values,
        labels_train=labels,
        features_test=values[:50],
        labels_test=labels[:50],
        classes=("no", "yes"),
        records=60,
    )


TASK = two_classes()


@pytest.fixture(scope="module")
def found():
    tight = made(sizes=SIZES, rounds=6)
    return property_findings(
        {"tight": tight, "uniform": with_uniform_noise(tight)}, TASK, training=TRAINING, shadows=60, seed=2
    )


def one(found, node, arm, observer):
    [each] = [f for f in found if (f.node, f.arm, f.observer) == (node, arm, observer)]
    return each


def test_without_noise_the_update_gives_the_concentration_away_beyond_the_floor(found):
    bare, floor = one(found, "north", NO_PRIVACY, "all"), one(found, "north", NO_PRIVACY, "floor")
    assert bare.error < 0.75 * floor.error < 0.75 * floor.blind_error
    alone = one(found, "west", NO_PRIVACY, "sums")
    assert alone.error < 0.5 * alone.blind_error
    assert alone.nats_at_least > 0.5


def test_with_the_plans_noise_nothing_is_learned_beyond_the_floor(found):
    for arm in ("tight", "uniform"):
        floor, everything = (one(found, "north", arm, observer) for observer in ("floor", "all"))
        assert everything.error == pytest.approx(floor.error, rel=0.1)
        alone = one(found, "west", arm, "sums")
        assert alone.error == pytest.approx(alone.blind_error, rel=0.1)
    assert {each.verdict for each in found} == {CONSISTENT}


def test_what_is_proven_stays_below_the_bound_and_the_floor_is_that_of_the_prior(found):
    everything = one(found, "north", "tight", "all")
    assert 0 < everything.nats_at_least <= everything.nats_at_most
    floor = float(lateral_floor(6, coupling=20.0))
    assert one(found, "north", "tight", "floor").nats_at_most == pytest.approx(floor)
    mechanism = float(made(sizes=SIZES, rounds=6).mechanism_information[0])
    assert (
        everything.nats_at_most == one(found, "north", "tight", "sums").nats_at_most == pytest.approx(floor + mechanism)
    )
    assert one(found, "west", "tight", "floor").nats_at_least == 0


def test_sums_tell_more_than_one_silos_releases_add_and_no_more_than_that_and_the_floor():
    """The releases of 24 silos that resemble each other tell of the group, which no noise on one silo hides."""
    plan = made(sizes={"north": [100] * 24}, rounds=1, epsilon=2.0)
    findings = property_findings({"plan": plan}, TASK, training=TRAINING, shadows=40, seed=2)
    sums = one(findings, "north", "plan", "sums")
    mechanism = float(plan.mechanism_information[0])
    assert sums.nats_at_least > 2 * mechanism
    assert sums.nats_at_most == pytest.approx(mechanism + float(lateral_floor(24, coupling=20.0)))
    rows = msgspec.structs.replace(audit(plan, trials=1_000, seed=1), properties=findings).every_row()
    learned = [row for row in rows if row["kind"] == "concentration" and row["nats_at_most"] is not None]
    assert len(learned) == 4, "three observers of the plan, and the floor without privacy"
    assert all(row["nats_at_least"] <= row["nats_at_most"] for row in learned)


@pytest.fixture(scope="module")
def recipes():
    plan = made(sizes=SIZES, rounds=6, parameters=None)
    return property_findings(baseline_plans(plan, parameters=14), TASK, training=TRAINING, shadows=60, seed=2)


def test_recipes_stand_beside_each_other_with_noise_and_without(recipes):
    arms = {(each.arm, each.weights, each.server, each.noise) for each in recipes}
    assert arms == {
        ("optimal", "sizes", "sum", True),
        ("uniform", "sizes", "sum", True),
        ("joint", "equal", "random-effects", True),
        (NO_PRIVACY, "sizes", "sum", False),
    }
    assert {each.verdict for each in recipes} == {CONSISTENT}
    for arm in ("optimal", "uniform", "joint"):
        floor, everything = (one(recipes, "north", arm, observer) for observer in ("floor", "all"))
        assert everything.error == pytest.approx(floor.error, rel=0.1)  # at a small epsilon the floor is all there is
        assert everything.nats_at_most > floor.nats_at_most
    bare = one(recipes, "north", NO_PRIVACY, "all")
    assert bare.error < 0.75 * one(recipes, "north", "joint", "all").error


def test_other_weights_are_shown_without_noise_too():
    sizes = {"north": [400, 50, 50, 50], "west": [100]}
    plan = made(sizes=sizes, rounds=3, parameters=14, recipe="joint")
    plans = baseline_plans(plan, parameters=14)
    assert list(plans) == ["joint", "uniform", "optimal"]
    assert plans["optimal"].weights.tolist() != plan.weights.tolist()
    findings = property_findings(plans, TASK, training=TRAINING, shadows=20, seed=2)
    bare = {each.arm: each.weights for each in findings if not each.noise}
    assert bare == {NO_PRIVACY: "equal", f"optimal, {NO_PRIVACY}": "sizes"}


@pytest.mark.parametrize("recipe", ["paper", "joint"])
def test_every_plan_beside_one_keeps_the_influence_that_it_promises(recipe):
    options = {"sizes": {"north": [400, 50, 50, 50], "west": [100]}, "rounds": 3, "parameters": 14}
    plans = baseline_plans(made(**options, recipe=recipe, least_influence=0.9), parameters=14)
    assert sorted(plans) == ["joint", "optimal", "uniform"]
    assert all(least_influence(plan) >= 0.9 * (1 - 1e-9) for plan in plans.values())
    unbounded = baseline_plans(made(**options, recipe=recipe), parameters=14)
    assert least_influence(unbounded["joint"]) < 0.8


def test_a_plan_that_no_other_recipe_can_keep_stands_alone():
    plan = made(sizes=SIZES, rounds=2, epsilon={"federation": 1.0}, parameters=14)
    assert list(baseline_plans(plan, parameters=14)) == ["optimal", "uniform"]
    assert list(baseline_plans(made(sizes=SIZES, injection="aggregator"), parameters=14)) == ["optimal"]


def test_where_one_sum_is_all_that_is_seen_the_concentration_is_estimated_from_it():
    plan = made(sizes={"north": [100] * 3, "west": [100] * 3}, rounds=6, epsilon=3_000.0)
    options = {"epsilon": {"federation": 3_000.0}, "aggregation": "masked", "rounds": 6}
    as_one = made(sizes={"north": [100] * 3, "west": [100] * 3}, **options)
    both = {"regions": plan, "one sum": as_one}
    findings = property_findings(both, TASK, training=TRAINING, shadows=60, seed=2)
    assert {each.verdict for each in findings} == {CONSISTENT}
    # Six silos in a sum tell less of one than three do, for whoever knows no other.
    assert one(findings, "west", "one sum", "sums").error > one(findings, "west", "regions", "sums").error


def test_a_bound_that_is_too_small_is_found_out():
    class Modest(fulcrum.Plan):
        mechanism_information = property(lambda self: np.zeros(len(self.federation)))

    plan = made(sizes=SIZES, rounds=6, epsilon=3_000.0)
    names = [name for name, field in plan.__dataclass_fields__.items() if field.init]
    modest = Modest(**{name: getattr(plan, name) for name in names})
    findings = property_findings({"modest": modest}, TASK, training=TRAINING, shadows=60, seed=3)
    assert one(findings, "west", "modest", "all").verdict == VIOLATED
    assert one(findings, "west", "modest", "sums").verdict == VIOLATED
    told = msgspec.structs.replace(audit(plan, trials=1_000, seed=1), properties=findings)
    assert any("west, modest: " in text and "are allowed" in text for _, text in reasons_of(told))


def test_nats_of_normal_estimates_are_those_of_their_error():
    """The prior's entropy, by quadrature of its density, less that of a normal error."""
    drawn = np.random.default_rng(4).normal(0, 0.05, 100_000)
    grid = (np.arange(2_000) + 0.5) / 2_000
    given = stats.beta.pdf(grid[:, None], 20 * grid, 20 * (1 - grid))
    density = given @ stats.beta.pdf(grid, 2, 2) / len(grid)
    entropy = -float((density * np.log(density)).mean())
    expected = entropy - math.log(0.05 * math.sqrt(2 * math.pi * math.e))
    assert information_at_least(drawn, 20.0, 0.5) == pytest.approx(expected, abs=0.01)
    assert information_at_least(np.full(10, 0.4) + 0.01 * drawn[:10], 20.0, 0.05) == 0.0


def test_concentrations_follow_the_declared_prior():
    group = np.repeat(np.arange(2_000), 4)
    shares = drawn_concentrations(group, 20.0, 1).reshape(-1, 4)
    assert shares.mean() == pytest.approx(0.5, abs=0.01)
    # Var(p) = Var(Phi) + E[Phi (1 - Phi)] / 21 = 0.05 + 0.2 / 21
    assert shares.var() == pytest.approx(0.05 + 0.2 / 21, rel=0.05)
    assert shares.mean(axis=1).var() == pytest.approx(0.05 + 0.2 / 21 / 4, rel=0.08)


def test_too_few_shadows_are_refused():
    with pytest.raises(fulcrum.ParameterError, check=coded("audit.shadows-range", least=20, shadows=3)):
        property_findings({"plan": made(sizes=SIZES)}, TASK, training=TRAINING, shadows=3)


@pytest.mark.parametrize(("epsilon", "low", "high"), [(0.5, 0.4, 0.6), (30_000.0, 0.75, 1.0)])
def test_membership_is_a_guess_at_a_small_epsilon_and_plain_at_a_large_one(epsilon, low, high):
    plan = made(sizes=SIZES, rounds=6, epsilon=epsilon)
    findings = record_findings(plan, TASK, training=TRAINING, seed=1, draws=60)
    assert [each.node for each in findings] == ["north", "west"]
    for each in findings:
        assert low <= (each.right_at_least + each.right_at_most) / 2 <= high
        assert each.verdict == CONSISTENT
        assert each.right_at_least <= each.allowed
        assert each.bare_resemblance > 0.6
        assert each.resemblance < each.bare_resemblance


def test_records_that_leak_more_than_is_allowed_are_found_out():
    class Boastful(fulcrum.Plan):
        def effective_multiplier(self, tier=None, *, colluders=None, dropouts=None):
            return 1e6 * super().effective_multiplier(tier, colluders=colluders, dropouts=dropouts)

    plan = made(sizes=SIZES, rounds=6, epsilon=3_000.0)
    names = [name for name, field in plan.__dataclass_fields__.items() if field.init]
    boastful = Boastful(**{name: getattr(plan, name) for name in names})
    findings = record_findings(boastful, TASK, training=TRAINING, seed=1, draws=60)
    assert {each.verdict for each in findings} == {VIOLATED}
    told = [
        text for _, text in reasons_of(msgspec.structs.replace(audit(plan, trials=1_000, seed=1), records=findings))
    ]
    assert sum("one record of silo" in text and "50.0% are allowed" in text for text in told) == 2


def test_a_silo_without_noise_inside_has_no_bound_on_its_records():
    plan = made(sizes={"north": [100] * 3}, rounds=6)
    silent = with_noise(plan, "optimal", plan.noise_multiplier * [0, 1, 1])
    [found] = record_findings(silent, TASK, training=TRAINING, seed=1, draws=20, records=2)
    assert (found.silo, found.epsilon, found.allowed, found.verdict) == ("north-1", None, None, CONSISTENT)


def test_where_aggregators_inject_no_release_is_concealed_and_none_is_attacked():
    assert record_findings(made(sizes=SIZES, injection="aggregator"), TASK, training=TRAINING) == []
