"""Lattice noise that can be drawn again: for tests alone, and refused by `release`."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fulcrum.core.noise.discrete_gaussian import DiscreteGaussian
from fulcrum.core.noise.keystream import repeated_bytes
from fulcrum.core.noise.noise_sources import SecureNoise


@dataclass(frozen=True, slots=True)
class RepeatedNoise(SecureNoise):
    """Secure noise with the keystream of a known key."""

    key: bytes

    def integers(self, *, width: float, count: int) -> npt.NDArray[np.int64]:
        return DiscreteGaussian(width=width).sample(count, repeated_bytes(self.key))
