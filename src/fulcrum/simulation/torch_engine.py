"""The federation on tensors: a user's own PyTorch module, all silos of a chunk together, on the processor or a GPU.

Every silo and arm has parameters of its own, stacked on leading axes; `torch.func` maps the module over them, so that a
chunk of silos takes the kernels of one. Silos go through in chunks that fit in memory, and a chunk that does not is
halved. Batches and noise are those of the other engines (`draws="shared"`), to the bit; or drawn on the device
(`draws="device"`), the same for the same seed on the same kind of device, whatever the chunks.
"""

import os
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import DivergedUpdateError, FulcrumError, ParameterError, check_known, in_one_line
from fulcrum.noise.clipping import clip_factor
from fulcrum.noise.sources import SILOS_A_BLOCK
from fulcrum.noise.tensors import TensorDraws
from fulcrum.simulation.engine import (
    FederationRun,
    Job,
    LocalTraining,
    Servers,
    aggregator_noise,
    batch_picks,
    block_noise,
)
from fulcrum.simulation.metrics import measured, measured_by_silo
from fulcrum.simulation.tasks import Task
from fulcrum.simulation.torch_model import TorchModel, require_torch

DRAWS = ("shared", "device")
"""Batches and noise as of the other engines, or drawn on the device."""

_GPU_SHARE, _GPU_BYTES, _PROCESSOR_BYTES = 0.4, 1 << 33, 1 << 28  # memory that a chunk may take
_COPIES = 6  # of the parameters of a silo: themselves, gradients, update, noise, and what an optimiser keeps
_SILOS_A_SUM = 1_008  # added up in one product, of which the part that is no region's own is zeros
_TESTED_AT_ONCE = 4_096
_BATCH_BITS = 31


class NotBatchedError(FulcrumError):
    """A module that `torch.func` cannot map over silos; the slow engine can run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevice:
    """Where to train, and what draws batches and noise.

    Attributes:
        name: As torch calls it, such as "cpu", "cuda" or "cuda:1".
        draws: One of `DRAWS`; None for those shared with the other engines on the processor, and the device's own on
            a GPU.
        chunk: How many silos advance at once, at most; as many as fit by default.
    """

    name: str = "cpu"
    draws: str | None = None
    chunk: int | None = None

    @property
    def drawn(self) -> str:
        """What draws batches and noise."""
        return self.draws or ("shared" if self.name == "cpu" else "device")

    def check(self) -> None:
        """Raises `ParameterError` for a device that is not here."""
        torch = require_torch()
        check_known("draws", self.drawn, DRAWS)
        if self.chunk is not None and self.chunk < 1:
            raise ParameterError(f"chunk must be a whole number of at least 1, got {self.chunk}")
        try:
            torch.empty(0, device=self.name)
        except (RuntimeError, AssertionError) as error:
            reason = in_one_line(str(error).partition("\n")[0])
            raise ParameterError(
                f"the device {self.name!r} is not here: {reason}. Use cpu, or another device"
            ) from None


def train_on_tensors(
    job: Job,
    task: Task,
    training: LocalTraining,
    model: TorchModel,
    *,
    device: TorchDevice | None = None,
    keep_regional_sums: bool = False,
    every_round: bool = True,
    on_round: Callable[[int, FloatArray], None] | None = None,
) -> FederationRun:
    """Trains one job; parameters and sums come back as flat vectors, (parameters, 1, arms), as of the slow engine.

    Args:
        job: What to train.
        task: The records, and the test split.
        training: Learning rate, local steps and batch.
        model: What a silo trains, as `TorchModel.on` gives it for the task.
        device: Where; the processor by default.
        keep_regional_sums: Whether to keep what the observer saw.
        every_round: Whether to test after every round, or after the last alone.
        on_round: Called after each round with its number and the accuracies by arm, where every round is tested.
    """
    device = device or TorchDevice()
    device.check()
    silos = _Silos(job, task, training, model, device)
    silos.check_mapped()
    arms = job.arms
    models = np.repeat(model.start[:, None], len(arms.clip_norm), axis=1)
    servers = Servers(arms, (model.parameters,), classes=model.classes)
    by_region = keep_regional_sums or any(rule.pools for rule in arms.rules)
    accuracy, sums = [], []
    for round_number in range(1, arms.rounds + 1):
        observed = silos.sums(models, round_number, by_region=by_region)
        models = servers.moved(models, observed)
        if keep_regional_sums:
            sums.append(observed[:, :, None, :])
        if every_round or round_number == arms.rounds:
            said = silos.outputs(models)
            found, recall = measured(said, task, model.metric)
            accuracy.append(found)
            if on_round is not None and every_round:
                on_round(round_number, found)
    return FederationRun(
        models=models[:, None, :],
        accuracy=np.array(accuracy),
        recall=recall,
        by_silo=measured_by_silo(said, task, model.metric),
        regional_sums=np.array(sums) if keep_regional_sums else None,
    )


class _Silos:
    """All silos of a job, and the records they hold, on one device."""

    def __init__(self, job: Job, task: Task, training: LocalTraining, model: TorchModel, device: TorchDevice) -> None:
        self._torch = require_torch()
        self._job, self._training, self._model, self._device = job, training, model, device
        self._inputs, self._targets, self._tested = (
            model.as_tensor(values, device.name)
            for values in (task.features_train, task.labels_train, task.features_test)
        )
        self._fixed = model.fixed(device.name)
        self._draws = TensorDraws(torch=self._torch, device=device.name, seed=job.seed)
        if device.drawn == "device":
            part = job.partition
            self._records, self._starts, self._counts = (
                self._torch.as_tensor(values).to(device.name) for values in (part.records, part.starts, part.counts)
            )
        self._chunk = self._fitting()

    def check_mapped(self) -> None:
        """Raises `NotBatchedError` for a module that cannot be mapped over silos, with why and where."""
        torch, model = self._torch, self._model
        picks = torch.arange(2 * self._training.batch, device=self._device.name).reshape(2, -1) % len(self._inputs)
        kept = {name: value.clone() for name, value in self._fixed.items()}
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]), model.mode(training=True):
                parts = model.split(self._begun().expand(2, -1))
                torch.func.vmap(self._loss, randomness="different")(parts, self._inputs[picks], self._targets[picks])
        except Exception as error:  # the module itself was tried before
            if _out_of_memory(torch, error):
                raise self._too_large(error) from None
            told = f"{type(error).__name__}: {in_one_line(str(error).partition(chr(10))[0]).rstrip('.')}"
            raise NotBatchedError(f"{told}{_where(error)}") from error
        written = [name for name, value in kept.items() if not torch.equal(value, self._fixed[name])]
        if written:
            raise NotBatchedError(f"it writes to its buffer {written[0]}, which silos must not share")

    def sums(self, models: FloatArray, round_number: int, *, by_region: bool) -> FloatArray:
        """Returns what regions send up in a round, (regions, parameters, arms), or the sum of it as one region's."""
        torch, arms = self._torch, self._job.arms
        begun = torch.as_tensor(models.T.copy()).to(self._device.name, self._model.dtype)
        total = torch.zeros((arms.regions, models.shape[1], len(models)), dtype=torch.float64, device=self._device.name)
        first = 0
        with self._exactly(round_number), self._model.mode(training=True):
            while first < len(arms.weights):
                last = min(first + self._chunk, len(arms.weights))
                try:
                    self._add_chunk(total, begun, first, last, round_number)
                except Exception as error:
                    if not _out_of_memory(torch, error):
                        raise
                    self._halve(error)
                    continue
                first = last
        injected = arms.aggregator_noise_multiplier.any()
        if not by_region and not injected:
            total = total.sum(dim=0, keepdim=True)
        sent = np.asarray(total.transpose(1, 2).cpu().numpy())
        return sent + aggregator_noise(self._job, round_number, len(models)) if injected else sent

    def outputs(self, models: FloatArray) -> list[FloatArray]:
        """Returns what the model of each arm says of the test records."""
        torch, model = self._torch, self._model
        found = []
        with torch.no_grad(), model.mode(training=False):
            for column in models.T:
                parts = model.split(torch.as_tensor(column).to(self._device.name, model.dtype))
                said = [model.outputs(parts, self._fixed, part) for part in self._tested.split(_TESTED_AT_ONCE)]
                found.append(np.asarray(torch.cat(said).double().cpu().numpy()))
        return found

    def _add_chunk(self, total: Any, begun: Any, first: int, last: int, round_number: int) -> None:
        """Trains, clips, perturbs and weights a chunk of silos, and adds it to the regional sums.

        Nothing is added before all that may not fit in memory is done.
        """
        torch, arms = self._torch, self._job.arms
        updates = self._updates(begun, self._picks(first, last, round_number))
        sizes = torch.linalg.vector_norm(updates, dim=2).double().cpu().numpy()
        if not np.isfinite(sizes).all():
            silo = first + int(np.argmin(np.isfinite(sizes).all(axis=1)))
            raise DivergedUpdateError(
                f"silo {arms.silo_name(silo)!r} diverged in round {round_number}: its update is not finite. "
                f"Lower the learning rate (now {self._training.learning_rate:g})"
            )
        weights = arms.weights[first:last]
        kept = weights * clip_factor(sizes, arms.clip_norm, arms.clip_share)
        scale = weights * arms.noise_multiplier[first:last] * arms.noise_norm
        noise = self._noise(first, last, round_number) if scale.any() else None
        kept, scale = (torch.as_tensor(values).to(updates) for values in (kept, scale))
        for begin in range(0, last - first, _SILOS_A_SUM):
            here = slice(begin, begin + _SILOS_A_SUM)
            found, member_of = np.unique(arms.region_of[first:last][here], return_inverse=True)
            belongs = torch.nn.functional.one_hot(torch.as_tensor(member_of).to(total.device), len(found)).T.to(kept)
            added = torch.stack(
                [(belongs * kept[here, arm]) @ updates[here, arm] for arm in range(kept.shape[1])], dim=1
            )
            if noise is not None:
                spread = belongs[:, None, :] * scale[here].T  # regions, arms, silos
                added += (spread.flatten(0, 1) @ noise[here]).reshape(added.shape)
            total[torch.as_tensor(found).to(total.device)] += added.double()

    def _updates(self, begun: Any, picks: Any) -> Any:
        """Returns the update of every silo under every arm, (silos, arms, parameters)."""
        torch, model = self._torch, self._model
        steps, silos, _ = picks.shape
        began = model.split(begun)
        leaves = {  # the arms of a silo stand side by side
            name: part.expand(silos, *part.shape).clone().flatten(0, 1).requires_grad_() for name, part in began.items()
        }
        tensors = list(leaves.values())
        move = model.stepping(tensors, self._training.learning_rate)
        losses = torch.func.vmap(self._loss, randomness="different")
        for step in range(steps):
            chosen = picks[step].repeat_interleave(len(begun), dim=0) if len(begun) > 1 else picks[step]
            found = losses(leaves, self._inputs[chosen], self._targets[chosen])
            move(torch.autograd.grad(found.sum(), tensors, materialize_grads=True))
        with torch.no_grad():
            moved = {name: leaf.unflatten(0, (silos, len(begun))).sub_(began[name]) for name, leaf in leaves.items()}
            return model.joined(moved, 2)

    def _loss(self, parameters: dict[str, Any], inputs: Any, targets: Any) -> Any:
        """Returns the loss of one silo under one arm."""
        return self._model.loss(self._model.outputs(parameters, self._fixed, inputs), targets)  # type: ignore[misc]

    def _picks(self, first: int, last: int, round_number: int) -> Any:
        """Returns the records of each batch of a chunk, (steps, silos, batch)."""
        torch, training = self._torch, self._training
        if self._device.drawn == "shared":
            parts = _in_blocks(
                first, last, lambda block: batch_picks(self._job, block, round_number, training).swapaxes(0, 1)
            )
            return torch.as_tensor(parts.swapaxes(0, 1)).to(self._device.name)
        width = training.steps * training.batch
        drawn = self._draws.integers(round_number=round_number, first=first, last=last, width=width, bits=_BATCH_BITS)
        places = ((drawn * self._counts[first:last, None]) >> _BATCH_BITS) + self._starts[first:last, None]
        return self._records[places].reshape(-1, training.steps, training.batch).transpose(0, 1)

    def _noise(self, first: int, last: int, round_number: int) -> Any:
        """Returns the standard normal draws of a chunk, (silos, parameters), shared by all arms."""
        width, dtype = self._model.parameters, self._model.dtype
        if self._device.drawn == "shared":
            kind = np.float32 if dtype == self._torch.float32 else np.float64  # rounded here, block by block
            drawn = _in_blocks(
                first, last, lambda block: block_noise(self._job, block, round_number, width).astype(kind, copy=False)
            )
            return self._torch.as_tensor(drawn).to(self._device.name)
        return self._draws.standard_normal(round_number=round_number, first=first, last=last, width=width, dtype=dtype)

    @contextmanager
    def _exactly(self, round_number: int) -> Iterator[None]:
        """Seeds what layers draw of their own, such as dropout, and has a GPU multiply in full precision meanwhile."""
        torch = self._torch
        on_gpu = self._device.name.startswith("cuda")
        with ExitStack() as held:
            held.enter_context(torch.random.fork_rng([torch.device(self._device.name).index or 0] if on_gpu else []))
            if on_gpu:
                exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
                held.enter_context(exact)
            torch.manual_seed(int(np.random.SeedSequence([self._job.seed, round_number]).generate_state(1)[0]))
            yield

    def _fitting(self) -> int:
        """Returns how many silos advance at once: whole blocks that fit in a part of what memory is free."""
        torch, model, arms = self._torch, self._model, len(self._job.arms.clip_norm)
        silo = arms * (2 * self._kept_for_gradients() + _COPIES * model.parameters * model.dtype.itemsize)
        room = float(_PROCESSOR_BYTES)
        if self._device.name.startswith("cuda"):
            room = min(_GPU_SHARE * torch.cuda.mem_get_info(self._device.name)[0], _GPU_BYTES)
        fits = max(int(room // silo) // SILOS_A_BLOCK, 1) * SILOS_A_BLOCK
        return max(min(fits, self._device.chunk or fits), 1)

    def _kept_for_gradients(self) -> int:
        """Returns the bytes that one step of one silo keeps for its gradients."""
        torch, kept = self._torch, 0
        leaves = {name: part.requires_grad_() for name, part in self._model.split(self._begun()).items()}
        few = slice(0, min(self._training.batch, len(self._inputs)))

        def count(tensor: Any) -> Any:
            nonlocal kept
            kept += tensor.numel() * tensor.element_size()
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor)
        with hooks, torch.random.fork_rng(devices=[]), self._model.mode(training=True):
            self._loss(leaves, self._inputs[few], self._targets[few])
        return kept * -(-self._training.batch // few.stop)

    def _begun(self) -> Any:
        """Returns the parameters as the module has them."""
        return self._torch.as_tensor(self._model.start).to(self._device.name, self._model.dtype)

    def _halve(self, error: Exception) -> None:
        """Makes chunks half as large, or gives up where a single silo does not fit."""
        if self._chunk == 1:
            raise self._too_large(error) from None
        self._chunk = max(self._chunk // 2, 1)
        if self._device.name.startswith("cuda"):
            self._torch.cuda.empty_cache()

    def _too_large(self, error: Exception) -> ParameterError:
        told = in_one_line(str(error).partition("\n")[0])
        return ParameterError(
            f"one silo of {self._model.name} does not fit in the memory of {self._device.name}: {told} "
            "Train a smaller model, smaller batches or fewer arms"
        )


def _in_blocks(first: int, last: int, draw: Callable[[int], Any]) -> Any:
    """Returns what blocks of the other engines draw for a run of silos, silos on the first axis."""
    blocks = range(first // SILOS_A_BLOCK, -(-last // SILOS_A_BLOCK))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = list(pool.map(draw, blocks))
    begin = first - blocks.start * SILOS_A_BLOCK
    return np.concatenate(parts)[begin : begin + last - first]


def _out_of_memory(torch: Any, error: Exception) -> bool:
    """Whether memory ran out, on a GPU or on the processor."""
    asked = isinstance(error, RuntimeError) and "allocate memory" in str(error)
    return asked or isinstance(error, (torch.OutOfMemoryError, MemoryError))


def _where(error: Exception) -> str:
    """Returns where in the user's own code something failed, for a message."""
    own = Path(__file__).parent, Path(require_torch().__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(Path(frame.filename).is_relative_to(folder) for folder in own):
            return f" ({Path(frame.filename).name} line {frame.lineno})"
    return ""
