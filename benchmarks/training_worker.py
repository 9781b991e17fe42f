"""Training in a worker process beside training in the silo's own: the time that the process adds to a round.

The training module adds a constant to its model and nothing more, so what is measured is the way of the model to the
worker and of the row back. Both are measured in one run, in turns, now the one first and now the other. The figure to
quote, and the promise, is the difference of medians, on a quiet machine: two processes that wait for each other wait
for all others of a busy one too. The difference of the fastest rounds stands beside it, to tell such a machine by. The
start of the process is told apart: a run has one.

    python benchmarks/training_worker.py [--rounds 31]
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import fulcrum
from fulcrum.arrays import FloatArray
from fulcrum.core.training.assignment import Assignment, Training
from fulcrum.core.training.in_process_training import InProcessTraining
from fulcrum.core.training.training_module import load_training_module
from fulcrum.core.training.training_worker import TrainingWorker
from fulcrum.views.terminal.screen import FORMATS, Result, show, table
from fulcrum.views.terminal.table_columns import Column

PARAMETERS = (10_000, 1_000_000, 10_000_000)
PROMISED_PARAMETERS, MOST_MILLISECONDS = 1_000_000, 50.0

MODULE = """
def start(options): return {}
def train(model, assignment): return {name: array + 0.5 for name, array in model.items()}
"""


def round_milliseconds(training: Training, model: Mapping[str, FloatArray], assignment: Assignment) -> float:
    """The time of one round's training."""
    start = time.perf_counter()
    update = training.update(model, assignment)
    passed = time.perf_counter() - start
    if not all((array == 0.5).all() for array in update.values()):
        raise SystemExit("the update is not what was trained")
    return 1e3 * passed


def times(assignment: Assignment, parameters: int, rounds: int) -> dict[str, Any]:
    """The times of one size of model, after one round of each to warm up."""
    model = {"weight": np.zeros((parameters // 100, 99)), "bias": np.zeros(parameters // 100)}
    worker = TrainingWorker("benchmarked_training", seconds=60.0)
    here = InProcessTraining(load_training_module("benchmarked_training"))
    first = round_milliseconds(worker, model, assignment)
    round_milliseconds(here, model, assignment)
    found: dict[Training, list[float]] = {worker: [], here: []}
    for number in range(rounds):
        for training in (worker, here) if number % 2 else (here, worker):
            found[training].append(round_milliseconds(training, model, assignment))
    worker.close()
    inside, apart = statistics.median(found[here]), statistics.median(found[worker])
    return {
        "parameters": parameters,
        "in_process": inside,
        "worker": apart,
        "added": apart - inside,
        "least_added": min(found[worker]) - min(found[here]),
        "first": first,
    }


def main() -> None:
    """Measures, prints, and fails if the promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--format", choices=FORMATS, default="table")
    options = parser.parse_args()
    plan = fulcrum.verified_plan(fulcrum.plan("isic-paper", rounds=2, epsilon=1.0))
    assignment = Assignment(silo="region-1-1", round_number=1, plan=plan, seed=0, options={})
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "benchmarked_training.py").write_text(MODULE, encoding="utf-8")
        sys.path.insert(0, folder)
        rows = [times(assignment, parameters, options.rounds) for parameters in PARAMETERS]
    for row in rows:
        row["promise"] = f"at most {MOST_MILLISECONDS:g} ms added" if row["parameters"] == PROMISED_PARAMETERS else ""
    columns = (
        Column(key="parameters", heading="parameters"),
        Column(key="in_process", heading="in process, ms"),
        Column(key="worker", heading="worker, ms"),
        Column(key="added", heading="added, ms"),
        Column(key="least_added", heading="at the fastest"),
        Column(key="first", heading="first round, ms"),
        Column(key="promise", heading="promise", figures=False),
    )
    show(
        Result(data=rows, rows=rows, picture=[table("Training in a process of its own", columns, rows)]), options.format
    )
    if any(row["added"] > MOST_MILLISECONDS for row in rows if row["parameters"] == PROMISED_PARAMETERS):
        raise SystemExit("the promise is not kept")


if __name__ == "__main__":
    main()
