"""The federation on tensors: a user's own PyTorch module, all silos of a chunk together, on the processor or a GPU.

Every silo and arm has parameters of its own, stacked on leading axes; `torch.func` maps the module over them, so that a
chunk of silos takes the kernels of one. Silos go through in chunks that fit in memory, and a chunk that does not is
halved. Batches and noise are those of the other engines (`draws="shared"`), to the bit; or drawn on the device
(`draws="device"`), the same for the same seed on the same kind of device, whatever the chunks.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import DivergedUpdateError, FulcrumError, ParameterError, check_known, in_one_line
from fulcrum.noise.clipping import clip_factor
from fulcrum.noise.sources import SILOS_A_BLOCK
from fulcrum.simulation.engine import FederationRun, Job, LocalTraining, aggregator_noise, in_order
from fulcrum.simulation.rounds import run_rounds
from fulcrum.simulation.tasks import Task
from fulcrum.simulation.torch_draws import DRAWS, draws_of
from fulcrum.simulation.torch_model import Tensors, TorchModel, one_thread, require_torch
from fulcrum.simulation.torch_steps import SiloSteps

_GPU_SHARE, _GPU_BYTES, _PROCESSOR_BYTES = (
    0.4,
    1 << 33,
    1 << 25,
)  # memory that a chunk may take; on the processor a cache
# The C library gives freed memory back to the system, and fetches it anew page by page, unless it saw as much freed.
_RETURNED_BYTES = 31 << 20
_COPIES = 6  # of the parameters of a silo: themselves, gradients, update, noise, and what an optimiser keeps
_SILOS_A_SUM = 1_008  # added up in one product, of which the part that is no region's own is zeros
_TESTED_AT_ONCE = 4_096
_WORTH_RECORDING = 3_000  # steps of chunks; recording takes about as long as it saves in these


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
            torch.zeros((), device=self.name).item()
        except (RuntimeError, AssertionError) as error:
            reason = in_one_line(str(error).partition("\n")[0]).partition(". ")[0]
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
    on_part: Callable[[float], None] | None = None,
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
    """
    device = device or TorchDevice()
    device.check()
    by_region = keep_regional_sums or any(rule.pools for rule in job.arms.rules)
    silos = _Silos(job, task, training, model, device, on_part)
    try:
        silos.check_mapped()
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
    finally:
        silos.close()


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
        self._chunk = self._fitting()
        self._threads = 1
        if device.name == "cpu":
            self._torch.empty(_RETURNED_BYTES, dtype=self._torch.uint8)  # and freed at once
            self._threads = self._torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads)
        self._idle = SimpleQueue[SiloSteps]()

    def close(self) -> None:
        """Ends what is still at work."""
        self._pool.shutdown(cancel_futures=True)

    def check_mapped(self) -> None:
        """Raises `NotBatchedError` for a module that cannot be mapped over silos, with why and where."""
        torch, steps = self._torch, self._steps.twin()  # what a call changes is not to be found in later ones
        model = steps.model
        picks = torch.arange(2 * self._training.batch, device=self._device.name).reshape(2, -1) % len(self._inputs)
        kept = {name: value.clone() for name, value in self._fixed.items()}
        try:
            with torch.random.fork_rng(devices=[]), model.mode(training=True):
                leaves, stood = self._leaves(self._begun()[None], 2), torch.get_rng_state()
                found, changed = steps.changed_by_calls(leaves, self._inputs[picks], self._targets[picks])
                by_element = _by_element(model, leaves, found, self._training.learning_rate)
                if not torch.equal(stood, torch.get_rng_state()):
                    self._threads = 1  # threads would share what layers such as dropout draw from
        except Exception as error:  # the module itself was tried before
            if _out_of_memory(torch, error):
                raise self._too_large(error) from None
            reason = in_one_line(str(error).partition("\n")[0]).partition(", please file an issue")[0].rstrip(". ")
            told = f"{type(error).__name__}: {reason}"
            raise NotBatchedError(f"{told}{_where(error)}") from error
        if changed:
            raise NotBatchedError(f"a call changes {changed}, which silos must not share")
        if not by_element:
            raise NotBatchedError("its optimiser does not treat every element of a tensor alike")
        written = [name for name, value in kept.items() if not torch.equal(value, self._fixed[name])]
        if written:
            raise NotBatchedError(f"it writes to its buffer {written[0]}, which silos must not share")

    def record_steps(self) -> None:
        """Has steps recorded where a run takes many."""
        arms, steps = self._job.arms, self._training.steps
        silos = len(arms.weights)
        if arms.rounds * -(-silos // self._chunk) * steps < _WORTH_RECORDING:
            return
        begun = self._begun().expand(len(arms.clip_norm), -1)
        with self._model.mode(training=True):
            for size in {min(self._chunk, silos), silos % self._chunk} - {0}:
                leaves = self._leaves(begun, size)
                rows = self._torch.arange(len(begun) * size * self._training.batch, device=self._device.name)
                chosen = rows.reshape(-1, self._training.batch) % len(self._inputs)
                self._steps.record(leaves, _rows(self._inputs, chosen), _rows(self._targets, chosen))

    def sums(self, models: FloatArray, round_number: int, *, by_region: bool) -> FloatArray:
        """Returns what regions send up in a round, (regions, parameters, arms), or the sum of it as one region's."""
        torch, arms = self._torch, self._job.arms
        begun = torch.as_tensor(models.T.copy()).to(self._device.name, self._model.dtype)
        total = torch.zeros((arms.regions, models.shape[1], len(models)), dtype=torch.float64, device=self._device.name)
        first, silos = 0, len(arms.weights)
        self._steps.begin_round()
        with self._exactly(round_number), self._at_work():
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
                        with self._model.telling(f"round {round_number}"):
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
        found = []
        with model.telling("testing"), torch.no_grad(), model.mode(training=False):
            for column in models.T:
                parts = model.split(torch.as_tensor(column).to(self._device.name, model.dtype))
                few = self._tested.split(_TESTED_AT_ONCE)
                said = [model.outputs(parts, self._fixed, part.clone()) for part in few]  # a module may write to it
                found.append(np.asarray(torch.cat(said).double().cpu().numpy()))
        return found

    def _done(self, calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yields what calls return, in their order."""
        if self._threads > 1:
            yield from in_order(self._pool, calls, 2 * self._threads)
        else:
            yield from (call(*given) for call, *given in calls)

    def _chunk_sums(self, begun: Any, first: int, last: int, round_number: int) -> list[tuple[Any, Any]]:
        """Trains, clips, perturbs and weights a chunk of silos; returns regions and what it adds to their sums."""
        torch, arms = self._torch, self._job.arms
        updates = self._updates(begun, self._draws.picks(first, last, round_number))
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
        noise = self._draws.noise(first, last, round_number) if scale.any() else None
        kept, scale = (torch.as_tensor(values).to(updates) for values in (kept, scale))
        sent = []
        for begin in range(0, last - first, _SILOS_A_SUM):
            here = slice(begin, begin + _SILOS_A_SUM)
            found, member_of = np.unique(arms.region_of[first:last][here], return_inverse=True)
            belongs = torch.nn.functional.one_hot(torch.as_tensor(member_of).to(kept.device), len(found)).T.to(kept)
            added = torch.stack(
                [(belongs * kept[here, arm]) @ updates[here, arm] for arm in range(kept.shape[1])], dim=1
            )
            if noise is not None:
                spread = belongs[:, None, :] * scale[here].T  # regions, arms, silos
                added += (spread.flatten(0, 1) @ noise[here]).reshape(added.shape)
            sent.append((torch.as_tensor(found).to(added.device), added.double()))
        return sent

    def _updates(self, begun: Any, picks: Any) -> Any:
        """Returns the update of every silo under every arm, (silos, arms, parameters)."""
        torch, model = self._torch, self._model
        steps, silos, _ = picks.shape
        leaves = self._leaves(begun, silos)
        move = model.stepping(list(leaves.values()), self._training.learning_rate)
        own = self._idle.get()
        try:
            for step in range(steps):
                chosen = picks[step].repeat_interleave(len(begun), dim=0) if len(begun) > 1 else picks[step]
                move(own.gradients(leaves, _rows(self._inputs, chosen), _rows(self._targets, chosen)))
        finally:
            self._idle.put(own)
        with torch.no_grad():
            began = model.split(begun)
            moved = {name: leaf.unflatten(0, (silos, len(begun))).sub_(began[name]) for name, leaf in leaves.items()}
            return model.joined(moved, 2)

    def _leaves(self, begun: Any, silos: int) -> Tensors:
        """Returns the parameters of every silo under every arm; the arms of a silo stand side by side."""
        return {
            name: part.expand(silos, *part.shape).clone().flatten(0, 1).requires_grad_()
            for name, part in self._model.split(begun).items()
        }

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Has every thread train with a module of its own, and no operation begin threads of its own meanwhile."""
        while self._idle.qsize() < self._threads:
            self._idle.put(self._steps.twin() if self._idle.qsize() else self._steps)
        with ExitStack() as held:
            for _ in range(self._threads):
                steps = self._idle.get()
                held.enter_context(steps.model.mode(training=True))
                self._idle.put(steps)
            if self._device.name == "cpu":
                held.enter_context(one_thread())
            yield

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
        """Returns how many silos advance at once: whole blocks, where they fit in the memory that a chunk may take."""
        torch, model, arms = self._torch, self._model, len(self._job.arms.clip_norm)
        silo = arms * (2 * self._kept_for_gradients() + _COPIES * model.parameters * model.dtype.itemsize)
        room = float(_PROCESSOR_BYTES)
        if self._device.name.startswith("cuda"):
            room = min(_GPU_SHARE * torch.cuda.mem_get_info(self._device.name)[0], _GPU_BYTES)
        fits = max(int(room // silo), 1)
        whole = fits // SILOS_A_BLOCK * SILOS_A_BLOCK or fits
        return max(min(whole, self._device.chunk or whole), 1)

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
            self._steps.twin().loss(leaves, self._inputs[few].clone(), self._targets[few])
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


def _rows(values: Any, places: Any) -> Any:
    """Returns the rows at some places, (silos, batch, ...): what `values[places]` is, which is slower."""
    return values.index_select(0, places.flatten()).unflatten(0, places.shape)


def _by_element(model: TorchModel, leaves: Tensors, gradients: Iterable[Any], learning_rate: float) -> bool:
    """Whether the optimiser moves stacked silos as it moves each of them alone."""
    torch, found = require_torch(), list(gradients)
    stacked = [leaf.detach().clone().requires_grad_() for leaf in leaves.values()]
    alone = [[leaf[silo].detach().clone().requires_grad_() for leaf in stacked] for silo in range(len(stacked[0]))]
    for moved, given in ((stacked, found), *((own, [each[silo] for each in found]) for silo, own in enumerate(alone))):
        move = model.stepping(moved, learning_rate)
        for _ in range(2):
            move([each.clone() for each in given])
    return all(
        torch.allclose(own, leaf[silo], rtol=1e-4, atol=1e-6)
        for silo, each in enumerate(alone)
        for own, leaf in zip(each, stacked, strict=True)
    )


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
