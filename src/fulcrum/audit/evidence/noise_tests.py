"""Tests of noise against a plan: width and shape, freshness in every round, and every bit of a lattice.

>>> Width(squares=4_900.0, count=10_000).too_little < 1e-12, Width(squares=10_050.0, count=10_000).too_little > 0.1
(True, True)

An auditor who knows the updates subtracts them; noise remains. The noise, divided by the plan's width, is standard
normal if the claim holds. Every test returns a p-value: the probability of the observed value, or a worse one, if the
claim holds.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from fulcrum.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """The width of noise, in multiples of the claim.

    Attributes:
        squares: The sum of squares of the noise, every value divided by the claimed width.
        count: Number of values.
    """

    squares: float
    count: int

    @property
    def ratio(self) -> float:
        """The measured width over the claimed width."""
        return math.sqrt(self.squares / self.count)

    @property
    def too_little(self) -> float:
        """The p-value against noise that is narrower than claimed."""
        return float(special.gammainc(self.count / 2, self.squares / 2))

    @property
    def too_much(self) -> float:
        """The p-value against noise that is wider than claimed."""
        return float(special.gammaincc(self.count / 2, self.squares / 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowest:
    """The round or coordinate with the least noise.

    Attributes:
        place: Number of the round or coordinate, from 1.
        ratio: The measured width over the claimed width.
        p_value: Against noise narrower than claimed at that place, corrected for the number of places.
    """

    place: int
    ratio: float
    p_value: float


def narrowest(squares: FloatArray, count: int) -> Narrowest:
    """Returns the round or coordinate with the narrowest noise.

    Args:
        squares: By place, the sum of squares of the noise in claimed widths.
        count: Number of values at every place.
    """
    place = int(np.argmin(squares))
    width = Width(squares=max(float(squares[place]), 0.0), count=count)
    return Narrowest(place=place + 1, ratio=width.ratio, p_value=min(1.0, len(squares) * width.too_little))


BINS = 32
"""Number of intervals; normal noise falls into all of them equally often."""

_FEWEST_A_BIN = 20  # for Pearson's test to keep its level far out
_EDGES = special.ndtri(np.arange(1, BINS) / BINS)


def bin_counts(values: FloatArray) -> IntArray:
    """Returns the number of values by interval; the intervals are equally likely for normal noise of this width."""
    flat = values.ravel()
    width = math.sqrt(float(flat @ flat) / max(flat.size, 1)) or 1.0
    return np.bincount(np.searchsorted(_EDGES, flat / width), minlength=BINS)


def shape_p_value(counts: IntArray) -> float:
    """Returns the p-value against noise of another shape than normal, for any width (Pearson's test on `bin_counts`).

    The width comes from the same values, which makes the p-value larger than necessary, and never smaller.
    """
    expected = float(counts.sum()) / BINS
    if expected < _FEWEST_A_BIN:
        return 1.0
    return float(special.chdtrc(BINS - 1, float(((counts - expected) ** 2).sum()) / expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The distance in coordinates at which noise is most alike.

    Attributes:
        distance: In coordinates.
        correlation: Correlation of the noise of coordinates at that distance.
        p_value: Against noise that is not drawn anew for every coordinate, corrected for the number of distances.
    """

    distance: int
    correlation: float
    p_value: float


def lag_correlation(noise: FloatArray) -> Chain | None:
    """Returns the distance of coordinates whose noise is most alike; `noise` is (draws, coordinates)."""
    coordinates = noise.shape[1]
    distances = (coordinates - 1) // 2
    power = float(np.einsum("rc,rc->", noise, noise))
    if distances < 1 or not power:
        return None
    spectrum = np.fft.rfft(noise, axis=1)
    around = np.fft.irfft((np.abs(spectrum) ** 2).sum(axis=0), n=coordinates)[1 : distances + 1] / power
    place = int(np.argmax(np.abs(around)))
    strongest = float(around[place])
    single = float(special.betaincc(0.5, max(noise.size - 1, 1) / 2, min(strongest**2, 1.0)))
    return Chain(distance=place + 1, correlation=strongest, p_value=min(1.0, distances * single))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """The two rounds, or silos, whose noise is most alike.

    Attributes:
        two: The numbers of both, from 1.
        correlation: Correlation of their noise.
        p_value: Against noise that is not fresh, corrected for the number of compared pairs.
    """

    two: tuple[int, int]
    correlation: float
    p_value: float


def repetition(products: FloatArray, count: int) -> Repetition | None:
    """Returns the two rounds, or silos, whose noise is most alike; None for fewer than two.

    Args:
        products: (rounds, rounds): the sums over values of the products of the noise in two rounds.
        count: Number of values.
    """
    rounds = len(products)
    if rounds < 2 or not count:
        return None
    own = np.sqrt(np.maximum(np.diag(products), 0.0))
    power = np.outer(own, own)
    correlation = np.divide(products, power, out=np.zeros_like(products), where=power > 0)
    upper = np.triu(np.abs(correlation), 1)
    first, second = (int(place) for place in np.unravel_index(int(np.argmax(upper)), upper.shape))
    strongest = float(correlation[first, second])
    # Independent normal values: r^2 is beta(1/2, (n - 1)/2).
    single = float(special.betaincc(0.5, max(count - 1, 1) / 2, min(strongest**2, 1.0)))
    pairs = rounds * (rounds - 1) // 2
    return Repetition(two=(first + 1, second + 1), correlation=strongest, p_value=min(1.0, pairs * single))


@dataclass(frozen=True, slots=True, kw_only=True)
class BareBits:
    """The modulus at which sums of a lattice are least uniform.

    Attributes:
        modulus: A power of two, in steps of the lattice.
        concentration: The length of the mean of exp(2 pi i sum / modulus): 0 for uniform residues, 1 for a single
            residue.
        p_value: The probability of such a concentration if the noise makes all residues equally likely, corrected for
            the number of moduli. A small value is evidence of low bits without noise.
    """

    modulus: int
    concentration: float
    p_value: float


def moduli(width: float) -> list[int]:
    """Returns the powers of two up to `width`, the moduli of the test for uniform low bits.

    Honest noise with a standard deviation of `width` lattice steps leaves every residue of these moduli equally likely,
    up to 1e-8 in probability. A noise source with constant or biased low bits does not.
    """
    return [2**power for power in range(1, int(math.log2(width)) + 1)] if width >= 2 else []


def phases(values: npt.NDArray[np.int64], modulus: int) -> FloatArray:
    """Returns the phases of integers on the circle of a modulus, in radians."""
    return np.asarray((values % modulus) * (2 * math.pi / modulus))


def bare_bits(turns: dict[int, complex], count: int) -> BareBits | None:
    """Returns the modulus at which values are least uniform (Rayleigh's test); None without moduli.

    Args:
        turns: By modulus, the sum over values of exp(i phase).
        count: Number of values.
    """
    if not turns or not count:
        return None
    worst = max(turns, key=lambda modulus: abs(turns[modulus]))
    length = abs(turns[worst]) / count
    z = count * length**2
    # Rayleigh's p-value with its correction of first order (Mardia 1972).
    single = min(1.0, math.exp(-z) * max(0.0, 1 + (2 * z - z * z) / (4 * count)) if z < 700 else 0.0)
    return BareBits(modulus=worst, concentration=length, p_value=min(1.0, len(turns) * single))
