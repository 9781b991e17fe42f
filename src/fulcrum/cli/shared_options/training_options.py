"""The options of training: data, local steps, and the trackers that record every round."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from cyclopts import Parameter

from fulcrum.cli.shared_options.options import TRAINING, number, option
from fulcrum.core.privacy_unit import SILO_UNIT, PrivacyUnit
from fulcrum.errors import listing
from fulcrum.planning.plan import Plan
from fulcrum.server.run_results import RoundResult
from fulcrum.simulation.data.tasks import BUILT_IN
from fulcrum.simulation.embedded.training_settings import GradientTraining, LocalTraining, check_training_fits
from fulcrum.simulation.training_runs import GRADIENT_RATE, LEARNING_RATE
from fulcrum.views.tracking import run_description, tracking

MetricName: TypeAlias = Literal["accuracy", "auc"]
"""The metrics that a user chooses for classes, as a type for an option; other data has its own metric."""

MetricOption: TypeAlias = Annotated[
    MetricName | None,
    option(
        "Metric on the test records; auc is the area under the ROC curve. Default: the metric of the data.",
        TRAINING,
    ),
]

DEFAULT_DATA = "digits"
"""The training data if no other is named."""

Targets: TypeAlias = Literal["classes", "numbers", "labels"]
"""The kinds of targets that `fulcrum.simulation.data.tasks.TARGETS` names, as a type for an option."""


@Parameter(name="*")
@dataclass(kw_only=True)
class TrainingOptions:
    """The options of data and local training."""

    data: Annotated[
        str | None,
        option(
            f"Training data: {listing(BUILT_IN)}, another name in the data folder, a real federation (eicu, tcga-brca "
            "or heart), or an npz, CSV or Parquet file or a folder. Default: digits, or for `compare` with the name of "
            "a real federation its own data.",
            TRAINING,
        ),
    ] = None
    data_dir: Annotated[
        Path | None,
        option("Folder of feature files, or of the tables of a real federation. Default: FULCRUM_DATA.", TRAINING),
    ] = None
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
    classes: Annotated[
        str | None,
        option(
            "Names of all classes of your own data in order, separated by commas, such as no,yes: public, so that no "
            "record decides on the number of a class. Default: the labels that occur.",
            TRAINING,
        ),
    ] = None
    silo_column: Annotated[
        str | None,
        option("Name of the column of silos in a CSV or Parquet file. Default: silo, if the file has one.", TRAINING),
    ] = None
    person_column: Annotated[
        str | None,
        option("Name of the column of persons in a CSV or Parquet file, for the unit person. Default: none.", TRAINING),
    ] = None
    metric: MetricOption = None
    ranges: Annotated[
        str | None,
        option(
            "Public ranges of the features, in place of a scale fitted on the data: low,high for all features, or a "
            "TOML or CSV file with low and high by feature. Default: none.",
            TRAINING,
        ),
    ] = None
    input_factors: Annotated[
        Path | None,
        option(
            "File of public factors of the inputs, as `fulcrum tune` writes it: every input is multiplied by its "
            "factor. Default: none.",
            TRAINING,
        ),
    ] = None
    learning_rate: Annotated[
        float | None,
        option(
            f"Learning rate of the local steps; of the server for the units person and record. Default: {LEARNING_RATE}"
            f", or {GRADIENT_RATE:g} for the server.",
            TRAINING,
        ),
    ] = None
    steps: Annotated[
        int | None,
        number("Number of local steps of a silo in a round. Default: 10; 1 for the units person and record.", TRAINING),
    ] = None
    batch: Annotated[
        int | None,
        number("Number of records in a local step. Default: 64; all for the units person and record.", TRAINING),
    ] = None

    @property
    def source(self) -> str:
        """Returns the training data, the digits by default."""
        return self.data or DEFAULT_DATA

    @property
    def data_options(self) -> dict[str, Any]:
        """Returns the keyword arguments of `read_data`."""
        return {
            "data_dir": self.data_dir,
            "components": self.components,
            "label": self.label,
            "silo": self.silo_column,
            "targets": self.targets,
            "person": self.person_column,
            "ranges": self.ranges,
        } | {
            name: value
            for name, value in (
                ("metric", self.metric),
                ("input_factors", self.input_factors),
                ("classes", self.classes),
            )
            if value is not None
        }

    @property
    def training(self) -> LocalTraining:
        """Returns learning rate, number of local steps and batch size, for the unit "silo"."""
        return self.training_for(SILO_UNIT)

    def training_for(self, unit: PrivacyUnit) -> LocalTraining:
        """Returns the settings of training for a unit of privacy; persons and records need one gradient a round."""
        choices = {"learning_rate": self.learning_rate, "steps": self.steps, "batch": self.batch}
        chosen = {name: value for name, value in choices.items() if value is not None}
        if not unit.is_within_silo:
            return LocalTraining(**({"learning_rate": LEARNING_RATE} | chosen))  # type: ignore[arg-type]
        rate = GRADIENT_RATE if self.learning_rate is None else self.learning_rate
        if self.batch is not None or self.steps not in (None, 1):
            training = LocalTraining(learning_rate=rate, steps=self.steps or 1, batch=self.batch or 1)
            check_training_fits(training, unit)  # refuses the options
        return GradientTraining(learning_rate=rate)


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
