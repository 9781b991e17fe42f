"""The engine of a model: the built-in head in batches, a PyTorch module on tensors, any other model silo by silo."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.errors import ParameterError
from fulcrum.simulation.data.person_groups import check_task_fits
from fulcrum.simulation.data.tasks import METRIC_NAMES, Task
from fulcrum.simulation.embedded.batched_engine import train_jobs
from fulcrum.simulation.embedded.federation_jobs import FederationRun, Job
from fulcrum.simulation.embedded.metrics import NAMED_METRICS, name_of
from fulcrum.simulation.embedded.models import Model, SoftmaxHead
from fulcrum.simulation.embedded.training_settings import LocalTraining, check_training_fits
from fulcrum.simulation.reference_engine import train_slowly
from fulcrum.simulation.torch.torch_device import TorchDevice
from fulcrum.simulation.torch.torch_engine import NotBatchedError, train_on_tensors
from fulcrum.simulation.torch.torch_model import TorchModel, torch_model
from fulcrum.simulation.torch.torch_persons import train_by_person
from fulcrum.simulation.torch.torch_state import use_default_modes, use_one_thread, use_seed


def model_of(model: Any) -> Model | TorchModel | None:
    """Returns a model for the engines; a PyTorch module, or a function that makes a module, becomes a `TorchModel`."""
    return model if model is None or isinstance(model, Model) else torch_model(model)


def parameters_of(model: Model | TorchModel | None, task: Task) -> int:
    """Returns d of a model, or of the built-in head on a task."""
    if model is not None:
        return model.parameters
    return SoftmaxHead(features=task.width, classes=len(task.classes)).parameters


def metric_of(model: Model | TorchModel | None, task: Task) -> str:
    """Returns the name of the metric on the test split, in words."""
    return name_of((model and model.metric) or NAMED_METRICS[task.metric])


def train_model(
    jobs: Sequence[Job],
    task: Task,
    training: LocalTraining,
    model: Model | TorchModel | None,
    *,
    device: str | TorchDevice | None = None,
    keep_regional_sums: bool = False,
    every_round: bool = True,
    on_round: Callable[[int, list[FloatArray]], None] | None = None,
    on_part: Callable[[float], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> tuple[list[FederationRun], tuple[str, ...]]:
    """Returns the runs of several jobs, and notes for a reader on the training of the model.

    Jobs of the built-in head advance side by side, jobs of any other model in sequence.

    Args:
        jobs: The jobs to train, all with the same number of rounds.
        task: The records, and the test split.
        training: Settings of local training; `GradientTraining` for the units "person" and "record".
        model: A result of `model_of`; None for the built-in head.
        device: Device of a PyTorch module; the processor by default.
        keep_regional_sums: True keeps the sums seen by an observer above the regions.
        every_round: True tests after every round, False after the last round alone.
        on_round: Called with the round and the accuracies by variant of every job. For jobs in sequence: with the
            rounds done on average over the jobs, and the accuracies of the job in work.
        on_part: Called within the rounds of a user's own model with the rounds done, as a fraction, over all jobs.
        on_note: Called at once with a note on slow training.
    """
    if model is not None and model.metric is not None and task.metric != METRIC_NAMES[task.targets][0]:
        raise ParameterError("metric.chosen-twice", metric=name_of(model.metric), other=task.metric)
    if device is not None and not isinstance(model, TorchModel):
        raise ParameterError("model.device-unneeded")
    unit = jobs[0].variants.unit
    check_training_fits(training, unit)
    check_task_fits(task, unit)
    if unit.is_within_silo and isinstance(model, Model) and model.gradient is None:
        raise ParameterError("model.gradient-missing")
    if model is None:
        runs_of_head = train_jobs(
            jobs, task, training, keep_regional_sums=keep_regional_sums, every_round=every_round, on_round=on_round
        )
        return runs_of_head, ()
    trained_model = model.on(task) if isinstance(model, TorchModel) else model
    notes = trained_model.notes if isinstance(trained_model, TorchModel) else ()
    where = device if isinstance(device, TorchDevice) else TorchDevice(name="cpu" if device is None else str(device))
    rounds, runs = jobs[0].variants.rounds, list[FederationRun]()

    def note(text: str) -> None:
        nonlocal notes
        if text not in notes:  # several slow jobs have the same reason
            notes += (text,)
            if on_note is not None:
                on_note(text)

    for number, job in enumerate(jobs):
        variants, place = job.variants.distinct()

        def report_round(done: int, accuracy: FloatArray, number: int = number, place: IntArray = place) -> None:
            if on_round is not None:
                on_round((number * rounds + done) // len(jobs), [accuracy[place]])

        def report_part(done: float, number: int = number) -> None:
            if on_part is not None:
                on_part((number * rounds + done) / len(jobs))

        options: dict[str, Any] = {
            "keep_regional_sums": keep_regional_sums,
            "every_round": every_round,
            "on_round": report_round,
            "on_part": report_part,
        }
        distinct_job = replace(job, variants=variants)
        if isinstance(trained_model, TorchModel):
            try:
                engine = train_by_person if unit.is_within_silo else train_on_tensors
                run = engine(distinct_job, task, training, trained_model, device=where, on_note=note, **options)
            except NotBatchedError as error:
                parts = f"{unit.noun} by {unit.noun}" if unit.is_within_silo else "silo by silo"
                note(f"{trained_model.name} is trained {parts} on the processor, which is slow: {error}.")
                trained_model = trained_model.as_model(learning_rate=training.learning_rate)
        if isinstance(trained_model, Model):
            with ExitStack() as stack:
                if isinstance(model, TorchModel):
                    stack.enter_context(use_default_modes())
                    stack.enter_context(use_one_thread())
                    stack.enter_context(use_seed(job.seed))
                run = train_slowly(distinct_job, task, training, trained_model, **options)
        runs.append(run.by_variant(place))
    return runs, notes
