import dataclasses
import itertools
import math

import numpy as np
import pytest
from error_codes import coded
from scipy import stats

import fulcrum
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.silo.releasing import release
from fulcrum.core.store.ledger import Allowance, Cost, Ledger
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import PlanError, UnreachableTargetError
from fulcrum.planning.inputs.execution import Execution
from fulcrum.planning.inputs.past_releases import Past
from fulcrum.planning.inputs.targets import Target
from fulcrum.planning.planner import make_plan
from fulcrum.planning.replanning import replan
from fulcrum.readers.profiles import profile
from fulcrum.views.charts.plan_charts import information_rows
from fulcrum.words.verdict import verdict

SIZES = {"north": {"lille": 100, "metz": 80}, "south": {"nice": 120, "lyon": 60}}
TARGET = {"epsilon": {"region": 2.0, "aggregator": 6.0}, "parameters": 5, "purpose": "deployment"}


@pytest.fixture
def running(tmp_path):
    """A plan of six rounds of which two are done."""
    old = fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), rounds=6, **TARGET)
    for name in old.federation.silo_names.tolist():
        with Ledger.open(tmp_path / f"{name}.ledger", silo=name) as ledger:
            for round_number in (1, 2):
                release(np.ones(5), old, name, round_number, ledger=ledger)
    return old, tmp_path


def changed():
    return fulcrum.Federation.from_sizes({"north": {"lille": 150, "metz": 80, "caen": 40}, "south": {"nice": 120}})


def test_the_promise_covers_what_was_spent_and_what_is_to_come(running):
    old, folder = running
    new = replan(old, changed(), folder)
    assert new.rounds == 4
    assert new.epsilon_above.max() <= 2.0 * (1 + 1e-12)
    assert new.epsilon_inside.max() <= 6.0 * (1 + 1e-12)
    for index, name in enumerate(new.federation.silo_names.tolist()):
        path = folder / f"{name}.ledger"
        with Ledger.open(path, silo=name) as ledger:
            for round_number in range(1, 5):
                release(np.ones(5), new, name, round_number, ledger=ledger)
            spent = ledger.total_cost
        delta = new.target.accounted_delta
        above = epsilon_of_shift(math.sqrt(spent.shifts["region"]), delta=delta, accountant="renyi")
        assert above <= 2.0 * (1 + 1e-9)
        assert above == pytest.approx(new.epsilon_above[index], rel=1e-9)


@pytest.mark.parametrize(("before", "after"), [("Z\u00fcrich", "Zu\u0308rich"), ("lyon", "Lyon")])
def test_a_silo_in_another_spelling_is_not_taken_for_one_that_spent_nothing(tmp_path, before, after):
    old = fulcrum.plan(fulcrum.Federation.from_sizes({"north": {before: 100, "metz": 80}}), rounds=6, **TARGET)
    for name in old.federation.silo_names.tolist():
        with Ledger.open(tmp_path / f"{name}.ledger", silo=name) as ledger:
            release(np.ones(5), old, name, 1, ledger=ledger)
    respelled = fulcrum.Federation.from_sizes({"north": {after: 100, "metz": 80}})
    with pytest.raises(PlanError, check=coded("replan.silo-respelled", silo=before, new_silo=after)):
        replan(old, respelled, tmp_path)
    both = fulcrum.Federation.from_sizes({"north": {before: 100, after: 100, "metz": 80}})  # two silos, both there
    assert replan(old, both, tmp_path).target.spent["silo"].tolist()[1] == 0


def test_every_observer_is_told_what_was_spent(running):
    old, folder = running
    new = replan(old, changed(), folder)
    fresh = fulcrum.plan(changed(), rounds=4, **TARGET)
    assert set(new.target.spent) == {"silo", "region", "federation"}
    shift = epsilon_of_shift(
        np.sqrt(4 * 4 / new.effective_multiplier("federation") ** 2),
        delta=new.target.accounted_delta,
        accountant="renyi",
    )
    assert (new.epsilon("federation")[:2] > shift[:2]).all()
    assert new.target.reserve > fresh.target.reserve


def test_a_silo_that_spent_nothing_needs_less_noise_than_one_that_spent(running):
    old, folder = running
    new = replan(old, changed(), folder)
    fresh = fulcrum.plan(changed(), rounds=4, **TARGET)
    assert new.noise_budget > fresh.noise_budget
    assert new.requirement.multiplier["silo"][2] < new.requirement.multiplier["silo"][0]


def test_a_replanned_file_keeps_what_was_spent_and_verifies(running, tmp_path):
    old, folder = running
    new = replan(old, changed(), folder)
    fulcrum.save_plan(new, tmp_path / "new.json")
    again = fulcrum.read_plan(tmp_path / "new.json")
    assert again.digest == new.digest
    assert (again.epsilon_above == new.epsilon_above).all()
    assert all(check.holds for check in fulcrum.verify(tmp_path / "new.json"))


def test_a_silo_that_shows_no_ledger_is_not_planned_for(running):
    old, folder = running
    (folder / "lille.ledger").unlink()
    with pytest.raises(PlanError, check=coded("replan.ledger-missing", silo="lille")):
        replan(old, changed(), folder)


def test_the_ledger_of_somebody_else_is_refused(running):
    old, folder = running
    (folder / "metz.ledger").rename(folder / "lille.ledger")
    with pytest.raises(PlanError, match="is the ledger of silo 'metz', not of 'lille'"):
        replan(old, changed(), folder)


def test_a_silo_without_budget_and_a_plan_without_rounds_are_refused(running):
    old, folder = running
    for name in old.federation.silo_names.tolist():
        with Ledger.open(folder / f"{name}.ledger", silo=name) as ledger:
            for round_number in (3, 4, 5, 6):
                release(np.ones(5), old, name, round_number, ledger=ledger)
    with pytest.raises(UnreachableTargetError, match="all 6 rounds of the plan are done"):
        replan(old, changed(), folder)
    longer = fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), rounds=9, **TARGET)
    with pytest.raises(UnreachableTargetError, check=coded("target.budget-spent")):
        replan(longer, changed(), folder)


def test_only_plans_with_epsilon_targets_are_replanned(tmp_path):
    with pytest.raises(PlanError, check=coded("replan.epsilon-missing")):
        replan(fulcrum.plan("mild", rounds=3, information=1.0), "mild", tmp_path)
    with pytest.raises(PlanError, check=coded("replan.target-unsupported")):
        replan(fulcrum.plan("mild", rounds=3, information=1.0, epsilon=1.0), "mild", tmp_path)
    past = Past(spent={"region": np.zeros(96), "silo": np.zeros(96)})
    with pytest.raises(fulcrum.ParameterError, check=coded("plan.spent-without-epsilon")):
        make_plan(profile("mild"), Target(rounds=3, information=1.0), Execution(), past)
    half = Past(spent={"region": np.zeros(96)})
    with pytest.raises(fulcrum.ParameterError, check=coded("plan.spent-tiers-missing", tier="region")):
        make_plan(profile("mild"), Target(rounds=3, epsilon={"region": 1.0}), Execution(), half)


def released_so_far(plan, folder, rounds):
    """Every silo of a plan releases so many rounds into its ledger."""
    for name in plan.federation.silo_names.tolist():
        with Ledger.open(folder / f"{name}.ledger", silo=name) as ledger:
            for round_number in range(1, rounds + 1):
                release(np.zeros(plan.parameters), plan, name, round_number, ledger=ledger)


def spent_against(silo, coalition, *parts):
    """The true squared shift of a silo when exactly these collude: its region's sums, their noise subtracted."""
    total = 0.0
    for plan, rounds in parts:
        names, region_of = plan.federation.silo_names.tolist(), plan.federation.innermost.parent_of
        index = names.index(silo)
        honest = [
            other for other, name in enumerate(names)
            if region_of[other] == region_of[index] and name not in coalition
        ]  # fmt: skip
        total += rounds * 4 * plan.federation.weights[index] ** 2 / plan.noise_variance[honest].sum()
    return total


@pytest.fixture
def moved(tmp_path):
    """Three of six rounds are done with one colluder a region allowed; then a silo moves and others join."""
    target = {
        "epsilon": {"region": 2.0, "aggregator": 30.0},
        "parameters": 2,
        "purpose": "deployment",
        "colluders": 1,
    }
    before = fulcrum.Federation.from_sizes({"x": {"i": 1, "a": 1, "b": 1}})
    after = fulcrum.Federation.from_sizes({"x": {"i": 1, "b": 1, "k": 1}, "y": {"a": 1, "l": 1, "m": 1, "n": 1}})
    old = fulcrum.plan(before, rounds=6, **target)
    released_so_far(old, tmp_path, 3)
    return old, replan(old, after, tmp_path)


def test_after_a_move_the_promise_is_against_the_same_colluders_throughout(moved):
    old, new = moved
    said = "even if no more than 1 silo, the same throughout, of any region of any plan so far colludes."
    assert fulcrum.guarantee_of(new).statement.endswith(said)
    assert "any region of any plan so far" in " ".join(fulcrum.guarantee_of(new).assumptions)
    assert "any plan so far" not in fulcrum.guarantee_of(old).statement
    names = sorted({*old.federation.silo_names.tolist(), *new.federation.silo_names.tolist()} - {"i"})
    regions = [
        {name for name, code in zip(p.federation.silo_names.tolist(), p.federation.innermost.parent_of, strict=True) if code == node}
        for p in (old, new)
        for node in range(len(p.federation.innermost.nodes))
    ]  # fmt: skip
    stated = float(new.epsilon_above[new.federation.silo_names.tolist().index("i")])
    beyond = []
    for size in range(len(names) + 1):
        for coalition in itertools.combinations(names, size):
            shift = math.sqrt(spent_against("i", coalition, (old, 3), (new, 3)))
            true = float(epsilon_of_shift(shift, delta=new.target.accounted_delta, accountant="renyi"))
            if all(len(region & set(coalition)) <= 1 for region in regions):
                assert true <= stated * (1 + 1e-9)
            else:
                beyond.append(true)
    # One of x then and another of x now is more than the plans count on: the words must not cover it.
    assert max(beyond) > 1.2 * stated


def test_who_moved_is_named(moved, tmp_path):
    old, new = moved
    assert dict(new.moved) == {"a": "x"}
    text = next(advice.text for advice in fulcrum.advice_on(new) if advice.kind == "moved")
    assert text.startswith("Moved to another region since the plan before: a (x to y). Colluders are counted")
    fulcrum.save_plan(new, tmp_path / "new.json")
    assert fulcrum.read_plan(tmp_path / "new.json").moved == {"a": "x"}
    assert all(check.holds for check in fulcrum.verify(tmp_path / "new.json"))
    assert not old.moved


def test_who_may_collude_and_who_may_be_missing_stays_as_promised(tmp_path):
    old = fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), rounds=6, colluders=2, dropouts=1, **TARGET)
    released_so_far(old, tmp_path, 1)
    new = replan(old, old.federation, tmp_path)
    assert (new.colluders, new.dropouts) == (2, 1)


def test_a_replanned_plan_says_which_rounds_it_speaks_of_and_whose_theorem_it_rests_on(moved):
    old, new = moved
    assert fulcrum.guarantee_of(new).statement.startswith(
        "Over these 3 rounds and all released before, at delta 1e-05, "
    )
    assert fulcrum.guarantee_of(old).statement.startswith("Over 6 rounds, at delta 1e-05, ")
    assert any(
        "privacy filters (Feldman and Zrnic 2021) prove the targets, epsilon" in line
        for line in fulcrum.guarantee_of(new).assumptions
    )
    assert not any("filters" in line for line in fulcrum.guarantee_of(old).assumptions)
    assert "membership is fixed while this plan is in force" in fulcrum.guarantee_of(new).assumptions


@pytest.mark.parametrize(
    ("targets", "named"),
    [
        ({"region": 1.0}, "epsilon 1 on region"),
        ({"region": 1.0, "aggregator": 8.0}, "epsilon 1 on region, epsilon 8 on silo"),
        ({"federation": 2.0, "aggregator": 30.0}, "epsilon 2 on federation, epsilon 30 on silo"),
    ],
)
def test_filters_are_cited_for_targets_and_for_no_other_observer(targets, named):
    """A filter stops at a budget that was fixed beforehand, and an observer without a target has none."""
    old = fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), rounds=6, epsilon=targets)
    past = Past(spent={tier: np.full(len(old.federation), 1e-3) for tier in ("region", "silo")})
    new = make_plan(old.federation, old.target, Execution(), past)
    [told] = [line for line in fulcrum.guarantee_of(new).assumptions if "filters" in line]
    assert f"(Smith and Thakurta 2022) prove the targets, {named}, even if" in told
    assert told.endswith("an epsilon below its target, or without one, holds if outputs had no influence on this plan")
    # No target inside is reached here: the noise for the region or for the global sum is more than it asks for.
    assert verdict(new).basis.endswith(
        "an observer without a target, or with an epsilon below its target, if outputs had no influence on this plan"
    )
    assert all(check.holds for check in fulcrum.verify(new))


def test_what_an_observer_can_do_includes_what_was_released_before(moved):
    _, new = moved
    worst = np.argmax(new.epsilon_above)
    squared = 4 * 3 / new.effective_multiplier() ** 2 + new.target.spent["region"]
    shift = math.sqrt(squared[worst])
    power = new.observer_power()
    # Proven for lattice noise: Pinsker's inequality, not the curve of continuous noise.
    assert power.guessing_rate == pytest.approx(0.5 + shift / 4, rel=1e-9)
    assert (
        power.guessing_rate
        > stats.norm.cdf(shift / 2)
        > stats.norm.cdf(math.sqrt(12) / new.effective_multiplier().min() / 2)
    )
    inside = new.observer_power("silo")
    assert inside.guessing_rate > power.guessing_rate


def test_information_after_a_replan_includes_what_was_released_before(moved):
    _, new = moved
    spent = new.target.spent["region"]
    assert new.mechanism_information == pytest.approx(2 * 3 / new.effective_multiplier() ** 2 + spent / 2)
    first = next(row for row in information_rows(new) if row["observer"] == "above" and row["round"] == 0)
    assert first["nats"] == pytest.approx(spent.max() / 2)


def test_what_earlier_lattice_noise_cost_stays_reserved(moved):
    old, new = moved
    fresh = fulcrum.plan(
        new.federation,
        rounds=3,
        epsilon={"region": 2.0, "aggregator": 30.0},
        parameters=2,
        purpose="deployment",
        colluders=1,
    )
    assert old.target.reserve > 0
    assert new.target.reserve >= old.target.reserve + fresh.target.reserve / 4
    assert new.target.reserve > old.target.reserve


def test_what_a_plan_file_names_is_never_imported(running, tmp_path, monkeypatch):
    old, folder = running
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("trap:rule", "rule"):
        forged = dataclasses.replace(old, allocation=name)
        fulcrum.save_plan(forged, tmp_path / "forged.json")
        with pytest.raises(PlanError, check=coded("replan.allocation-not-built-in")):
            replan(fulcrum.read_plan(tmp_path / "forged.json"), changed(), folder)
    again = replan(dataclasses.replace(old, allocation="trap:rule"), changed(), folder, allocation="uniform")
    assert again.allocation == "uniform"


def test_the_aggregator_that_a_silo_left_is_no_observer_above(moved):
    old, new = moved
    before, after = (plan.federation.silo_names.tolist().index("a") for plan in (old, new))
    # It saw a's own updates for three rounds, and the sums of a's new region for three more.
    squared = 3 * 4 / old.noise_multiplier[before] ** 2 + 3 * 4 / new.effective_multiplier()[after] ** 2
    true = float(epsilon_of_shift(math.sqrt(squared), delta=new.target.accounted_delta, accountant="renyi"))
    assert true > 1.1 * new.epsilon_above.max()
    assert true <= new.epsilon_inside[after]
    outside = "against anyone outside its region, in this plan and all before, who sees the sums of its region"
    assert outside in fulcrum.guarantee_of(new).statement
    assert "in this plan" not in fulcrum.guarantee_of(old).statement


def test_silos_of_any_plan_so_far_may_not_help_where_none_may(running):
    old, folder = running
    new = replan(old, changed(), folder)
    assert any(
        line.startswith("no silo of a region, in any plan so far, helps")
        for line in fulcrum.guarantee_of(new).assumptions
    )
    assert any(line.startswith("no silo of a region helps") for line in fulcrum.guarantee_of(old).assumptions)


def test_a_federation_with_a_tier_below_the_old_regions_is_not_replanned(running):
    old, folder = running
    wards = fulcrum.Federation.from_columns(
        silo=["lille", "metz", "nice", "lyon"],
        records=np.array([100.0, 80, 120, 60]),
        tiers={"ward": ["n1", "n2", "s1", "s1"], "region": ["north", "north", "south", "south"]},
    )
    # The target on regions would speak of who sees no sum below them, and wards would have none.
    with pytest.raises(PlanError, check=coded("replan.tier-changed")):
        replan(old, wards, folder)


def test_what_earlier_lattice_noise_cost_grows_with_epsilon(tmp_path):
    target = {"epsilon": 1.0, "parameters": 3, "purpose": "deployment"}
    old = fulcrum.plan(fulcrum.Federation.from_sizes({"x": {"i": 1.0}}), rounds=400, **target)
    released_so_far(old, tmp_path, 360)
    crowd = {"i": 1.0} | {f"s{k}": 1.0 for k in range(399)}
    new = replan(old, fulcrum.Federation.from_sizes({"x": crowd}), tmp_path)
    assert new.worst_epsilon("silo") > old.worst_epsilon("silo") + 3
    # Inside: one silo's 400 rounds of three coordinates, all at the epsilon of all rounds.
    inside = 1 + math.exp(new.worst_epsilon("silo"))
    assert new.target.reserve >= inside * 400 * 3 * 2.0**-108
    assert all(check.holds for check in fulcrum.verify(new))


@pytest.fixture
def running_joint(tmp_path):
    """A plan of six rounds by another recipe, two of them done."""
    settings = {"epsilon": {"region": 2.0, "aggregator": 6.0}, "parameters": 5, "purpose": "deployment"}

    def made(**choice):
        old = fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), rounds=6, **settings, **choice)
        for name in old.federation.silo_names.tolist():
            with Ledger.open(tmp_path / f"{name}.ledger", silo=name) as ledger:
                for round_number in (1, 2):
                    release(np.ones(5), old, name, round_number, ledger=ledger)
        return old, tmp_path

    return made


@pytest.mark.parametrize("weights", ["equal", "least-noise", 0.5])
def test_replanning_keeps_weights_rule_clip_server_and_least_influence(running_joint, weights):
    old, folder = running_joint(recipe="joint", weights=weights, least_influence=0.6)
    new = replan(old, changed(), folder)
    kept = ("weights_rule", "server", "shrink", "least_influence", "clip_norm")
    assert [getattr(new, name) for name in kept] == [getattr(old, name) for name in kept]
    assert 0 < new.clip_share < 1
    assert new.weights.sum() == pytest.approx(1)
    assert new.epsilon_above.max() <= 2.0 * (1 + 1e-12)
    assert all(check.holds for check in fulcrum.verify(new))


def test_weights_that_were_given_by_silo_are_kept_in_proportion(running_joint):
    old, folder = running_joint(weights={"lille": 1, "metz": 2, "nice": 3, "lyon": 4})
    fewer = fulcrum.Federation.from_sizes({"north": {"lille": 100, "metz": 80}, "south": {"nice": 120}})
    assert replan(old, fewer, folder).weights == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    with pytest.raises(PlanError, check=coded("replan.weight-missing", silo="caen")):
        replan(old, changed(), folder)
    again = replan(old, changed(), folder, weights={"lille": 1, "metz": 1, "caen": 1, "nice": 1})
    assert again.weights == pytest.approx([0.25] * 4)
    assert replan(old, changed(), folder, weights="equal").weights_rule == "equal"


def six_of_three(**more):
    return fulcrum.Federation.from_sizes(
        {f"r{region}": {f"s{region}{silo}": 100 for silo in range(3)} for region in range(6)} | more
    )


def test_what_was_spent_at_an_outer_tier_is_read_from_the_ledgers_and_not_taken_for_the_regions(tmp_path):
    """The region's sums saw far more than the federation's: to charge that further out would leave no budget there."""
    old = fulcrum.plan(
        six_of_three(), rounds=10, epsilon={"federation": 2.0, "aggregator": 30.0}, parameters=2, purpose="deployment"
    )
    released_so_far(old, tmp_path, 2)
    new = replan(old, six_of_three(), tmp_path)
    delta = old.target.accounted_delta
    spent = {
        tier: epsilon_of_shift(np.sqrt(new.target.spent[tier][0]), delta=delta, accountant="renyi") for tier in TIERS
    }
    true = epsilon_of_shift(np.sqrt(2 * 4) / old.effective_multiplier("federation")[0], delta=delta, accountant="renyi")
    assert spent["federation"] == pytest.approx(true, rel=1e-12)
    assert spent["federation"] == pytest.approx(0.829, abs=5e-4)
    assert spent["region"] > 2.0  # "has spent its whole epsilon", were it charged to the federation
    assert new.rounds == 8
    assert new.epsilon("federation").max() <= 2.0 * (1 + 1e-12)
    for name in new.federation.silo_names.tolist():
        with Ledger.open(tmp_path / f"{name}.ledger", silo=name) as ledger:
            for round_number in range(1, 9):
                release(np.zeros(2), new, name, round_number, ledger=ledger)
            total = ledger.total_cost.shifts["federation"]
        assert epsilon_of_shift(math.sqrt(total), delta=new.target.accounted_delta, accountant="renyi") <= 2.0 * (
            1 + 1e-9
        )


TIERS = ("silo", "region", "federation")


def test_a_tier_that_is_new_is_charged_as_the_next_one_inside(tmp_path):
    old = fulcrum.plan(
        six_of_three(), rounds=10, epsilon={"federation": 2.0, "aggregator": 30.0}, parameters=2, purpose="deployment"
    )
    released_so_far(old, tmp_path, 2)
    lines = ["silo,records,region,country"]
    lines += [f"s{region}{silo},100,r{region},c{region % 2}" for region in range(6) for silo in range(3)]
    (tmp_path / "grown.csv").write_text("\n".join(lines) + "\n")
    new = replan(old, str(tmp_path / "grown.csv"), tmp_path)
    assert tuple(new.target.spent) == ("silo", "region", "country", "federation")
    assert (new.target.spent["country"] == new.target.spent["region"]).all()
    assert (new.target.spent["federation"] < new.target.spent["region"]).all()


def test_an_outer_tier_without_a_target_on_the_root_is_charged_as_the_region(tmp_path):
    """The server then goes on without a region that is missing, and with it without the noise counted on further out."""
    old = fulcrum.plan(
        six_of_three(), rounds=4, epsilon={"region": 2.0, "aggregator": 30.0}, parameters=2, purpose="deployment"
    )
    assert old.effective_multiplier("federation")[0] == old.effective_multiplier("region")[0]
    released_so_far(old, tmp_path, 1)
    with read_ledger(tmp_path / "s00.ledger") as ledger:
        spent = ledger.total_cost.shifts
    assert tuple(spent) == TIERS
    assert spent["federation"] == spent["region"] < spent["silo"]


def test_a_converted_ledger_without_its_plan_is_charged_as_inside_everywhere(tmp_path):
    old = fulcrum.plan(
        six_of_three(), rounds=10, epsilon={"federation": 2.0, "aggregator": 30.0}, parameters=2, purpose="deployment"
    )
    released_so_far(old, tmp_path, 1)
    with Ledger.open(tmp_path / "s00.ledger", silo="s00") as ledger:
        inside = ledger.total_cost.shifts["silo"]
    (tmp_path / "s00.ledger").unlink()
    with Ledger.open(tmp_path / "s00.ledger", silo="s00") as ledger:  # as a conversion without plans leaves it
        allowance = Allowance(plan_digest=old.digest, rounds=10, shifts={"silo": 10 * inside})
        ledger.enter_plan(allowance)
        ledger.record(allowance, round_number=1, input_digest="m", payload=b"x", cost=Cost(shifts={"silo": inside}))
    with pytest.raises(UnreachableTargetError, check=coded("target.budget-spent", silo="s00")):
        replan(old, six_of_three(), tmp_path)


def test_a_ledger_whose_tiers_are_in_another_order_is_not_replanned_from(tmp_path):
    old = fulcrum.plan(
        six_of_three(), rounds=10, epsilon={"region": 2.0, "aggregator": 30.0}, parameters=2, purpose="deployment"
    )
    released_so_far(old, tmp_path, 1)
    (tmp_path / "s00.ledger").unlink()
    with Ledger.open(tmp_path / "s00.ledger", silo="s00") as ledger:
        allowance = Allowance(plan_digest="p", rounds=10, shifts={"silo": 1.0, "federation": 1.0, "region": 1.0})
        ledger.enter_plan(allowance)
        ledger.record(
            allowance,
            round_number=1,
            input_digest="m",
            payload=b"x",
            cost=Cost(shifts=dict.fromkeys(allowance.shifts, 0.01)),
        )
    with pytest.raises(PlanError, check=coded("replan.spending-unknown")):
        replan(old, six_of_three(), tmp_path)
