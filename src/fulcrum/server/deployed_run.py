"""What came of a plan on a real federation, round by round, in the form that training in process has too: run.json.

All of it is public or counted: which regions summed, how many silos stand in their sums, and what the server measured
of the global model. Nothing of a single silo is there to be told.
"""

import math
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import DataError
from fulcrum.server.checkpoint import RoundSummary
from fulcrum.server.run_results import RoundResult, RunResult, run_folder, unkeyed_digest

ACCURACY = "accuracy"
"""The metric that stands beside the accuracies of training in process."""


def deployed_run(
    plan: VerifiedPlan,
    history: Iterable[RoundSummary],
    metrics: Mapping[int, Mapping[str, float]],
    *,
    task: str,
    seed: int,
    engine: str = "nvflare",
    notes: Iterable[str] = (),
) -> RunResult:
    """Returns the result of a run so far.

    Args:
        plan: What is run.
        history: What became of every round that is over.
        metrics: What was measured after rounds, by number.
        task: The training module, or the data of the one built in.
        seed: Of a research plan; a plan for deployment draws nothing from it.
        engine: What carried the messages.
        notes: What a reader should know.
    """
    rounds = [_round(summary, metrics.get(summary["round"], {})) for summary in history]
    return RunResult(
        plan_digest=plan.digest,
        unkeyed_digest=unkeyed_digest(plan),
        allocation=plan.allocation,
        task=task,
        engine=engine,
        seeds=[seed] if plan.purpose == "research" else [],
        accuracy=rounds[-1].accuracy if rounds else None,
        rounds=rounds,
        notes=list(notes),
    )


def _round(summary: RoundSummary, metrics: Mapping[str, float]) -> RoundResult:
    return RoundResult(
        round=summary["round"],
        accuracy=metrics.get(ACCURACY),
        metrics={name: value for name, value in metrics.items() if name != ACCURACY},
        regions=len(summary["summed"]),
        silos=sum(map(len, summary["members"].values())),
        withheld=sorted({*summary["withheld"], *summary["missing"]}),
    )


def save_deployed_run(run: RunResult, folder: str | Path) -> Path:
    """Writes run.json into a folder, which is made if it is not there, and returns its path."""
    path = run_folder(folder) / "run.json"
    write_whole(path, msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
    return path


def save_model(model: Mapping[str, FloatArray], folder: Path) -> Path:
    """Writes model.npz, which `numpy.load` reads, and returns its path; an array may have any name."""
    path = folder / "model.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in model.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return path


def run_from(told: Any) -> RunResult:
    """Returns the run that a server tells of; what is no such thing is a `DataError`.

    What it says is printed on the terminal of whoever follows, so all of it must be what terminals print as it is.
    """
    try:
        run = msgspec.convert(told, RunResult)
    except msgspec.ValidationError as error:
        raise DataError("run.malformed", reason=str(error)) from None
    if not all(math.isfinite(at.value) for curve in run.curves().values() for at in curve):
        raise DataError("run.metric-not-finite")
    words = [run.allocation, run.task, run.engine, run.command, *run.notes, *run.curves()]
    if not all(map(str.isprintable, [*words, *(name for row in run.rounds for name in row.withheld)])):
        raise DataError("run.unprintable")
    return run
