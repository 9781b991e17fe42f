"""Many runs in several processes: every seed of a setting is trained by itself, on one core.

A run depends on its setting and seed alone, so neither the number of processes nor their order changes a result. BLAS
has one thread in every process: its sums would otherwise depend on the number of cores.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import numpy as np
from _conflict import mean_over_regions, worst_region_under_swap
from _experiments import ROUNDS, SWAPPED, Arm, Setting, Study, lacks_features, skipped_words
from _measured import Estimate
from _printed import parser

from fulcrum.arrays import FloatArray
from fulcrum.errors import FulcrumError
from fulcrum.planning.comparisons.comparison import NO_PRIVACY
from fulcrum.readers.profiles import profile
from fulcrum.simulation.data.tasks import DATA_VARIABLE
from fulcrum.simulation.training_runs import default_training, sized_by_data, train_variants, worst_region_of
from fulcrum.simulation.trials import comparison_on_task, row_plan_on_task

PROCESSES_VARIABLE = "FULCRUM_PROCESSES"
"""The environment variable with the number of processes; the option `--processes` goes first."""

MOST_SEEDS = 1000
"""The most seeds of one purpose; those of the next purpose follow."""

_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one arm under one seed.

    Attributes:
        accuracy: On the test split.
        worst_region: For the region where it is least, each region by its own mix of classes and its own labels.
        over_regions: Its mean over regions, each by its own labels and counted once, where regions disagree about
            labels; else the accuracy.
    """

    accuracy: float
    worst_region: float
    over_regions: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One seed of a setting; its outcomes are by arm."""

    setting: Setting
    seed: int

    @property
    def length(self) -> int:
        """Returns about how long it takes, beside other works."""
        setting = self.setting
        return (setting.components or 32) * (10 if setting.every_class else 2) * (3 + len(setting.arms))

    def train(self, study: Study) -> dict[Any, Outcome]:
        """Returns the outcomes by arm."""
        setting = self.setting
        job = study.job(setting, self.seed)
        (run,) = study.train_jobs(setting, [job])
        swapped = setting.shares == SWAPPED
        worst = (worst_region_under_swap if swapped else worst_region_of)(job, run, study.task_of(setting))
        accuracy = run.accuracy[-1]
        over = mean_over_regions(accuracy, job.variants.regions) if swapped else accuracy
        return _outcomes(setting.arms, accuracy, worst, over)


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonWork:
    """One seed of a federation that protects records, each a person of its own; its outcomes are by epsilon and row.

    Attributes:
        task: The data's name.
        profile: The federation.
        epsilons: The targets, all trained together.
        seed: Of the deal, the batches and the noise.
    """

    task: str
    profile: str
    epsilons: tuple[float, ...]
    seed: int

    @property
    def length(self) -> int:
        """Returns about how long it takes, beside other works."""
        return 10_000

    def train(self, study: Study) -> dict[Any, Outcome]:
        """Returns the outcomes by epsilon and row of a comparison."""
        # Its components were fitted on the training split, which no epsilon counts; a deployment fits on public data.
        task, plans = replace(study.task(self.task), fitted=False), {}
        for epsilon in self.epsilons:
            target = {"rounds": ROUNDS, "epsilon": epsilon, "unit": "record"}
            compared = comparison_on_task(task, profile(self.profile), None, target)
            sized = sized_by_data(profile(self.profile), task, compared.unit, seed=self.seed)
            for name, row in compared.rows.items():
                plans[epsilon, name] = row_plan_on_task(sized, task, name, row, target)
        chosen = list(plans.values())
        training = default_training(chosen[0].unit)
        trained = train_variants([chosen], task, seeds=[self.seed], training=training)
        arms = [*plans, (0.0, NO_PRIVACY)]
        accuracy = np.append(trained.accuracy[0], trained.reference)
        worst = np.append(trained.worst_region[0], trained.reference_worst_region)
        return _outcomes(arms, accuracy, worst, accuracy)


Trained = Mapping[tuple[Work | PersonWork, Any], Outcome]
"""Outcomes by work and arm."""


def work_parser(doc: str | None, *, seeds: int, cells: str) -> argparse.ArgumentParser:
    """Returns the arguments of a script whose runs are trained in several processes.

    Args:
        doc: The script's docstring.
        seeds: How many seeds are reported by default.
        cells: What the names of `--cells` are.
    """
    described = parser(doc)
    described.add_argument("--seeds", type=int, default=seeds, help="how many are reported; at least 2")
    described.add_argument("--cells", default="", help=f"{cells}, separated by semicolons: parts of names; default all")
    described.add_argument("--list", action="store_true", help=f"print the names of all {cells} and end")
    described.add_argument("--data-dir", type=Path, help=f"the folder of feature files; {DATA_VARIABLE} by default")
    described.add_argument(
        "--processes",
        type=int,
        default=int(os.environ.get(PROCESSES_VARIABLE) or os.cpu_count() or 1),
        help=f"how many; {PROCESSES_VARIABLE}, or the machine's cores by default; it changes no result",
    )
    return described


def chosen_names(names: Iterable[str], cells: str) -> list[str]:
    """Returns the names that have one of the parts in `cells`, or all."""
    parts = [part.strip() for part in cells.split(";") if part.strip()]
    return [name for name in names if not parts or any(part in name for part in parts)]


def run_works(
    described: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None,
    *,
    names: Sequence[str],
) -> int:
    """Runs a script's work on what its arguments ask for and returns its exit status; 0 without a data folder.

    Args:
        described: The arguments.
        work: What the script does; returns the exit status.
        arguments: In place of the command line's.
        names: What `--cells` chooses from.
    """
    chosen = described.parse_args(arguments)
    if chosen.list:
        print("\n".join(names))
        return 0
    if not chosen_names(names, chosen.cells):
        described.error(f"--cells {chosen.cells!r} is a part of no name; --list prints all names")
    if chosen.seeds > MOST_SEEDS:
        described.error(f"--seeds must be at most {MOST_SEEDS:,}, got {chosen.seeds}: later seeds serve other ends")
    if chosen.seeds < 2:
        described.error(f"--seeds must be at least 2, got {chosen.seeds}: one seed has no standard error")
    if chosen.processes < 1:
        described.error(f"--processes must be at least 1, got {chosen.processes}")
    features = ("agnews", "cifar10")
    if chosen.data_dir is None and lacks_features(features) and "digits" not in chosen.cells:
        print(skipped_words(described.prog, features, "--cells digits"), file=sys.stderr)
        return 0
    try:
        return work(chosen)
    except FulcrumError as error:
        print(f"{described.prog}: {error}", file=sys.stderr)
        return 2


class Workers:
    """Processes that train works; every process loads a task once."""

    def __init__(self, *, data_dir: Path | None, processes: int) -> None:
        """Begins the processes as the first works need them.

        Args:
            data_dir: The folder of feature files.
            processes: How many processes work at most.
        """
        self._pool = ProcessPoolExecutor(processes, get_context("spawn"), initializer=_begin, initargs=(data_dir,))

    def __enter__(self) -> Self:
        """Returns the workers."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the processes, without works that have not begun."""
        self._pool.shutdown(cancel_futures=True)

    def train(self, works: Iterable[Work | PersonWork], title: str) -> Trained:
        """Returns the outcomes of all works by work and arm, and says on stderr how far they are.

        Args:
            works: What to train; the longest are begun first.
            title: What the works are for.
        """
        wanted = sorted(dict.fromkeys(works), key=lambda work: -work.length)
        results: dict[tuple[Work | PersonWork, Any], Outcome] = {}
        began, count = time.perf_counter(), len(wanted)
        with _one_blas_thread():
            running = {self._pool.submit(_train, work): work for work in wanted}
            for done, future in enumerate(as_completed(running), 1):
                work = running[future]
                results |= {(work, arm): outcome for arm, outcome in future.result().items()}
                if done % max(1, count // 10) == 0 or done == count:
                    spent = time.perf_counter() - began
                    print(f"{title}: {done:,} of {count:,} runs in {spent:.0f} s", file=sys.stderr, flush=True)
        return results


def by_seed(trained: Trained, setting: Setting, arm: Arm, seeds: Sequence[int], name: str = "accuracy") -> FloatArray:
    """Returns a figure of one arm's outcomes, in the order of the seeds."""
    return np.array([getattr(trained[Work(setting=setting, seed=seed), arm], name) for seed in seeds])


def in_points(first: FloatArray, second: FloatArray) -> Estimate:
    """Returns the paired difference of two figures in points."""
    return Estimate.of(100 * (first - second))


def _outcomes(
    arms: Sequence[Any], accuracy: FloatArray, worst: FloatArray, over_regions: FloatArray
) -> dict[Any, Outcome]:
    if not np.isfinite(accuracy).all():
        raise ValueError("an accuracy is no number")
    figures = zip(accuracy.tolist(), worst.tolist(), over_regions.tolist(), strict=True)
    return {
        arm: Outcome(accuracy=first, worst_region=second, over_regions=third)
        for arm, (first, second, third) in zip(arms, figures, strict=True)
    }


_studies: list[Study] = []  # of a process: one, which loads every task once


def _begin(data_dir: Path | None) -> None:
    _studies.append(Study(data_dir=data_dir, threads=1))


def _train(work: Work | PersonWork) -> dict[Any, Outcome]:
    return work.train(_studies[0])


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Sets one BLAS thread for the processes that begin here: they read the variables as they import NumPy."""
    before = {name: os.environ.get(name) for name in _BLAS_THREADS}
    os.environ.update(dict.fromkeys(_BLAS_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
