"""Sources of noise: seeded for research, cryptographic for deployment. Simulations also draw in `tensors`.

>>> SeededNoise(seed=7).standard_normal(round_number=1, block=0, shape=(1, 2)).round(3).tolist()
[[1.137, -1.666]]

Everybody with the seed can predict seeded noise, so seeded noise protects nobody. Seeded noise makes experiments
repeatable and pairs the arms of a comparison: the arms share every draw and differ in the scale alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fulcrum.arrays import FloatArray
from fulcrum.core.noise.discrete_gaussian import DiscreteGaussian
from fulcrum.core.noise.keystream import random_bytes

SILOS_A_BLOCK = 48
"""The number of silos whose seeded noise and batches are drawn together; a change changes the draws of every seed."""

_STREAM = 0x6E6F697365  # separates the draws from all further uses of the same seed


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededNoise:
    """Standard normal draws that depend on seed, round and block alone, and not on earlier draws.

    A block is a fixed run of silos (or of aggregators), so a federation may be processed in pieces of any size.
    """

    seed: int

    def standard_normal(self, *, round_number: int, block: int, shape: tuple[int, ...]) -> FloatArray:
        """Returns the draws of a block in a round."""
        return np.random.default_rng([_STREAM, self.seed, round_number, block]).standard_normal(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeededNoiseBySilo(SeededNoise):
    """The same draws for a single silo at a time: a process for every silo trains as a single process for all silos."""

    silos: int

    def standard_normal(self, *, round_number: int, block: int, shape: tuple[int, ...]) -> FloatArray:
        """Returns the draws of a silo in a round; `block` is the index of the silo."""
        run, place = divmod(block, SILOS_A_BLOCK)
        size = min(SILOS_A_BLOCK, self.silos - run * SILOS_A_BLOCK)
        drawn = SeededNoise.standard_normal(self, round_number=round_number, block=run, shape=(size, *shape))
        return np.asarray(drawn[place])


@dataclass(frozen=True, slots=True)
class SecureNoise:
    """Discrete Gaussian integers from a cryptographic keystream, for deployment.

    The object has no state: every draw has a fresh key from the operating system, forgotten after the draw, in a forked
    process and in a copy too. Bytes from a different source cannot be given.
    """

    def integers(self, *, width: float, count: int) -> npt.NDArray[np.int64]:
        """Returns independent draws at least `width` lattice steps wide."""
        return DiscreteGaussian(width=width).sample(count, random_bytes)
