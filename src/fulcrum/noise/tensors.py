"""Seeded draws on the device where silos train, for simulations too large to be fed from the processor.

The draws of a silo depend on seed, round and silo alone, on one kind of device: silos are drawn in runs whose length
depends on how much each draws, and a piece of a run is cut out of the whole. They protect nobody, as all seeded noise.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

_STREAM = 0x74656E736F72  # keeps these draws apart from every other use of the same seed
_RUN = {"cpu": (1 << 18, 48), "": (1 << 24, 4_096)}  # draws and silos at most, where a single silo draws fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDraws:
    """Draws on a device that depend on seed, round and silo alone.

    Attributes:
        torch: The library, which this floor does not import.
        device: Where, as torch calls it.
        seed: Of every draw.
    """

    torch: Any
    device: str
    seed: int

    def standard_normal(self, *, round_number: int, first: int, last: int, width: int, dtype: Any) -> Any:
        """Returns the noise of the silos from `first` up to `last`, (silos, width)."""
        return self.torch.cat(
            [
                self.torch.randn((run, width), device=self.device, dtype=dtype, generator=generator)[begin:end]
                for run, begin, end, generator in self._runs("noise", round_number, first, last, width)
            ]
        )

    def integers(self, *, round_number: int, first: int, last: int, width: int, bits: int) -> Any:
        """Returns whole numbers below two to the `bits`, (silos, width)."""
        return self.torch.cat(
            [
                self.torch.randint(0, 1 << bits, (run, width), device=self.device, generator=generator)[begin:end]
                for run, begin, end, generator in self._runs("batch", round_number, first, last, width)
            ]
        )

    def _runs(
        self, use: str, round_number: int, first: int, last: int, width: int
    ) -> Iterator[tuple[int, int, int, Any]]:
        """Yields the runs that a piece meets: their length, from where to where it lies in them, and a generator."""
        draws, silos = _RUN.get(self.device.partition(":")[0], _RUN[""])
        run = max(min(draws // width, silos), 1)
        for number in range(first // run, -(-last // run)):
            words = [_STREAM, self.seed, int.from_bytes(use.encode(), "big"), round_number, number]
            state = int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])
            generator = self.torch.Generator(device=self.device).manual_seed(state >> 1)
            yield run, max(first - number * run, 0), min(last - number * run, run), generator
