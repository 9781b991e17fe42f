"""Gaussian noise on the integers, of any width, from random bits alone: no floating-point number is ever drawn.

>>> noise = DiscreteGaussian(width=1e5)
>>> noise.convolution.draws, noise.convolution.ratio
(2, 167)
>>> noise.actual_width
100000.0
>>> noise.sampler_distance < 2**-111
True
>>> from fulcrum.core.noise.keystream import repeated_bytes
>>> noise.sample(3, repeated_bytes(bytes(32))).tolist()
[-75260, -162767, -35253]

A Gaussian sampled in floating point tells the input apart by the low bits of the output (Mironov 2012, "On significance
of the least significant bits for differential privacy"). Here the output is an integer, and every integer has the
chance that the discrete Gaussian gives it, up to a total variation distance that `sampler_distance` states.

How a sample is made: with s the width and s_0 <= 600 the base width, `draws` base samples X_i of width s_0 are added as

    Y = X_0 + K X_1 + K^2 X_2 + ...,        s^2 = s_0^2 (1 + K^2 + K^4 + ...),

the convolution of Micciancio and Walter 2017, "Gaussian sampling over the integers: efficient, generic, constant-time",
after Micciancio and Peikert 2013, "Hardness of SIS and LWE with small parameters", Theorem 3.3. Those state it for
coprime factors z_i and widths of at least sqrt(2) max|z_i| times the smoothing parameter. The condition kept here is
the exact one for two terms, proved above `_SMOOTH`. A base sample is read from an alias table, in integers.

Sharp edges, worst first:

- Not constant in time: which line of the table is read depends on the noise, and one draw in 2^18 takes a longer way.
  The source has no other branch on what is drawn. Do not let an adversary share the processor's caches.
- The distance is against a perfect source of bytes; `random_bytes` is one for as long as AES-256 stands.
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
_CHUNK = 2**15  # samples at a time: what is at work stays in the processor's cache
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
    """How a wide discrete Gaussian is put together: the sum of `ratio`^i times the i-th of `draws` base samples.

    Attributes:
        base_variance: s_0 squared, exactly; at most 600 squared.
        ratio: K.
        draws: how many base samples one sample takes.
    """

    base_variance: Fraction
    ratio: int
    draws: int

    @property
    def coefficients(self) -> tuple[int, ...]:
        """What each base sample is multiplied by: 1, K, K^2 and so on."""
        return tuple(self.ratio**power for power in range(self.draws))

    @property
    def variance(self) -> Fraction:
        """The square of the width that comes out, exactly."""
        return self.base_variance * _squares(self.draws, self.ratio)

    @property
    def is_smooth(self) -> bool:
        """Whether the smoothing condition holds: s_0^2 >= 4 (1 + K^2), or there is nothing to combine."""
        return self.draws == 1 or self.base_variance >= _SMOOTH**2 * (1 + self.ratio**2)


@lru_cache(maxsize=1024)
def convolution_for(width: float) -> Convolution:
    """Returns the plan of the fewest draws whose width is at least `width`, and at most 1e-12 of it more.

    >>> convolution_for(1e12).coefficients
    (1, 203, 41209, 8365427, 1698181681)

    Raises:
        ParameterError: the width is outside its range, or not a number.
    """
    if not LEAST_WIDTH <= width <= MOST_WIDTH:
        raise ParameterError("noise.width-range", least=LEAST_WIDTH, most=MOST_WIDTH, width=width)
    target = Fraction(width) ** 2
    needed = math.ceil(target / _MOST_BASE_WIDTH**2)
    for draws in counting(1):  # seven are enough for the widest
        # The smallest ratio leaves the widest base, hence the smoothest sum.
        ratio = 1 + bisect_left(range(1, _MOST_BASE_WIDTH // _SMOOTH), needed, key=partial(_squares, draws))
        # Rounded up to a multiple of 2^-64, so that the width is exact as a fraction and never below what was asked.
        base_variance = Fraction(math.ceil(target / _squares(draws, ratio) * 2**64), 2**64)
        plan = Convolution(base_variance=base_variance, ratio=ratio, draws=draws)
        if base_variance <= _MOST_BASE_WIDTH**2 and plan.is_smooth:
            break
    return plan


def _squares(draws: int, ratio: int) -> int:
    """The sum of the squares of a plan's coefficients."""
    return sum(ratio ** (2 * power) for power in range(draws))


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """The distribution on the integers with Pr[x] proportional to exp(-x^2 / (2 width^2)).

    Its accounting is that of Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential privacy": where
    neighbouring inputs differ by an L2 norm of D lattice units, zero-concentrated with D^2 / (2 width^2), as for the
    continuous one. `width` is the parameter: never below the standard deviation, and within 2e-7 of it from 1 upwards.

    Guarantees, against a perfect source of bytes:

    - samples are independent, and each is within `sampler_distance` of the discrete Gaussian of a width s, in total
      variation, with width <= actual_width <= s and s <= width (1 + 1e-12);
    - a release of n samples that is (epsilon, delta) private with exact noise is, with this noise,
      (epsilon, delta + (1 + exp(epsilon)) n sampler_distance) private;
    - the distribution is symmetric exactly;
    - the same bytes and count give the same samples, with numba and without.

    Attributes:
        width: in lattice units, from 2^-10 to 2^53.

    Raises:
        ParameterError: the width is outside its range, or not a number.
    """

    width: float

    def __post_init__(self) -> None:
        convolution_for(self.width)
        object.__setattr__(self, "width", float(self.width))

    @property
    def convolution(self) -> Convolution:
        """The plan by which samples are put together."""
        return convolution_for(self.width)

    @property
    def actual_width(self) -> float:
        """The largest float that the width of the samples reaches; never below `width`."""
        variance = self.convolution.variance
        below = math.sqrt(variance)
        while Fraction(below) ** 2 > variance:
            below = math.nextafter(below, 0.0)
        while Fraction(above := math.nextafter(below, math.inf)) ** 2 <= variance:
            below = above
        return below

    @property
    def sampler_distance(self) -> float:
        """A bound on the total variation distance of one sample from the exact discrete Gaussian; below 2^-109.

        Each draw adds what its table lacks, each step of the convolution what it smooths over.
        """
        draws = self.convolution.draws
        return draws * _TABLE_DISTANCE + (draws - 1) * _SMOOTHING_DISTANCE

    def sample(self, count: int, draw: Source) -> _Samples:
        """Returns `count` independent samples.

        With numba installed a compiled loop draws the long arrays, otherwise NumPy does; the samples are the same.
        Beyond the result itself, memory does not grow with `count`.

        Args:
            count: how many; none gives an empty array.
            draw: where the bytes come from; four are one draw.

        Raises:
            ParameterError: `count` is negative or no integer.
        """
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
            raise ParameterError("noise.count-range", count=count)
        combine = (_compiled() if count >= _WORTH_COMPILING else None) or _combined
        return _sampled(self.convolution, int(count), draw, combine)


def _sampled(plan: Convolution, count: int, draw: Source, combine: _Combine) -> _Samples:
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

    A column stands for its own magnitude below its threshold, and for its alias's from there on.

    Attributes:
        entries: a column's threshold, its first 18 bits, then its alias, 13 bits, in one word.
        thresholds: the thresholds in full, in units of which a column holds 2^146.
    """

    entries: _Draws
    thresholds: tuple[int, ...]


@lru_cache(maxsize=16)
def _table(variance: Fraction) -> _Table:
    left = _weights(variance)
    # A column that keeps all it holds is its own alias, and its threshold makes no difference.
    thresholds, aliases = [0] * _COLUMNS, list(range(_COLUMNS))
    short = [column for column in range(_COLUMNS) if left[column] < _CAPACITY]
    ample = [column for column in range(_COLUMNS) if left[column] >= _CAPACITY]
    # What is left is what the columns still open hold, so that while one is short another is ample.
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
    """The chance of each magnitude 0, 1, ... 8191, in units of 2^-159, which sum to one exactly.

    With q = exp(-1 / 2 variance), the term of m is q^(m^2), and terms follow from each other by factors q^(2m + 1).
    In fixed point, a product of two numbers of at most one errs by the sum of their errors and one unit of 2^-256. So
    q errs by 1 unit, its square by 3, the factor of m by 4m + 1 and the term of m by 2m^2: below 2^-229 for a term and
    2^-216 for their total, which is at least one. Beside a weight's own unit that is nothing.
    """
    # Correctly rounded by `decimal`, at twice the digits of the fixed point.
    # All is said: what is left out of a context is taken from one that training in this process may have changed.
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


def _combined(draws: _Draws, entries: _Draws, coefficients: _Samples, out: _Samples, tied: _Samples) -> int:
    """Fills `out` with the sums of base samples times coefficients, and returns how many draws tied.

    A tie, the rest of a draw equal to the first bits of its threshold, counts here as above it. Where they are, counted
    through all draws, is written to the beginning of `tied`, which has room for every draw and one.
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
        found = np.flatnonzero(rest == threshold)
        tied[ties : ties + len(found)] = found + i * len(row)
        ties += len(found)
    return ties


def _loop(draws: _Draws, entries: _Draws, coefficients: _Samples, out: _Samples, tied: _Samples) -> int:
    """What `_combined` does, draw by draw, to be compiled; masks in place of branches on what is drawn."""
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
            tied[ties] = i * draws.shape[1] + j  # the next to come is written over one that is no tie
            ties += rest == threshold
    return ties


_LOADING = threading.RLock()
"""Taken for importing numba and compiling the loop, and for forking the process.

A child with numba half imported, or with the lock of numba's compiler, would wait for ever in the first long draw.
Draws never wait for this lock: a drawing thread may hold the lock of a ledger, and a fork waits for both locks.
"""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOADING.acquire, after_in_parent=_LOADING.release, after_in_child=_LOADING.release)


def _compiled() -> _Combine | None:
    """Returns the loop as machine code; None without numba, while another thread loads numba, and during a fork."""
    if not _LOADING.acquire(blocking=False):
        return None  # NumPy draws the same integers
    try:
        return _loaded()
    finally:
        _LOADING.release()


@cache
def _loaded() -> _Combine | None:
    try:
        import numba
    except ImportError:
        return None
    decorate: Any = numba.njit
    try:
        compiled = decorate(nogil=True, cache=True)(_loop)
    except RuntimeError:  # no folder to keep the machine code in: compile in every process
        compiled = decorate(nogil=True)(_loop)
    _sampled(convolution_for(1.0), 1, lambda count: np.zeros(count, dtype=np.uint8), compiled)  # numba compiles now
    return cast(_Combine, compiled)


def _settle(draws: _Draws, tied: _Samples, table: _Table, coefficients: _Samples, out: _Samples, draw: Source) -> None:
    """Decides the draws that tied, each by 128 bits more, and corrects the samples they are part of."""
    for place in tied.tolist():
        i, j = divmod(place, draws.shape[1])
        drawn = int(draws[i, j])
        column = drawn >> _REST_BITS & _COLUMNS - 1
        more = int.from_bytes(draw(_MORE_BITS // 8).tobytes(), "little")
        if more < table.thresholds[column] % 2**_MORE_BITS:
            change = column - int(table.entries[column]) % _COLUMNS
            out[j] += int(coefficients[i]) * (-change if drawn >> 31 else change)
