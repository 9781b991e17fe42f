"""Batches and noise for a chunk of silos, as tensors: shared with the NumPy engines, or drawn on the device."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from fulcrum.core.noise.noise_sources import SILOS_A_BLOCK
from fulcrum.simulation.embedded.batched_engine import batch_picks, block_noise
from fulcrum.simulation.embedded.federation_jobs import Job
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.torch.tensor_draws import TensorDraws
from fulcrum.simulation.torch.torch_model import TorchModel
from fulcrum.simulation.torch.torch_state import require_torch

DRAWS = ("shared", "device")
"""Kinds of draws: shared with the NumPy engines, or made on the device."""

_BLOCKS_KEPT = 2  # blocks drawn once and used in parts by several chunks
_BATCH_BITS = 31
_SILOS_A_PIECE = 1_008


class ChunkDraws(Protocol):
    """The draws of a chunk of silos in a round; draws depend on seed, round and silo, and not on the chunk.

    A chunk is the silos from the index `first` to the index `last` (exclusive).
    """

    def picks(self, first: int, last: int, round_number: int) -> Any:
        """Returns the records of every batch, (steps, silos, batch)."""

    def noise(self, first: int, last: int, round_number: int) -> Iterator[tuple[int, int, Any]]:
        """Yields standard normal draws of silos in pieces: first silo, end (exclusive), array (silos, parameters)."""


def draws_of(kind: str, job: Job, training: LocalTraining, model: TorchModel, device: str) -> ChunkDraws:
    """Returns the source of batches and noise.

    Args:
        kind: A name of `DRAWS`.
        job: Seed, partition and silos.
        training: Steps and batch.
        model: The model, with the number and the dtype of parameters.
        device: The device that needs the draws, in torch's words.
    """
    draws = SharedDraws if kind == "shared" else DeviceDraws
    return draws(job, training, model, device)


class SharedDraws:
    """The draws of the NumPy engines, equal to the bit, so that both engines train on the same batches and noise."""

    def __init__(self, job: Job, training: LocalTraining, model: TorchModel, device: str) -> None:
        self._job, self._training, self._device, self._width = job, training, device, model.parameters
        self._in_parts: dict[tuple[str, int, int], Any] = {}
        self._lock = threading.Lock()

    def picks(self, first: int, last: int, round_number: int) -> Any:
        """Returns the records of every batch, (steps, silos, batch)."""

        def draw(block: int) -> Any:
            return batch_picks(self._job, block, round_number, self._training).swapaxes(0, 1)

        drawn = [part for _, _, part in self._draw_blocks("picks", draw, first, last, round_number)]
        return require_torch().as_tensor(np.concatenate(drawn).swapaxes(0, 1)).to(self._device)

    def noise(self, first: int, last: int, round_number: int) -> Iterator[tuple[int, int, Any]]:
        """Yields standard normal draws of silos in pieces: first silo, end (exclusive), array (silos, parameters)."""

        def draw(block: int) -> Any:
            return block_noise(self._job, block, round_number, self._width)

        for begin, end, part in self._draw_blocks("noise", draw, first, last, round_number):
            yield begin, end, require_torch().as_tensor(part).to(self._device)

    def _draw_blocks(
        self, use: str, draw: Callable[[int], Any], first: int, last: int, round_number: int
    ) -> Iterator[tuple[int, int, Any]]:
        """Yields the draws of the silos from `first` to `last` (exclusive), in pieces of at most one block.

        A block is `SILOS_A_BLOCK` silos with consecutive indices, whose numbers come from a single generator. A block
        that the range covers in part is cached, since the next range of silos needs the rest.

        Args:
            use: The kind of draws, "picks" or "noise"; blocks of each kind are cached apart.
            draw: The function from the number of a block to its draws, with silos on the first axis.
            first: The index of the first silo.
            last: The index after the last silo.
            round_number: The round of the draws.

        Yields:
            First silo, end (exclusive), and the draws of these silos on the first axis.
        """
        for block in range(first // SILOS_A_BLOCK, -(-last // SILOS_A_BLOCK)):
            start = block * SILOS_A_BLOCK
            begin, end = max(first, start), min(last, start + SILOS_A_BLOCK)
            if end - begin == SILOS_A_BLOCK:
                yield begin, end, draw(block)
                continue
            key = use, round_number, block
            with self._lock:
                if key not in self._in_parts:
                    cached = [cached_key for cached_key in self._in_parts if cached_key[0] == use]
                    for oldest in cached[: len(cached) + 1 - _BLOCKS_KEPT]:
                        del self._in_parts[oldest]
                    self._in_parts[key] = draw(block)
                part = self._in_parts[key][begin - start : end - start]
            yield begin, end, part


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
        """Returns the records of every batch, (steps, silos, batch)."""
        steps, batch = self._training.steps, self._training.batch
        drawn = self._draws.integers(
            round_number=round_number, first=first, last=last, width=steps * batch, bits=_BATCH_BITS
        )
        places = ((drawn * self._counts[first:last, None]) >> _BATCH_BITS) + self._starts[first:last, None]
        return self._records[places].reshape(-1, steps, batch).transpose(0, 1)

    def noise(self, first: int, last: int, round_number: int) -> Iterator[tuple[int, int, Any]]:
        """Yields standard normal draws of silos in pieces: first silo, end (exclusive), array (silos, parameters)."""
        drawn = self._draws.standard_normal(
            round_number=round_number, first=first, last=last, width=self._width, dtype=self._dtype
        )
        for begin, part in enumerate(drawn.split(_SILOS_A_PIECE)):
            start = first + begin * _SILOS_A_PIECE
            yield start, start + len(part), part
