"""Seeded draws on the device that trains silos, for simulations too large to be fed from the processor.

On a given kind of device the draws of a silo depend on seed, round and silo alone: silos are drawn in runs of a length
that depends on the number of draws of a silo, and a piece of a run is cut out of the whole run. The draws protect no
silo, like all seeded noise.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_STREAM = "tensor"  # keeps these draws apart from every other use of the same seed
_USES = ("batch", "noise")
_RUN_BITS = 20  # low bits of a stream's number, for the run; the round has the bits above
_HALF = (1 << 16) - 1
_RUN = {"cpu": (1 << 18, 48), "": (1 << 24, 4_096)}  # most draws and most silos of a run; at least a single silo


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDraws:
    """Draws on a device that depend on seed, round and silo alone.

    Attributes:
        torch: The library, not imported by this module.
        device: Device in torch's words.
        seed: Seed of every draw.
    """

    torch: Any
    device: str
    seed: int

    def standard_normal(self, *, round_number: int, first: int, last: int, width: int, dtype: Any) -> Any:
        """Returns the noise of the silos from `first` up to `last`, (silos, width)."""
        drawn = self.torch.empty((last - first, width), device=self.device, dtype=dtype)
        filled = 0
        for run, begin, end, generator in self._runs("noise", round_number, first, last, width):
            target = drawn[filled : filled + end - begin]
            if end - begin == run:
                self.torch.randn((run, width), generator=generator, out=target)
            else:
                whole_run = self.torch.randn((run, width), device=self.device, dtype=dtype, generator=generator)
                target.copy_(whole_run[begin:end])
            filled += end - begin
        return drawn

    def integers(self, *, round_number: int, first: int, last: int, width: int, bits: int) -> Any:
        """Returns whole numbers below two to the `bits` for the silos from `first` up to `last`, (silos, width)."""
        return self.torch.cat(
            [
                self.torch.randint(0, 1 << bits, (run, width), device=self.device, generator=generator)[begin:end]
                for run, begin, end, generator in self._runs("batch", round_number, first, last, width)
            ]
        )

    def _runs(
        self, use: str, round_number: int, first: int, last: int, width: int
    ) -> Iterator[tuple[int, int, int, Any]]:
        """Yields every run of silos that meets the silos from `first` up to `last`.

        Args:
            use: The use of the draws, "batch" or "noise": each use has streams of its own.
            round_number: The round of the draws.
            first: The index of the first silo.
            last: The index after the last silo.
            width: The number of draws of a silo.

        Yields:
            The number of silos of the run, begin and end (exclusive) of the common part within the run, and the run's
            generator.
        """
        draws, silos = _RUN.get(self.device.partition(":")[0], _RUN[""])
        run = max(min(draws // width, silos), 1)
        for number in range(first // run, -(-last // run)):
            state = stream_of(self.seed, use, round_number, number)
            generator = self.torch.Generator(device=self.device).manual_seed(state)
            yield run, max(first - number * run, 0), min(last - number * run, run), generator


def stream_of(seed: int, use: str, round_number: int, run: int) -> int:
    """Returns the 32 bits that begin the stream of a run of silos; `use` is "batch" or "noise".

    Torch reads no more bits on a processor.
    Hashes of 32 bits would often coincide in a large simulation, and equal streams would give two silos the same noise.
    The streams of a seed are therefore numbered, and the numbers permuted by a Feistel network of four steps: no two
    streams coincide up to 2,048 rounds of 2^20 runs.
    """
    number = (round_number << _RUN_BITS | run) << 1 | _USES.index(use)
    left, right = number >> 16 & _HALF, number & _HALF
    for step in range(4):
        name = f"{_STREAM} {seed} {step} {right}".encode()
        left, right = right, left ^ int.from_bytes(hashlib.blake2b(name, digest_size=2).digest(), "big")
    return left << 16 | right
