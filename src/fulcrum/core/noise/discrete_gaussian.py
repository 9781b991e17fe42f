"""Gaussian noise on the integers, of any width, from random bits alone: no floating-point number is ever drawn.

>>> noise = DiscreteGaussian(width=1e5)
>>> noise.convolution.draws, noise.convolution.ratio
(2, 167)
>>> noise.sampler_distance < 2**-111
True
>>> from fulcrum.core.noise.keystream import repeated_bytes
>>> noise.sample(3, repeated_bytes(bytes(32))).tolist()
[-75260, -162767, -35253]

The low bits of a Gaussian sample in floating point reveal the input (Mironov 2012, "On significance of the least
significant bits for differential privacy"). Here the output is an integer, and every integer has the probability of the
discrete Gaussian, up to the total variation distance `sampler_distance`.

With s the width and s_0 <= 600 the base width, a sample is the sum of `draws` base samples X_i of width s_0,

    Y = X_0 + K X_1 + K^2 X_2 + ...,        s^2 = s_0^2 (1 + K^2 + K^4 + ...),

the convolution of Micciancio and Walter 2017, "Gaussian sampling over the integers: efficient, generic, constant-time",
after Micciancio and Peikert 2013, "Hardness of SIS and LWE with small parameters", Theorem 3.3. The theorem is for
coprime factors z_i and widths of at least sqrt(2) max|z_i| times the smoothing parameter. The condition used here is
the exact condition for two terms, proved above `_SMOOTH`. A base sample is read from an alias table, in integers.

Sharp edges, worst first:

- Not constant in time: the line of the table that is read depends on the noise, and one draw in 2^18 takes a longer
  path. The source has no further branch on drawn values. Do not let an adversary share the processor's caches.
- The distance is against a perfect source of bytes; `random_bytes` is a perfect source as long as AES-256 stands.
"""

import math
import os
import threading
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, DivisionByZero, InvalidOperation, Overflow
from fractions import Fraction
from functools import cache, lru_cache, partial
from itertools import count as counting
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from fulcrum.arrays import read_only
from fulcrum.core.noise.keystream import Source
from fulcrum.errors import ParameterError

LEAST_WIDTH, MOST_WIDTH = 2.0**-10, 2.0**53

# One base draw is 32 bits: the sign, then which of 2^13 columns of the alias table, then 18 bits against the column's
# threshold. Where those 18 bits equal the threshold's, 128 more bits decide, so that a threshold has 146 bits and a
# weight, in units of 2^-159, is met exactly.
_COLUMN_BITS, _REST_BITS, _MORE_BITS = 13, 18, 128
_COLUMNS = 2**_COLUMN_BITS
_CAPACITY = 2 ** (_REST_BITS + _MORE_BITS)
_MOST_BASE_WIDTH = 600  # the table ends at 8191, 13.6 of these
_FIXED_POINT = 2**256
_CHUNK = 2**15  # samples at a time: a chunk stays in the processor's cache
_WORTH_COMPILING = 2**17  # samples: numba takes longer to load than NumPy to draw fewer

# Convolution. Let X_1, X_2 be discrete Gaussians of widths s_1, s_2 and z_1, z_2 coprime integers. The pairs with
# z_1 x_1 + z_2 x_2 = y are one of them plus the multiples k (z_2, -z_1), and along these, completing the square,
#
#     x_1^2 / s_1^2 + x_2^2 / s_2^2  =  y^2 / S^2 + (k - c_y)^2 / t^2,
#     S^2 = z_1^2 s_1^2 + z_2^2 s_2^2,     t = s_1 s_2 / S.
#
# So Pr[z_1 X_1 + z_2 X_2 = y] is proportional to exp(-y^2 / 2 S^2) B(c_y), where B(c) is the sum over all integers k of
# exp(-(k - c)^2 / 2 t^2). By Poisson summation B(c) is t sqrt(2 pi) times a number in [1 - e, 1 + e], where e is twice
# the sum over j >= 1 of exp(-2 pi^2 t^2 j^2): t sqrt(2 pi) is the smoothing parameter of the integers for e. So every
# probability is that of the discrete Gaussian of width S times a factor between (1 - e) / (1 + e) and its inverse, and
# the total variation distance is at most e / (1 - e).
#
# A plan adds one draw at a time: z = (1, K), s_1 = s_0 and s_2 >= s_0 the width reached so far, so that
# t^2 = s_0^2 / (s_0^2 / s_2^2 + K^2) >= s_0^2 / (1 + K^2). Plans keep s_0^2 >= 4 (1 + K^2): t >= 2 and e < 2^-112.9.
_SMOOTH = 2
_SMOOTHING_DISTANCE = 2.0**-112

# A base draw. Mass beyond the table: terms fall faster than geometrically, so at s_0 = 600 those past 8191 are at most
# 2 exp(-8192^2 / 2 s_0^2) / (1 - exp(-8192 / s_0^2)) over a total of at least s_0, below 2^-137; less for a narrower
# base. Weights: each but the first is within two units of 2^-159 (`_weights`), and the first makes up the sum, below
# 2^-145. Together below 2^-136.
_TABLE_DISTANCE = 2.0**-136

_Samples: TypeAlias = npt.NDArray[np.int64]
_Draws: TypeAlias = npt.NDArray[np.uint32]
_Combine: TypeAlias = Callable[[_Draws, _Draws, _Samples, _Samples, _Samples], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """The composition of a wide discrete Gaussian: the sum of `ratio`^i times the i-th of `draws` base samples.

    Attributes:
        base_variance: s_0 squared, exactly; at most 600 squared.
        ratio: K.
        draws: The number of base samples in a sample.
    """

    base_variance: Fraction
    ratio: int
    draws: int

    @property
    def coefficients(self) -> tuple[int, ...]:
        """The factor of every base sample: 1, K, K^2 and so on."""
        return tuple(self.ratio**power for power in range(self.draws))

    @property
    def variance(self) -> Fraction:
        """The square of the resulting width, exactly."""
        return self.base_variance * _squares(self.draws, self.ratio)

    @property
    def is_smooth(self) -> bool:
        """True if the smoothing condition s_0^2 >= 4 (1 + K^2) holds, or if a single draw leaves nothing to combine."""
        return self.draws == 1 or self.base_variance >= _SMOOTH**2 * (1 + self.ratio**2)


@lru_cache(maxsize=1024)
def convolution_for(width: float) -> Convolution:
    """Returns the convolution of the fewest draws whose width is at least `width`, and at most 1e-12 of `width` more.

    >>> convolution_for(1e12).coefficients
    (1, 203, 41209, 8365427, 1698181681)

    Raises:
        ParameterError: The width is outside its range, or not a number.
    """
    if not LEAST_WIDTH <= width <= MOST_WIDTH:
        raise ParameterError("noise.width-range", least=LEAST_WIDTH, most=MOST_WIDTH, width=width)
    target = Fraction(width) ** 2
    needed = math.ceil(target / _MOST_BASE_WIDTH**2)
    for draws in counting(1):  # seven are enough for the widest
        # The smallest ratio leaves the widest base, hence the smoothest sum.
        ratio = 1 + bisect_left(range(1, _MOST_BASE_WIDTH // _SMOOTH), needed, key=partial(_squares, draws))
        # Rounded up to a multiple of 2^-64, so that the width is exact as a fraction and never below `width`.
        base_variance = Fraction(math.ceil(target / _squares(draws, ratio) * 2**64), 2**64)
        plan = Convolution(base_variance=base_variance, ratio=ratio, draws=draws)
        if base_variance <= _MOST_BASE_WIDTH**2 and plan.is_smooth:
            break
    return plan


def _squares(draws: int, ratio: int) -> int:
    """Returns the sum of the squares of 1, ratio, ratio², ...: one coefficient for each of `draws` summed integers."""
    return sum(ratio ** (2 * power) for power in range(draws))


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """The distribution on the integers with Pr[x] proportional to exp(-x^2 / (2 width^2)).

    Accounting by Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential privacy": if neighbouring
    inputs differ by an L2 norm of D lattice units, the release is zero-concentrated with D^2 / (2 width^2), as with the
    continuous Gaussian. `width` is the parameter: never below the standard deviation, and within 2e-7 of the standard
    deviation from 1 upwards.

    Guarantees, against a perfect source of bytes:

    - samples are independent, and every sample is within `sampler_distance` of the discrete Gaussian of a width s, in
      total variation, with width <= s <= width (1 + 1e-12); `Convolution.variance` is s^2, exactly;
    - a release of n samples that is (epsilon, delta) private with exact noise is, with sampled noise, (epsilon, delta +
      (1 + exp(epsilon)) n sampler_distance) private;
    - the distribution is symmetric exactly;
    - the same bytes and count give the same samples, with numba and without.

    Attributes:
        width: The width in lattice units, from 2^-10 to 2^53.

    Raises:
        ParameterError: The width is outside its range, or not a number.
    """

    width: float

    def __post_init__(self) -> None:
        convolution_for(self.width)
        object.__setattr__(self, "width", float(self.width))

    @property
    def convolution(self) -> Convolution:
        """The convolution that composes a sample."""
        return convolution_for(self.width)

    @property
    def sampler_distance(self) -> float:
        """A bound on the total variation distance of a sample from the exact discrete Gaussian; below 2^-109.

        Every draw adds the distance of its table, every step of the convolution the smoothing distance.
        """
        draws = self.convolution.draws
        return draws * _TABLE_DISTANCE + (draws - 1) * _SMOOTHING_DISTANCE

    def sample(self, count: int, draw: Source) -> _Samples:
        """Returns `count` independent samples.

        With numba installed a compiled loop draws long arrays, otherwise NumPy does; the samples are the same. Beyond
        the result itself, memory does not grow with `count`.

        Args:
            count: The number of samples; 0 gives an empty array.
            draw: The source of bytes; four bytes are a draw.

        Raises:
            ParameterError: `count` is negative or no integer.
        """
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
            raise ParameterError("noise.count-range", count=count)
        combine = (_compiled_loop() if count >= _WORTH_COMPILING else None) or _combine_draws
        return _draw_samples(self.convolution, int(count), draw, combine)


def _draw_samples(plan: Convolution, count: int, draw: Source, combine: _Combine) -> _Samples:
    """Returns `count` samples of a convolution, in chunks, with ties decided by further bytes of the source."""
    table = _table(plan.base_variance)
    coefficients = np.array(plan.coefficients, dtype=np.int64)
    samples = np.empty(count, dtype=np.int64)
    tied = np.empty(plan.draws * min(count, _CHUNK) + 1, dtype=np.int64)
    for start in range(0, count, _CHUNK):
        part = samples[start : start + _CHUNK]
        drawn = draw(4 * plan.draws * len(part)).view("<u4").astype(np.uint32, copy=False)
        draws = drawn.reshape(plan.draws, len(part))
        if ties := combine(draws, table.entries, coefficients, part, tied):
            _settle(draws, tied[:ties], table, coefficients, part, draw)
    return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Alias table (Walker 1977) of the magnitude of a base sample, in integers, so that every weight is met exactly.

    A column stands for its own magnitude below its threshold, and for the magnitude of its alias from the threshold on.

    Attributes:
        entries: By column, the first 18 bits of the threshold, then the alias, 13 bits, in a word.
        thresholds: The thresholds in full, in units of which a column holds 2^146.
    """

    entries: _Draws
    thresholds: tuple[int, ...]


@lru_cache(maxsize=16)
def _table(variance: Fraction) -> _Table:
    """Returns the alias table of a base variance."""
    left = _weights(variance)
    # A column without an alias is its own alias, and its threshold has no effect.
    thresholds, aliases = [0] * _COLUMNS, list(range(_COLUMNS))
    short = [column for column in range(_COLUMNS) if left[column] < _CAPACITY]
    ample = [column for column in range(_COLUMNS) if left[column] >= _CAPACITY]
    # The open columns hold their capacity on average, so while a column is short, another column is ample.
    while short:
        column, donor = short.pop(), ample[-1]
        thresholds[column], aliases[column] = left[column], donor
        left[donor] -= _CAPACITY - left[column]
        if left[donor] < _CAPACITY:
            short.append(ample.pop())
    entries = [
        (threshold >> _MORE_BITS) << _COLUMN_BITS | alias for threshold, alias in zip(thresholds, aliases, strict=True)
    ]
    return _Table(entries=read_only(np.array(entries, dtype=np.uint32)), thresholds=tuple(thresholds))


def _weights(variance: Fraction) -> list[int]:
    """Returns the probability of every magnitude 0, 1, ... 8191, in units of 2^-159, which sum to one exactly.

    With q = exp(-1 / 2 variance), the term of m is q^(m^2), and terms follow from their predecessors by factors q^(2m +
    1). In fixed point, a product of two numbers of at most one errs by the sum of their errors and one unit of 2^-256.
    So q errs by 1 unit, its square by 3, the factor of m by 4m + 1 and the term of m by 2m^2: below 2^-229 for a term
    and 2^-216 for the total, which is at least one. Beside the unit of a weight the error is negligible.
    """
    # Correctly rounded by `decimal`, at twice the digits of the fixed point.
    # Every field of the context is given: a missing field would come from the default context, which training in the
    # same process may have changed.
    faults = [InvalidOperation, DivisionByZero, Overflow]
    context = Context(160, ROUND_HALF_EVEN, Emin=-999_999, Emax=999_999, capitals=1, clamp=0, flags=[], traps=faults)
    exponent = context.divide(Decimal(-variance.denominator), Decimal(2 * variance.numerator))
    q = int(context.multiply(context.exp(exponent), Decimal(_FIXED_POINT)))
    term, factor, factor_step = _FIXED_POINT, q, q * q // _FIXED_POINT
    terms = []
    for _ in range(_COLUMNS):
        terms.append(term)
        term, factor = term * factor // _FIXED_POINT, factor * factor_step // _FIXED_POINT
    total = 2 * sum(terms) - terms[0]
    weights = [2 * term * _COLUMNS * _CAPACITY // total for term in terms]
    weights[0] = _COLUMNS * _CAPACITY - sum(weights[1:])
    return weights


def _combine_draws(draws: _Draws, entries: _Draws, coefficients: _Samples, out: _Samples, tied: _Samples) -> int:
    """Fills `out` with the sums of base samples times coefficients, and returns the number of ties.

    A tie is a draw whose last bits equal the first bits of its threshold; a tie counts here as above the threshold. The
    positions of ties, counted through all draws, are written to the beginning of `tied`, which has room for every draw
    and one more.
    """
    ties = 0
    out[:] = 0
    for i, (row, coefficient) in enumerate(zip(draws, coefficients, strict=True)):
        column = (row >> np.uint32(_REST_BITS)) & np.uint32(_COLUMNS - 1)
        rest = row & np.uint32(2**_REST_BITS - 1)
        entry = entries.take(column)
        threshold = entry >> np.uint32(_COLUMN_BITS)
        magnitude = np.where(rest < threshold, column, entry & np.uint32(_COLUMNS - 1)).view(np.int32)
        sign = row.view(np.int32) >> 31  # 0 or -1: the first bit, spread over all
        out += coefficient * ((magnitude ^ sign) - sign)
        places = np.flatnonzero(rest == threshold)
        tied[ties : ties + len(places)] = places + i * len(row)
        ties += len(places)
    return ties


def _loop(draws: _Draws, entries: _Draws, coefficients: _Samples, out: _Samples, tied: _Samples) -> int:
    """Computes the results of `_combine_draws` draw by draw, for compilation by numba; returns the number of ties.

    Bit operations replace branches on drawn values, so that no branch depends on the noise.
    """
    ties = 0
    out[:] = 0
    for i in range(draws.shape[0]):
        coefficient = coefficients[i]
        for j in range(draws.shape[1]):
            draw = draws[i, j]
            column = (draw >> np.uint32(_REST_BITS)) & np.uint32(_COLUMNS - 1)
            rest = draw & np.uint32(2**_REST_BITS - 1)
            entry = entries[column]
            threshold = entry >> np.uint32(_COLUMN_BITS)
            alias = entry & np.uint32(_COLUMNS - 1)
            magnitude = np.int64(alias) ^ (np.int64(column ^ alias) & -np.int64(rest < threshold))
            sign = -np.int64(draw >> np.uint32(31))  # 0 or -1
            out[j] += coefficient * ((magnitude ^ sign) - sign)
            tied[ties] = i * draws.shape[1] + j  # written for every draw, without a branch; overwritten unless a tie
            ties += rest == threshold
    return ties


_LOADING = threading.RLock()
"""Taken for importing numba and compiling the loop, and for forking the process.

A child with numba half imported, or with the lock of numba's compiler, would wait for ever in the first long draw.
Draws never wait for this lock: a drawing thread may hold the lock of a ledger, and a fork waits for both locks.
"""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOADING.acquire, after_in_parent=_LOADING.release, after_in_child=_LOADING.release)


def _compiled_loop() -> _Combine | None:
    """Returns the loop as machine code; None without numba, while another thread loads numba, and during a fork."""
    if not _LOADING.acquire(blocking=False):
        return None  # NumPy draws the same integers
    try:
        return _load_loop()
    finally:
        _LOADING.release()


@cache
def _load_loop() -> _Combine | None:
    """Imports numba and compiles the loop, once in a process; None without numba."""
    try:
        import numba
    except ImportError:
        return None
    decorate: Any = numba.njit
    try:
        compiled = decorate(nogil=True, cache=True)(_loop)
    except RuntimeError:  # no folder to keep the machine code in: compile in every process
        compiled = decorate(nogil=True)(_loop)
    # A first draw, so that numba compiles now and not during a release.
    _draw_samples(convolution_for(1.0), 1, lambda count: np.zeros(count, dtype=np.uint8), compiled)
    return cast(_Combine, compiled)


def _settle(draws: _Draws, tied: _Samples, table: _Table, coefficients: _Samples, out: _Samples, draw: Source) -> None:
    """Decides every tie by 128 further bits, and corrects the samples that contain a tie."""
    for place in tied.tolist():
        i, j = divmod(place, draws.shape[1])
        drawn = int(draws[i, j])
        column = drawn >> _REST_BITS & _COLUMNS - 1
        more = int.from_bytes(draw(_MORE_BITS // 8).tobytes(), "little")
        if more < table.thresholds[column] % 2**_MORE_BITS:
            change = column - int(table.entries[column]) % _COLUMNS
            out[j] += int(coefficients[i]) * (-change if drawn >> 31 else change)
