"""The results of a plan on a real federation, round by round, in the format of training in process: run.json.

All results are public or part of the accounting: the regions with sums, the number of silos in the sums, and the
server's metrics of the global model. No result describes a single silo.
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
"""The metric that is compared with the accuracies of training in process."""


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
        plan: The plan of the run.
        history: The outcomes of all finished rounds.
        metrics: The metrics after rounds, by number of the round.
        task: The training module, or the data of the built-in module.
        seed: The seed of a research plan; a plan for deployment does not use the seed.
        engine: The engine of the messages.
        notes: Sentences for the reader.
    """
    rounds = [_round(summary, metrics.get(summary["round"], {})) for summary in history]
    return RunResult(
        plan_digest=plan.digest,
        unkeyed_digest=unkeyed_digest(plan),
        allocation=plan.allocation,
        task=task,
        engine=engine,
        seeds=[seed] if plan.is_research else [],
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
    """Writes run.json into a folder, made if necessary, and returns the path of the file."""
    path = run_folder(folder) / "run.json"
    write_whole(path, msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")
    return path


def save_model(model: Mapping[str, FloatArray], folder: Path) -> Path:
    """Writes model.npz for `numpy.load` and returns the path of the file; an array may have any name."""
    path = folder / "model.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in model.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return path


def run_from(message: Any) -> RunResult:
    """Returns the run in a server's message.

    A follower's terminal prints the run. All texts must therefore be printable: a control sequence of a hostile server
    could rewrite the terminal.

    Raises:
        DataError: The message is no run, a metric is not finite, or a text is not printable.
    """
    try:
        run = msgspec.convert(message, RunResult)
    except msgspec.ValidationError as error:
        raise DataError("run.malformed", reason=str(error)) from None
    if not all(math.isfinite(point.value) for curve in run.curves().values() for point in curve):
        raise DataError("run.metric-not-finite")
    words = [run.allocation, run.task, run.engine, run.command, *run.notes, *run.curves()]
    if not all(map(str.isprintable, [*words, *(name for row in run.rounds for name in row.withheld)])):
        raise DataError("run.unprintable")
    return run
