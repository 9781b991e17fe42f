"""Weights: check values of theory, a convex program as the oracle, and plans that meet their targets with any of them."""

import msgspec
import numpy as np
import pytest
from error_codes import coded
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import fulcrum
from fulcrum.core.choices import WEIGHTS
from fulcrum.core.plan.plan_file import to_json
from fulcrum.core.remaining_noise import remaining_noise
from fulcrum.core.topology import ROOT, SILO
from fulcrum.errors import ParameterError
from fulcrum.planning.theory.allocation import Requirement, allocate, noise_variance
from fulcrum.planning.theory.weights import least_noise, region_shares, weights_by
from fulcrum.readers.federation import Federation
from fulcrum.readers.profiles import lognormal_sizes, profile

PROFILES = ("balanced", "mild", "severe", "consortium", "isic-paper", "isic-hospital", "tcga-brca")

# In q² C², for the profiles above.
NOISE = {
    "uniform": ("6.51e-4", "8.68e-4", "2.604e-3", "0.02", "0.346", "0.346", "0.0675"),
    "sizes": ("6.51e-4", "5.425e-4", "5.425e-4", "2.4e-3", "0.29615", "0.32472", "0.042767"),
    "equal": ("6.51e-4", "5.425e-4", "5.425e-4", "2.4e-3", "0.091078", "0.30816", "8.7674e-3"),
    "least-noise": ("6.51e-4", "4.9603e-4", "2.4414e-4", "9.6525e-4", "0.083333", "0.083333", "3.4602e-3"),
}


def noise_of(federation, multiplier, weights, *, excluded_silos=0):
    """The noise variance that these weights need, as the planner allocates it."""
    chosen = federation.with_weights(weights)
    return float(
        noise_variance(chosen, allocate(chosen, Requirement(multiplier=multiplier, colluders=excluded_silos))).sum()
    )


def half_of_the_last_digit(printed):
    mantissa, _, exponent = printed.partition("e")
    return 0.5 * 10 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("rule", NOISE)
def test_the_noise_of_every_profile_is_that_of_the_theory_to_the_digits_printed(name, rule):
    printed = NOISE[rule][PROFILES.index(name)]
    federation = profile(name)
    if rule == "uniform":
        multiplier = allocate(federation, Requirement(multiplier={"region": 1.0}), "uniform")
        found = float(noise_variance(federation, multiplier).sum())
    else:
        found = noise_of(federation, {"region": 1.0}, weights_by(rule, federation))
    assert found == pytest.approx(float(printed), abs=1.001 * half_of_the_last_digit(printed))
    if rule == "least-noise":
        assert least_noise(federation, {"region": 1.0}) == pytest.approx(found, rel=1e-12)


def test_the_federation_of_tcga_brca_is_that_of_the_theory():
    federation = profile("tcga-brca")
    assert federation.innermost.nodes == ("Northeast", "West", "South", "Midwest", "Europe", "Canada")
    assert (len(federation), federation.sizes.sum()) == (37, 1088)
    assert fulcrum.dispersion(federation) == pytest.approx(0.36647, abs=5e-6)


# ------------------------------------------------------------------------------------------------ against the oracle


def random_tree(seed, *, tiers, unequal):
    """A random federation with an outer tier, and what is asked of each silo at the tiers."""
    draw = np.random.default_rng(seed)
    regions = {f"r{k}": draw.lognormal(3, 0.8, draw.integers(1, 5)).tolist() for k in range(draw.integers(2, 5))}
    names = list(regions)
    half = draw.integers(1, len(names))
    outer = {"country": {"a": names[:half], "b": names[half:]}}
    federation = Federation.from_sizes(regions, outer=outer)
    scale = np.cumprod(draw.uniform(1.0, 1.8, len(tiers)))
    spread = [draw.uniform(0.5, 1.7, len(federation)) if unequal else 1.0 for _ in tiers]
    return federation, {tier: scale[k] * spread[k] for k, tier in enumerate(tiers)}


def optimum(federation, multiplier, share):
    """The least of (1 - share) |b - w|² + share U(b), q scaled to mean square 1, by sequential quadratic programming.

    Variables are the weights and the roots T of the noise of every node: q b <= T, |T of the children| <= T.
    """
    tiers = [tier for tier in federation.tier_names if tier in multiplier]
    silos = len(federation)
    asked = {tier: np.broadcast_to(multiplier[tier], silos) for tier in tiers}
    scale = np.sqrt(np.mean(np.max([asked[tier] for tier in tiers], axis=0) ** 2))
    places = [federation.membership(tier) for tier in tiers]
    starts = silos + np.concatenate([[0], np.cumsum([place.max() + 1 for place in places])])
    wished = federation.sizes / federation.sizes.sum() * silos

    def room(x):
        found = [x[starts[k] + places[k]] - asked[tier] / scale * x[:silos] for k, tier in enumerate(tiers)]
        for k in range(len(tiers) - 1):
            inner, above = x[starts[k] : starts[k + 1]], x[starts[k + 1] : starts[k + 2]]
            parent = np.zeros(len(inner), dtype=int)
            parent[places[k]] = places[k + 1]
            found.append(above**2 - np.bincount(parent, weights=inner**2, minlength=len(above)))
        return np.concatenate(found)

    def objective(x):
        return (1 - share) * ((x[:silos] - wished) ** 2).sum() + share * (x[starts[-2] :] ** 2).sum()

    begin = np.concatenate([np.ones(silos), np.full(starts[-1] - silos, 20.0)])
    found = minimize(
        objective,
        begin,
        method="SLSQP",
        bounds=[(0, None)] * len(begin),
        constraints=[{"type": "eq", "fun": lambda x: x[:silos].sum() - silos}, {"type": "ineq", "fun": room}],
        options={"ftol": 1e-15, "maxiter": 3000},
    )
    return value_of(federation, multiplier, found.x[:silos] / found.x[:silos].sum(), share)


def value_of(federation, multiplier, weights, share):
    strictest = np.max([np.broadcast_to(asked, len(federation)) for asked in multiplier.values()], axis=0)
    wished = federation.sizes / federation.sizes.sum()
    noise = noise_of(federation, multiplier, weights) / np.mean(strictest**2)
    return (1 - share) * ((weights - wished) ** 2).sum() + share * noise


ONE_TIER = [(SILO,), ("region",), ("country",), (ROOT,)]
SEVERAL = [
    (SILO, "region"),
    ("region", "country"),
    ("region", ROOT),
    (SILO, "region", "country"),
    (SILO, "region", "country", ROOT),
]


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("tiers", ONE_TIER + SEVERAL)
@pytest.mark.parametrize("share", [1.0, 0.9, 0.3])
def test_weights_are_the_optimum_of_the_convex_program(tiers, unequal, share):
    for seed in range(3):
        federation, multiplier = random_tree(seed, tiers=tiers, unequal=unequal)
        weights = weights_by("least-noise" if share == 1 else share, federation, multiplier)
        assert weights.sum() == pytest.approx(1, abs=1e-14)
        mine, best = value_of(federation, multiplier, weights, share), optimum(federation, multiplier, share)
        assert mine == pytest.approx(best, rel=1e-8)


@pytest.mark.parametrize("tiers", SEVERAL)
def test_the_least_noise_on_several_tiers_is_what_a_plan_then_needs(tiers):
    federation, multiplier = random_tree(7, tiers=tiers, unequal=True)
    weights = weights_by("least-noise", federation, multiplier)
    assert least_noise(federation, multiplier) == pytest.approx(noise_of(federation, multiplier, weights), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.floats(0.01, 0.99), other=st.integers(0, 10**6))
def test_no_other_weights_have_less_noise_or_lie_nearer_at_its_price(seed, share, other):
    federation, multiplier = random_tree(seed, tiers=("region", "country"), unequal=seed % 2 == 0)
    weights = weights_by(share, federation, multiplier)
    another = weights * np.random.default_rng(other).lognormal(0, 0.05, len(weights))
    another /= another.sum()
    mine = value_of(federation, multiplier, weights, share)
    assert mine <= value_of(federation, multiplier, another, share) * (1 + 1e-9)


@pytest.mark.parametrize("tiers", [("region",), (SILO, "region"), ("region", "country", ROOT)])
def test_along_the_path_noise_falls_and_weights_leave_sizes(tiers):
    federation, multiplier = random_tree(3, tiers=tiers, unequal=True)
    path = [weights_by(t, federation, multiplier) for t in (0, 0.05, 0.2, 0.5, 0.8, 0.95, 0.999, 1)]
    noise = [noise_of(federation, multiplier, weights) for weights in path]
    away = [float(((weights - path[0]) ** 2).sum()) for weights in path]
    assert noise == sorted(noise, reverse=True)
    assert away == sorted(away)
    assert np.array_equal(path[0], weights_by("sizes", federation))
    assert np.array_equal(path[-1], weights_by("least-noise", federation, multiplier))
    assert path[-2] == pytest.approx(path[-1], abs=0.01)


def test_proportions_of_what_is_asked_alone_count():
    federation, multiplier = random_tree(5, tiers=("region", "country"), unequal=True)
    scaled = {tier: 1e4 * asked for tier, asked in multiplier.items()}
    assert weights_by(0.6, federation, scaled) == pytest.approx(weights_by(0.6, federation, multiplier), rel=1e-7)


def test_many_silos_in_many_regions_take_seconds_at_most():
    draw = np.random.default_rng(0)
    regions = {f"r{k}": [1.0] * int(m) for k, m in enumerate(draw.integers(1, 60, 400))}
    federation = Federation.from_sizes(regions)
    weights = weights_by("least-noise", federation, {SILO: 1.0, "region": 5.0})
    mine = noise_of(federation, {SILO: 1.0, "region": 5.0}, weights)
    # A region of m silos needs max(25, m) a squared weight: those are least at m / max(25, m), by Cauchy and Schwarz.
    members = np.array([len(sizes) for sizes in regions.values()])
    assert mine == pytest.approx(1 / (members**2 / np.maximum(25, members)).sum(), rel=1e-8)


def test_a_tier_that_asks_of_some_silos_alone_is_heeded():
    federation = Federation.from_sizes(
        {"north": [1, 1], "south": [1, 1]}, outer={"country": {"all": ["north", "south"]}}
    )
    multiplier = {"region": np.array([2.0, 2.0, 0.0, 0.0]), "country": 1.0}
    weights = weights_by("least-noise", federation, multiplier)
    # With b in the north and a in the south the noise is max(4 b², a²) at 2 a + 2 b = 1, least where a = 2 b.
    assert weights == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3], rel=1e-6)
    assert noise_of(federation, multiplier, weights) == pytest.approx(1 / 9, rel=1e-8)


# ------------------------------------------------------------------------------------------- colluders and dropouts


def test_with_colluders_a_region_counts_by_m_times_m_less_those_whose_noise_does_not_count():
    severe = profile("severe")
    weights = weights_by("least-noise", severe, excluded_silos=2)
    members = np.array([60, 20, 8, 4, 4])
    expected = members * (members - 2) / (members * (members - 2)).sum()
    assert np.bincount(severe.innermost.parent_of, weights=weights) == pytest.approx(expected, rel=1e-12)
    least = least_noise(severe, {"region": 3.0}, excluded_silos=2)
    assert noise_of(severe, {"region": 3.0}, weights, excluded_silos=2) == pytest.approx(least, rel=1e-12)
    assert noise_of(severe, {"region": 3.0}, weights_by("least-noise", severe), excluded_silos=2) > least


def test_a_region_of_colluders_alone_keeps_its_own_noise():
    federation = Federation.from_sizes({"pair": [1, 1], "four": [1, 1, 1, 1]})
    weights = weights_by("least-noise", federation, excluded_silos=3)  # as much noise as if every silo were alone
    assert np.bincount(federation.innermost.parent_of, weights=weights) == pytest.approx([1 / 3, 2 / 3])


@pytest.mark.parametrize("tiers", ONE_TIER + SEVERAL)
@pytest.mark.parametrize("rule", [*WEIGHTS, 0.5])
def test_whatever_the_weights_a_plan_meets_its_targets_against_coalitions(tiers, rule):
    federation, _ = random_tree(11, tiers=tiers, unequal=False)
    names = ["aggregator" if tier == SILO else tier for tier in tiers]
    epsilon = dict(zip(names, (8.0, 2.0, 1.0, 0.5), strict=False))
    plan = fulcrum.plan(federation, rounds=4, epsilon=epsilon, weights=rule, colluders=1, dropouts=1)
    for tier, promised in plan.epsilon_target.items():
        left = remaining_noise(plan.federation, plan.noise_variance, tier=tier, excluded_silos=2)
        needed = np.broadcast_to(plan.requirement.multiplier[tier], len(federation))
        assert (np.sqrt(left) / plan.weights >= needed * (1 - 1e-12)).all()
        assert plan.worst_epsilon(tier) <= promised
    assert all(check.holds for check in fulcrum.verify(plan))


# --------------------------------------------------------------------------------------------------- unequal targets


def test_preferences_give_the_stricter_silo_less_weight():
    sizes, regions = [100.0] * 4, ["north"] * 3 + ["south"]
    federation = Federation.from_columns(
        silo=list("abcd"),
        records=np.array(sizes),
        tiers={"region": regions},
        epsilon=np.array([0.5, np.nan, np.nan, np.nan]),
    )
    plan = fulcrum.plan(federation, rounds=5, epsilon=2.0, weights="least-noise")
    q = plan.requirement.multiplier["region"]
    mass = np.array([(1 / q[:3]).sum(), 1 / q[3]])
    assert plan.weights == pytest.approx(np.array([mass[0]] * 3 + [mass[1]]) / q / (mass**2).sum(), rel=1e-12)
    assert plan.noise_budget == pytest.approx(1 / (mass**2).sum(), rel=1e-12)
    assert plan.weights[0] < plan.weights[1]


def test_floors_by_group_are_unequal_targets_too():
    federation = profile("severe")
    plan = fulcrum.plan(federation, rounds=10, information=0.9, floor=fulcrum.Coupling(0.5), weights="least-noise")
    q = plan.requirement.multiplier["region"]
    assert q.min() < q.max()
    assert plan.noise_budget == pytest.approx(least_noise(federation, {"region": q}), rel=1e-9)
    assert (
        plan.noise_budget
        < fulcrum.plan(federation, rounds=10, information=0.9, floor=fulcrum.Coupling(0.5)).noise_budget
    )


# ---------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            "size",
            "unknown weights 'size'. Known: sizes, equal, least-noise, a number from 0 to 1. Did you mean 'sizes'?",
        ),
        (1.5, "weights must be one of sizes, equal, least-noise, a number from 0 to 1 or a mapping, got 1.5"),
        (True, "weights must be one of sizes, equal, least-noise, a number from 0 to 1 or a mapping, got True"),
        ({"a": 1}, "weights have no value for silo 'b'. Give a weight for each silo"),
        *(
            (
                {"a": 1, "b": value},
                f"weights must be numbers above 0 and at most 1e+100 for every silo, got {shown} for 'b'",
            )
            for value, shown in (
                (0, "0"),
                (-1.0, "-1.0"),
                ("many", "many"),
                ("3", "3"),
                (True, "True"),
                (float("nan"), "nan"),
                (1 + 2j, "(1+2j)"),
                (None, "None"),
                (1.7e308, "1.7e+308"),  # two of them have no sum
                (10**400, "1" + 39 * "0"),
            )
        ),
        (
            "declared",
            "weights='declared' need a weight for every silo, and x has no weights. Add a column weight, or give weights by silo",
        ),
    ],
)
def test_weights_that_mean_nothing_are_refused_in_one_line(rule, message):
    federation = Federation.from_sizes({"north": {"a": 1}, "south": {"b": 2}}, name="x")
    with pytest.raises(ParameterError) as caught:
        weights_by(rule, federation)
    assert str(caught.value) == message


# --------------------------------------------------------------------------------------------------- least influence


@pytest.mark.parametrize("least", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("rule", ["equal", "least-noise", 0.9])
@pytest.mark.parametrize("server", ["sum", "random-effects"])
def test_every_region_keeps_the_least_influence_that_was_asked_for_and_no_more_is_given_up(least, rule, server):
    federation = lognormal_sizes(profile("severe"), seed=1)
    plan = fulcrum.plan(federation, rounds=10, epsilon=1.0, weights=rule, server=server, least_influence=least)
    share, has = region_shares(federation), plan.node_influence("region")
    assert has.sum() == pytest.approx(1)
    assert (has >= least * share * (1 - 1e-12)).all()
    free = fulcrum.plan(federation, rounds=10, epsilon=1.0, weights=rule, server=server).node_influence("region")
    if (free < least * share).any():
        assert (has / share).min() == pytest.approx(least, rel=1e-12)  # the smallest mix that does
    else:
        assert has == pytest.approx(free, rel=1e-12)
    assert all(check.holds for check in fulcrum.verify(plan))


def test_least_influence_is_checked_and_left_out_of_plans_that_do_not_ask_for_it():
    plain = fulcrum.plan("severe", rounds=10, epsilon=1.0)
    assert not {"least_influence", "influence_mix"} & set(msgspec.json.decode(to_json(plain.content()))["settings"])
    for wrong in (-0.1, 1.1, float("nan"), True, "half"):
        with pytest.raises(ParameterError, check=coded("plan.least-influence-range")):
            fulcrum.plan("severe", rounds=10, epsilon=1.0, least_influence=wrong)


@pytest.mark.parametrize("differing", [False, True])
def test_weights_between_sizes_and_least_noise_are_found_without_sorting_silos_at_every_step(monkeypatch, differing):
    """Sorting takes far longer than all the rest, and the order hardly changes from one step to the next."""
    rng = np.random.default_rng(0)
    federation = Federation.from_sizes({f"r{k}": rng.integers(1, 5000, 50).tolist() for k in range(20)})
    asked = rng.uniform(1, 20, 1000) if differing else 1.0
    sorting, steps = np.lexsort, []
    monkeypatch.setattr(np, "lexsort", lambda keys: steps.append(1) or sorting(keys))
    weights = weights_by(0.5, federation, {"region": asked})
    assert len(steps) <= (40 if differing else 1)
    scaled = np.broadcast_to(asked, 1000) / np.sqrt(np.mean(np.broadcast_to(asked, 1000) ** 2))
    lost, capped = weights - weights_by("sizes", federation), []
    for region in range(20):  # the conditions of the optimum: one shift for all that are not capped
        members = federation.innermost.parent_of == region
        cap = (weights * scaled)[members].max()
        capped.append(members & (weights * scaled >= cap * (1 - 1e-9)))
    free = ~np.any(capped, axis=0)
    assert np.ptp(lost[free]) < 1e-12
    assert (lost[~free] <= lost[free].max() + 1e-12).all()
