"""On what and how silos train, and who is told of the rounds, as options."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fulcrum.cli.options import number, option
from fulcrum.errors import listing
from fulcrum.planning.plan import Plan
from fulcrum.server.run_results import RoundResult
from fulcrum.simulation.data.tasks import BUILT_IN, TARGETS
from fulcrum.simulation.embedded.batched_engine import LocalTraining
from fulcrum.simulation.training_runs import LEARNING_RATE
from fulcrum.views.tracking import described, tracking


@Parameter(name="*")
@dataclass(kw_only=True)
class TrainingOptions:
    """On what and how silos train."""

    data: Annotated[
        str, option(f"{listing(BUILT_IN)}, another name in the data folder, or an npz, CSV, Parquet or folder.")
    ] = "digits"
    data_dir: Annotated[Path | None, option("Folder of feature files; FULCRUM_DATA by default.")] = None
    components: Annotated[int | None, number("Principal components to keep.")] = None
    records: Annotated[float | None, option("Mean number of records of a silo.")] = None
    targets: Annotated[str, option(f"What an npz holds in y: {listing(TARGETS)}.")] = "classes"
    label: Annotated[str | None, option("Label column of a CSV or Parquet file; label by default.")] = None
    silo_column: Annotated[str | None, option("Column of silos in such a file; silo by default, if there is one.")] = (
        None
    )
    learning_rate: Annotated[float, option("Learning rate of the local steps.")] = LEARNING_RATE
    steps: Annotated[int, number("Local steps a round.")] = 10
    batch: Annotated[int, number("Records a local step.")] = 64

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
        """Returns how silos train."""
        return LocalTraining(learning_rate=self.learning_rate, steps=self.steps, batch=self.batch)


@Parameter(name="*")
@dataclass(kw_only=True)
class TrackingOptions:
    """Who is told of the rounds as they end."""

    tensorboard: Annotated[Path | None, option("Write the metrics of each round to this folder, for TensorBoard.")] = (
        None
    )
    mlflow: Annotated[str | None, option("Write them to MLflow: the address of a server, or a folder.")] = None

    def open(self, plan: Plan | None, *, engine: str) -> AbstractContextManager[Callable[[RoundResult], None]]:
        """Opens what was asked for; yields a callable to be told of each round."""
        about = described(plan) | {"engine": engine}
        return tracking(about, tensorboard=self.tensorboard, mlflow=self.mlflow)


def count_of_seeds(count: int) -> str:
    """Returns how many seeds there are, in words."""
    return f"{count} seed{'' if count == 1 else 's'}"
