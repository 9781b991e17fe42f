"""The federation on tensors: a user's own PyTorch module, all silos of a chunk together, on the processor or a GPU.

Every silo and arm has parameters of its own, stacked on leading axes; `torch.func` maps the module over them, so that a
chunk of silos takes the kernels of one. Silos go through in chunks that fit in memory, and a chunk that does not is
halved. Batches and noise are those of the other engines (`draws="shared"`), to the bit; or drawn on the device
(`draws="device"`), the same for the same seed on the same kind of device, whatever the chunks.
"""

import re
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.noise.noise_sources import SILOS_A_BLOCK
from fulcrum.errors import DivergedUpdateError, FulcrumError, ParameterError, check_known, in_one_line
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import FederationRun, Job, LocalTraining, aggregator_noise, in_order
from fulcrum.simulation.torch.model_rounds import run_rounds
from fulcrum.simulation.torch.torch_draws import DRAWS, draws_of
from fulcrum.simulation.torch.torch_model import Tensors, TorchModel, as_by_default, one_thread, require_torch, seeded
from fulcrum.simulation.torch.torch_steps import SiloSteps, rows

_GPU_SHARE, _GPU_BYTES, _PROCESSOR_BYTES = (
    0.4,
    1 << 33,
    1 << 24,
)  # memory that a chunk may take; on the processor a cache
# The C library gives freed memory back to the system, and fetches it anew page by page, unless it saw as much freed.
_RETURNED_BYTES = 31 << 20
_COPIES = 6  # of the parameters of a silo: themselves, gradients, update, noise, and what an optimiser keeps
_SILOS_A_SUM = 1_008  # added up in one product, of which the part that is no region's own is zeros
_TESTED_AT_ONCE, _TRIED = 4_096, 4
_ONE_BY_ONE = r"There is a performance drop because we have not yet implemented the batching rule for ([\w:.]*\w)"
_WORTH_RECORDING = 500  # steps of chunks: of a network with convolutions recording pays after fewer, else after more


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
        return self.draws or ("shared" if self.kind == "cpu" else "device")

    @property
    def kind(self) -> str:
        """The name without a number."""
        return self.name.partition(":")[0]

    def check(self) -> None:
        """Raises `ParameterError` for a device that is not here."""
        torch = require_torch()
        check_known("draws", self.drawn, DRAWS)
        if self.chunk is not None and self.chunk < 1:
            raise ParameterError("training.setting-range", setting="chunk", value=self.chunk)
        try:
            torch.zeros((), device=self.name).item()
        except (RuntimeError, AssertionError, ImportError) as error:
            reason = in_one_line(str(error).partition("\n")[0]).partition(". ")[0]
            raise ParameterError("training.device-missing", device=self.name, reason=reason) from None


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
    on_part: Callable[[float], None] | None = None,
    on_note: Callable[[str], None] | None = None,
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
        on_part: Called after each chunk of silos with the rounds done, as a fraction.
        on_note: Called before training with what makes it slow.
    """
    device = device or TorchDevice()
    device.check()
    by_region = keep_regional_sums or any(rule.reads_regions for rule in job.arms.rules)
    with ExitStack() as held:
        held.enter_context(as_by_default(device.name))
        held.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=_ONE_BY_ONE)  # told once below, in a sentence
        try:
            silos = _Silos(job, task, training, model, device, on_part)
            held.callback(silos.close)
            if device.kind == "cpu":
                held.enter_context(one_thread())
            slow = silos.check_mapped()
            if slow and on_note is not None:
                on_note(
                    f"Parts of {model.name} train one silo after the other, which is slow: torch does not map {slow}."
                )
            silos.record_steps()
            return run_rounds(
                job.arms,
                task,
                model,
                sums=lambda models, round_number: silos.sums(models, round_number, by_region=by_region),
                outputs=silos.outputs,
                keep_regional_sums=keep_regional_sums,
                every_round=every_round,
                on_round=on_round,
            )
        except Exception as error:
            if not _out_of_memory(require_torch(), error):
                raise
            raise _too_large(f"{model.name} with the records of {task.name}", device.name, error) from None


class _Silos:
    """All silos of a job, and the records they hold, on one device.

    On a GPU one chunk trains at a time. On the processor there is one for each thread that torch may use.
    """

    def __init__(
        self,
        job: Job,
        task: Task,
        training: LocalTraining,
        model: TorchModel,
        device: TorchDevice,
        on_part: Callable[[float], None] | None = None,
    ) -> None:
        self._torch = require_torch()
        self._job, self._training, self._model, self._device, self._on_part = job, training, model, device, on_part
        self._inputs, self._targets, self._tested = (
            model.as_tensor(values, device.name)
            for values in (task.features_train, task.labels_train, task.features_test)
        )
        self._fixed = model.fixed(device.name)
        self._steps = SiloSteps(model, self._fixed)
        self._draws = draws_of(device.drawn, job, training, model, device.name)
        self._membership: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._chunk = self._fitting()
        self._threads = 1
        if device.kind == "cpu":
            self._torch.empty(_RETURNED_BYTES, dtype=self._torch.uint8)  # and freed at once
            self._threads = self._torch.get_num_threads()
        self._pool, self._ending = ThreadPoolExecutor(self._threads), threading.Event()
        self._idle = SimpleQueue[SiloSteps]()

    def close(self) -> None:
        """Ends what is still at work, after the step that it is in."""
        self._ending.set()
        self._pool.shutdown(cancel_futures=True)

    def check_mapped(self) -> str:
        """Returns the operations that torch maps one silo after the other, or nothing.

        Raises `NotBatchedError` for a module that cannot be mapped over silos, with why and where.
        """
        torch, steps = self._torch, self._steps.twin()  # what a call changes is not to be found in later ones
        model = steps.model
        picks = torch.arange(2 * self._training.batch, device=self._device.name).reshape(2, -1) % len(self._inputs)
        kept = {name: value.clone() for name, value in self._fixed.items()}
        try:
            with (
                warnings.catch_warnings(record=True) as said,
                torch.random.fork_rng(devices=[]),
                model.mode(training=True),
            ):
                warnings.simplefilter("always")
                leaves, stood = _leaves(self._begun(1), 2), torch.get_rng_state()
                found, changed = steps.changed_by_calls(leaves, self._inputs[picks], self._targets[picks])
                by_element = steps.moves_by_element(leaves, found, self._training.learning_rate)
                same_alone = bool(changed) or steps.same_alone(leaves, self._inputs[picks], self._targets[picks])
                failing = suppress(Exception)  # is told where it is tested
                with failing, torch.no_grad(), model.mode(training=False):
                    first = {name: leaf[0] for name, leaf in leaves.items()}
                    model.outputs(first, self._fixed, self._tested[:_TRIED].clone())
                if not torch.equal(stood, torch.get_rng_state()):
                    self._threads = 1  # threads would share what layers such as dropout draw from
        except Exception as error:  # the module itself was tried before
            if _out_of_memory(torch, error):
                raise self._too_large(error) from None
            reason = re.split("please file an issue", str(error).partition("\n")[0], flags=re.IGNORECASE)[0]
            told = f"{type(error).__name__}: {in_one_line(reason).rstrip(',. ')}"
            raise NotBatchedError("model.mapping-failed", reason=told, place=_where(error)) from error
        if changed:
            raise NotBatchedError("model.state-shared", state=changed)
        if not by_element:
            raise NotBatchedError("model.optimiser-not-elementwise")
        written = [name for name, value in kept.items() if not torch.equal(value, self._fixed[name])]
        if written:
            raise NotBatchedError("model.buffer-written", buffer=written[0])
        if not same_alone:
            raise NotBatchedError("model.gradients-differ")
        found_slow = (re.match(_ONE_BY_ONE, str(each.message)) for each in said)
        return ", ".join(sorted({each[1] for each in found_slow if each}))

    def record_steps(self) -> None:
        """Has steps recorded where a run takes many."""
        arms, steps = self._job.arms, self._training.steps
        silos = len(arms.weights)
        if arms.rounds * -(-silos // self._chunk) * steps < _WORTH_RECORDING:
            return
        begun = self._begun(len(arms.clip_norm))
        with self._exactly(0), self._model.mode(training=True):
            for size in {min(self._chunk, silos), silos % self._chunk} - {0}:
                leaves = _leaves(begun, size)
                places = self._torch.arange(len(arms.clip_norm) * size * self._training.batch, device=self._device.name)
                chosen = places.reshape(-1, self._training.batch) % len(self._inputs)
                self._steps.record_moves(leaves, self._inputs, self._targets, chosen, self._training.learning_rate)

    def _compare_records(self, begun: Tensors, round_number: int) -> None:
        """Has records compared with the module's own code, about one silo and a batch drawn from all records."""
        draws = np.random.default_rng([self._job.seed, round_number])
        chosen = self._torch.as_tensor(draws.integers(len(self._inputs), size=(1, self._training.batch)))
        asked = (rows(values, chosen.to(self._device.name)) for values in (self._inputs, self._targets))
        self._steps.begin_round({name: part[:1] for name, part in begun.items()}, *asked)

    def sums(self, models: FloatArray, round_number: int, *, by_region: bool) -> FloatArray:
        """Returns what regions send up in a round, (regions, parameters, arms), or the sum of it as one region's."""
        torch, arms = self._torch, self._job.arms
        begun = self._model.split(torch.as_tensor(models.T.copy()).to(self._device.name, self._model.dtype))
        total = torch.zeros((arms.regions, models.shape[1], len(models)), dtype=torch.float64, device=self._device.name)
        first, silos = 0, len(arms.weights)
        told = self._model.telling(f"round {round_number}")
        with told, self._exactly(round_number), self._at_work(training=True):
            self._compare_records(begun, round_number)
            while first < silos:
                begins = range(first, silos, self._chunk)
                calls = (
                    (self._chunk_sums, begun, begin, min(begin + begins.step, silos), round_number) for begin in begins
                )
                try:
                    for begin, sent in zip(begins, self._done(calls), strict=True):
                        for found, added in sent:
                            total[found] += added
                        first = begin + begins.step
                        if self._on_part is not None:
                            self._on_part(round_number - 1 + min(first / silos, 1.0))
                except Exception as error:
                    if not _out_of_memory(torch, error):
                        raise
                    self._halve(error)
        injected = arms.aggregator_noise_multiplier.any()
        if not by_region and not injected:
            total = total.sum(dim=0, keepdim=True)
        sent = np.asarray(total.transpose(1, 2).cpu().numpy())
        return sent + aggregator_noise(self._job, round_number, len(models)) if injected else sent

    def outputs(self, models: FloatArray) -> list[FloatArray]:
        """Returns what the model of each arm says of the test records."""
        torch, model = self._torch, self._model
        with model.telling("testing"), seeded(self._job.seed, self._device.name), self._at_work(training=False):
            given = (torch.as_tensor(column).to(self._device.name, model.dtype) for column in models.T)
            return [self._said(model.split(each)) for each in given]

    def _said(self, parts: Tensors) -> FloatArray:
        """Returns what a model says of the test records, in equal parts; they are halved where memory runs out."""
        torch, most = self._torch, _TESTED_AT_ONCE
        while True:
            few = self._tested.tensor_split(-(-len(self._tested) // most))
            try:
                said = list(self._done((self._said_of, parts, part) for part in few))
                return np.asarray(torch.cat(said).double().cpu().numpy())
            except Exception as error:
                if not _out_of_memory(torch, error):
                    raise
                if most == 1:
                    raise _too_large(f"one record of {self._model.name}", self._device.name, error) from None
            most //= 2
            self._empty_cache()

    def _said_of(self, parts: Tensors, records: Any) -> Any:
        """Returns what a model says of some records."""
        with self._own_steps() as own, self._torch.no_grad():
            return own.model.outputs(parts, self._fixed, records.clone())  # a module may write to it

    def _done(self, calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yields what calls return, in their order."""
        if self._threads > 1:
            yield from in_order(self._pool, calls, 2 * self._threads)
        else:
            yield from (call(*given) for call, *given in calls)

    def _chunk_sums(self, begun: Tensors, first: int, last: int, round_number: int) -> list[tuple[Any, Any]]:
        """Trains, clips, perturbs and weights a chunk of silos; returns regions and what it adds to their sums."""
        torch, arms = self._torch, self._job.arms
        updates = self._updates(begun, self._draws.picks(first, last, round_number))
        sizes = torch.linalg.vector_norm(updates, dim=2).double().cpu().numpy()
        if not np.isfinite(sizes).all():
            silo = first + int(np.argmin(np.isfinite(sizes).all(axis=1)))
            raise DivergedUpdateError(
                "training.update-diverged",
                silo=arms.silo_name(silo),
                round=round_number,
                learning_rate=self._training.learning_rate,
            )
        signal, noise = arms.factors(sizes, slice(first, last))
        kept = torch.as_tensor(signal).to(updates)
        sent = []
        for begin in range(0, last - first, _SILOS_A_SUM):
            here = slice(begin, begin + _SILOS_A_SUM)
            sent.append(self._regional(first + begin, kept[here], updates[here]))
        if noise.any():
            for begin, end, drawn in self._draws.noise(first, last, round_number):
                spread = torch.as_tensor(noise[begin - first : end - first]).to(drawn)
                sent.append(self._regional(begin, spread, drawn[:, None]))
        return sent

    def _regional(self, first: int, factors: Any, values: Any) -> tuple[Any, Any]:
        """Adds up by region what silos have, each times a factor by arm; returns the regions and (regions, arms, ...).

        Values are by silo and arm, or by silo alone with an axis of one in the place of arms.
        """
        torch = self._torch
        found, member_of = self._members(first, first + len(factors))
        spread = factors.T[None]  # regions, arms, silos
        if len(found) > 1:
            belongs = torch.nn.functional.one_hot(member_of, len(found))
            spread = belongs.T[:, None, :].to(factors) * spread
        if values.shape[1] == 1:
            added = (spread.flatten(0, 1) @ values[:, 0]).unflatten(0, spread.shape[:2])
        else:
            added = torch.stack([spread[:, arm] @ values[:, arm] for arm in range(values.shape[1])], dim=1)
        return found, added.double()

    def _members(self, first: int, last: int) -> tuple[Any, Any]:
        """Returns the regions of some silos, and the place of each silo's region among them."""
        known = self._membership.get((first, last))
        if known is None:
            found, member_of = np.unique(self._job.arms.region_of[first:last], return_inverse=True)
            known = tuple(self._torch.as_tensor(each).to(self._device.name) for each in (found, member_of))
            self._membership[first, last] = known
        return known

    def _updates(self, begun: Tensors, picks: Any) -> Any:
        """Returns the update of every silo under every arm, (silos, arms, parameters)."""
        model, arms = self._model, len(self._job.arms.clip_norm)
        steps, silos, _ = picks.shape
        leaves = _leaves(begun, silos)
        move = model.stepping(list(leaves.values()), self._training.learning_rate)
        with self._own_steps() as own:
            for step in range(steps):
                if self._ending.is_set():
                    raise CancelledError
                chosen = picks[step].repeat_interleave(arms, dim=0) if arms > 1 else picks[step]
                own.step(leaves, self._inputs, self._targets, chosen, move)
        with self._torch.no_grad():
            moved = {name: leaf.unflatten(0, (silos, arms)).sub_(begun[name]) for name, leaf in leaves.items()}
            return model.joined(moved, 2)

    @contextmanager
    def _at_work(self, *, training: bool) -> Iterator[None]:
        """Has a module for every thread, in the mode for training or for testing."""
        while self._idle.qsize() < self._threads:
            self._idle.put(self._steps.twin() if self._idle.qsize() else self._steps)
        with ExitStack() as held:
            for _ in range(self._threads):
                steps = self._idle.get()
                held.enter_context(steps.model.mode(training=training))
                self._idle.put(steps)
            yield

    @contextmanager
    def _own_steps(self) -> Iterator[SiloSteps]:
        """Gives a thread steps that no other has meanwhile."""
        own = self._idle.get()
        try:
            yield own
        finally:
            self._idle.put(own)

    @contextmanager
    def _exactly(self, round_number: int) -> Iterator[None]:
        """Seeds what layers draw of their own, such as dropout, and has cuDNN compute in full precision meanwhile."""
        seed = int(np.random.SeedSequence([self._job.seed, round_number]).generate_state(1)[0])
        exact = self._torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with seeded(seed, self._device.name), exact if self._device.kind == "cuda" else nullcontext():
            yield

    def _fitting(self) -> int:
        """Returns how many silos advance at once: whole blocks, where they fit in the memory that a chunk may take."""
        torch, model, arms = self._torch, self._model, len(self._job.arms.clip_norm)
        silo = arms * (2 * self._kept_for_gradients() + _COPIES * model.parameters * model.dtype.itemsize)
        room = float(_PROCESSOR_BYTES)
        if self._device.kind == "cuda":
            room = min(_GPU_SHARE * torch.cuda.mem_get_info(self._device.name)[0], _GPU_BYTES)
        fits = max(int(room // silo), 1)
        whole = fits // SILOS_A_BLOCK * SILOS_A_BLOCK or fits
        return max(min(whole, self._device.chunk or whole), 1)

    def _kept_for_gradients(self) -> int:
        """Returns the bytes that one step of one silo keeps for its gradients."""
        torch, kept = self._torch, 0
        leaves = {name: part[0].clone().requires_grad_() for name, part in self._begun(1).items()}
        few = slice(0, min(self._training.batch, len(self._inputs)))

        def count(tensor: Any) -> Any:
            nonlocal kept
            kept += tensor.numel() * tensor.element_size()
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor)
        with (
            self._model.telling(f"a step on a batch of {few.stop}"),
            hooks,
            torch.random.fork_rng(devices=[]),
            self._model.mode(training=True),
        ):
            self._steps.twin().mapped_loss(leaves, self._inputs[few].clone(), self._targets[few])
        return kept * -(-self._training.batch // few.stop)

    def _begun(self, arms: int) -> Tensors:
        """Returns the parameters of every arm as the module has them."""
        start = self._torch.as_tensor(self._model.start).to(self._device.name, self._model.dtype)
        return self._model.split(start.expand(arms, -1))

    def _halve(self, error: Exception) -> None:
        """Makes chunks half as large, or gives up where a single silo does not fit."""
        if self._chunk == 1:
            raise self._too_large(error) from None
        self._chunk = max(self._chunk // 2, 1)
        self._empty_cache()

    def _empty_cache(self) -> None:
        if self._device.kind == "cuda":
            self._torch.cuda.empty_cache()

    def _too_large(self, error: Exception) -> ParameterError:
        return _too_large(f"one silo of {self._model.name}", self._device.name, error)


def _leaves(begun: Tensors, silos: int) -> Tensors:
    """Returns the parameters of every silo under every arm; the arms of a silo stand side by side."""
    return {
        name: part.expand(silos, *part.shape).clone().flatten(0, 1).requires_grad_() for name, part in begun.items()
    }


def _too_large(what: str, device: str, error: Exception) -> ParameterError:
    told = in_one_line(str(error).partition("\n")[0]).rstrip(". ")
    return ParameterError("training.memory-exceeded", load=what, device=device, reason=told)


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
