"""The built-in training: the softmax head, on data that every site can load, such as the digits.

A silo takes its own share of the records and draws its own batches, as the embedded engine does. A research plan
therefore learns the same model on a federation of processes as in one process. If the plan protects persons, a silo
gives the gradient of each person at the global model. The options are the options of `fulcrum train`.

In a deployment that protects persons, one person must change nothing about the records of another, which no clip would
bound. Test persons are therefore chosen by a hash of each name alone in place of a draw, classes are declared, and the
data names the silo of each record.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.noise.noise_sources import SILOS_A_BLOCK
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.training.assignment import Assignment
from fulcrum.errors import DataError
from fulcrum.planning.files.plan_from_file import plan_of
from fulcrum.simulation.data.datasets import read_data
from fulcrum.simulation.data.person_groups import check_task_deployable, check_task_fits, groups_of
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import batch_picks
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.metrics import measure_with_error
from fulcrum.simulation.embedded.models import Model, SoftmaxHead
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.training_runs import GRADIENT_RATE, LEARNING_RATE, partition_of

SOFTMAX_HEAD = "head"
"""The kind of model; the last axis of the array are the classes."""

SERVER_LEARNING_RATE = GRADIENT_RATE
"""The server's factor on the mean gradient, if the plan protects persons or records."""

_LOADING = ("data_dir", "components", "label", "silo", "person", "ranges", "metric", "input_factors", "classes")
_TRAINING = ("learning_rate", "steps", "batch")


def start(options: Mapping[str, Any]) -> dict[str, FloatArray]:
    """Returns the head before the first round: zeros."""
    # Declared classes give the width of the head alone, so a side without records is no reason to refuse.
    task = _task(options, seed=None if "classes" in options else 0)
    return {"head": np.zeros((task.width + 1, len(task.classes)))}


def train(model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, FloatArray]:
    """Returns the head after the silo's local steps."""
    task = _task(assignment.options)
    training = _training(assignment.options)
    silo = assignment.plan.federation.silo_names.tolist().index(assignment.silo)
    block, place = divmod(silo, SILOS_A_BLOCK)
    job = _job(task, assignment)
    local = _model(task, training.learning_rate)
    state = local.init(model["head"].ravel())
    for chosen in batch_picks(job, block, assignment.round_number, training)[:, place]:
        state = local.step(state, task.features_train[chosen], task.labels_train[chosen])
    return {"head": local.final(state).reshape(model["head"].shape)}


def persons(assignment: Assignment) -> Iterator[tuple[FloatArray, IntArray]]:
    """Yields features and labels of every person of the silo, or of every record if the plan protects records.

    Raises:
        FulcrumError: The plan protects persons and no column has the persons' names; or the components (PCA) or the
            scale of the features were computed from the training records, a release that no epsilon counts; or the
            options ask for local steps, although a round uses one gradient of each person; or the plan is deployed, and
            the classes are not declared, or the data names no silos.
    """
    unit = assignment.plan.unit
    check_options(assignment.options, assignment.plan)
    task = _task(assignment.options, seed=_split_seed(assignment.plan))
    groups = groups_of(_job(task, assignment).partition, task, unit)
    silo = assignment.plan.federation.silo_names.tolist().index(assignment.silo)
    for person in range(int(groups.silos[silo]), int(groups.silos[silo + 1])):
        rows = groups.rows(person)
        yield task.features_train[rows], task.labels_train[rows]


def gradients(model: Mapping[str, FloatArray], records: tuple[FloatArray, IntArray]) -> dict[str, FloatArray]:
    """Returns the gradient of the cross-entropy, added up over the records of one person."""
    features, labels = records
    shape = model["head"].shape
    head = SoftmaxHead(features=shape[0] - 1, classes=shape[1])
    gradient = head.as_model(learning_rate=1.0).gradient
    if gradient is None:
        raise DataError("training.gradients-missing", unit="person")
    return {"head": gradient(model["head"].ravel(), features, labels).reshape(shape)}


def evaluate(model: Mapping[str, FloatArray], assignment: Assignment) -> dict[str, float]:
    """Returns the metric of a global model on the test split: the accuracy, or the metric of options or data.

    Another metric than the accuracy has its standard error over test records beside it.
    """
    task = _task(assignment.options, seed=_split_seed(assignment.plan))
    if not len(task.labels_test):
        return {}
    scores = _model(task, LEARNING_RATE).scores(model["head"].ravel(), task.features_test)
    if task.metric == "accuracy":
        return {"accuracy": float((scores.argmax(axis=1) == task.labels_test).mean())}
    value, error = measure_with_error(scores, task)
    return {name: number for name, number in ((task.metric, value), (f"{task.metric}_se", error)) if number == number}


def check_options(options: Mapping[str, Any], plan: PlanData) -> None:
    """Raises unless data and options serve a plan's unit of privacy.

    `fulcrum up` calls the check before any process starts: with such options every silo would release noise alone.

    Raises:
        FulcrumError: The unit is a person or a record, and no column names persons, components or a scale were fitted
            on the data, or the options ask for local steps. In deployment also: classes are not declared, or the data
            names no silos.
    """
    unit = plan.unit
    if not unit.is_within_silo:
        return
    task = _task(options, seed=_split_seed(plan))
    check_task_fits(task, unit)
    if plan.is_deployment:
        check_task_deployable(task, unit)
    if option := next((name for name in ("steps", "batch") if name in options), None):
        raise DataError("engine.training-local", option=option, unit=unit.noun)


_TASKS: dict[str, Task] = {}
_JOBS: dict[tuple[str, str, int], Job] = {}


def _split_seed(plan: PlanData) -> int | None:
    """Returns the seed of the draw of test records; None in a deployment for persons, where nothing is drawn."""
    return None if plan.is_deployment and plan.unit.is_within_silo else 0


def _task(options: Mapping[str, Any], *, seed: int | None = 0) -> Task:
    unknown = set(options) - {"data", "records", *_LOADING, *_TRAINING}
    if unknown:
        raise DataError("engine.training-option", option=sorted(unknown)[0])
    key = repr((sorted(options.items()), seed))
    if key not in _TASKS:
        loading = {name: options[name] for name in _LOADING if name in options}
        _TASKS[key] = read_data(options.get("data", "digits"), seed=seed, **loading)
    return _TASKS[key]


def _training(options: Mapping[str, Any]) -> LocalTraining:
    settings = {name: options[name] for name in _TRAINING if name in options}
    return LocalTraining(**({"learning_rate": LEARNING_RATE} | settings))


def _model(task: Task, learning_rate: float) -> Model:
    head = SoftmaxHead(features=task.width, classes=len(task.classes))
    return head.as_model(learning_rate=learning_rate)


def _job(task: Task, assignment: Assignment) -> Job:
    """Returns the federation in the form of the embedded engine: the records of every silo."""
    plan, seed, records = assignment.plan, assignment.seed, assignment.options.get("records")
    key = (repr(sorted(assignment.options.items())), plan.digest, seed)
    if key not in _JOBS:
        part = partition_of(task, plan.federation, seed=seed, records=records)
        _JOBS[key] = Job(seed=seed, partition=part, variants=Variants.from_plans([plan_of(plan.content())]))
    return _JOBS[key]
