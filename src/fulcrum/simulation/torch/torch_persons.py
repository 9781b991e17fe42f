"""The units "person" and "record" on tensors: gradients of a user's module, clipped by person, for all silos together.

In a round all silos take gradients at the same global model, so records of many silos form one batch, and no silo needs
parameters of its own. Records are worked through in chunks, person after person. The gradients of a chunk come from one
backward pass by layers (`torch_layers`), or from `torch.func` for a module with other layers. Before training both ways
are compared with the gradients of single records by the module's own code.

Memory beside records, model and regional sums: all tensors of a chunk together take at most 64 MiB for each thread on
the processor, and 8 GiB or two fifths of the free memory on a GPU, whichever is less; one record at least.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.noise.mechanism import clip_factor
from fulcrum.core.noise.noise_sources import SILOS_A_BLOCK
from fulcrum.core.training.torch_gradients import check_records_apart, map_gradients
from fulcrum.errors import ParameterError, in_one_line
from fulcrum.simulation.data.person_groups import groups_of
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import aggregator_noise, server_rate
from fulcrum.simulation.embedded.federation_jobs import FederationRun, Job
from fulcrum.simulation.embedded.training_settings import LocalTraining, check_training_fits
from fulcrum.simulation.torch.model_rounds import run_rounds
from fulcrum.simulation.torch.torch_device import TorchDevice, is_out_of_memory, too_large
from fulcrum.simulation.torch.torch_engine import NotBatchedError, TensorSilos
from fulcrum.simulation.torch.torch_layers import RecordGradients, gradients_by_layers
from fulcrum.simulation.torch.torch_model import TorchModel
from fulcrum.simulation.torch.torch_state import Tensors, require_torch, use_default_modes, use_one_thread
from fulcrum.simulation.torch.torch_steps import SiloSteps, python_state, random_state, same_state

# Of a chunk: fewer records pay more for each call, more records leave the cache.
_PROCESSOR_BYTES, _PROCESSOR_RECORDS = 1 << 26, 1_024
_GPU_SHARE, _GPU_BYTES, _GPU_RECORDS = 0.4, 1 << 33, 1 << 20
_SILOS_AT_ONCE = 8 * SILOS_A_BLOCK  # whose noise is drawn together
_TRIED, _NEAR, _SHIFT = 6, 1e-3, 0.05


def train_by_person(
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
    """Trains a job for the units "person" and "record"; parameters and sums come back as `train_on_tensors` gives them.

    Neighbouring relation: all records of one person at one silo. In every round a silo adds up the negative gradients
    of its persons, each clipped by itself; a gradient that is not finite is zero for its person alone. The noise is
    seeded, and so protects nobody.

    Args:
        job: The job to train.
        task: The records, and the test split.
        training: The server's learning rate, a `GradientTraining`.
        model: The model, a result of `TorchModel.on` for the task.
        device: The device; the processor by default. `chunk` is the largest number of records at a time.
        keep_regional_sums: True keeps the sums seen by an observer above the regions.
        every_round: True tests after every round, False after the last round alone.
        on_round: Called after every tested round with the round and the accuracies by variant.
        on_part: Called after every chunk of records with the rounds done, as a fraction.
        on_note: Called before training with a note on slow training.

    Raises:
        ParameterError: Records of a batch change each other's gradients, the module draws or keeps a state, or the
            model has an optimiser of the silos.
        NotBatchedError: `torch.func` cannot map the module over records; the slow engine can take gradients.
    """
    device = device or TorchDevice()
    device.check()
    check_training_fits(training, job.variants.unit)
    with ExitStack() as stack:
        stack.enter_context(use_default_modes(device.name))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="There is a performance drop")  # a note names slow modules
        try:
            persons = _Persons(job, task, training, model, device, on_part)
            stack.callback(persons.close)
            if device.kind == "cpu":
                stack.enter_context(use_one_thread())
            reason = persons.choose_way()
            if reason and on_note is not None:
                on_note(f"Gradients of {model.name} are mapped over records, which is slower than by layers: {reason}.")
            return run_rounds(
                job.variants,
                task,
                model,
                sums=persons.regional_sums,
                outputs=persons.outputs,
                keep_regional_sums=keep_regional_sums,
                every_round=every_round,
                on_round=on_round,
                rate=server_rate(training),
            )
        except Exception as error:
            if not is_out_of_memory(require_torch(), error):
                raise
            raise too_large(f"{model.name} with the records of {task.name}", device.name, error) from None


class _Persons(TensorSilos):
    """All persons of a job, with their records, on a single device."""

    def __init__(
        self,
        job: Job,
        task: Task,
        training: LocalTraining,
        model: TorchModel,
        device: TorchDevice,
        on_part: Callable[[float], None] | None = None,
    ) -> None:
        self._scale_by_records, self._by_layers, self._channels_last = True, True, False
        super().__init__(job, task, training, model, device, on_part)
        groups, variants = groups_of(job.partition, task, job.variants.unit), job.variants
        silo_of = np.repeat(np.arange(len(variants.weights)), groups.by_silo)
        # Persons of a region side by side: a chunk then adds to few regional sums.
        order = np.argsort(variants.region_of[silo_of], kind="stable")
        counts = np.diff(groups.starts)[order]
        self._silo_of, self._starts = silo_of[order], np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(len(groups.records)) - np.repeat(self._starts[:-1], counts)
        records = groups.records[np.repeat(groups.starts[:-1][order], counts) + within]
        self._records = self._torch.as_tensor(records).to(device.name)
        self._is_single = bool((counts == 1).all())
        self._may_exceed = np.zeros(variants.weights.shape, dtype=bool)
        if variants.largest_sums is not None:
            self._may_exceed = groups.by_silo[:, None] > variants.largest_sums * (1 + 1e-9)
        # Read once: while a thread runs the module, the module's parameters are replaced.
        self._shapes, self._dtype = model.shapes, model.dtype
        self._labels = np.asarray(task.labels_train)

    def choose_way(self) -> str:
        """Checks the module and chooses the way to gradients by record, then the number of records at a time.

        Returns:
            The reason for mapping over records, or an empty text if gradients come by layers.

        Raises:
            ParameterError: The gradient of a record depends on other records, on draws or on a state.
            NotBatchedError: `torch.func` cannot map the module over records.
        """
        torch, steps = self._torch, self._steps.twin()  # a twin, because these calls may change the module
        model, reason = steps.model, ""
        if model.optimiser is not None:
            raise ParameterError("model.person-optimiser", model=model.name)
        few = torch.as_tensor(_spread_over_classes(self._labels, _TRIED)).to(self._device.name)
        records = self._inputs[few], self._targets[few]
        buffers = {name: value.clone() for name, value in self._fixed.items()}
        reporting = model.report_failures("a gradient of one record")
        with reporting, torch.random.fork_rng(devices=[]), model.mode(training=True):
            check_records_apart(model.module, model.loss)
            for shift in (0.0, _SHIFT):
                parameters = self._shifted_start(shift)
                alone = self._check_alone(steps, parameters, *records)
                self._check_together(steps, parameters, *records, alone)
                reason = self._choose_by(steps, parameters, *records, alone) or reason
            written = [name for name, value in buffers.items() if not torch.equal(value, self._fixed[name])]
            if written:
                raise ParameterError("model.person-state", model=model.name, state=written[0])
            self._chunk = self._records_at_once(steps, parameters)
        return reason

    def _shifted_start(self, shift: float) -> Tensors:
        """Returns the start of the module, moved a little: at the start itself many gradients may be zero."""
        torch, model = self._torch, self._model
        flat = torch.as_tensor(model.start)
        flat = flat + shift * torch.randn(flat.shape, generator=torch.Generator().manual_seed(0), dtype=flat.dtype)
        return model.split(flat.to(self._device.name, model.dtype))

    def _check_alone(self, steps: SiloSteps, parameters: Tensors, inputs: Any, targets: Any) -> Any:
        """Returns the gradients of single records by the module's own code, (records, parameters).

        Raises `ParameterError` if the module draws, or if a call changes a state that later calls would share.
        """
        model, before = steps.model, random_state(inputs.device)
        rows = [self._gradient(steps, parameters, inputs[[row]], targets[[row]]) for row in range(len(inputs))]
        prepared = python_state(model)
        again = self._gradient(steps, parameters, inputs[:1], targets[:1])
        if not self._torch.equal(before, random_state(inputs.device)):
            raise ParameterError("model.person-random", model=model.name, layer="")
        after = python_state(model)
        changed = next((name for name in after if not same_state(prepared.get(name), after[name])), "")
        if changed or not _are_near(again, rows[0]):
            raise ParameterError("model.person-state", model=model.name, state=changed or "a variable elsewhere")
        return self._torch.stack(rows)

    def _gradient(self, steps: SiloSteps, parameters: Tensors, inputs: Any, targets: Any) -> Any:
        """Returns the gradient of a batch by the module's own code, flat."""
        leaves = {name: value.detach().clone().requires_grad_() for name, value in parameters.items()}
        loss = steps.loss(leaves, inputs.clone(), targets)
        gradients = self._torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return self._model.join(dict(zip(leaves, gradients, strict=True)))

    def _check_together(self, steps: SiloSteps, parameters: Tensors, inputs: Any, targets: Any, alone: Any) -> None:
        """Raises `ParameterError` unless the gradient of a batch is the mean, or the sum, of the records' gradients."""
        ratios = []
        for count in (len(inputs), 2):
            together, total = (
                self._gradient(steps, parameters, inputs[:count], targets[:count]),
                alone[:count].sum(dim=0),
            )
            if _are_near(together * count, total):
                ratios.append("mean")
            elif _are_near(together, total):
                ratios.append("sum")
            else:
                raise ParameterError("model.person-coupled", model=steps.model.name, records=count)
        self._scale_by_records = "mean" in ratios

    def _choose_by(self, steps: SiloSteps, parameters: Tensors, inputs: Any, targets: Any, alone: Any) -> str:
        """Chooses the fastest way whose gradients are the gradients of single records; returns a reason to map."""
        reason = ""
        if self._by_layers:
            # On the processor torch pools faster with channels innermost in memory. A module may need another order.
            layouts = (True, False) if inputs.ndim == 4 and self._device.kind == "cpu" else (False,)
            for self._channels_last in layouts:
                try:
                    if self._agrees(steps, parameters, inputs, targets, alone):
                        return ""
                    reason = "other gradients by layers"
                except Exception as error:
                    if is_out_of_memory(self._torch, error):
                        raise
                    reason = in_one_line(str(error).partition("\n")[0])
            self._by_layers = self._channels_last = False
        try:
            if self._agrees(steps, parameters, inputs, targets, alone):
                return reason
        except Exception as error:  # the module's code, which took single records before
            if is_out_of_memory(self._torch, error):
                raise
            failure = f"{type(error).__name__}: {in_one_line(str(error).partition('.')[0])}"
            raise NotBatchedError("model.mapping-failed", reason=failure, place="") from error
        raise NotBatchedError("model.person-gradients-differ")

    def _agrees(self, steps: SiloSteps, parameters: Tensors, inputs: Any, targets: Any, alone: Any) -> bool:
        gradients = self._by_record(steps, parameters, inputs.clone(), targets, single=True)
        sizes = gradients.norms(None, len(inputs))
        ones = sizes.new_ones(len(inputs)).to(alone)
        rows = [
            self._model.join(gradients.weighted_sum(ones, slice(row, row + 1), self._shapes))
            for row in range(len(inputs))
        ]
        return _are_near(self._torch.stack(rows), alone) and _are_near(sizes.to(alone), alone.norm(dim=1))

    def _by_record(
        self, steps: SiloSteps, parameters: Tensors, inputs: Any, targets: Any, *, single: bool
    ) -> RecordGradients:
        """Returns the gradients of a chunk by record."""
        if not self._by_layers:
            mapped = map_gradients(steps.loss, parameters, inputs, targets)
            return RecordGradients(rows={name: rows.reshape(len(inputs), -1) for name, rows in mapped.items()})
        if self._channels_last:
            inputs = inputs.contiguous(memory_format=self._torch.channels_last)
        scale = len(inputs) if self._scale_by_records else 1

        def loss(leaves: Tensors) -> Any:
            return steps.loss(leaves, inputs, targets) * scale

        return gradients_by_layers(loss, parameters, len(inputs), single=single)

    def _chunk_size(self) -> int:
        """Returns a single record, until the way to gradients is chosen."""
        return 1

    def _records_at_once(self, steps: SiloSteps, parameters: Tensors) -> int:
        """Returns the number of records at a time: the tensors of a chunk fit in the memory for a chunk."""
        torch, count, tensors = self._torch, min(_TRIED, len(self._inputs)), _BytesMade()
        person_of = None if self._is_single else torch.arange(count, device=self._device.name)
        with tensors.mode():
            records = self._inputs[:count].clone(), self._targets[:count]
            gradients = self._by_record(steps, parameters, *records, single=self._is_single)
            gradients.norms(person_of, count)
        room, most = float(_PROCESSOR_BYTES), _PROCESSOR_RECORDS
        if self._device.kind == "cuda":
            room, most = min(_GPU_SHARE * torch.cuda.mem_get_info(self._device.name)[0], _GPU_BYTES), _GPU_RECORDS
        return max(min(int(room * count // tensors.bytes), most, self._device.chunk or most), 1)

    def regional_sums(self, models: FloatArray, round_number: int) -> FloatArray:
        """Returns the regional sums of a round, (regions, parameters, variants)."""
        torch, variants = self._torch, self._job.variants
        shape = variants.regions, models.shape[1], len(models)
        total = torch.zeros(shape, dtype=torch.float64, device=self._device.name)
        reporting = self._model.report_failures(f"round {round_number}")
        with reporting, self._seed_round(round_number), self._modules_ready(training=True):
            for variant in range(models.shape[1]):
                column = torch.as_tensor(models[:, variant]).to(self._device.name, self._dtype)
                self._add_gradients(total, variant, self._model.split(column), round_number)
            self._add_noise(total, round_number)
        sent = np.asarray(total.transpose(1, 2).cpu().numpy())
        aggregators_inject = variants.aggregator_noise_multiplier.any()
        return sent + aggregator_noise(self._job, round_number, len(models)) if aggregators_inject else sent

    def _add_gradients(self, total: Any, variant: int, parameters: Tensors, round_number: int) -> None:
        """Adds the weighted sums of all silos of a variant to the regional sums."""
        torch, variants, persons = self._torch, self._job.variants, len(self._silo_of)
        first, open_silo, open_sum = 0, -1, None

        def close_silo() -> None:
            if open_sum is None:
                return
            size = np.array([float(open_sum.norm())])
            largest = variants.largest_sums[open_silo, variant] * variants.clip_norm[variant]
            factor = variants.weights[open_silo, variant] * float(clip_factor(size, largest)[0])
            total[variants.region_of[open_silo], variant] += factor * open_sum

        while first < persons:
            chunks = list(self._chunks(first))
            calls = ((self._run_sums, variant, parameters, begin, end) for begin, end in chunks)
            try:
                for (_, end), sums in zip(chunks, self._run_calls(calls), strict=True):
                    for silo, exceeds, added in sums:
                        if open_sum is not None and not (exceeds and silo == open_silo):
                            close_silo()
                            open_sum = None
                        if not exceeds:
                            total[variants.region_of[silo], variant] += added
                        else:
                            open_silo, open_sum = silo, added if open_sum is None else open_sum + added
                    first = end
                    if self._on_part is not None:
                        done = (variant + first / max(persons, 1)) / len(variants.clip_norm)
                        self._on_part(round_number - 1 + min(done, 1.0))
            except Exception as error:
                if not is_out_of_memory(torch, error):
                    raise
                self._halve(error)
        close_silo()

    def _chunks(self, first: int) -> Iterator[tuple[int, int]]:
        """Yields first person and end (exclusive) of every chunk, from the person `first` on; no chunk is empty."""
        while first < len(self._silo_of):
            last = int(np.searchsorted(self._starts, self._starts[first] + self._chunk, side="right")) - 1
            last = max(last, first + 1)
            yield first, last
            first = last

    def _run_sums(self, variant: int, parameters: Tensors, first: int, last: int) -> list[tuple[int, bool, Any]]:
        """Returns the clipped, negative gradients of the persons from `first` to `last` (exclusive), added up by run.

        A run is a region, weighted; or a silo with more persons than its largest sum, without the weight, since such a
        sum is scaled down as a whole. Each run has three values: the silo of its first person, True for a run of the
        second kind, and the sum.
        """
        torch, variants, persons = self._torch, self._job.variants, last - first
        gradients = self._gradients_of(parameters, first, last)
        person_of = None if gradients.is_by_person else self._person_of(first, last)
        sizes = gradients.norms(person_of, persons)
        finite = torch.isfinite(sizes)
        if not bool(finite.all()):
            gradients.drop(~finite)
            sizes = torch.where(finite, sizes, torch.zeros_like(sizes))
        silos = self._silo_of[first:last]
        exceeds = self._may_exceed[silos, variant]
        factors = -clip_factor(sizes.cpu().numpy(), variants.clip_norm[variant], variants.clip_share[variant])
        factors *= np.where(exceeds, 1.0, variants.weights[silos, variant])
        spread = torch.as_tensor(factors).to(self._device.name, self._dtype)
        key = np.where(exceeds, silos + variants.regions, variants.region_of[silos])
        ends = [*(np.flatnonzero(np.diff(key)) + 1).tolist(), persons]
        sums, begin = [], 0
        for end in ends:
            parts = gradients.weighted_sum(spread, slice(begin, end), self._shapes)
            sums.append((int(silos[begin]), bool(exceeds[begin]), self._model.join(parts).double()))
            begin = end
        return sums

    def _person_of(self, first: int, last: int) -> Any | None:
        """Returns the person of every record of the persons from `first` to `last` (exclusive), counted from 0.

        The result is None if every record is a person.
        """
        counts = np.diff(self._starts[first : last + 1])
        if (counts == 1).all():
            return None
        return self._torch.as_tensor(np.repeat(np.arange(last - first), counts)).to(self._device.name)

    def _gradients_of(self, parameters: Tensors, first: int, last: int) -> RecordGradients:
        """Returns the gradients of the persons from `first` to `last` (exclusive).

        A person with more records than a chunk is added up in parts.
        """
        start, stop = int(self._starts[first]), int(self._starts[last])
        with self._own_steps() as steps:
            total: RecordGradients | None = None
            single = self._person_of(first, last) is None
            for begin in range(start, stop, self._chunk):
                chosen = self._records[begin : min(begin + self._chunk, stop)]
                inputs, targets = (values.index_select(0, chosen) for values in (self._inputs, self._targets))
                gradients = self._by_record(steps, parameters, inputs, targets, single=single)
                if stop - start <= self._chunk:
                    return gradients
                everyone = self._torch.zeros(len(chosen), dtype=self._torch.long, device=self._device.name)
                gradients.sum_by_person(everyone, 1)
                total = gradients if total is None else total.plus(gradients)
        return total if total is not None else RecordGradients(is_by_person=True)

    def _add_noise(self, total: Any, round_number: int) -> None:
        """Adds the noise of all silos to the regional sums."""
        variants = self._job.variants
        silos = len(variants.weights)
        _, noise = variants.factors(np.zeros(variants.weights.shape), slice(0, silos), round_number)
        if not noise.any():
            return
        for first in range(0, silos, _SILOS_AT_ONCE):
            for begin, end, drawn in self._draws.noise(first, min(first + _SILOS_AT_ONCE, silos), round_number):
                spread = self._torch.as_tensor(noise[begin:end]).to(drawn)
                regions, added = self._add_by_region(begin, spread, drawn[:, None])
                total[regions] += added


class _BytesMade:
    """Counts the bytes of all tensors that operations make, views left out: a bound on the memory of these operations.

    Tensors that are freed on the way count too.
    """

    def __init__(self) -> None:
        self.bytes = 0

    def mode(self) -> Any:
        """Returns a context manager that adds up the bytes of all tensors that PyTorch operations create."""
        torch, count = require_torch(), self._count

        class CountBytes(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc,name-defined]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                for value in result if isinstance(result, (tuple, list)) else (result,):
                    if isinstance(value, torch.Tensor) and not func.is_view:
                        count(value)
                return result

        return CountBytes()

    def _count(self, value: Any) -> None:
        self.bytes += value.numel() * value.element_size()


def _spread_over_classes(labels: IntArray, count: int) -> IntArray:
    """Returns a few records with as many different targets as possible.

    A loss that divides by the class weights of a batch shows on records of different classes alone.
    """
    first = np.unique(labels, return_index=True)[1] if labels.ndim == 1 else np.arange(len(labels))
    chosen = np.unique(np.concatenate([first[:count], np.arange(min(count, len(labels)))]), return_index=True)
    return chosen[0][np.argsort(np.isin(chosen[0], first), kind="stable")[::-1]][:count]


def _are_near(first: Any, second: Any) -> bool:
    """Returns true if gradients agree up to the rounding of single precision in a deep module."""
    return bool((first - second).norm() <= _NEAR * second.norm() + 1e-7)
