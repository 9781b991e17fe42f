"""What came of each round, handed to TensorBoard or MLflow as the rounds end, by the library of either.

What is handed on is what run.json holds: metrics that the server measured of the global model, how many regional sums
are in it and how many silos in these sums. It is public or was released and counted. A silo's own loss, or the norm of
its update, is neither, and there is no way for it to come here.
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
from fulcrum.server.run_results import RoundResult

EXPERIMENT = "fulcrum"
"""The experiment that runs are filed under in MLflow."""

_CALM = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # else a server that is away holds the rounds up for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


class Tracker(Protocol):
    """One library that is told of rounds."""

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        """Takes the values of one round."""

    def close(self, *, complete: bool) -> None:
        """Writes what is still to be written, and whether the run came to its end."""


def logged(found: RoundResult) -> dict[str, float]:
    """Returns what is told of a round: its metrics, and of a deployed one how many regions and silos are in it.

    >>> logged(RoundResult(round=1, accuracy=0.5, metrics={"loss": 0.9}, regions=2, silos=5))
    {'accuracy': 0.5, 'loss': 0.9, 'federation/regions_summed': 2.0, 'federation/silos_in_sums': 5.0}
    """
    values = {"accuracy": found.accuracy, "accuracy_se": found.accuracy_se} | found.metrics
    values |= {"federation/regions_summed": found.regions, "federation/silos_in_sums": found.silos}
    return {name: float(value) for name, value in values.items() if value is not None}


def described(plan: Plan | None) -> dict[str, str]:
    """Returns what is told of a run as a whole: the plan and its promise; nothing where who follows has no plan."""
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
    }


@contextlib.contextmanager
def tracking(
    about: Mapping[str, str], *, tensorboard: Path | None, mlflow: str | None
) -> Iterator[Callable[[RoundResult], None]]:
    """Opens what was asked for, before any work is done, and yields a callable to be told of each round.

    What cannot be opened is refused. One that fails later is left, in one line on stderr: training goes on.

    Args:
        about: As `described` returns it.
        tensorboard: A folder to write events to.
        mlflow: The address of a server, a database URI, or a folder, in which mlflow.db is kept then.
    """
    trackers: dict[str, Tracker] = {}
    complete = False

    def tell(found: RoundResult) -> None:
        values = logged(found)
        for name in list(trackers):
            _quietly(trackers, name, lambda tracker: tracker.log(found.round, values))

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
    """Has a tracker do something; one that fails is told of once and not asked again."""
    try:
        act(trackers[name])
    except Exception as error:  # whatever a library of somebody else's makes of a full disk or a server that is away
        del trackers[name]
        sys.stderr.write(f"fulcrum: {name} is told nothing more: {in_one_line(error)[:200]}\n")


class _TensorBoard:
    """Scalars in an event file, written as PyTorch and NVIDIA FLARE write them: by TensorBoard's own writer."""

    def __init__(self, folder: Path, about: Mapping[str, str]) -> None:
        writer = _imported("tensorboard.summary.writer.event_file_writer", "--tensorboard", "tensorboard")
        self._event = _imported("tensorboard.compat.proto.event_pb2", "--tensorboard", "tensorboard").Event
        self._summary = _imported("tensorboard.compat.proto.summary_pb2", "--tensorboard", "tensorboard").Summary
        text = _imported("tensorboard.plugins.text.summary_v2", "--tensorboard", "tensorboard").text_pb
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = writer.EventFileWriter(str(folder))
        except OSError as error:
            raise DataError(
                "tracking.folder-unusable", option="--tensorboard", folder=folder, reason=error.strerror or str(error)
            ) from None
        told = "\n".join(f"- {name}: {value}" for name, value in about.items())
        self._add(0, text("run", told))

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(round_number, self._summary(value=scalars))
        self._writer.flush()

    def close(self, *, complete: bool) -> None:
        del complete  # an event file has no word for it
        self._writer.close()

    def _add(self, step: int, summary: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))


class _MLflow:
    """A run in MLflow, told by its client."""

    def __init__(self, where: str, about: Mapping[str, str]) -> None:
        for name, value in _CALM.items():
            os.environ.setdefault(name, value)
        made = _imported("mlflow.tracking", "--mlflow", "mlflow").MlflowClient
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
            with _its_own_warnings():
                self._client = made(tracking_uri=uri)
                known = self._client.get_experiment_by_name(EXPERIMENT)
                at = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
                named = f"{about['federation']}-{about['plan'][:8]}" if "plan" in about else None
                self._run = self._client.create_run(at, run_name=named).info.run_id
                for name, value in about.items():
                    self._client.log_param(self._run, name, value)
        except Exception as error:
            raise DataError("tracking.mlflow-unusable", address=where, reason=in_one_line(error)[:200]) from None

    def log(self, round_number: int, values: Mapping[str, float]) -> None:
        with _its_own_warnings():
            for name, value in values.items():
                # MLflow takes letters, digits and a few signs for a name; any other is written as _.
                known = re.sub(r"[^\w\-./ ]", "_", name, flags=re.ASCII)
                self._client.log_metric(self._run, known, value, step=round_number)

    def close(self, *, complete: bool) -> None:
        with _its_own_warnings():
            self._client.set_terminated(self._run, status="FINISHED" if complete else "FAILED")


@contextlib.contextmanager
def _its_own_warnings() -> Iterator[None]:
    """What a library says of itself to its developers is nothing to who trains."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _imported(module: str, option: str, extra: str) -> Any:
    try:
        with _its_own_warnings():
            return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError("tracking.extra-missing", option=option, extra=extra) from None
