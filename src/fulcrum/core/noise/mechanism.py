"""The mechanism: clip, weight and noise of an update, called by simulation, deployment and audit alike.

>>> import numpy as np
>>> clip(np.array([3.0, 4.0]), 1.0).tolist()
[0.6000000000000001, 0.8]
>>> silent = GaussianMechanism(clip_norm=1.0, clip_share=1.0, weight=0.5, noise_multiplier=2.0, draw=np.zeros)
>>> apply_mechanism(silent, np.array([3.0, 4.0])).tolist()
[0.30000000000000004, 0.4]

Two mechanisms: seeded Gaussian noise in floating point for research, discrete Gaussian integers on a lattice for
deployment. Engines that train many silos in a single array use the factors of `batch_factors` instead.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from fulcrum.arrays import FloatArray
from fulcrum.core.noise.noise_sources import SecureNoise
from fulcrum.errors import DivergedUpdateError, ParameterError

Values: TypeAlias = np.ndarray[Any, Any]
"""Coordinates of a release: floating point in research, integers of the lattice in deployment."""

_CHUNK = 2**16  # coordinates at a time: a chunk stays in the processor's cache
_FARTHEST = 2**62  # in steps: a sum of rows stays within, and a further row cannot overflow 64 bits


class Mechanism(Protocol):
    """The way from a silo's clipped update to the numbers that may leave the silo, for a single release.

    Neighbouring relation: the unit of privacy of the plan; two clipped updates differ by at most twice `clip_norm`.

    Every implementation guarantees, by `tests/noise/test_mechanism.py`:

    - before noise is added, the norm of the weighted update is at most weight times `clip_norm`;
    - noise is at least as wide as in the plan, independent by coordinate, and drawn for a single release;
    - a coordinate of the result depends on its own coordinate and its own noise, and on no further data of the silo;
    - the result has the shape of its input, and the same dtype for every input.
    """

    @property
    def clip_norm(self) -> float:
        """C, the largest norm of an update before the weight."""

    @property
    def clip_share(self) -> float:
        """The share of C at which an update is clipped before the update is scaled up to C."""

    def perturb(self, clipped: FloatArray) -> Values:
        """Returns any number of coordinates of a clipped update, weighted and with noise."""

    def zeros(self, parameters: int) -> Values:
        """Returns an empty sum of clipped rows."""

    def add(self, total: Values, clipped: FloatArray) -> None:
        """Adds a clipped row to a sum, in place."""

    def perturb_sum(self, total: Values) -> Values:
        """Returns a sum of clipped rows, scaled down to the largest sum, weighted and with noise."""


def apply_mechanism(
    mechanism: Mechanism, update: FloatArray, *, on_diverged: Callable[[], object] | None = None
) -> Values:
    """Returns an update as the update may leave its silo: clipped as a whole, scaled up, weighted and perturbed.

    Args:
        mechanism: Clip, weight and noise.
        update: All coordinates, flat.
        on_diverged: Called for an update that is not finite. The update is then released as zero plus noise, since a
            refusal would tell an observer that the silo diverged. Without `on_diverged` the update raises
            `DivergedUpdateError`.
    """
    try:
        clipped = clip(update, mechanism.clip_norm, mechanism.clip_share)
    except DivergedUpdateError:
        if on_diverged is None:
            raise
        on_diverged()
        clipped = np.zeros_like(update)
    return mechanism.perturb(clipped)


def apply_by_person(
    mechanism: Mechanism,
    gradients: Iterable[FloatArray],
    parameters: int,
    *,
    on_diverged: Callable[[], object] | None = None,
) -> Values:
    """Returns the sum of a silo's gradients, one row for each person, as the sum may leave its silo.

    Neighbouring relation: the rows of one person are replaced, or come or go; every other row stays. Guarantees:

    - every row is clipped at C by itself, so one person moves the sum by at most kappa times weight times C;
    - a row that is not finite counts as zero for its person alone. To zero the whole sum would let one person move the
      sum by the rows of all others;
    - on a lattice every row is cut to integers before the sum. To cut the sum instead would add up to sqrt(d) steps to
      the change of one person;
    - the sum is scaled down to the largest sum of the plan, a projection, which lengthens no difference. On a lattice
      the scaled sum is cut again, and the unit's sensitivity contains the at most sqrt(d) steps of this cut;
    - a silo without persons releases noise.

    Args:
        mechanism: Clip, weight, largest sum and noise.
        gradients: The rows: flat arrays of d coordinates, or matrices of several rows. Rows are read once.
        parameters: d.
        on_diverged: Called for every row that is not finite.
    """
    return mechanism.perturb_sum(sum_by_person(mechanism, gradients, parameters, on_diverged=on_diverged))


def sum_by_person(
    mechanism: Mechanism,
    gradients: Iterable[FloatArray],
    parameters: int,
    *,
    on_diverged: Callable[[], object] | None = None,
) -> Values:
    """Returns the sum of a silo's clipped gradients before the noise, for `perturb_sum` of the same mechanism.

    The sum must not leave the silo. The arguments and the guarantees are those of `apply_by_person`.

    Raises:
        ParameterError: A row has another number of coordinates. NumPy would repeat a row of a single coordinate d
            times, and the norm of the repeated row exceeds C.
    """
    total = mechanism.zeros(parameters)
    for block in gradients:
        rows = np.atleast_2d(block)
        if rows.ndim != 2 or rows.shape[1] != parameters:
            raise ParameterError("clip.row-shape", shape=np.shape(block), parameters=parameters)
        for row in rows:
            own = np.array(row, dtype=np.float64)  # a copy: the row that is measured is the row that is added
            try:
                clipped = clip(own, mechanism.clip_norm, mechanism.clip_share)
            except DivergedUpdateError:
                if on_diverged is not None:
                    on_diverged()
                continue
            mechanism.add(total, clipped)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianMechanism:
    """Gaussian noise in floating point, for research.

    Attributes:
        clip_norm: C.
        clip_share: The share of C at which an update is clipped before the update is scaled up.
        weight: The weight of the silo in the sum.
        noise_multiplier: The standard deviation of the noise over C, before the weight.
        draw: A function that returns standard normal draws of a shape.
        largest_sum: The largest norm of a sum of clipped rows, in clip norms.
    """

    clip_norm: float
    clip_share: float
    weight: float
    noise_multiplier: float
    draw: Callable[[tuple[int, ...]], FloatArray]
    largest_sum: float = 1.0

    def perturb(self, clipped: FloatArray) -> FloatArray:
        """Returns coordinates of a clipped update, weighted and with noise."""
        # Without noise C may be infinite, and infinity times 0 would be NaN.
        scale = self.noise_multiplier * self.clip_norm if self.noise_multiplier else 0.0
        return np.asarray(self.weight * (clipped + scale * self.draw(clipped.shape)))

    def zeros(self, parameters: int) -> FloatArray:
        """Returns an empty sum of clipped rows."""
        return np.zeros(parameters)

    def add(self, total: FloatArray, clipped: FloatArray) -> None:
        """Adds a clipped row to a sum, in place."""
        total += clipped

    def perturb_sum(self, total: FloatArray) -> FloatArray:
        """Returns a sum of clipped rows, scaled down to the largest sum, weighted and with noise."""
        return self.perturb(clip(total, self.largest_sum * self.clip_norm))


@dataclass(frozen=True, slots=True, kw_only=True)
class LatticeMechanism:
    """Discrete Gaussian integers on a lattice, for deployment.

    Attributes:
        parameters: The number of coordinates of an update.
        clip_norm: C.
        clip_share: The share of C at which an update is clipped before the update is scaled up.
        weight: The weight of the silo in the sum.
        step: The lattice step.
        width: The width of the noise, in steps.
        noise: The source of the integers.
        largest_sum: The largest norm of a sum of clipped rows, in clip norms.
    """

    parameters: int
    clip_norm: float
    clip_share: float
    weight: float
    step: float
    width: float
    noise: SecureNoise = field(default_factory=SecureNoise)
    largest_sum: float = 1.0

    def perturb(self, clipped: FloatArray) -> npt.NDArray[np.int64]:
        """Returns coordinates of a clipped update, weighted and with noise, as integers of the lattice."""
        values = self.noise.integers(width=self.width, count=clipped.size)
        # No overflow for any update: a plan for which a release might not fit is refused (`check_fits`).
        self._add_cut(values, clipped, self._rounding)
        return values

    def zeros(self, parameters: int) -> npt.NDArray[np.int64]:
        """Returns an empty sum of clipped rows, as integers of the lattice."""
        return np.zeros(parameters, dtype=np.int64)

    def add(self, total: npt.NDArray[np.int64], clipped: FloatArray) -> None:
        """Adds a clipped row to a sum, in place: weighted, and cut to the lattice by itself.

        A coordinate of the sum stays within 2^62 steps, for any number of rows. Without this limit a silo with 2^11
        times the declared rows could overflow 64 bits, and a sum that wraps round bounds nobody. The limit is a
        projection onto a box of integers: exact, and no difference between two sums grows by it. So two sums that
        differ in the row of one person, with all other rows in the same order, stay at most kappa weight C apart.
        """
        # The second term is the room for the rounding errors of `perturb_sum`.
        self._add_cut(total, clipped, self._rounding * (1 + 2 * self.largest_sum))
        np.clip(total, -_FARTHEST, _FARTHEST, out=total)

    def perturb_sum(self, total: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns a sum of clipped rows, scaled down to the largest sum and cut again, with noise.

        The sums of two neighbours differ by at most kappa weight C (1 - 2 n r), with n the largest sum and r the
        relative rounding error of a norm: `add` made the rows shorter by this factor. Exact scaling to a ball of radius
        n weight C is a projection, and lengthens no difference. Rounded scaling is at most r n weight C away from the
        exact result for each neighbour, so the scaled sums differ by at most kappa weight C, and by at most sqrt(d)
        steps more after the cut: the sensitivity of the unit.
        """
        # The rounding errors are subtracted, as in `add`, so that no scaled sum is longer than the largest sum.
        largest = self.largest_sum * self.weight * self.clip_norm / self.step * (1 - self._rounding)
        size = float(np.linalg.norm(total.astype(np.float64)))
        if size > largest:
            total = np.trunc(total * (largest / size)).astype(np.int64)
        return total + self.noise.integers(width=self.width, count=total.size)

    @property
    def _rounding(self) -> float:
        """A bound on the relative rounding error of the norm of d coordinates, together with the scaling."""
        return (self.parameters + 8) * 2.0**-52

    def _add_cut(self, total: npt.NDArray[np.int64], clipped: FloatArray, rounding: float) -> None:
        # Cut toward zero: no coordinate grows, so the norm stays at most weight * C. Rounding to nearest could
        # exceed the sensitivity. The rounding errors of the norm of d coordinates and of the scaling are subtracted
        # first: on a lattice much finer than the silo's weight, cutting alone removes less than the rounding errors.
        factor = self.weight / self.step * max(0.0, 1 - rounding)
        with np.errstate(all="ignore"):
            for start in range(0, clipped.size, _CHUNK):
                part = slice(start, start + _CHUNK)
                total[part] += np.trunc(clipped[part] * factor).astype(np.int64)


def batch_factors(
    size: FloatArray, *, weight: FloatArray, noise_multiplier: FloatArray, clip_norm: FloatArray, clip_share: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns the two factors of releases for many silos at once.

    A release is the first factor times the update, plus the second factor times standard normal draws. All arguments
    broadcast. An infinite clip norm clips nothing and has no noise.

    Args:
        size: The L2 norms of the updates.
        weight: The weights of the silos in the sum.
        noise_multiplier: The standard deviations of the noise divided by C, before the weight.
        clip_norm: C.
        clip_share: Updates are clipped at this share of C, then multiplied by 1 / share: a clipped update has norm C.
    """
    return weight * clip_factor(size, clip_norm, clip_share), weight * noise_multiplier * noise_norm(clip_norm)


def noise_norm(clip_norm: FloatArray) -> FloatArray:
    """Returns the norms to which noise multipliers are relative: the clip norms, or 0 for an infinite clip norm."""
    return np.where(np.isinf(clip_norm), 0.0, clip_norm)


def clip(update: FloatArray, norm: float, share: float = 1.0) -> FloatArray:
    """Scales `update` to an L2 norm of at most `norm`: clipped at `share` of `norm`, then scaled up by 1 / share.

    Guarantees, for every shape including 0-d and empty, and every finite size:

    - the result's norm is at most `norm`, up to one rounding of the dtype, so two results differ by at most twice
      `norm` for every share; if the dtype does not hold `norm`, the result has the largest norm that the dtype holds;
    - with a share of 1, an update already within the norm comes back unchanged, bit for bit;
    - the dtype is kept, and the input is not written to.

    Edge cases:

    - NaN or inf raises `DivergedUpdateError`: a silo that diverged has no bounded update, and zeros would hide the
      fact;
    - a norm that is negative or NaN, or a share outside of (0, 1], raises `ParameterError`;
    - an infinite norm clips nothing.
    """
    if not norm >= 0:
        raise ParameterError("clip.norm-range", norm=norm)
    if not 0 < share <= 1:
        raise ParameterError("clip.share-range", share=share)
    with np.errstate(all="ignore"):  # overflow and underflow are intended here, under any NumPy setting
        largest = max(float(np.max(update, initial=0.0)), -float(np.min(update, initial=0.0)))
        if not math.isfinite(largest):
            raise DivergedUpdateError("clip.update-not-finite")
        exponent = math.frexp(largest)[1] - 1
        # A power of two: exact, and the squares of the scaled update cannot overflow.
        scaled = np.asarray(np.ldexp(np.asarray(update, dtype=np.float64), -exponent))
        size = float(np.linalg.norm(np.ravel(scaled)))
        if share == 1 and np.ldexp(size, exponent) <= norm:
            return update
        dtype = np.result_type(update, np.float16)  # a float's own dtype
        # At most the factor that reaches the norm, for any rounding of the share, and at most the range of the dtype.
        room = float(np.finfo(dtype).max) * (1 - 2.0**-50) / max(1.0, math.ldexp(largest, -exponent))
        factor = min(float(np.ldexp(1 / share, exponent)), norm / size if size else 0.0, room)
        return np.asarray(np.multiply(scaled, factor, out=scaled).astype(dtype, copy=False))


def clip_factor(size: FloatArray, norm: float | FloatArray, share: float | FloatArray = 1.0) -> FloatArray:
    """Returns the factors of updates of given L2 norms: 1 / share within that share of the norm, else norm / size."""
    inverse = np.broadcast_to(
        1 / np.asarray(share), np.broadcast_shapes(np.shape(size), np.shape(norm), np.shape(share))
    )
    return np.divide(norm, size, out=inverse.copy(), where=size > norm * np.asarray(share))
