"""Whether noise is what a plan says it is: its width and shape, fresh in every round, and in every bit of a lattice.

>>> Width(squares=4_900.0, count=10_000).too_little < 1e-12, Width(squares=10_050.0, count=10_000).too_little > 0.1
(True, True)

An auditor who knows the updates takes them off; what is left is noise. Every test here compares it with the claim, as
standard normal values once it is divided by the width that the plan states, and returns a p-value: how likely what was
seen is, or worse, where the claim holds.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from fulcrum.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """How wide noise is beside its claim.

    Attributes:
        squares: The sum of squares of the noise, each value divided by the width claimed.
        count: How many values.
    """

    squares: float
    count: int

    @property
    def ratio(self) -> float:
        """The width measured, over that claimed."""
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
    """Of several rounds or coordinates, the one with the least noise.

    Attributes:
        place: Which one, counted from 1.
        ratio: The width measured there, over that claimed.
        p_value: Against noise that is narrower than claimed there, the number of places allowed for.
    """

    place: int
    ratio: float
    p_value: float


def narrowest(squares: FloatArray, count: int) -> Narrowest:
    """Returns where noise is narrowest.

    Args:
        squares: By place, the sum of squares of the noise in widths claimed.
        count: How many values each place has.
    """
    place = int(np.argmin(squares))
    found = Width(squares=max(float(squares[place]), 0.0), count=count)
    return Narrowest(place=place + 1, ratio=found.ratio, p_value=min(1.0, len(squares) * found.too_little))


BINS = 32
"""Intervals that noise falls into equally often where it is normal."""

_FEWEST_A_BIN = 20  # for Pearson's test to keep its level far out
_EDGES = special.ndtri(np.arange(1, BINS) / BINS)


def binned(values: FloatArray) -> IntArray:
    """Returns how many values fall into each of the intervals that normal ones, as wide as these, do equally often."""
    flat = values.ravel()
    width = math.sqrt(float(flat @ flat) / max(flat.size, 1)) or 1.0
    return np.bincount(np.searchsorted(_EDGES, flat / width), minlength=BINS)


def shape_p_value(counts: IntArray) -> float:
    """Returns the p-value against noise that is not normal, whatever its width (Pearson's test on `binned` counts).

    That the width was measured on the same values makes it larger than it need be, and never smaller.
    """
    expected = float(counts.sum()) / BINS
    if expected < _FEWEST_A_BIN:
        return 1.0
    return float(special.chdtrc(BINS - 1, float(((counts - expected) ** 2).sum()) / expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The distance in coordinates over which noise is most alike.

    Attributes:
        distance: In coordinates.
        correlation: Of the noise of coordinates that far apart.
        p_value: Against noise that is not drawn anew for every coordinate, the number of distances allowed for.
    """

    distance: int
    correlation: float
    p_value: float


def chained(noise: FloatArray) -> Chain | None:
    """Returns how far apart coordinates are whose noise is most alike; `noise` is (draws, coordinates)."""
    coordinates = noise.shape[1]
    distances = (coordinates - 1) // 2
    power = float(np.einsum("rc,rc->", noise, noise))
    if distances < 1 or not power:
        return None
    spectrum = np.fft.rfft(noise, axis=1)
    around = np.fft.irfft((np.abs(spectrum) ** 2).sum(axis=0), n=coordinates)[1 : distances + 1] / power
    place = int(np.argmax(np.abs(around)))
    found = float(around[place])
    single = float(special.betaincc(0.5, max(noise.size - 1, 1) / 2, min(found**2, 1.0)))
    return Chain(distance=place + 1, correlation=found, p_value=min(1.0, distances * single))


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """The two rounds, or silos, whose noise is most alike.

    Attributes:
        two: Which two, counted from 1.
        correlation: Of their noise.
        p_value: Against noise that is not fresh, the number of pairs that were compared allowed for.
    """

    two: tuple[int, int]
    correlation: float
    p_value: float


def repetition(products: FloatArray, count: int) -> Repetition | None:
    """Returns the two rounds, or silos, whose noise is most alike; None where there is one alone.

    Args:
        products: (rounds, rounds): the sums over values of the products of their noise in two rounds.
        count: How many values.
    """
    rounds = len(products)
    if rounds < 2 or not count:
        return None
    own = np.sqrt(np.maximum(np.diag(products), 0.0))
    power = np.outer(own, own)
    correlation = np.divide(products, power, out=np.zeros_like(products), where=power > 0)
    upper = np.triu(np.abs(correlation), 1)
    first, second = (int(place) for place in np.unravel_index(int(np.argmax(upper)), upper.shape))
    found = float(correlation[first, second])
    # Independent normal values: r^2 is beta(1/2, (n - 1)/2).
    single = float(special.betaincc(0.5, max(count - 1, 1) / 2, min(found**2, 1.0)))
    pairs = rounds * (rounds - 1) // 2
    return Repetition(two=(first + 1, second + 1), correlation=found, p_value=min(1.0, pairs * single))


@dataclass(frozen=True, slots=True, kw_only=True)
class BareBits:
    """The modulus at which sums of a lattice are least uniform.

    Attributes:
        modulus: In steps of the lattice.
        concentration: The length of the mean of exp(2 pi i sum / modulus): 0 where all residues are alike, 1 where all
            sums leave the same one.
        p_value: Against bits that noise leaves as they are, the number of moduli that were tried allowed for.
    """

    modulus: int
    concentration: float
    p_value: float


def moduli(width: float) -> list[int]:
    """Returns the moduli at which noise this many steps wide leaves all residues alike, to within 1e-8."""
    return [2**power for power in range(1, int(math.log2(width)) + 1)] if width >= 2 else []


def phases(values: npt.NDArray[np.int64], modulus: int) -> FloatArray:
    """Returns where integers stand on the circle of a modulus, in radians."""
    return np.asarray((values % modulus) * (2 * math.pi / modulus))


def bare_bits(turns: dict[int, complex], count: int) -> BareBits | None:
    """Returns the modulus at which values are least uniform (Rayleigh's test); None where none was tried.

    Args:
        turns: By modulus, the sum over values of exp(i phase).
        count: How many values.
    """
    if not turns or not count:
        return None
    worst = max(turns, key=lambda modulus: abs(turns[modulus]))
    length = abs(turns[worst]) / count
    z = count * length**2
    # Rayleigh's p-value with its correction of first order (Mardia 1972).
    single = min(1.0, math.exp(-z) * max(0.0, 1 + (2 * z - z * z) / (4 * count)) if z < 700 else 0.0)
    return BareBits(modulus=worst, concentration=length, p_value=min(1.0, len(turns) * single))
