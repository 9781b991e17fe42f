import numpy as np
import pytest
from error_codes import coded
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from fulcrum.core.remaining_noise import remaining_noise
from fulcrum.core.topology import SILO
from fulcrum.errors import AllocationError, ParameterError, UnreachableTargetError
from fulcrum.planning.theory.allocation import ALLOCATIONS, Requirement, allocate, load_allocation, noise_variance
from fulcrum.planning.theory.exposure import dispersion
from fulcrum.readers.federation import Federation
from fulcrum.readers.profiles import profile

TOLERANCE = 1e-7  # of the linear program, not of the solver


def random_tree(seed: int, tiers: int) -> Federation:
    """A federation of one to four tiers with unequal silos and branching."""
    rng = np.random.default_rng(seed)
    regions = rng.integers(1, 7)
    silos = {f"r{k}": rng.lognormal(0, 0.7, rng.integers(1, 6)).tolist() for k in range(regions)}
    outer: dict[str, dict[str, list[str]]] = {}
    children = list(silos)
    for depth in range(1, tiers):
        nodes: dict[str, list[str]] = {}
        for child in children:
            nodes.setdefault(f"n{depth}-{rng.integers(0, max(1, len(children) // 2) + 1)}", []).append(child)
        outer[f"tier{depth}"] = nodes
        children = list(nodes)
    return Federation.from_sizes(silos, outer=outer)


def random_requirement(federation: Federation, seed: int, *, by_silo: bool = True) -> Requirement:
    rng = np.random.default_rng(seed + 1)
    asked = {}
    for tier in federation.tier_names:
        if rng.random() < 0.7 or tier == "region":
            q = rng.lognormal(0, 0.7)
            varies = by_silo and rng.random() < 0.5
            asked[tier] = q * rng.uniform(0.5, 1.5, len(federation)) if varies else float(q)
    return Requirement(multiplier=asked)


def constraints(federation: Federation, requirement: Requirement) -> tuple[np.ndarray, np.ndarray]:
    """Rows: for each silo and tier, minus the sum of the node's noise is at most minus the need."""
    rows, needs = [], []
    for tier, asked in requirement.multiplier.items():
        node_of = federation.membership(tier)
        need = (federation.weights * asked) ** 2
        for silo in range(len(federation)):
            rows.append(-(node_of == node_of[silo]).astype(float))
            needs.append(-need[silo])
    return np.array(rows), np.array(needs)


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 10_000), tiers=st.integers(1, 4))
def test_the_tree_solver_is_the_linear_programs_optimum(seed, tiers):
    federation = random_tree(seed, tiers)
    requirement = random_requirement(federation, seed)
    found = noise_variance(federation, allocate(federation, requirement))
    a_ub, b_ub = constraints(federation, requirement)
    scale = -b_ub.min()
    oracle = linprog(np.ones(len(federation)), A_ub=a_ub, b_ub=b_ub / scale, method="highs")
    assert found.sum() == pytest.approx(oracle.fun * scale, rel=TOLERANCE)
    assert (a_ub @ found <= b_ub * (1 - 1e-12)).all()


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 10_000), tiers=st.integers(1, 4))
def test_its_smallest_multiplier_is_the_largest_possible_at_that_total(seed, tiers):
    federation = random_tree(seed, tiers)
    requirement = random_requirement(federation, seed)
    multiplier = allocate(federation, requirement)
    squared, silos = federation.weights**2, len(federation)
    total = noise_variance(federation, multiplier).sum()
    # Variables: sigma² by silo, then t. Maximise t with sigma² >= t, the total fixed, every need met.
    a_ub, b_ub = constraints(federation, requirement)
    meets = np.hstack([a_ub * squared, np.zeros((len(a_ub), 1))])
    least = np.hstack([-np.eye(silos), np.ones((silos, 1))])
    spend = np.append(squared, 0.0)[None, :]
    scale = total / squared.sum()
    oracle = linprog(
        np.append(np.zeros(silos), -1.0),
        A_ub=np.vstack([meets / squared.sum(), least, spend / squared.sum()]),
        b_ub=np.concatenate([b_ub / scale / squared.sum(), np.zeros(silos), [1 + 1e-9]]),
        method="highs",
    )
    assert multiplier.min() ** 2 == pytest.approx(-oracle.fun * scale, rel=1e-3)  # the program's slack, in t


def test_two_tiers_share_the_shortfall():
    federation = Federation.from_sizes({"one": [0.5], "many": [0.05] * 10}, outer={"country": {"all": ["one", "many"]}})
    multiplier = allocate(federation, Requirement(multiplier={"region": 1.0, "country": 2.0}))
    assert noise_variance(federation, multiplier).sum() == pytest.approx(1, rel=1e-12)
    assert multiplier**2 == pytest.approx(np.full(11, 1 / 0.275), rel=1e-12)


def test_only_the_lowest_levels_are_raised():
    # The region of one already has more than the common level: the other region makes up the country's shortfall alone.
    federation = Federation.from_sizes({"a": [1.0], "b": [1.0] * 4}, outer={"country": {"all": ["a", "b"]}})
    multiplier = allocate(federation, Requirement(multiplier={"region": 1.0, "country": 1.5}))
    # need of the country 2.25 / 25; region a has 1 / 25, b gets the other 1.25 / 25 over four silos
    assert multiplier**2 == pytest.approx([1, *[1.25 / 4] * 4], rel=1e-12)


@given(seed=st.integers(0, 10_000))
def test_one_tier_is_the_papers_theorem(seed):
    federation = random_tree(seed, 1)
    asked = np.random.default_rng(seed).uniform(1, 3, len(federation))
    multiplier = allocate(federation, Requirement(multiplier={"region": asked}))
    region_of, squared = federation.membership("region"), federation.weights**2
    for region in range(len(federation.innermost.nodes)):
        members = region_of == region
        needed = (squared[members] * asked[members] ** 2).max()
        assert multiplier[members] ** 2 == pytest.approx(needed / squared[members].sum(), rel=1e-12)


@pytest.mark.parametrize("name", ["mild", "severe", "consortium", "cellular", "isic-paper", "isic-hospital"])
@pytest.mark.parametrize("colluders", [0, 1, 2])
def test_the_saving_is_the_dispersion(name, colluders):
    federation = profile(name)
    requirement = Requirement(multiplier={"region": 25.8}, colluders=colluders)
    optimal = noise_variance(federation, allocate(federation, requirement)).sum()
    uniform = noise_variance(federation, allocate(federation, requirement, "uniform")).sum()
    assert 1 - optimal / uniform == pytest.approx(dispersion(federation, colluders=colluders), abs=1e-12)


@pytest.mark.parametrize("name", ["balanced", "balanced-4"])
def test_equally_exposed_regions_make_every_rule_the_same_to_the_bit(name):
    federation = profile(name)
    requirement = Requirement(multiplier={"region": 25.8})
    optimal = allocate(federation, requirement)
    assert (allocate(federation, requirement, "uniform") == optimal).all()
    assert allocate(federation, requirement, "misallocated") == pytest.approx(optimal, rel=1e-15)


def test_the_size_rule_is_the_optimum_for_equal_silos_and_costs_more_otherwise():
    def cost(federation, rule):
        requirement = Requirement(multiplier={"region": 1.0})
        return noise_variance(federation, allocate(federation, requirement, rule)).sum()

    severe, paper, hospital = profile("severe"), profile("isic-paper"), profile("isic-hospital")
    assert cost(severe, "size") == pytest.approx(cost(severe, "optimal"), rel=1e-12)
    assert cost(paper, "size") / cost(paper, "optimal") == pytest.approx(1.058, abs=5e-4)
    assert cost(hospital, "size") / cost(hospital, "optimal") == pytest.approx(1.663, abs=5e-4)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), tiers=st.integers(1, 3), colluders=st.integers(0, 3))
def test_every_allocation_meets_every_need_and_none_needs_less_than_the_optimum(seed, tiers, colluders):
    federation = random_tree(seed, tiers)
    asked = random_requirement(federation, seed, by_silo=False).multiplier
    requirement = Requirement(multiplier=asked, colluders=colluders)
    rules = ["optimal", "uniform", "size", "inverse-size", "misallocated"]
    totals = {}
    for rule in rules:
        multiplier = allocate(federation, requirement, rule, seed=seed)
        variance = noise_variance(federation, multiplier)
        totals[rule] = variance.sum()
        for tier, q in asked.items():
            present = remaining_noise(federation, variance, tier=tier, excluded_silos=colluders)
            assert (np.sqrt(present) / federation.weights >= q * (1 - 1e-14)).all()
    if colluders == 0:
        assert totals["optimal"] <= min(totals.values()) * (1 + 1e-12)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10_000), colluders=st.integers(1, 4), silos=st.integers(1, 6))
def test_least_noise_under_collusion_is_the_linear_programs_optimum(seed, colluders, silos):
    from itertools import combinations

    rng = np.random.default_rng(seed)
    federation = Federation.from_sizes({"r": rng.lognormal(0, 1, silos).tolist()})
    asked = rng.uniform(0.5, 2, silos)
    requirement = Requirement(multiplier={"region": asked}, colluders=colluders)
    found = noise_variance(federation, allocate(federation, requirement, "least-under-collusion"))
    need = (federation.weights * asked) ** 2
    rows, needs = [], []
    for silo in range(silos):  # every coalition of the others, spelt out
        others = [other for other in range(silos) if other != silo]
        for coalition in combinations(others, min(colluders, len(others))):
            rows.append([-float(other not in coalition) for other in range(silos)])
            needs.append(-need[silo])
    oracle = linprog(np.ones(silos), A_ub=rows, b_ub=np.array(needs) / need.max(), method="highs")
    assert found.sum() == pytest.approx(oracle.fun * need.max(), rel=TOLERANCE)
    assert (np.array(rows) @ found <= np.array(needs) * (1 - 1e-13)).all()


def test_least_noise_on_the_known_example():
    federation = Federation.from_sizes({"r": [1.0, 1.0, *[0.1] * 8]})
    requirement = Requirement(multiplier={"region": 1.0}, colluders=1)
    need = federation.weights.max() ** 2
    constant = noise_variance(federation, allocate(federation, requirement)).sum() / need
    least = noise_variance(federation, allocate(federation, requirement, "least-under-collusion")).sum() / need
    assert constant == pytest.approx(1.93, abs=5e-3)
    assert least == pytest.approx(1.11, abs=5e-3)


def test_least_noise_takes_the_innermost_tier_alone():
    with pytest.raises(ParameterError, check=coded("allocation.tiers-unsupported", tier="region")):
        allocate(
            profile("mild"), Requirement(multiplier={"region": 1.0, SILO: 1.0}, colluders=1), "least-under-collusion"
        )


def test_misallocated_deals_the_same_multipliers_in_another_order():
    federation = profile("severe")
    requirement = Requirement(multiplier={"region": 1.0})
    optimal = allocate(federation, requirement)
    dealt = allocate(federation, requirement, "misallocated", seed=3)
    by_region = [np.unique(dealt[federation.membership("region") == region]) for region in range(5)]
    assert all(len(values) == 1 for values in by_region)
    ratio = np.sort(np.concatenate(by_region)) / np.sort(np.unique(optimal)[[0, 1, 2, 3, 3]])
    assert ratio == pytest.approx(ratio[0])
    seeds = {tuple(allocate(federation, requirement, "misallocated", seed=seed).round(9)) for seed in range(8)}
    assert len(seeds) > 1
    again = allocate(federation, requirement, "misallocated", seed=3)
    assert (again == dealt).all()


def test_very_large_regions_are_not_left_short_by_rounding():
    federation = Federation.from_sizes({"big": [0.1] * 300_000, "small": [0.3]})
    multiplier = allocate(federation, Requirement(multiplier={"region": 7.0}))
    present = remaining_noise(federation, noise_variance(federation, multiplier), tier="region")
    assert (np.sqrt(present) / federation.weights >= 7.0).all()


def doubled_in_the_first_region(federation, requirement):
    return np.where(federation.membership("region") == 0, 2.0, 1.0)


@pytest.mark.parametrize("how", ["callable", "name"])
def test_a_users_own_allocation_is_scaled_to_the_same_target(how):
    federation = profile("mild")
    requirement = Requirement(multiplier={"region": 5.0})
    own = doubled_in_the_first_region if how == "callable" else f"{__name__}:doubled_in_the_first_region"
    multiplier = allocate(federation, requirement, own)
    assert multiplier[0] / multiplier[-1] == pytest.approx(2)
    present = remaining_noise(federation, noise_variance(federation, multiplier), tier="region")
    assert (np.sqrt(present) / federation.weights).min() == pytest.approx(5.0, rel=1e-12)


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda f, r: np.ones(3), "must return one noise multiplier for each of 96 silos, got an array of shape (3,)"),
        (lambda f, r: np.full(len(f), np.nan), "the noise multiplier of silo 'region-1-1' must be finite"),
        (lambda f, r: -np.ones(len(f)), "must be finite and at least 0, got -1.0"),
        (
            lambda f, r: np.zeros(len(f)),
            "gives no noise against an observer of the tier 'region' at 'region-1'",
        ),
        (lambda f, r: "noise", "failed: ValueError: could not convert string to float"),
    ],
)
def test_a_broken_allocation_is_refused_with_the_reason(function, line):
    with pytest.raises(AllocationError) as caught:
        allocate(profile("mild"), Requirement(multiplier={"region": 1.0}), function)
    assert line in str(caught.value)


def test_unknown_allocations_are_refused_with_the_nearest():
    with pytest.raises(ParameterError, check=coded("allocation.name-unknown", allocation="optimum")):
        allocate(profile("mild"), Requirement(multiplier={"region": 1.0}), "optimum")
    with pytest.raises(AllocationError, check=coded("allocation.not-loadable")):
        load_allocation("no_such_module:function")
    with pytest.raises(AllocationError, check=coded("allocation.not-loadable")):
        load_allocation("math:no_such_function")
    with pytest.raises(AllocationError, check=coded("allocation.not-callable")):
        load_allocation("math:pi")
    assert set(ALLOCATIONS) >= {"optimal", "uniform", "size", "inverse-size", "misallocated"}


def test_a_requirement_that_asks_nothing_or_everything_is_refused():
    with pytest.raises(ParameterError, check=coded("plan.target-missing")):
        allocate(profile("mild"), Requirement(multiplier={}))
    with pytest.raises(UnreachableTargetError, check=coded("allocation.noise-infinite")):
        allocate(profile("mild"), Requirement(multiplier={"region": np.inf}))
