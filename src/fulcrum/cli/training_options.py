"""The options of training: data, local steps, and the trackers that record every round."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from cyclopts import Parameter

from fulcrum.cli.options import TRAINING, number, option
from fulcrum.errors import listing
from fulcrum.planning.plan import Plan
from fulcrum.server.run_results import RoundResult
from fulcrum.simulation.data.tasks import BUILT_IN
from fulcrum.simulation.embedded.batched_engine import LocalTraining
from fulcrum.simulation.training_runs import LEARNING_RATE
from fulcrum.views.tracking import run_description, tracking

Targets: TypeAlias = Literal["classes", "numbers", "labels"]
"""The kinds of targets that `fulcrum.simulation.data.tasks.TARGETS` names, as a type for an option."""


@Parameter(name="*")
@dataclass(kw_only=True)
class TrainingOptions:
    """The options of data and local training."""

    data: Annotated[
        str,
        option(
            f"Training data: {listing(BUILT_IN)}, another name in the data folder, or an npz, CSV or Parquet file or a "
            "folder.",
            TRAINING,
        ),
    ] = "digits"
    data_dir: Annotated[Path | None, option("Folder of feature files. Default: FULCRUM_DATA.", TRAINING)] = None
    components: Annotated[
        int | None,
        number(
            "Number of principal components to keep. Default: the task's, or all columns of your own data.", TRAINING
        ),
    ] = None
    records: Annotated[
        float | None, option("Mean number of records of a silo. Default: the task's, or all records.", TRAINING)
    ] = None
    targets: Annotated[
        Targets,
        option("Kind of y in an npz: a class of each record, one or more numbers, or several labels.", TRAINING),
    ] = "classes"
    label: Annotated[
        str | None, option("Name of the label column in a CSV or Parquet file. Default: label.", TRAINING)
    ] = None
    silo_column: Annotated[
        str | None,
        option("Name of the column of silos in a CSV or Parquet file. Default: silo, if the file has one.", TRAINING),
    ] = None
    learning_rate: Annotated[float, option("Learning rate of the local steps.", TRAINING)] = LEARNING_RATE
    steps: Annotated[int, number("Number of local steps of a silo in a round.", TRAINING)] = 10
    batch: Annotated[int, number("Number of records in a local step.", TRAINING)] = 64

    @property
    def data_options(self) -> dict[str, Any]:
        """Returns the keyword arguments of `load_task`."""
        return {
            "data_dir": self.data_dir,
            "components": self.components,
            "label": self.label,
            "silo": self.silo_column,
            "targets": self.targets,
        }

    @property
    def training(self) -> LocalTraining:
        """Returns learning rate, number of local steps and batch size."""
        return LocalTraining(learning_rate=self.learning_rate, steps=self.steps, batch=self.batch)


@Parameter(name="*")
@dataclass(kw_only=True)
class TrackingOptions:
    """The options of trackers, which record every round as the round ends."""

    tensorboard: Annotated[
        Path | None, option("Folder to write the metrics of every round to, for TensorBoard. Default: none.", TRAINING)
    ] = None
    mlflow: Annotated[
        str | None, option("MLflow server, or folder, to write the metrics of every round to. Default: none.", TRAINING)
    ] = None

    def open(self, plan: Plan | None, *, engine: str) -> AbstractContextManager[Callable[[RoundResult], None]]:
        """Opens the chosen trackers; yields a callable that records a round."""
        about = run_description(plan) | {"engine": engine}
        return tracking(about, tensorboard=self.tensorboard, mlflow=self.mlflow)


def count_of_seeds(count: int) -> str:
    """Returns a number of seeds in words."""
    return f"{count} seed{'' if count == 1 else 's'}"
