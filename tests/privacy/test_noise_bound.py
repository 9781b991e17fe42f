"""The lower bound on noise, beside linear programs that try every coalition."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

import fulcrum
from fulcrum.planning.content.advice import advice_on
from fulcrum.planning.theory.allocation import Requirement, allocate, noise_variance
from fulcrum.planning.theory.noise_bound import noise_lower_bound


def least_by_program(federation, demands):
    """Returns the least noise by linear program: for each silo, node and coalition, what is left meets its need.

    Args:
        federation: Who reports to whom.
        demands: (tier, effective multiplier, silos of each region that may be gone), one for each target.
    """
    silos, region_of = len(federation), federation.innermost.parent_of
    rows, needs = [], []
    for tier, multiplier, gone in demands:
        node_of = np.arange(silos) if tier == "silo" else federation.membership(tier)
        for silo in range(silos):
            node = np.flatnonzero(node_of == node_of[silo])
            others = [
                [other for other in node if region_of[other] == region and other != silo]
                for region in np.unique(region_of[node])
            ]
            for parts in itertools.product(*(itertools.combinations(one, min(gone, len(one))) for one in others)):
                left = np.zeros(silos)
                left[node] = 1
                left[list(itertools.chain(*parts))] = 0
                rows.append(-left)
                needs.append(-((federation.weights[silo] * np.broadcast_to(multiplier, silos)[silo]) ** 2))
    scale = max(-np.array(needs))
    solved = linprog(
        np.ones(silos), A_ub=np.array(rows), b_ub=np.array(needs) / scale, bounds=(0, None), method="highs"
    )
    assert solved.status == 0
    return solved.fun * scale


def random_federation(drawn, nested=False):
    regions = {f"r{number}": drawn.choice([1, 2, 3, 5, 20, 100], drawn.integers(1, 5)) for number in range(3)}
    outer = {"country": {"x": ["r0", "r1"], "y": ["r2"]}} if nested else None
    sizes = {name: [float(size) for size in values] for name, values in regions.items()}
    return fulcrum.Federation.from_sizes(sizes, outer=outer)


@pytest.mark.parametrize("seed", range(40))
def test_with_one_target_the_bound_is_the_least_noise(seed):
    drawn = np.random.default_rng(seed)
    federation = random_federation(drawn, nested=seed % 2 == 1)
    tier = ["region", "federation", "country"][seed % 3 if seed % 2 else seed % 2]
    asked = drawn.uniform(0.2, 3, len(federation)) if seed % 4 == 3 else 1.0
    gone = int(drawn.integers(0, 4))
    requirement = Requirement(multiplier={tier: asked}, colluders=gone)
    least = least_by_program(federation, [(tier, asked, gone)])
    assert noise_lower_bound(federation, requirement) == pytest.approx(least, rel=1e-7)
    given = noise_variance(federation, allocate(federation, requirement)).sum()
    assert least <= given * (1 + 1e-7)


@pytest.mark.parametrize("seed", range(40))
def test_with_several_targets_the_bound_is_never_above_the_least_noise(seed):
    drawn = np.random.default_rng(100 + seed)
    federation = random_federation(drawn, nested=True)
    tiers = drawn.permutation(["silo", "region", "country", "federation"])[: drawn.integers(2, 5)]
    multiplier = {tier: float(drawn.uniform(0.3, 2)) for tier in tiers.tolist()}
    gone = int(drawn.integers(0, 4))
    requirement = Requirement(multiplier=multiplier, colluders=gone // 2, dropouts=gone - gone // 2)
    least = least_by_program(federation, [(tier, asked, gone) for tier, asked in multiplier.items()])
    bound = noise_lower_bound(federation, requirement)
    given = noise_variance(federation, allocate(federation, requirement)).sum()
    assert bound <= least * (1 + 1e-7)
    assert least <= given * (1 + 1e-7)
    if not gone:
        assert bound == pytest.approx(least, rel=1e-7)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("tier", ["region", "federation"])
def test_the_bound_counts_the_silo_that_helps_the_server_where_sums_are_masked(seed, tier):
    drawn = np.random.default_rng(200 + seed)
    federation = random_federation(drawn)
    gone = int(drawn.integers(0, 3))
    multiplier = {tier: 1.0, "silo": float(drawn.uniform(0.5, 1.5))}
    requirement = Requirement(multiplier=multiplier, colluders=gone, masked=True)
    least = least_by_program(federation, [(tier, 1.0, gone), (tier, multiplier["silo"], max(1, gone))])
    bound = noise_lower_bound(federation, requirement)
    assert bound <= least * (1 + 1e-7)
    assert bound >= 0.5 * least


HEAVY = {"a": [1000, 1000], "b": [1000], "c": [200] * 5}
MANY = {"a": [500] * 6, "b": [100] * 6, "c": [20] * 30}


def ratio_told(plan):
    """Returns how many times the least noise a plan says that it needs at most; None where it says nothing."""
    told = [advice.text for advice in advice_on(plan, merges=False) if advice.kind == "coalitions"]
    return float(told[0].partition("at most ")[2].partition(" times")[0]) if told else None


def test_the_ratio_that_a_plan_tells_is_not_below_the_true_one():
    """The advice once said about half as much noise again, where the linear program needs 2.21 times less."""
    federation = fulcrum.Federation.from_sizes(HEAVY)
    plan = fulcrum.plan(federation, rounds=10, epsilon={"federation": 1.0}, colluders=1)
    asked = plan.requirement.multiplier["federation"]
    true = plan.noise_budget / least_by_program(federation, [("federation", asked, 1)])
    assert true == pytest.approx(2.2069, abs=1e-3)
    assert true <= ratio_told(plan) <= true * 1.01
    five = fulcrum.plan(fulcrum.Federation.from_sizes(MANY), rounds=10, epsilon={"federation": 1.0}, colluders=5)
    assert ratio_told(five) == pytest.approx(4.86), "no constant bounds it"


@pytest.mark.parametrize("seed", range(15))
def test_the_ratio_told_covers_several_targets_and_helpers_of_a_server(seed):
    drawn = np.random.default_rng(300 + seed)
    federation = random_federation(drawn)
    masked, gone = bool(seed % 2), int(drawn.integers(0, 3))
    epsilon = {"federation": 1.0, "server+silo": 2.0} if masked else {"federation": 1.0, "region": 1.5}
    aggregation = "masked" if masked else "trusted"
    plan = fulcrum.plan(federation, rounds=10, epsilon=epsilon, colluders=gone, aggregation=aggregation)
    asked = plan.requirement.multiplier
    demands = [("federation", asked["federation"], gone)]
    demands += [("federation", asked["silo"], max(1, gone))] if masked else [("region", asked["region"], gone)]
    true = plan.noise_budget / least_by_program(federation, demands)
    told = ratio_told(plan)
    assert true <= (told or 1.0) * (1 + 1e-7)
    assert told is None or masked or gone, "without colluders the optimum is the least, and nothing is said"


def test_no_ratio_is_told_where_the_noise_is_the_least_there_is():
    assert ratio_told(fulcrum.plan("severe", rounds=10, epsilon={"federation": 1.0})) is None
    assert ratio_told(fulcrum.plan("severe", rounds=10, epsilon=1.0, colluders=2)) is None
    equal = fulcrum.Federation.from_sizes({"a": [1] * 4})
    assert ratio_told(fulcrum.plan(equal, rounds=10, epsilon={"federation": 1.0}, colluders=1)) is None


@pytest.mark.parametrize(
    ("options", "attainable"),
    [
        ({"epsilon": {"federation": 0.99}, "aggregation": "masked"}, 0.0),
        ({"epsilon": {"federation": 0.99}}, 0.0),
        ({"epsilon": {"aggregator": 3.0}}, 0.0),
        ({"epsilon": 0.99}, 1 - 5 * 4 / 96),
        ({"epsilon": 0.99, "allocation": "uniform"}, 1 - 5 * 4 / 96),
        ({"epsilon": 0.99, "aggregation": "masked"}, 1 - 5 * 4 / 96),
    ],
)
def test_what_can_be_saved_follows_from_the_targets_and_their_observers(options, attainable):
    plan = fulcrum.plan("severe", rounds=10, **options)
    assert plan.attainable_saving == pytest.approx(attainable, abs=1e-9)
    assert plan.saving <= plan.attainable_saving + 1e-9
    assert plan.dispersion == pytest.approx(1 - 5 * 4 / 96), "of the regions alone, as the file says"


@pytest.mark.parametrize("seed", range(10))
def test_no_allocation_saves_more_than_can_be_saved(seed):
    drawn = np.random.default_rng(400 + seed)
    federation = random_federation(drawn)
    epsilon = {"region": float(drawn.uniform(0.5, 2)), "federation": float(drawn.uniform(0.5, 2))}
    for allocation in ("optimal", "uniform", "size", "inverse-size"):
        plan = fulcrum.plan(federation, rounds=10, epsilon=epsilon, allocation=allocation, colluders=seed % 3)
        assert plan.saving <= plan.attainable_saving + 1e-9
