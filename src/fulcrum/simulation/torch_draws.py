"""Batches and noise for a chunk of silos, as tensors: those of the other engines, or drawn where silos train."""

import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from fulcrum.noise.sources import SILOS_A_BLOCK
from fulcrum.noise.tensors import TensorDraws
from fulcrum.simulation.engine import Job, LocalTraining, batch_picks, block_noise
from fulcrum.simulation.torch_model import TorchModel, require_torch

DRAWS = ("shared", "device")
"""Batches and noise as of the other engines, or drawn on the device."""

_BLOCKS_KEPT = 2  # of which chunks in work use parts
_BATCH_BITS = 31


class ChunkDraws(Protocol):
    """What a chunk of silos draws in a round; it depends on seed, round and silo, and not on the chunk."""

    def picks(self, first: int, last: int, round_number: int) -> Any:
        """Returns the records of each batch, (steps, silos, batch)."""

    def noise(self, first: int, last: int, round_number: int) -> Any:
        """Returns standard normal draws, (silos, parameters), shared by all arms."""


def draws_of(kind: str, job: Job, training: LocalTraining, model: TorchModel, device: str) -> ChunkDraws:
    """Returns what draws batches and noise.

    Args:
        kind: One of `DRAWS`.
        job: Seed, partition and silos.
        training: Steps and batch.
        model: How many parameters, and of what kind of number.
        device: Where the draws are needed, as torch calls it.
    """
    drawn = SharedDraws if kind == "shared" else DeviceDraws
    return drawn(job, training, model, device)


class SharedDraws:
    """The draws of the other engines, to the bit."""

    def __init__(self, job: Job, training: LocalTraining, model: TorchModel, device: str) -> None:
        torch = require_torch()
        self._job, self._training, self._device, self._width = job, training, device, model.parameters
        self._kind = np.float32 if model.dtype == torch.float32 else np.float64  # rounded block by block
        self._in_parts: dict[tuple[str, int, int], Any] = {}
        self._lock = threading.Lock()

    def picks(self, first: int, last: int, round_number: int) -> Any:
        """Returns the records of each batch, (steps, silos, batch)."""

        def draw(block: int) -> Any:
            return batch_picks(self._job, block, round_number, self._training).swapaxes(0, 1)

        drawn = self._drawn("picks", draw, first, last, round_number)
        return require_torch().as_tensor(drawn.swapaxes(0, 1)).to(self._device)

    def noise(self, first: int, last: int, round_number: int) -> Any:
        """Returns standard normal draws, (silos, parameters), shared by all arms."""

        def draw(block: int) -> Any:
            return block_noise(self._job, block, round_number, self._width).astype(self._kind, copy=False)

        drawn = self._drawn("noise", draw, first, last, round_number)
        return require_torch().as_tensor(drawn).to(self._device)

    def _drawn(self, use: str, draw: Callable[[int], Any], first: int, last: int, round_number: int) -> Any:
        """Returns what blocks draw for a run of silos, silos first; a block used in parts is kept for the next."""
        parts = []
        for block in range(first // SILOS_A_BLOCK, -(-last // SILOS_A_BLOCK)):
            begin, end = first - block * SILOS_A_BLOCK, last - block * SILOS_A_BLOCK
            if begin <= 0 and end >= SILOS_A_BLOCK:
                parts.append(draw(block))
                continue
            key = use, round_number, block
            with self._lock:
                if key not in self._in_parts:
                    others = [each for each in self._in_parts if each[0] == use]
                    for old in others[: len(others) + 1 - _BLOCKS_KEPT]:
                        del self._in_parts[old]
                    self._in_parts[key] = draw(block)
                parts.append(self._in_parts[key][max(begin, 0) : end])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


class DeviceDraws:
    """Draws on the device itself, for more silos than the processor can feed."""

    def __init__(self, job: Job, training: LocalTraining, model: TorchModel, device: str) -> None:
        torch, part = require_torch(), job.partition
        self._training, self._width, self._dtype = training, model.parameters, model.dtype
        self._draws = TensorDraws(torch=torch, device=device, seed=job.seed)
        self._records, self._starts, self._counts = (
            torch.as_tensor(values).to(device) for values in (part.records, part.starts, part.counts)
        )

    def picks(self, first: int, last: int, round_number: int) -> Any:
        """Returns the records of each batch, (steps, silos, batch)."""
        steps, batch = self._training.steps, self._training.batch
        drawn = self._draws.integers(
            round_number=round_number, first=first, last=last, width=steps * batch, bits=_BATCH_BITS
        )
        places = ((drawn * self._counts[first:last, None]) >> _BATCH_BITS) + self._starts[first:last, None]
        return self._records[places].reshape(-1, steps, batch).transpose(0, 1)

    def noise(self, first: int, last: int, round_number: int) -> Any:
        """Returns standard normal draws, (silos, parameters), shared by all arms."""
        return self._draws.standard_normal(
            round_number=round_number, first=first, last=last, width=self._width, dtype=self._dtype
        )
