import math

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum import Coupling, Federation, ParameterError, UnreachableTargetError, plan
from fulcrum.planning.inputs.targets import Target
from fulcrum.planning.theory.prior import lateral_floor

SEVERE = {"rounds": 10, "delta": 1e-5, "accountant": "renyi"}


def preferring(values):
    names = [f"s{k}" for k in range(6)]
    return Federation.from_columns(
        silo=names,
        records=np.array([10.0, 20, 30, 40, 50, 60]),
        tiers={"region": ["a", "a", "a", "b", "b", "b"]},
        epsilon=np.array(values, float),
    )


def test_a_declared_preference_tightens_its_region_target():
    nan = math.nan
    made = plan(preferring([nan, 0.5, nan, nan, 9.0, nan]), rounds=5, epsilon=2.0)
    assert made.epsilon_above[1] <= 0.5
    assert made.epsilon_above[4] <= 2.0
    assert made.epsilon_above.max() <= 2.0
    without = plan(preferring([nan] * 6), rounds=5, epsilon=2.0)
    assert made.noise_budget > without.noise_budget
    with pytest.raises(ParameterError, check=coded("plan.silo-target-missing", silo="s0")):
        plan(preferring([nan, 0.5, 1.0, 1.0, 1.0, 1.0]), rounds=5)  # s0 would send its updates bare
    covered = plan(preferring([1.0, 0.5, 1.0, 1.0, 1.0, 1.0]), rounds=5)
    assert covered.epsilon_above[1] <= 0.5
    alone = plan(preferring([nan, 0.5, nan, nan, nan, 3.0]), rounds=5, epsilon={"aggregator": 50.0})
    assert alone.epsilon_above[1] <= 0.5
    assert alone.epsilon_above[5] <= 3.0


@pytest.mark.parametrize("allocation", ["optimal", "uniform", "size", "misallocated"])
def test_a_budget_buys_the_least_worst_epsilon(allocation):
    made = plan("isic-paper", rounds=10, budget=0.5, allocation=allocation)
    assert made.noise_budget == pytest.approx(0.5, rel=1e-11)
    best = plan("isic-paper", rounds=10, budget=0.5)
    assert best.epsilon_above.max() <= made.epsilon_above.max() * (1 + 1e-9)
    again = plan("isic-paper", rounds=10, epsilon=float(made.epsilon_above.max()), allocation=allocation)
    assert again.noise_budget == pytest.approx(0.5, rel=1e-9)


def test_a_budget_with_floors_is_the_papers_root():
    made = plan("severe", rounds=10, budget=0.5, floor=Coupling(20))
    federation = made.federation
    peak = (federation.weights[0]) ** 2
    floor_by_region = made.floor[[0, 60, 80, 88, 92]]
    root = made.target.information
    assert sum(2 * 10 * peak / (root - floor) for floor in floor_by_region) == pytest.approx(0.5, rel=1e-10)
    equal = plan("severe", rounds=10, budget=0.5, floor=0.85)
    assert equal.target.information == pytest.approx(0.85 + 2 * 10 * 5 * peak / 0.5, rel=1e-12)


def test_a_budget_that_buys_a_large_delta_is_found():
    made = plan("mild", rounds=1, budget=1e-4, delta=0.7)
    assert made.noise_budget == pytest.approx(1e-4, rel=1e-10)
    with pytest.raises(ParameterError, check=coded("target.budget-too-large")):
        plan("mild", rounds=1, budget=1e9, delta=0.7)


def test_a_budget_below_the_declared_preferences_is_unreachable():
    nan = math.nan
    federation = preferring([nan, 0.5, nan, nan, nan, nan])
    with pytest.raises(UnreachableTargetError, check=coded("target.budget-too-small")):
        plan(federation, rounds=5, budget=0.001)
    reachable = plan(federation, rounds=5, budget=20.0)
    assert reachable.noise_budget == pytest.approx(20.0, rel=1e-10)
    assert reachable.epsilon_above[1] <= 0.5


def test_floors_are_given_by_number_silo_region_or_coupling():
    mild = fulcrum.read_federation("mild")
    by_region = dict.fromkeys(mild.innermost.nodes, 0.2)
    plans = [
        plan(mild, rounds=10, information=1.0, floor=floor) for floor in (0.2, [0.2] * 96, np.full(96, 0.2), by_region)
    ]
    assert len({made.digest for made in plans}) == 1
    grouped = Federation.from_columns(
        silo=["a", "b", "c"], records=np.ones(3), tiers={"region": ["x", "y", "z"]}, group=["g", "g", "h"]
    )
    floor = plan(grouped, rounds=1, information=2.0, floor=Coupling(20)).floor
    assert floor[2] == 0
    assert floor[0] == floor[1] == lateral_floor(2, coupling=20)


@pytest.mark.parametrize(("name", "saving"), [("mild", 0.369), ("severe", 0.782), ("consortium", 0.832)])
def test_floors_by_group_size_lower_the_saving(name, saving):
    made = plan(name, rounds=10, information=2.2, floor=Coupling(20))
    assert made.saving == pytest.approx(saving, abs=1.5e-3)


def test_closed_forms_of_the_information_bound():
    federation = fulcrum.read_federation("isic-paper")
    floors = {name: 0.1 * k for k, name in enumerate(federation.innermost.nodes)}
    made = plan(federation, rounds=7, information=0.9, floor=floors)
    weights, region_of = federation.weights, federation.membership("region")
    for region, floor in enumerate(floors.values()):
        peak = (weights[region_of == region] ** 2).max()
        assert made.node_noise("region")[region] == pytest.approx(2 * 7 * peak / (0.9 - floor), rel=1e-12)
    learned = made.mechanism_information + made.floor
    assert learned.max() == pytest.approx(0.9, rel=1e-12)
    assert learned.max() <= 0.9


def test_the_papers_operating_point():
    paper = plan("severe", information=0.88, floor=0.85, bound="paper", **SEVERE)
    assert paper.effective_multiplier().min() == pytest.approx(25.82, abs=5e-3)
    assert paper.epsilon_above.max() == pytest.approx(0.99, abs=5e-4)
    capacity = plan("severe", information=0.88, floor=0.85, bound="capacity", **SEVERE)
    assert capacity.effective_multiplier().min() == pytest.approx(12.91, abs=5e-3)
    assert capacity.epsilon_above.max() == pytest.approx(2.12, abs=5e-3)


@pytest.mark.parametrize("accountant", ["exact", "renyi"])
def test_what_is_reserved_of_delta_is_not_there_for_the_accountant(accountant):
    federation = Federation.from_sizes({"a": [5, 3], "b": [7]})
    target = Target(rounds=10, delta=1e-5, accountant=accountant, epsilon={"region": 1.0}, reserve=4e-6)
    assert target.accounted_delta == 1e-5 - 4e-6
    asked = target.requirement(federation).multiplier["region"]
    assert asked == fulcrum.noise_for(1.0, rounds=10, delta=6e-6, accountant=accountant)
    assert asked > fulcrum.noise_for(1.0, rounds=10, delta=1e-5, accountant=accountant)
    tiny = Target(rounds=10, delta=1e-5, reserve=1e-30)  # less than a rounding of delta
    assert tiny.accounted_delta < 1e-5
    assert Target(rounds=10, delta=1e-5).accounted_delta == 1e-5


@pytest.mark.parametrize("aggregation", ["trusted", "masked"])
@pytest.mark.parametrize("observer", ["aggregator", "server+silo", "regoin", "", 7])
def test_a_figure_for_an_unknown_observer_is_refused_with_the_known_names(aggregation, observer):
    """In one masked group an unknown name would otherwise have the figure of an observer of the global sum."""
    made = fulcrum.plan("severe", rounds=3, epsilon={"federation": 1.0}, aggregation=aggregation)
    for figure in (made.effective_multiplier, made.epsilon, made.worst_epsilon, made.observer_power):
        with pytest.raises(ParameterError, check=coded("plan.observer-unknown", observer=observer)) as error:
            figure(observer)
        assert error.value.details["known"] == "silo, region, federation"
        assert ("Did you mean 'region'?" in error.value.remedy) == (observer == "regoin")
