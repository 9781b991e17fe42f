"""Which engine trains what: the built-in head in batches, a PyTorch module on tensors, any other model silo by silo."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.errors import ParameterError
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import FederationRun, Job, LocalTraining, train_jobs
from fulcrum.simulation.embedded.metrics import METRICS, name_of
from fulcrum.simulation.embedded.models import Model, SoftmaxHead
from fulcrum.simulation.reference_engine import train_slowly
from fulcrum.simulation.torch.torch_engine import NotBatchedError, TorchDevice, train_on_tensors
from fulcrum.simulation.torch.torch_model import TorchModel, as_by_default, one_thread, seeded, torch_model


def model_of(given: Any) -> Model | TorchModel | None:
    """Returns a model as the engines take it; a PyTorch module, or what makes one, becomes a `TorchModel`."""
    return given if given is None or isinstance(given, Model) else torch_model(given)


def parameters_of(model: Model | TorchModel | None, task: Task) -> int:
    """Returns d of a model, or of the built-in head on a task."""
    if model is not None:
        return model.parameters
    return SoftmaxHead(features=task.width, classes=len(task.classes)).parameters


def metric_of(model: Model | TorchModel | None, task: Task) -> str:
    """Returns what is measured on the test split, in words."""
    return name_of((model and model.metric) or METRICS[task.targets])


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
    """Returns the runs of some jobs, and what a reader should know of how the model was trained.

    Jobs of the built-in head advance side by side, those of any other model one after the other.

    Args:
        jobs: What to train; all have the same number of rounds.
        task: The records, and the test split.
        training: How silos train.
        model: As `model_of` gives it; None for the built-in head.
        device: Where a PyTorch module trains; the processor by default.
        keep_regional_sums: Whether to keep what the observer saw.
        every_round: Whether to test after every round, or after the last alone.
        on_round: Called with the round and the accuracies by arm of each job. Where jobs train one after the other,
            with the rounds done on average over the jobs and the accuracies of the job in work.
        on_part: Called within the rounds of a user's own model with the rounds done, as a fraction, over all jobs.
        on_note: Called at once with what makes training slow.
    """
    if device is not None and not isinstance(model, TorchModel):
        raise ParameterError("model.device-unneeded")
    if model is None:
        together = train_jobs(
            jobs, task, training, keep_regional_sums=keep_regional_sums, every_round=every_round, on_round=on_round
        )
        return together, ()
    fitted = model.on(task) if isinstance(model, TorchModel) else model
    notes = fitted.notes if isinstance(fitted, TorchModel) else ()
    where = device if isinstance(device, TorchDevice) else TorchDevice(name="cpu" if device is None else str(device))
    rounds, runs = jobs[0].arms.rounds, list[FederationRun]()

    def note(said: str) -> None:
        nonlocal notes
        if said not in notes:  # jobs that are slow are slow for the same reason
            notes += (said,)
            if on_note is not None:
                on_note(said)

    for number, job in enumerate(jobs):
        arms, place = job.arms.distinct()

        def tell(done: int, found: FloatArray, number: int = number, place: IntArray = place) -> None:
            if on_round is not None:
                on_round((number * rounds + done) // len(jobs), [found[place]])

        def tell_part(done: float, number: int = number) -> None:
            if on_part is not None:
                on_part((number * rounds + done) / len(jobs))

        options: dict[str, Any] = {
            "keep_regional_sums": keep_regional_sums,
            "every_round": every_round,
            "on_round": tell,
            "on_part": tell_part,
        }
        alone = replace(job, arms=arms)
        if isinstance(fitted, TorchModel):
            try:
                run = train_on_tensors(alone, task, training, fitted, device=where, on_note=note, **options)
            except NotBatchedError as error:
                note(f"{fitted.name} is trained silo by silo on the processor, which is slow: {error}.")
                fitted = fitted.as_model(learning_rate=training.learning_rate)
        if isinstance(fitted, Model):
            with ExitStack() as held:
                if isinstance(model, TorchModel):
                    held.enter_context(as_by_default())
                    held.enter_context(one_thread())
                    held.enter_context(seeded(job.seed))
                run = train_slowly(alone, task, training, fitted, **options)
        runs.append(run.by_arm(place))
    return runs, notes
