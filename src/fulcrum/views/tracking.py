"""The results of every round for TensorBoard or MLflow, written by their own libraries as the round ends.

Trackers get the content of run.json and no more: metrics of the global model that the server measured, the number of
regional sums, and the number of silos in the sums. All of these are public, or released and counted in epsilon. A loss
or the norm of an update of a single silo would be a release that no epsilon counts; no path leads such a value here.
"""

import contextlib
import importlib
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from fulcrum.errors import DataError, MissingExtraError, in_one_line
from fulcrum.planning.plan import Plan
from fulcrum.rounding import rounded_up
from fulcrum.server.run_results import RoundResult

EXPERIMENT = "fulcrum"
"""The experiment that runs are filed under in MLflow."""

_CALM = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # with the library's default an absent server stops training for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class Tracker(Protocol):
    """A library that records rounds."""

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        """Records the values of a round."""

    def close(self, *, complete: bool) -> None:
        """Writes pending values; `complete` is True for a run that reached its last round."""


def round_values(result: RoundResult) -> dict[str, float]:
    """Returns the values of a round: its metrics, and for a deployed run the numbers of regions and silos in the sum.

    >>> round_values(RoundResult(round=1, accuracy=0.5, metrics={"loss": 0.9}, regions=2, silos=5))
    {'accuracy': 0.5, 'loss': 0.9, 'federation/regions_summed': 2.0, 'federation/silos_in_sums': 5.0}
    """
    values = {"accuracy": result.accuracy, "accuracy_se": result.accuracy_se} | result.metrics
    values |= {"federation/regions_summed": result.regions, "federation/silos_in_sums": result.silos}
    return {name: float(value) for name, value in values.items() if value is not None}


def run_description(plan: Plan | None) -> dict[str, str]:
    """Returns the description of a run: the plan and its promise; empty without a plan file."""
    if plan is None:
        return {}
    return {
        "plan": plan.digest,
        "federation": plan.federation.name,
        "silos": str(len(plan.federation)),
        "allocation": plan.allocation,
        "rounds": str(plan.rounds),
        "delta": f"{plan.delta:g}",
        "epsilon_above_worst": f"{float(plan.epsilon_above.max()):.6g}",
        "epsilon_inside_worst": f"{float(plan.epsilon_inside.max()):.6g}",
        "purpose": plan.purpose,
        "privacy_unit": plan.unit.protected_data,
        "neighbours": plan.unit.neighbours,
        **{f"epsilon_{name}_worst": f"{rounded_up(epsilon):g}" for name, epsilon in plan.person_epsilons.items()},
    }


@contextlib.contextmanager
def tracking(
    about: Mapping[str, str], *, tensorboard: Path | None, mlflow: str | None
) -> Iterator[Callable[[RoundResult], None]]:
    """Opens the chosen trackers before any work is done, and yields a callable that records a round.

    A tracker that fails later is closed with a line on stderr, and training goes on: results are in run.json too.

    Args:
        about: The description of the run, of `run_description`.
        tensorboard: A folder for events.
        mlflow: The address of a server, a database URI, or a folder for mlflow.db.

    Raises:
        DataError: A tracker cannot be opened.
    """
    trackers: dict[str, Tracker] = {}
    complete = False

    def tell(result: RoundResult) -> None:
        values = round_values(result)
        for name in list(trackers):
            _quietly(trackers, name, lambda tracker: tracker.log(result.round, values))

    try:
        if tensorboard is not None:
            trackers["TensorBoard"] = _TensorBoard(tensorboard, about)
        if mlflow is not None:
            trackers["MLflow"] = _MLflow(mlflow, about)
        yield tell
        complete = True
    finally:
        for name in list(trackers):
            _quietly(trackers, name, lambda tracker: tracker.close(complete=complete))


def _quietly(trackers: dict[str, Tracker], name: str, act: Callable[[Tracker], None]) -> None:
    """Calls a tracker; after a failure the tracker is removed, with a line on stderr."""
    try:
        act(trackers[name])
    except Exception as error:  # foreign libraries raise any class for a full disk or an absent server
        del trackers[name]
        sys.stderr.write(f"fulcrum: {name} gets no further rounds: {in_one_line(error)[:200]}\n")


class _TensorBoard:
    """Scalars in an event file, by TensorBoard's own writer, as PyTorch and NVIDIA FLARE write scalars."""

    def __init__(self, folder: Path, about: Mapping[str, str]) -> None:
        writer = _import_extra("tensorboard.summary.writer.event_file_writer", "--tensorboard", "tensorboard")
        self._event = _import_extra("tensorboard.compat.proto.event_pb2", "--tensorboard", "tensorboard").Event
        self._summary = _import_extra("tensorboard.compat.proto.summary_pb2", "--tensorboard", "tensorboard").Summary
        text = _import_extra("tensorboard.plugins.text.summary_v2", "--tensorboard", "tensorboard").text_pb
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = writer.EventFileWriter(str(folder))
        except OSError as error:
            raise DataError(
                "tracking.folder-unusable", option="--tensorboard", folder=folder, reason=error.strerror or str(error)
            ) from None
        description = "\n".join(f"- {name}: {value}" for name, value in about.items())
        self._add(0, text("run", description))

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(round_number, self._summary(value=scalars))
        self._writer.flush()

    def close(self, *, complete: bool) -> None:
        del complete  # an event file has no field for completeness
        self._writer.close()

    def _add(self, step: int, summary: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))


class _MLflow:
    """A run in MLflow, recorded by MLflow's client."""

    def __init__(self, where: str, about: Mapping[str, str]) -> None:
        for name, value in _CALM.items():
            os.environ.setdefault(name, value)
        client_class = _import_extra("mlflow.tracking", "--mlflow", "mlflow").MlflowClient
        uri = where
        if "://" not in where:
            folder = Path(where)
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DataError(
                    "tracking.folder-unusable", option="--mlflow", folder=where, reason=error.strerror or str(error)
                ) from None
            uri = f"sqlite:///{folder.absolute() / 'mlflow.db'}"
        try:
            with _ignored_warnings():
                self._client = client_class(tracking_uri=uri)
                experiment = self._client.get_experiment_by_name(EXPERIMENT)
                at = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT)
                named = f"{about['federation']}-{about['plan'][:8]}" if "plan" in about else None
                self._run = self._client.create_run(at, run_name=named).info.run_id
                for name, value in about.items():
                    self._client.log_param(self._run, name, value)
        except Exception as error:
            raise DataError("tracking.mlflow-unusable", address=where, reason=in_one_line(error)[:200]) from None

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        with _ignored_warnings():
            for name, value in values.items():
                # MLflow takes letters, digits and a few signs in a name; any other character becomes _.
                allowed = re.sub(r"[^\w\-./ ]", "_", name, flags=re.ASCII)
                self._client.log_metric(self._run, allowed, value, step=round_number)

    def close(self, *, complete: bool) -> None:
        with _ignored_warnings():
            self._client.set_terminated(self._run, status="FINISHED" if complete else "FAILED")


@contextlib.contextmanager
def _ignored_warnings() -> Iterator[None]:
    """Ignores warnings of a library to its developers, which concern no user of Fulcrum."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _import_extra(module: str, option: str, extra: str) -> Any:
    try:
        with _ignored_warnings():
            return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError("tracking.extra-missing", option=option, extra=extra) from None
