import decimal
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from error_codes import coded
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fulcrum.core.noise import discrete_gaussian
from fulcrum.core.noise.discrete_gaussian import (
    LEAST_WIDTH,
    MOST_WIDTH,
    Convolution,
    DiscreteGaussian,
    _combine_draws,
    _compiled_loop,
    _draw_samples,
    _loop,
    _table,
    _weights,
    convolution_for,
)
from fulcrum.core.noise.keystream import random_bytes, repeated_bytes
from fulcrum.errors import ParameterError

pytest.importorskip("cryptography", reason="needs the package cryptography (extra `secure`)")

UNITS = 2**159  # of a weight
ANY_WIDTHS = st.floats(-10, 53).map(lambda exponent: 2.0**exponent)
SMALL, WIDE = [1.0, 3.3, 30.0], [1e4, 1e5, 3.7e7]


def drawn(width, count=200_000, seed=1):
    return DiscreteGaussian(width).sample(count, repeated_bytes(bytes([seed]) * 32))


def discrete_pvalue(samples, width):
    """Chi-square against the probabilities of the discrete Gaussian, from its definition; thin cells joined in the tails."""
    support = np.arange(-math.ceil(14 * width), math.ceil(14 * width) + 1)
    chances = np.exp(-(support**2) / (2 * width**2))
    chances /= chances.sum()
    kept = chances * len(samples) >= 10
    counts = np.bincount(np.clip(samples - support[0], 0, len(support) - 1), minlength=len(support))
    observed = np.append(counts[kept], counts[~kept].sum())
    expected = np.append(chances[kept], chances[~kept].sum()) * len(samples)
    return stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue


def continuous_pvalues(samples, width):
    """Kolmogorov-Smirnov and chi-square of 200 equal cells: at these widths a lattice step is below what either sees."""
    scaled = stats.norm.cdf(samples / width)
    cells = np.bincount(np.minimum((scaled * 200).astype(int), 199), minlength=200)
    return stats.kstest(scaled, "uniform").pvalue, stats.chisquare(cells).pvalue


@pytest.mark.parametrize("width", SMALL)
def test_narrow_noise_has_the_discrete_probabilities_and_no_other_scale(width):
    assert discrete_pvalue(drawn(width), width) > 0.01
    for wrong in (2 / 3, 3 / 2):
        assert discrete_pvalue(drawn(width * wrong), width) < 1e-12


@pytest.mark.parametrize("width", WIDE)
def test_wide_noise_is_gaussian_of_its_width_and_of_no_other(width):
    assert min(continuous_pvalues(drawn(width), width)) > 0.01
    for wrong in (2 / 3, 3 / 2):
        assert max(continuous_pvalues(drawn(width * wrong), width)) < 1e-12


@pytest.mark.parametrize("width", [*SMALL, *WIDE, 1e12])
def test_moments_are_those_of_the_gaussian(width):
    count = 400_000
    scaled = drawn(width, count, seed=2) / width
    # Standard errors of a normal's mean, variance, skewness and kurtosis; four of them.
    assert abs(scaled.mean()) < 4 / math.sqrt(count)
    assert abs(scaled.var() - 1) < 4 * math.sqrt(2 / count)
    assert abs(stats.skew(scaled)) < 4 * math.sqrt(6 / count)
    assert abs(stats.kurtosis(scaled)) < 4 * math.sqrt(24 / count)


@pytest.mark.parametrize("width", [30.0, *WIDE])
@pytest.mark.parametrize("modulus", [2, 3, 5, 7, 11, 13])
def test_no_residue_is_favoured(width, modulus):
    counts = np.bincount(drawn(width, seed=3) % modulus, minlength=modulus)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("width", WIDE)
def test_no_residue_of_the_ratio_is_favoured_where_the_convolution_would_show(width):
    # Modulo the ratio only the first draw remains; modulo its square the first two.
    samples, ratio = drawn(width, seed=4), convolution_for(width).ratio
    for modulus in (ratio, ratio**2):
        cells = min(modulus, 500)
        residues = (samples % modulus) * cells // modulus
        expected = np.bincount(np.arange(modulus) * cells // modulus) * len(samples) / modulus
        assert stats.chisquare(np.bincount(residues, minlength=cells), expected).pvalue > 1e-3


def test_a_base_too_narrow_for_its_ratio_is_seen_by_the_residues():
    # Shows that the tests above can fail: t = 0.25, where the plans keep t >= 2.
    plan = Convolution(base_variance=Fraction(25), ratio=20, draws=2)
    assert not plan.is_smooth
    residues = _draw_samples(plan, 200_000, repeated_bytes(bytes(32)), _combine_draws) % 20
    assert stats.chisquare(np.bincount(residues, minlength=20)).pvalue < 1e-12


def test_neighbouring_samples_are_uncorrelated():
    samples = drawn(1e5, seed=5).astype(float)
    for lag in (1, 2, 7, discrete_gaussian._CHUNK):
        correlation = np.corrcoef(samples[:-lag], samples[lag:])[0, 1]
        assert abs(correlation) < 4 / math.sqrt(len(samples) - lag)
    # Large samples next to large ones would not show above.
    assert abs(np.corrcoef(samples[:-1] ** 2, samples[1:] ** 2)[0, 1]) < 4 / math.sqrt(len(samples))


@given(width=ANY_WIDTHS)
def test_plans_are_smooth_exact_in_width_and_within_64_bits(width):
    noise, plan = DiscreteGaussian(width), convolution_for(width)
    assert plan.is_smooth
    assert plan.base_variance <= 600**2
    target, variance = Fraction(width) ** 2, plan.variance
    assert target <= variance <= target * (1 + Fraction(2, 10**12))
    # The largest sample that the table can give, with three bits to spare.
    assert 8191 * sum(plan.coefficients) < 2**60
    assert noise.sampler_distance < 2**-109


@given(width=ANY_WIDTHS)
def test_every_step_of_a_plan_meets_the_smoothing_condition_as_the_paper_has_it(width):
    """Micciancio and Walter's condition step by step, not the one bound that plans are made by."""
    plan = convolution_for(width)
    base, reached = plan.base_variance, plan.base_variance
    for _ in range(plan.draws - 1):
        assert math.gcd(1, plan.ratio) == 1
        after = base + plan.ratio**2 * reached
        assert base * reached / after >= 4  # t^2, with t = s_1 s_2 / S
        reached = after
    assert reached == plan.variance


def smoothing_error(t2):
    """e of the theorem; each term is below 1e-4 of the one before, where t^2 is at least 0.12."""
    return 2 * mpmath.fsum(mpmath.exp(-2 * mpmath.pi**2 * t2 * j**2) for j in range(1, 10))


def test_the_smoothing_error_at_the_condition_is_as_stated():
    with mpmath.workdps(60):
        e = smoothing_error(4)
        assert e / (1 - e) < discrete_gaussian._SMOOTHING_DISTANCE < 4 * e


@pytest.mark.parametrize(("base", "ratio"), [(9, 4), (7, 3), (2, 3), (2, 5)])
def test_the_convolution_is_the_discrete_gaussian_up_to_the_smoothing_error(base, ratio):
    """The probabilities of X_0 + K X_1 summed from their definition, beside the theorem's two-sided bound."""
    with mpmath.workdps(70):
        reach = 20 * base * ratio  # the sums below leave out less than exp(-200)
        term = [mpmath.exp(-mpmath.mpf(x * x) / (2 * base**2)) for x in range(reach * ratio + 20)]
        norm = 2 * mpmath.fsum(term) - 1
        variance = base**2 * (1 + ratio**2)
        wide = [mpmath.exp(-mpmath.mpf(y * y) / (2 * variance)) for y in range(2 * reach)]
        total = 2 * mpmath.fsum(wide) - 1
        e = smoothing_error(mpmath.mpf(base**2) / (1 + ratio**2))
        worst = 0
        for y in (0, 1, 2, 3, 5, 17):
            chance = mpmath.fsum(term[abs(y - ratio * x)] * term[abs(x)] for x in range(-reach, reach + 1)) / norm**2
            worst = max(worst, abs(chance * total / wide[y] - 1))
        assert worst <= 2 * e / (1 - e)
        assert worst > e / 10  # and the bound is not idle


def exact_chances(variance, digits=80):
    with mpmath.workdps(digits):
        half = 1 / (2 * mpmath.mpf(variance.numerator) / variance.denominator)
        terms = [mpmath.exp(-half * m * m) for m in range(9000)]
        total = 2 * mpmath.fsum(terms) - 1
        return [(2 if m else 1) * term / total for m, term in enumerate(terms)]


BASES = [
    Fraction(1, 2**20),
    Fraction(1, 3),
    Fraction(1),
    Fraction(9),
    convolution_for(1e5).base_variance,
    Fraction(600**2),
]


@pytest.mark.parametrize("variance", BASES, ids=lambda v: f"{float(v):.4g}")
def test_the_table_is_the_discrete_gaussian_to_its_stated_distance(variance):
    weights, exact = _weights(variance), exact_chances(variance)
    assert sum(weights) == UNITS
    assert min(weights) >= 0
    with mpmath.workdps(80):
        apart = [abs(mpmath.mpf(w) / UNITS - p) for w, p in zip(weights, exact, strict=False)]
        assert sum(apart) / 2 + sum(exact[8192:]) / 2 < discrete_gaussian._TABLE_DISTANCE < mpmath.mpf(2) ** -100
        # Cumulative, as a sampler by inversion would hold them.
        mine = np.cumsum(np.array(weights, dtype=object))
        theirs = np.cumsum(np.array(exact[:8192], dtype=object))
        assert max(abs(mpmath.mpf(w) / UNITS - p) for w, p in zip(mine, theirs, strict=True)) < mpmath.mpf(2) ** -100


@pytest.mark.parametrize("variance", BASES, ids=lambda v: f"{float(v):.4g}")
def test_the_alias_table_holds_every_weight_exactly(variance):
    table, capacity = _table(variance), 2**146
    held = [0] * 8192
    for column, (entry, threshold) in enumerate(zip(table.entries.tolist(), table.thresholds, strict=True)):
        assert entry >> 13 == threshold >> 128
        held[column] += threshold
        held[entry % 8192] += capacity - threshold
    assert held == _weights(variance)


@pytest.mark.parametrize("width", [0.3, 1.0, 30.0, 1e5, 3.7e7])
def test_the_stated_width_agrees_with_the_variance_of_what_is_sampled(width):
    plan = convolution_for(width)
    weights = _weights(plan.base_variance)
    base = Fraction(sum(weight * m * m for m, weight in enumerate(weights)), UNITS)
    variance = float(base * sum(factor**2 for factor in plan.coefficients))
    # A discrete Gaussian's variance, from its definition; equal to the width's square once that is large.
    with mpmath.workdps(40):
        exact = [mpmath.mpf(m) ** 2 * p for m, p in enumerate(exact_chances(plan.base_variance, 40))]
        of_base = float(mpmath.fsum(exact))
    assert variance == pytest.approx(of_base * plan.variance / plan.base_variance, rel=1e-14)
    assert variance <= float(plan.variance)
    if width >= 1:
        assert variance == pytest.approx(width**2, rel=4e-7)
    if width >= 3:
        assert variance == pytest.approx(float(plan.variance), rel=1e-12)


class Scripted:
    """A source with draws chosen by a test: all at once, then what settles each tie."""

    def __init__(self, draws, more):
        self.left = [np.array(draws, dtype="<u4").tobytes(), *(number.to_bytes(16, "little") for number in more)]

    def __call__(self, count):
        drawn = self.left.pop(0)
        assert len(drawn) == count
        return np.frombuffer(drawn, dtype=np.uint8)


def paths():
    found = [pytest.param(_combine_draws, id="numpy"), pytest.param(_loop, id="python")]
    missing = _compiled_loop() is None
    found.append(
        pytest.param(
            _compiled_loop(),
            id="numba",
            marks=pytest.mark.skipif(missing, reason="numba is not installed (extra `fast`)"),
        )
    )
    return found


@pytest.mark.parametrize("combine", paths())
@pytest.mark.parametrize("ratio", [1, 25])
def test_a_tie_is_settled_by_the_rest_of_the_threshold(combine, ratio):
    draws = 1 if ratio == 1 else 2
    plan = Convolution(base_variance=Fraction(100**2), ratio=ratio, draws=draws)
    table = _table(plan.base_variance)
    columns = [c for c in (3, 40, 200, 5000) if table.thresholds[c] % 2**128 and int(table.entries[c]) % 8192 != c]
    assert len(columns) >= 3
    for column in columns:
        low = table.thresholds[column] % 2**128
        alias = int(table.entries[column]) % 8192
        draw = column << 18 | table.thresholds[column] >> 128
        for sign in (1, -1):
            signed = draw | (sign < 0) << 31
            for more, magnitude in ((low - 1, column), (low, alias), (0, column), (2**128 - 1, alias)):
                stream = Scripted([signed] * 2, [more] * 2)
                expected = [sign * magnitude * (1 + ratio if draws == 2 else 1)] * (3 - draws)
                assert _draw_samples(plan, 3 - draws, stream, combine).tolist() == expected
                assert not stream.left


@pytest.mark.skipif(_compiled_loop() is None, reason="numba is not installed (extra `fast`)")
@pytest.mark.parametrize("width", [LEAST_WIDTH, 0.7, 1.0, 30.0, 1e5, 3.7e7, 1e12, MOST_WIDTH])
def test_numba_and_numpy_give_the_same_integers_from_the_same_bytes(width):
    # Enough draws to tie many times: one in 2^18.
    plan, count = convolution_for(width), 600_001
    one, two = (repeated_bytes(b"s" * 32) for _ in range(2))
    assert (_draw_samples(plan, count, one, _compiled_loop()) == _draw_samples(plan, count, two, _combine_draws)).all()
    assert (one(16) == two(16)).all()


def test_plain_python_gives_the_same_integers_too():
    plan = convolution_for(3.7e7)
    one, two = (repeated_bytes(b"s" * 32) for _ in range(2))
    assert (_draw_samples(plan, 3001, one, _loop) == _draw_samples(plan, 3001, two, _combine_draws)).all()


@pytest.mark.parametrize("count", [1000, discrete_gaussian._WORTH_COMPILING])
def test_short_and_long_arrays_are_drawn_alike(count):
    by_numpy = _draw_samples(convolution_for(1e5), count, repeated_bytes(b"\1" * 32), _combine_draws)
    assert (drawn(1e5, count, seed=1) == by_numpy).all()


def test_samples_are_the_same_on_every_machine():
    assert drawn(1e5, 3, seed=0).tolist() == [-75260, -162767, -35253]


def test_the_narrowest_noise_is_always_zero():
    assert not drawn(LEAST_WIDTH, 10_000).any()


@pytest.mark.parametrize("count", [0, 1, 2, 2**15 - 1, 2**15 + 1])
def test_as_many_samples_as_asked_for(count):
    samples = drawn(1e7, count)
    assert samples.shape == (count,)
    assert samples.dtype == np.int64


@pytest.mark.parametrize("width", [0.0, -1.0, 2.0**-11, 2.0**54, math.inf, math.nan])
def test_a_width_outside_the_range_is_refused(width):
    with pytest.raises(ParameterError, check=coded("noise.width-range")):
        DiscreteGaussian(width)


@pytest.mark.parametrize("count", [-1, 1.5, True, "3"])
def test_a_count_that_is_no_count_is_refused(count):
    with pytest.raises(ParameterError, check=coded("noise.count-range")):
        DiscreteGaussian(1.0).sample(count, random_bytes)


def test_the_weights_are_the_same_whatever_training_told_decimal(monkeypatch):
    expected = discrete_gaussian._weights(Fraction(7))
    for name, value in (("rounding", decimal.ROUND_UP), ("Emax", 9), ("Emin", -9), ("clamp", 1), ("capitals", 0)):
        monkeypatch.setattr(decimal.DefaultContext, name, value)
    monkeypatch.setitem(decimal.DefaultContext.traps, decimal.Inexact, True)
    assert discrete_gaussian._weights(Fraction(7)) == expected
