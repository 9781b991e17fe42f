"""Seeded draws on the device where silos train, for simulations too large to be fed from the processor.

The draws of a silo depend on seed, round and silo alone, on one kind of device: silos are drawn in runs whose length
depends on how much each draws, and a piece of a run is cut out of the whole. They protect nobody, as all seeded noise.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_STREAM = "tensor"  # keeps these draws apart from every other use of the same seed
_USES = ("batch", "noise")
_RUN_BITS = 20  # of the number of a run, after which the round follows
_HALF = (1 << 16) - 1
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
        drawn = self.torch.empty((last - first, width), device=self.device, dtype=dtype)
        filled = 0
        for run, begin, end, generator in self._runs("noise", round_number, first, last, width):
            here = drawn[filled : filled + end - begin]
            if end - begin == run:
                self.torch.randn((run, width), generator=generator, out=here)
            else:
                whole = self.torch.randn((run, width), device=self.device, dtype=dtype, generator=generator)
                here.copy_(whole[begin:end])
            filled += end - begin
        return drawn

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
            state = stream_of(self.seed, use, round_number, number)
            generator = self.torch.Generator(device=self.device).manual_seed(state)
            yield run, max(first - number * run, 0), min(last - number * run, run), generator


def stream_of(seed: int, use: str, round_number: int, run: int) -> int:
    """Returns the 32 bits that begin a stream: on a processor torch looks at no more.

    Two hashes of 32 bits would often be the same, in a large simulation. So the streams of a seed are numbered, and the
    numbers permuted (a Feistel network of four steps): no two are the same up to 2,048 rounds of 2^20 runs.
    """
    number = (round_number << _RUN_BITS | run) << 1 | _USES.index(use)
    left, right = number >> 16 & _HALF, number & _HALF
    for step in range(4):
        name = f"{_STREAM} {seed} {step} {right}".encode()
        left, right = right, left ^ int.from_bytes(hashlib.blake2b(name, digest_size=2).digest(), "big")
    return left << 16 | right
