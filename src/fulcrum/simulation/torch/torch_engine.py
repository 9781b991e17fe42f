"""The federation on tensors: a user's own PyTorch module, all silos of a chunk together, on the processor or a GPU.

Every silo has its own parameters for every variant, stacked on leading axes. `torch.func` maps the module over the
stack, so a chunk of silos takes the kernels of a single silo. Silos go through in chunks that fit in memory, and a
chunk too large is halved. Batches and noise are shared with the NumPy engines (`draws="shared"`), to the bit; or drawn
on the device (`draws="device"`), equal for the same seed on the same kind of device, for any chunks.
"""

import re
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.noise.noise_sources import SILOS_A_BLOCK
from fulcrum.errors import DivergedUpdateError, FulcrumError, ParameterError, in_one_line
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import aggregator_noise, in_order
from fulcrum.simulation.embedded.federation_jobs import FederationRun, Job
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.torch.model_rounds import run_rounds
from fulcrum.simulation.torch.torch_device import TorchDevice, is_out_of_memory, too_large
from fulcrum.simulation.torch.torch_draws import draws_of
from fulcrum.simulation.torch.torch_model import TorchModel
from fulcrum.simulation.torch.torch_state import Tensors, require_torch, use_default_modes, use_one_thread, use_seed
from fulcrum.simulation.torch.torch_steps import SiloSteps, rows

# Memory for a chunk: a share of a GPU's free memory, at most so many bytes; on the processor about a cache.
_GPU_SHARE, _GPU_BYTES, _PROCESSOR_BYTES = 0.4, 1 << 33, 1 << 24
# The C library returns freed memory to the system, and fetches memory anew page by page, until a block of that size was
# freed once: such a block is freed on purpose before training.
_RETURNED_BYTES = 31 << 20
_COPIES = 6  # of the parameters of a silo: themselves, gradients, update, noise, and an optimiser's state
_SILOS_A_SUM = 1_008  # silos in a product, whose factors are zeros for silos outside a region
_TESTED_AT_ONCE, _TRIED = 4_096, 4
_ONE_BY_ONE = r"There is a performance drop because we have not yet implemented the batching rule for ([\w:.]*\w)"
_WORTH_RECORDING = 500  # steps of chunks; recording pays earlier for convolutions, later for other networks


class NotBatchedError(FulcrumError):
    """A module that `torch.func` cannot map over silos; the slow engine can run the module."""


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
    """Trains a job; parameters and sums come back as flat vectors, (parameters, 1, variants), like the slow engine's.

    Args:
        job: The job to train.
        task: The records, and the test split.
        training: Learning rate, local steps and batch.
        model: The model of a silo, a result of `TorchModel.on` for the task.
        device: The device; the processor by default.
        keep_regional_sums: True keeps the sums seen by an observer above the regions.
        every_round: True tests after every round, False after the last round alone.
        on_round: Called after every tested round with the round and the accuracies by variant.
        on_part: Called after every chunk of silos with the rounds done, as a fraction.
        on_note: Called before training with a note on slow training.
    """
    device = device or TorchDevice()
    device.check()
    by_region = keep_regional_sums or any(rule.reads_regions for rule in job.variants.rules)
    with ExitStack() as stack:
        stack.enter_context(use_default_modes(device.name))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message=_ONE_BY_ONE)  # a note below names the operations once
        try:
            silos = TensorSilos(job, task, training, model, device, on_part)
            stack.callback(silos.close)
            if device.kind == "cpu":
                stack.enter_context(use_one_thread())
            slow = silos.check_mapped()
            if slow and on_note is not None:
                on_note(
                    f"Parts of {model.name} train one silo after the other, which is slow: torch does not map {slow}."
                )
            silos.record_steps()
            return run_rounds(
                job.variants,
                task,
                model,
                sums=lambda models, round_number: silos.sums(models, round_number, by_region=by_region),
                outputs=silos.outputs,
                keep_regional_sums=keep_regional_sums,
                every_round=every_round,
                on_round=on_round,
            )
        except Exception as error:
            if not is_out_of_memory(require_torch(), error):
                raise
            raise too_large(f"{model.name} with the records of {task.name}", device.name, error) from None


class TensorSilos:
    """All silos of a job, with their records, on a single device.

    On a GPU a single chunk trains at a time. On the processor a chunk trains in every thread that torch may use.
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
        self._fixed = model.fixed_tensors(device.name)
        self._steps = SiloSteps(model, self._fixed)
        self._draws = draws_of(device.draws_kind, job, training, model, device.name)
        self._membership: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._chunk = self._chunk_size()
        self._threads = 1
        if device.kind == "cpu":
            self._torch.empty(_RETURNED_BYTES, dtype=self._torch.uint8)  # freed at once; see the constant
            self._threads = self._torch.get_num_threads()
        self._pool, self._ending = ThreadPoolExecutor(self._threads), threading.Event()
        self._idle = SimpleQueue[SiloSteps]()

    def close(self) -> None:
        """Ends chunks in work, after the current step."""
        self._ending.set()
        self._pool.shutdown(cancel_futures=True)

    def check_mapped(self) -> str:
        """Returns the operations that torch maps silo after silo, or an empty text.

        Raises `NotBatchedError` for a module that cannot be mapped over silos, with reason and place.
        """
        torch, steps = self._torch, self._steps.twin()  # a twin, because these calls may change the module
        model = steps.model
        picks = torch.arange(2 * self._training.batch, device=self._device.name).reshape(2, -1) % len(self._inputs)
        buffers_before = {name: value.clone() for name, value in self._fixed.items()}
        try:
            with (
                warnings.catch_warnings(record=True) as caught,
                torch.random.fork_rng(devices=[]),
                model.mode(training=True),
            ):
                warnings.simplefilter("always")
                leaves, stood = _leaves(self._start_parameters(1), 2), torch.get_rng_state()
                gradients, changed = steps.changed_by_calls(leaves, self._inputs[picks], self._targets[picks])
                by_element = steps.moves_by_element(leaves, gradients, self._training.learning_rate)
                same_alone = bool(changed) or steps.same_alone(leaves, self._inputs[picks], self._targets[picks])
                failing = suppress(Exception)  # the first test reports the failure
                with failing, torch.no_grad(), model.mode(training=False):
                    first = {name: leaf[0] for name, leaf in leaves.items()}
                    model.outputs(first, self._fixed, self._tested[:_TRIED].clone())
                if not torch.equal(stood, torch.get_rng_state()):
                    self._threads = 1  # threads would share the generator of layers such as dropout
        except Exception as error:  # the module itself passed a trial before
            if is_out_of_memory(torch, error):
                raise self._too_large(error) from None
            reason = re.split("please file an issue", str(error).partition("\n")[0], flags=re.IGNORECASE)[0]
            failure = f"{type(error).__name__}: {in_one_line(reason).rstrip(',. ')}"
            raise NotBatchedError("model.mapping-failed", reason=failure, place=_place_in_user_code(error)) from error
        if changed:
            raise NotBatchedError("model.state-shared", state=changed)
        if not by_element:
            raise NotBatchedError("model.optimiser-not-elementwise")
        written = [name for name, value in buffers_before.items() if not torch.equal(value, self._fixed[name])]
        if written:
            raise NotBatchedError("model.buffer-written", buffer=written[0])
        if not same_alone:
            raise NotBatchedError("model.gradients-differ")
        matches = (re.match(_ONE_BY_ONE, str(warning.message)) for warning in caught)
        return ", ".join(sorted({match[1] for match in matches if match}))

    def record_steps(self) -> None:
        """Records steps if the run takes many."""
        variants, steps = self._job.variants, self._training.steps
        silos = len(variants.weights)
        if variants.rounds * -(-silos // self._chunk) * steps < _WORTH_RECORDING:
            return
        start = self._start_parameters(len(variants.clip_norm))
        with self._seed_round(0), self._model.mode(training=True):
            for size in {min(self._chunk, silos), silos % self._chunk} - {0}:
                leaves = _leaves(start, size)
                places = self._torch.arange(
                    len(variants.clip_norm) * size * self._training.batch, device=self._device.name
                )
                chosen = places.reshape(-1, self._training.batch) % len(self._inputs)
                self._steps.record_moves(leaves, self._inputs, self._targets, chosen, self._training.learning_rate)

    def _compare_recordings(self, start: Tensors, round_number: int) -> None:
        """Compares recordings with the module's own code, for a single silo and a batch drawn from all records."""
        draws = np.random.default_rng([self._job.seed, round_number])
        chosen = self._torch.as_tensor(draws.integers(len(self._inputs), size=(1, self._training.batch)))
        batch = (rows(values, chosen.to(self._device.name)) for values in (self._inputs, self._targets))
        self._steps.begin_round({name: part[:1] for name, part in start.items()}, *batch)

    def sums(self, models: FloatArray, round_number: int, *, by_region: bool) -> FloatArray:
        """Returns the regional sums of a round, (regions, parameters, variants), or the total as one region's."""
        torch, variants = self._torch, self._job.variants
        start = self._model.split(torch.as_tensor(models.T.copy()).to(self._device.name, self._model.dtype))
        total = torch.zeros(
            (variants.regions, models.shape[1], len(models)), dtype=torch.float64, device=self._device.name
        )
        first, silos = 0, len(variants.weights)
        reporting = self._model.report_failures(f"round {round_number}")
        with reporting, self._seed_round(round_number), self._modules_ready(training=True):
            self._compare_recordings(start, round_number)
            while first < silos:
                begins = range(first, silos, self._chunk)
                calls = (
                    (self._chunk_sums, start, begin, min(begin + begins.step, silos), round_number) for begin in begins
                )
                try:
                    for begin, sent in zip(begins, self._run_calls(calls), strict=True):
                        for regions, added in sent:
                            total[regions] += added
                        first = begin + begins.step
                        if self._on_part is not None:
                            self._on_part(round_number - 1 + min(first / silos, 1.0))
                except Exception as error:
                    if not is_out_of_memory(torch, error):
                        raise
                    self._halve(error)
        aggregators_inject = variants.aggregator_noise_multiplier.any()
        if not by_region and not aggregators_inject:
            total = total.sum(dim=0, keepdim=True)
        sent = np.asarray(total.transpose(1, 2).cpu().numpy())
        return sent + aggregator_noise(self._job, round_number, len(models)) if aggregators_inject else sent

    def outputs(self, models: FloatArray) -> list[FloatArray]:
        """Returns the outputs of every variant's model for the test records."""
        torch, model = self._torch, self._model
        with (
            model.report_failures("testing"),
            use_seed(self._job.seed, self._device.name),
            self._modules_ready(training=False),
        ):
            vectors = (torch.as_tensor(column).to(self._device.name, model.dtype) for column in models.T)
            return [self._test_outputs(model.split(vector)) for vector in vectors]

    def _test_outputs(self, parts: Tensors) -> FloatArray:
        """Returns a model's outputs for the test records, in equal parts; parts are halved if memory runs out."""
        torch, most = self._torch, _TESTED_AT_ONCE
        while True:
            batches = self._tested.tensor_split(-(-len(self._tested) // most))
            try:
                outputs = list(self._run_calls((self._outputs_of_part, parts, part) for part in batches))
                return np.asarray(torch.cat(outputs).double().cpu().numpy())
            except Exception as error:
                if not is_out_of_memory(torch, error):
                    raise
                if most == 1:
                    raise too_large(f"one record of {self._model.name}", self._device.name, error) from None
            most //= 2
            self._empty_cache()

    def _outputs_of_part(self, parts: Tensors, records: Any) -> Any:
        """Returns a model's outputs for a part of the records."""
        with self._own_steps() as own, self._torch.no_grad():
            return own.model.outputs(parts, self._fixed, records.clone())  # a module may write to its input

    def _run_calls(self, calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yields the results of calls, in order."""
        if self._threads > 1:
            yield from in_order(self._pool, calls, 2 * self._threads)
        else:
            yield from (call(*arguments) for call, *arguments in calls)

    def _chunk_sums(self, start: Tensors, first: int, last: int, round_number: int) -> list[tuple[Any, Any]]:
        """Trains, clips, perturbs and weights the silos from `first` to `last` (exclusive).

        Returns pairs of regions and the chunk's part of the sums of these regions, (regions, variants, parameters); all
        parts of a region are to be added.
        """
        torch, variants = self._torch, self._job.variants
        updates = self._updates(start, self._draws.picks(first, last, round_number))
        sizes = torch.linalg.vector_norm(updates, dim=2).double().cpu().numpy()
        if not np.isfinite(sizes).all():
            silo = first + int(np.argmin(np.isfinite(sizes).all(axis=1)))
            raise DivergedUpdateError(
                "training.update-diverged",
                silo=variants.silo_name(silo),
                round=round_number,
                advice=f"Lower the learning rate (now {self._training.learning_rate:g})",
            )
        signal, noise = variants.factors(sizes, slice(first, last), round_number)
        factors = torch.as_tensor(signal).to(updates)
        sent = []
        for begin in range(0, last - first, _SILOS_A_SUM):
            part = slice(begin, begin + _SILOS_A_SUM)
            sent.append(self._add_by_region(first + begin, factors[part], updates[part]))
        if noise.any():
            for begin, end, drawn in self._draws.noise(first, last, round_number):
                spread = torch.as_tensor(noise[begin - first : end - first]).to(drawn)
                sent.append(self._add_by_region(begin, spread, drawn[:, None]))
        return sent

    def _add_by_region(self, first: int, factors: Any, values: Any) -> tuple[Any, Any]:
        """Adds up values by region, times factors; returns the indices of regions, and sums (regions, variants, ...).

        Args:
            first: The index of the first silo.
            factors: By silo and variant, for silos with consecutive indices.
            values: By silo and variant, or by silo alone with an axis of length 1 in the place of variants.
        """
        torch = self._torch
        regions, member_of = self._members(first, first + len(factors))
        spread = factors.T[None]  # regions, variants, silos
        if len(regions) > 1:
            belongs = torch.nn.functional.one_hot(member_of, len(regions))
            spread = belongs.T[:, None, :].to(factors) * spread
        if values.shape[1] == 1:
            added = (spread.flatten(0, 1) @ values[:, 0]).unflatten(0, spread.shape[:2])
        else:
            added = torch.stack([spread[:, variant] @ values[:, variant] for variant in range(values.shape[1])], dim=1)
        return regions, added.double()

    def _members(self, first: int, last: int) -> tuple[Any, Any]:
        """Returns the regions of the silos from `first` to `last` (exclusive), and each silo's position among them."""
        membership = self._membership.get((first, last))
        if membership is None:
            regions, member_of = np.unique(self._job.variants.region_of[first:last], return_inverse=True)
            membership = tuple(self._torch.as_tensor(array).to(self._device.name) for array in (regions, member_of))
            self._membership[first, last] = membership
        return membership

    def _updates(self, start: Tensors, picks: Any) -> Any:
        """Returns the update of every silo under every variant, (silos, variants, parameters)."""
        model, variants = self._model, len(self._job.variants.clip_norm)
        steps, silos, _ = picks.shape
        leaves = _leaves(start, silos)
        move = model.stepper(list(leaves.values()), self._training.learning_rate)
        with self._own_steps() as thread_steps:
            for step in range(steps):
                if self._ending.is_set():
                    raise CancelledError
                chosen = picks[step].repeat_interleave(variants, dim=0) if variants > 1 else picks[step]
                thread_steps.step(leaves, self._inputs, self._targets, chosen, move)
        with self._torch.no_grad():
            updates = {name: leaf.unflatten(0, (silos, variants)).sub_(start[name]) for name, leaf in leaves.items()}
            return model.join(updates, 2)

    @contextmanager
    def _modules_ready(self, *, training: bool) -> Iterator[None]:
        """Provides a module for every thread, in the mode for training or for testing."""
        while self._idle.qsize() < self._threads:
            self._idle.put(self._steps.twin() if self._idle.qsize() else self._steps)
        with ExitStack() as stack:
            for _ in range(self._threads):
                steps = self._idle.get()
                stack.enter_context(steps.model.mode(training=training))
                self._idle.put(steps)
            yield

    @contextmanager
    def _own_steps(self) -> Iterator[SiloSteps]:
        """Gives a thread exclusive use of steps."""
        own = self._idle.get()
        try:
            yield own
        finally:
            self._idle.put(own)

    @contextmanager
    def _seed_round(self, round_number: int) -> Iterator[None]:
        """Seeds random layers, such as dropout, and makes cuDNN compute in full precision inside the context."""
        seed = int(np.random.SeedSequence([self._job.seed, round_number]).generate_state(1)[0])
        exact = self._torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with use_seed(seed, self._device.name), exact if self._device.kind == "cuda" else nullcontext():
            yield

    def _chunk_size(self) -> int:
        """Returns the number of silos at a time: whole blocks if the memory for a chunk allows."""
        torch, model, variants = self._torch, self._model, len(self._job.variants.clip_norm)
        silo = variants * (2 * self._bytes_for_gradients() + _COPIES * model.parameters * model.dtype.itemsize)
        room = float(_PROCESSOR_BYTES)
        if self._device.kind == "cuda":
            room = min(_GPU_SHARE * torch.cuda.mem_get_info(self._device.name)[0], _GPU_BYTES)
        fits = max(int(room // silo), 1)
        whole = fits // SILOS_A_BLOCK * SILOS_A_BLOCK or fits
        return max(min(whole, self._device.chunk or whole), 1)

    def _bytes_for_gradients(self) -> int:
        """Returns the bytes that a single step of a single silo keeps for gradients."""
        torch, total = self._torch, 0
        leaves = {name: part[0].clone().requires_grad_() for name, part in self._start_parameters(1).items()}
        few = slice(0, min(self._training.batch, len(self._inputs)))

        def count(tensor: Any) -> Any:
            nonlocal total
            total += tensor.numel() * tensor.element_size()
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor)
        with (
            self._model.report_failures(f"a step on a batch of {few.stop}"),
            hooks,
            torch.random.fork_rng(devices=[]),
            self._model.mode(training=True),
        ):
            self._steps.twin().mapped_loss(leaves, self._inputs[few].clone(), self._targets[few])
        return total * -(-self._training.batch // few.stop)

    def _start_parameters(self, variants: int) -> Tensors:
        """Returns the start parameters of the module for every variant."""
        start = self._torch.as_tensor(self._model.start).to(self._device.name, self._model.dtype)
        return self._model.split(start.expand(variants, -1))

    def _halve(self, error: Exception) -> None:
        """Halves the chunk size, or raises `ParameterError` if a single silo does not fit."""
        if self._chunk == 1:
            raise self._too_large(error) from None
        self._chunk = max(self._chunk // 2, 1)
        self._empty_cache()

    def _empty_cache(self) -> None:
        if self._device.kind == "cuda":
            self._torch.cuda.empty_cache()

    def _too_large(self, error: Exception) -> ParameterError:
        return too_large(f"one silo of {self._model.name}", self._device.name, error)


def _leaves(start: Tensors, silos: int) -> Tensors:
    """Returns the parameters of every silo under every variant; the variants of a silo are adjacent."""
    return {
        name: part.expand(silos, *part.shape).clone().flatten(0, 1).requires_grad_() for name, part in start.items()
    }


def _place_in_user_code(error: Exception) -> str:
    """Returns the place of a failure in the user's own code, for a message."""
    own = Path(__file__).parent, Path(require_torch().__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(Path(frame.filename).is_relative_to(folder) for folder in own):
            return f" ({Path(frame.filename).name} line {frame.lineno})"
    return ""
