import math

import numpy as np
import pytest
from error_codes import coded
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from fulcrum.errors import ParameterError, UnreachableTargetError
from fulcrum.planning.theory.calibration import epsilon_of
from fulcrum.planning.theory.leakage import (
    BOUNDS,
    cost_of_coupling,
    finest_resolution,
    information_bound,
    informativeness,
    mechanism_information,
    multiplier_for_information,
    quantised_entropy,
)
from fulcrum.planning.theory.prior import Coupling, lateral_floor, prior_entropy

approx = pytest.approx
SEVERE = (60, 20, 8, 4, 4)
COUPLINGS = st.floats(math.log(0.05), math.log(1e6)).map(math.exp)
SIZES = st.one_of(st.integers(1, 80), st.integers(1, 10**9), st.just(math.inf))
LEVELS = st.sampled_from([None, 4, 400])
CHANNELS = {
    "rounds": st.integers(1, 1000),
    "bound": st.sampled_from(BOUNDS),
    "parameters": st.none() | st.integers(1, 10**6),
}


def group_means(nodes):
    """Gauss-Legendre quadrature of Beta(2, 2) in panels of 20 nodes, equal in arcsin(sqrt(phi))."""
    node, weight = np.polynomial.legendre.leggauss(20)
    panel = math.pi * 10 / nodes
    angle = (panel * (np.arange(nodes // 20)[:, None] + (node + 1) / 2)).ravel()
    return np.sin(angle) ** 2, np.tile(weight * panel / 2, nodes // 20) * 12 * (np.sin(angle) * np.cos(angle)) ** 3


def members(coupling, nodes, reach, waist=1.0, means=400):
    """Quadrature weights of the group mean, and the mass of one member at nodes of its logit given each mean."""
    phi, weight = group_means(means)
    w = np.linspace(-math.asinh(reach / waist), math.asinh(reach / waist), nodes)
    x, dx = waist * np.sinh(w), waist * np.cosh(w) * (w[1] - w[0])
    a, b = coupling * phi[:, None], coupling * (1 - phi[:, None])
    return weight, np.exp(a * x - coupling * np.logaddexp(0, x) - special.betaln(a, b)) * dx


def level_masses(coupling, levels, means=400):
    """The mass of one member in each level given each mean."""
    phi = group_means(means)[0][:, None]
    return np.diff(special.betainc(coupling * phi, coupling * (1 - phi), np.linspace(0, 1, levels + 1)))


def divergence_from_independence(joint):
    joint = joint / joint.sum()
    return special.rel_entr(joint, joint.sum(1, keepdims=True) * joint.sum(0)).sum()


@pytest.mark.parametrize(
    ("size", "nats"),
    [
        (1, 0),
        (2, 0.613),
        (4, 0.782),
        (8, 0.854),
        (12, 0.875),
        (20, 0.893),
        (24, 0.898),
        (30, 0.902),
        (60, 0.910),
        (math.inf, 0.919),
    ],
)
def test_the_floor_agrees_with_the_table_of_the_theory_at_coupling_20(size, nats):
    assert lateral_floor(size, coupling=20) == approx(nats, abs=3e-3)


@pytest.mark.parametrize(("coupling", "saturation"), [(5, 0.492), (20, 0.919), (100, 1.622)])
def test_the_floor_saturates_where_the_theory_says(coupling, saturation):
    assert lateral_floor(math.inf, coupling=coupling) == approx(saturation, abs=1e-3)


@pytest.mark.parametrize(("coupling", "nats"), [(5, 0.480), (100, 1.612)])
def test_the_floor_of_a_group_of_60_agrees_with_the_theory(coupling, nats):
    # The theory quantises the others too, which lowers its figures a little.
    assert nats < lateral_floor(60, coupling=coupling) < nats + 4e-3


@pytest.mark.parametrize(
    ("coupling", "reach", "waist"),
    [(0.05, 1e5, 5.0), (1, 5e3, 1.0), (5, 500, 1.0), (20, 100, 1.0), (200, 30, 2.0), (1400, 9, 9.0), (2e4, 9, 9.0)],
)
@pytest.mark.parametrize("levels", [4, 20, 400])
def test_the_levels_of_one_and_the_other_unquantised_share_what_brute_force_quadrature_says(
    coupling, reach, waist, levels
):
    means = 1000 if coupling > 1e3 else 400
    weight, member = members(coupling, 1500, reach, waist, means)
    oracle = divergence_from_independence(level_masses(coupling, levels, means).T @ (weight[:, None] * member))
    assert lateral_floor(2, coupling=coupling, levels=levels) == approx(oracle, abs=5e-4 if coupling > 1e3 else 1e-4)


@pytest.mark.parametrize("coupling", [0.05, 1, 20, 900, 1400, 2000, 1e6])
@pytest.mark.parametrize("levels", [4, 20, 400])
def test_saturation_in_levels_is_what_the_group_mean_reveals_of_the_level(coupling, levels):
    means = 4000 if coupling == 1e6 else 800
    oracle = divergence_from_independence(group_means(means)[1][:, None] * level_masses(coupling, levels, means))
    assert lateral_floor(math.inf, coupling=coupling, levels=levels) == approx(oracle, abs=3e-4)


@pytest.mark.parametrize("coupling", [5, 20])
def test_a_group_of_51_shares_what_convolution_of_the_others_says(coupling):
    # 50 logits convolved as the 50th power of their transform; the group means left out have 5e-5 of the mass.
    node, weight = np.polynomial.legendre.leggauss(120)
    phi = 0.5 + 0.497 * node[:, None]
    x = (np.arange(2**15) - 2**14) * 0.25
    log_density = coupling * phi * x - coupling * np.logaddexp(0, x)
    logit = np.exp(log_density - special.betaln(coupling * phi, coupling * (1 - phi)))
    wave = np.fft.rfft(np.fft.ifftshift(logit, axes=1), axis=1) * 0.25
    others = np.maximum(np.fft.irfft(wave**50, axis=1), 0)
    levels = np.diff(special.betainc(coupling * phi, coupling * (1 - phi), np.linspace(0, 1, 21)))
    oracle = divergence_from_independence((weight[:, None] * phi * (1 - phi) * levels).T @ others)
    assert lateral_floor(51, coupling=coupling, levels=20) == approx(oracle, abs=3e-4)


@settings(max_examples=15, deadline=None)
@given(size=SIZES, coupling=COUPLINGS)
def test_a_finer_level_never_lowers_the_floor_and_the_unquantised_one_bounds_them_all(size, coupling):
    floors = [lateral_floor(size, coupling=coupling, levels=levels) for levels in (20, 100, 400, None)]
    assert floors == sorted(floors)
    assert all(lateral_floor(size, coupling=coupling, levels=n) <= floors[2] for n in (4, 10, 50))


@settings(max_examples=40, deadline=None)
@given(size=SIZES, coupling=st.floats(math.log(1e-9), math.log(1e100)).map(math.exp), levels=st.integers(1, 60))
def test_the_floor_never_exceeds_the_entropy_of_the_level(size, coupling, levels):
    assert 0 <= lateral_floor(size, coupling=coupling, levels=levels) <= prior_entropy(coupling, levels=levels)


@pytest.mark.parametrize("levels", [1, 2, 20, 400])
def test_a_level_is_known_in_full_from_one_other_as_the_coupling_grows_without_limit(levels):
    assert lateral_floor(2, coupling=1e14, levels=levels) == approx(prior_entropy(1e14, levels=levels), abs=1e-4)
    assert lateral_floor(math.inf, coupling=1e6, levels=400) < prior_entropy(1e6, levels=400) - 0.1


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (0, "levels must be a whole number of at least 1, got 0"),
        (2.5, "levels must be a whole number of at least 1, got 2.5"),
        (2001, "levels must be at most 2000, got 2001"),
        (math.inf, "levels must be at most 2000, got inf"),
    ],
)
def test_the_levels_of_a_floor_are_whole_and_at_most_2000(levels, message):
    with pytest.raises(ParameterError, match=message):
        lateral_floor(2, coupling=20, levels=levels)


@pytest.mark.parametrize(
    ("coupling", "reach", "waist"),
    [(0.05, 1e5, 5.0), (0.5, 1e4, 1.0), (1, 5e3, 1.0), (5, 500, 1.0), (20, 100, 1.0), (200, 30, 2.0), (2000, 9, 9.0)],
)
def test_an_unquantised_pair_shares_what_brute_force_quadrature_over_both_says(coupling, reach, waist):
    weight, member = members(coupling, 1000, reach, waist)
    assert weight @ member.sum(1) == approx(1, abs=1e-3)
    oracle = divergence_from_independence(member.T @ (weight[:, None] * member))
    assert lateral_floor(2, coupling=coupling, levels=None) == approx(oracle, abs=2e-4)


@pytest.mark.parametrize(("coupling", "reach"), [(1, 2e3), (5, 1e3), (20, 1e3)])
def test_a_group_of_three_shares_what_brute_force_quadrature_over_all_says(coupling, reach):
    # Makes no use of the sufficient statistic nor of characteristic functions.
    weight, member = members(coupling, 90, reach, means=60)
    others = (member[:, :, None] * member[:, None, :]).reshape(60, -1)
    oracle = divergence_from_independence((weight[:, None] * member).T @ others)
    assert lateral_floor(3, coupling=coupling, levels=None) == approx(oracle, abs=1e-4)
    oracle = divergence_from_independence((weight[:, None] * level_masses(coupling, 20, 60)).T @ others)
    assert lateral_floor(3, coupling=coupling, levels=20) == approx(oracle, abs=1e-4)


@pytest.mark.parametrize("coupling", [0.05, 2, 20, 500, 9e3])
def test_unquantised_saturation_is_what_the_group_mean_itself_reveals(coupling):
    # I(p; Phi) = h(x) - E h(x | Phi) with x = logit p: the first by quadrature of the marginal, the second closed.
    phi, weight = group_means(1500)
    reach = 4e4 if coupling < 1 else 600
    x = np.sinh(np.linspace(-math.asinh(reach), math.asinh(reach), 2**12))
    a, b = coupling * phi[:, None], coupling * (1 - phi[:, None])
    log_density = a * x - coupling * np.logaddexp(0, x) - special.betaln(a, b)
    marginal = np.trapezoid(special.entr(weight @ np.exp(log_density)), x)
    mean = special.digamma(a) - special.digamma(b)
    softplus = special.digamma(a + b) - special.digamma(b)  # E log(1 + e^x) = -E log(1 - p)
    given_mean = special.betaln(a, b) - a * mean + coupling * softplus
    oracle = marginal - weight @ given_mean[:, 0]
    assert lateral_floor(math.inf, coupling=coupling, levels=None) == approx(oracle, abs=1e-3)


def test_strong_coupling_unquantised_is_the_gaussian_location_limit():
    # The posterior of a mean from one draw and from n draws of equal variance: log(n + 1)/2 - log(n)/2 apart.
    floors = lateral_floor([2, 5, 1001, math.inf], coupling=1e6, levels=None)
    assert floors[3] - floors[:3] == approx([math.log(2) / 2, math.log(5 / 4) / 2, math.log(1001 / 1000) / 2], abs=2e-4)
    # J = h(angle of the group mean) - h(N(0, 1/(4 kappa))).
    angle = np.linspace(0, math.pi / 2, 200_001)
    prior = np.trapezoid(special.entr(12 * (np.sin(angle) * np.cos(angle)) ** 3), angle)
    assert floors[3] == approx(prior - 0.5 * math.log(2 * math.pi * math.e / 4e6), abs=1e-3)


@settings(max_examples=30, deadline=None)
@given(size=SIZES, more=SIZES, coupling=COUPLINGS, levels=LEVELS)
def test_the_floor_never_falls_as_the_group_grows(size, more, coupling, levels):
    low, high = lateral_floor(sorted((size, more)), coupling=coupling, levels=levels)
    assert 0 <= low <= high


@settings(max_examples=20, deadline=None)
@given(size=SIZES, levels=LEVELS)
@pytest.mark.parametrize("coupling", [0.05, 20, 1500, 9000])
def test_one_more_member_never_lowers_the_floor(coupling, size, levels):
    low, high = lateral_floor([size, size + 1], coupling=coupling, levels=levels)
    assert low <= high


@settings(max_examples=20, deadline=None)
@given(size=SIZES, one=COUPLINGS, other=COUPLINGS, levels=LEVELS)
def test_the_floor_never_falls_as_the_coupling_grows(size, one, other, levels):
    low, high = (lateral_floor(size, coupling=coupling, levels=levels) for coupling in sorted((one, other)))
    assert low <= high + 1e-6


def test_the_floor_has_the_shape_of_the_group_sizes():
    assert isinstance(lateral_floor(4, coupling=20), float)
    floors = lateral_floor(np.array([[4, 1], [8, 4]]), coupling=Coupling(20))
    assert floors.shape == (2, 2)
    assert floors[0, 0] == floors[1, 1] == lateral_floor(4, coupling=20.0)
    assert floors[0, 1] == 0
    assert lateral_floor([], coupling=20).shape == (0,)


@pytest.mark.parametrize("coupling", [-1.0, 0.0, math.nan, math.inf])
def test_a_coupling_is_finite_and_above_zero(coupling):
    message = f"coupling must be a finite number above 0, got {coupling}"
    with pytest.raises(ParameterError, match=message):
        Coupling(coupling)
    with pytest.raises(ParameterError, match=message):
        lateral_floor(2, coupling=coupling)
    with pytest.raises(ParameterError, match=message):
        prior_entropy(coupling, levels=4)


@pytest.mark.parametrize("size", [0, -3, 2.5, math.nan, -math.inf])
def test_a_group_size_is_a_whole_number_of_at_least_one(size):
    with pytest.raises(ParameterError, check=coded("prior.group-size-range")):
        lateral_floor([4, size], coupling=20)


def test_capacity_is_the_true_information_of_a_two_point_input_and_the_paper_four_times_it():
    # I(X; X + 5 Z) with X = +-1 equally likely: h(Y) - h(5 Z) by quadrature.
    y = np.linspace(-60, 60, 40_001)
    density = (stats.norm.pdf(y, 1, 5) + stats.norm.pdf(y, -1, 5)) / 2
    truth = np.trapezoid(special.entr(density), y) - stats.norm(0, 5).entropy()
    assert mechanism_information(5, rounds=1, bound="capacity", parameters=1) == approx(truth, abs=1e-5)
    assert mechanism_information(5, rounds=1, bound="capacity", parameters=1) == approx(0.01961, abs=5e-6)
    assert mechanism_information(5, rounds=1, bound="paper") == approx(0.08)
    assert mechanism_information(5, rounds=1, bound="capacity") == approx(0.02)


def test_the_operating_point_of_the_paper_needs_the_multipliers_of_the_theory():
    assert multiplier_for_information(0.030, rounds=10) == approx(25.82, abs=5e-3)
    assert multiplier_for_information(0.030, rounds=10, bound="capacity") == approx(12.91, abs=5e-3)


@given(nats=st.floats(1e-6, 50), **CHANNELS)
def test_the_multiplier_for_some_information_reveals_just_that(nats, rounds, bound, parameters):
    channel = {"rounds": rounds, "bound": bound, "parameters": parameters}
    multiplier = multiplier_for_information(nats, **channel)
    assert mechanism_information(multiplier, **channel) == approx(nats, rel=1e-9)


@given(multiplier=st.floats(1e-3, 1e6), **CHANNELS)
def test_the_information_of_a_multiplier_needs_just_that_multiplier(multiplier, rounds, bound, parameters):
    channel = {"rounds": rounds, "bound": bound, "parameters": parameters}
    nats = mechanism_information(multiplier, **channel)
    assert multiplier_for_information(nats, **channel) == approx(multiplier, rel=1e-9)


def test_information_is_linear_in_the_rounds_where_epsilon_is_not():
    once, tenfold = (mechanism_information(25.82, rounds=rounds) for rounds in (10, 100))
    assert tenfold == pytest.approx(10 * once)
    few, many = (epsilon_of(25.82, rounds=rounds, delta=1e-5) for rounds in (10, 100))
    assert many < 5 * few


@given(multiplier=st.floats(1e-3, 1e6), parameters=st.integers(1, 10**6))
def test_capacity_is_at_most_a_quarter_of_the_paper(multiplier, parameters):
    paper = mechanism_information(multiplier, rounds=3)
    assert mechanism_information(multiplier, rounds=3, bound="capacity", parameters=parameters) <= paper / 4 * (
        1 + 1e-9
    )


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("parameters", [None, 66])
def test_no_noise_reveals_everything_and_infinite_noise_nothing(bound, parameters):
    channel = {"rounds": 10, "bound": bound, "parameters": parameters}
    assert mechanism_information([0.0, math.inf], **channel).tolist() == [math.inf, 0]
    assert multiplier_for_information(math.inf, **channel) == 0
    assert isinstance(mechanism_information(0, **channel), float)


def test_a_misspelt_bound_is_refused_with_a_suggestion():
    with pytest.raises(ParameterError, check=coded("leakage.bound-unknown", bound="capacty")):
        mechanism_information(1, rounds=1, bound="capacty")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mechanism_information(-1, rounds=1), "multiplier must be at least 0, got -1.0"),
        (lambda: mechanism_information([1, math.nan], rounds=1), "multiplier must be at least 0, got nan"),
        (lambda: mechanism_information(1, rounds=0), "rounds must be a whole number of at least 1, got 0"),
        (lambda: mechanism_information(1, rounds=1, parameters=0), "parameters must be a whole number of at least 1"),
        (lambda: multiplier_for_information(0, rounds=1), "nats must be above 0, got 0.0"),
        (lambda: multiplier_for_information([1, math.nan], rounds=1), "nats must be above 0, got nan"),
        (lambda: information_bound(1, floor=-1, entropy=1, rounds=1), "floor must be at least 0, got -1.0"),
        (lambda: quantised_entropy([0.5, math.nan], levels=4), r"concentrations must be in \[0, 1\], got nan"),
        (lambda: quantised_entropy([0.5, 1.5], levels=4), r"concentrations must be in \[0, 1\], got 1.5"),
        (lambda: quantised_entropy([], levels=4), r"concentrations must be in \[0, 1\], got none"),
        (lambda: quantised_entropy([0.5], levels=0), "levels must be a whole number of at least 1, got 0"),
        (lambda: finest_resolution(-1), "records must be a finite number of at least 0, got -1"),
        (lambda: informativeness(mechanism=math.nan, floor=0, levels=2, entropy=0), "mechanism must be at least 0"),
        (lambda: cost_of_coupling([], assumed=5, true=5, information=2), "group_sizes must hold at least one group"),
        (
            lambda: cost_of_coupling([2], assumed=5, true=5, information=0),
            "information must be a finite number above 0",
        ),
    ],
)
def test_a_parameter_out_of_its_range_is_named_with_its_value(call, message):
    with pytest.raises(ParameterError, match=message):
        call()


def test_the_bound_is_the_mechanism_plus_the_floor_capped_at_the_entropy():
    # The paper's operating point: K = 0.88 from a floor of 0.85, far below an entropy of 2.23.
    assert information_bound(25.82, floor=0.85, entropy=2.23, rounds=10) == approx(0.88, abs=1e-4)
    bounds = information_bound([25.82, 0.0], floor=[0.85, 0.0], entropy=2.23, rounds=10)
    assert bounds == approx([0.88, 2.23], abs=1e-4)
    assert information_bound(12.91, floor=0.85, entropy=2.23, rounds=10, bound="capacity") == approx(0.88, abs=1e-4)


def test_entropy_counts_equal_levels_and_one_belongs_to_the_last():
    assert quantised_entropy([0.0, 0.24, 0.25, 1.0], levels=4) == approx(1.5 * math.log(2))
    assert quantised_entropy([0.76, 1.0], levels=4) == 0
    assert quantised_entropy(np.linspace(0, 1, 20_000, endpoint=False), levels=20) == approx(math.log(20))


def test_prior_entropy_is_that_of_a_large_sample_and_of_the_beta_at_strong_coupling():
    random = np.random.default_rng(7)
    mean = random.beta(2, 2, 400_000)
    sample = random.beta(20 * mean, 20 * (1 - mean))
    assert prior_entropy(20, levels=20) == approx(quantised_entropy(sample, levels=20), abs=2e-3)
    limit = stats.entropy(np.diff(stats.beta(2, 2).cdf(np.linspace(0, 1, 21))))
    assert prior_entropy(Coupling(1e6), levels=20) == approx(limit, abs=1e-4)
    assert prior_entropy(0.05, levels=2) == approx(math.log(2))
    assert prior_entropy(20, levels=1) == approx(0)


def test_a_silo_of_200_records_resolves_28_levels():
    assert [finest_resolution(n) for n in (0, 1, 4, 200, 10**18)] == [1, 2, 4, 28, 2 * 10**9]


@pytest.mark.parametrize(
    ("levels", "entropy", "margin"), [(4, 1.33, 0.48), (10, 1.64, 0.79), (20, 2.23, 1.38), (50, 3.04, 2.19)]
)
def test_the_paper_is_informative_at_every_resolution_of_its_table(levels, entropy, margin):
    found = informativeness(mechanism=0.030, floor=0.85, levels=levels, entropy=entropy, records=200)
    assert found.margin == approx(margin)
    assert found.resolution == approx(1 / levels)
    assert found.informative
    assert found.identifiable == (levels <= 28)


def test_a_mechanism_that_reaches_the_margin_is_not_informative():
    assert not informativeness(mechanism=0.5, floor=0.5, levels=4, entropy=1.0).informative
    assert not informativeness(mechanism=0.0, floor=1.5, levels=4, entropy=1.0).informative
    assert informativeness(mechanism=0.4, floor=0.5, levels=4, entropy=1.0).identifiable


@pytest.mark.parametrize(("assumed", "overshoot"), [(5, 1.13), (20, 0.70)])
def test_underestimating_the_coupling_overshoots_by_the_figures_of_the_paper(assumed, overshoot):
    cost = cost_of_coupling(SEVERE, assumed=assumed, true=100, information=2.2)
    assert cost.worst_overshoot == approx(overshoot, abs=6e-3)
    assert cost.overshoot.argmax() == 0
    assert (cost.noise_ratio < 1).all()


def test_overestimating_the_coupling_keeps_the_target_and_costs_noise():
    cost = cost_of_coupling(SEVERE, assumed=Coupling(100), true=Coupling(20), information=2.2)
    assert cost.worst_overshoot < 0
    assert cost.noise_ratio[0] == approx(2.2, abs=0.03)
    assert not cost.overshoot.flags.writeable


def test_the_cost_of_coupling_is_that_of_the_floors_in_its_levels():
    for levels in (20, None):
        cost = cost_of_coupling([2, 60], assumed=5, true=100, information=2.2, levels=levels)
        believed, actual = (lateral_floor([2, 60], coupling=coupling, levels=levels) for coupling in (5, 100))
        assert cost.overshoot.tolist() == (actual - believed).tolist()


def test_the_right_coupling_costs_nothing():
    cost = cost_of_coupling(SEVERE, assumed=20, true=20, information=2.2)
    assert cost.worst_overshoot == 0
    assert cost.noise_ratio.tolist() == [1] * 5


def test_a_target_below_an_assumed_floor_names_the_group_and_the_least_target_that_works():
    with pytest.raises(UnreachableTargetError, check=coded("leakage.floor-above-information")) as info:
        cost_of_coupling(SEVERE, assumed=100, true=20, information=1.6)
    least = float(str(info.value).rsplit(" ", 1)[1])
    assert 1.61 < least < 1.62
    assert np.isfinite(cost_of_coupling(SEVERE, assumed=100, true=20, information=least).noise_ratio).all()


def test_no_noise_would_do_where_the_true_floor_exceeds_the_target():
    assert cost_of_coupling([60], assumed=5, true=100, information=1.0).noise_ratio.tolist() == [0]
