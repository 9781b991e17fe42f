"""Draws noise: seeded for research, cryptographic for deployment; beside it only `tensors` does, in simulations.

>>> SeededNoise(seed=7).standard_normal(round_number=1, block=0, shape=(1, 2)).round(3).tolist()
[[1.137, -1.666]]

Seeded noise can be predicted by whoever knows the seed, so it protects nobody; it makes experiments repeatable and
pairs the arms of a comparison, which share every draw and differ in its scale alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fulcrum.arrays import FloatArray
from fulcrum.core.noise.discrete_gaussian import DiscreteGaussian
from fulcrum.core.noise.keystream import Source, random_bytes, repeated_bytes

SILOS_A_BLOCK = 48
"""Silos whose seeded noise and batches are drawn together; part of what a seed means."""

_STREAM = 0x6E6F697365  # keeps these draws apart from every other use of the same seed


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededNoise:
    """Standard normal draws that depend on seed, round and block alone, whatever was drawn before.

    A block is a fixed run of silos (or of aggregators), so that a federation may be worked through in pieces of any
    size.
    """

    seed: int

    def standard_normal(self, *, round_number: int, block: int, shape: tuple[int, ...]) -> FloatArray:
        """Returns the draws of one block in one round."""
        return np.random.default_rng([_STREAM, self.seed, round_number, block]).standard_normal(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededNoiseBySilo(SeededNoise):
    """The same draws, one silo of a federation at a time: a process for each silo trains as one process for all."""

    silos: int

    def standard_normal(self, *, round_number: int, block: int, shape: tuple[int, ...]) -> FloatArray:
        """Returns the draws of one silo, here given as the block, in one round."""
        run, place = divmod(block, SILOS_A_BLOCK)
        size = min(SILOS_A_BLOCK, self.silos - run * SILOS_A_BLOCK)
        drawn = SeededNoise.standard_normal(self, round_number=round_number, block=run, shape=(size, *shape))
        return np.asarray(drawn[place])


@dataclass(frozen=True, slots=True)
class SecureNoise:
    """Discrete Gaussian integers from a cryptographic keystream, for deployment.

    It holds nothing: every draw has a key of its own, fresh from the operating system and forgotten when it is done, in
    a forked process and in a copy too. Bytes from elsewhere cannot be given.
    """

    @classmethod
    def _for_test(cls, key: bytes) -> "SecureNoise":
        """Noise that anyone can draw again, so that it protects nobody: for tests alone, and refused by `release`."""
        return _RepeatedNoise(repeated_bytes(key))

    def integers(self, *, width: float, count: int) -> npt.NDArray[np.int64]:
        """Returns independent draws at least `width` lattice steps wide."""
        return DiscreteGaussian(width=width).sample(count, random_bytes)


@dataclass(frozen=True, slots=True)
class _RepeatedNoise(SecureNoise):
    """See `SecureNoise._for_test`."""

    _draw: Source

    def integers(self, *, width: float, count: int) -> npt.NDArray[np.int64]:
        return DiscreteGaussian(width=width).sample(count, self._draw)
