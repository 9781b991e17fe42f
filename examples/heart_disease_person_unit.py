"""A person as the unit of privacy: heart disease in four hospitals, beside FLamby's published table.

The four hospitals of UCI Heart Disease, cleaned as in FLamby: 303, 261, 46 and 130 patients, one row each. Every
hospital sends one sum of gradients a round, clipped by patient, at delta 1e-4 as in FLamby. Rows at the same epsilon:
each hospital draws noise for its own patients, and one sum of the four hospitals, which are a single region. Accuracy
is by hospital, and the mean over hospitals is FLamby's figure. A third of every split is tested on. Coding, clip norm,
rounds and learning rate of every row have the highest mean accuracy of hospitals on splits that are not reported.

Limits of the table, to be stated wherever its numbers stand:

- The choosing splits divide the same patients in another way, so reported test patients took part in every choice, and
  no epsilon counts the choice.
- FLamby's numbers are copied from its publication: one split, its own seeds, features without any scale, and Adam.
  Here features are scaled by public ranges, so the rows without privacy differ too.
- Switzerland has 46 patients, about 15 of them in a test, and nearly all have heart disease.
- Standard errors are over splits of one data set, which overlap, and so understate the error for new patients.

Run: FULCRUM_DATA=... python examples/heart_disease_person_unit.py. The files of UCI lie in the folder `federations`
there. `--accounting` prints the epsilons of FLamby's steps, and needs dp-accounting.
"""

import argparse
import itertools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import fulcrum
from fulcrum.arrays import FloatArray
from fulcrum.core.choices import Neighbours
from fulcrum.simulation.data.federated_records import FederatedRecords
from fulcrum.simulation.data.tasks import DATA_VARIABLE
from fulcrum.simulation.embedded.batched_engine import train_jobs
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.metrics import tested_silos
from fulcrum.simulation.embedded.training_settings import GradientTraining
from fulcrum.simulation.training_runs import partition_of
from fulcrum.words.numbers import with_error

REPORTED_SPLITS = range(50)
CHOOSING_SPLITS = range(1000, 1020)
"""The splits that choose the settings of every row."""

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
TEST_SHARE = 0.34
"""FLamby's share of test records."""

EPSILONS = (0.1, 1.0, 5.0)
NEIGHBOURS: tuple[Neighbours, ...] = ("replace", "add-remove")
DELTA = 1e-4

EACH, ONE_SUM, NOTHING = "each hospital for itself", "one sum of four hospitals", "no privacy"
TIERS = {EACH: "aggregator", ONE_SUM: "region"}

PUBLISHED = {None: 0.7125, 5.0: 0.704, 1.0: 0.685, 0.1: 0.606}
"""FLamby's mean accuracy of centres by epsilon, None without privacy; standard deviations 0.055 at 1, 0.121 at 0.1."""

FLAMBY_PATIENTS = dict(zip(HOSPITALS, (199, 172, 30, 85), strict=True))
"""The training records of FLamby's split."""

FLAMBY_BATCH, FLAMBY_STEPS, FLAMBY_ROUNDS = 4, 100, 15
"""FLamby's batch, steps of a round, and rounds; its accounting counts one pass over the records a round instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of training.

    Attributes:
        reference: The value that becomes 0: a healthy person's, or the middle of the range.
        clip_norm: The clip norm of a person.
        rounds: T.
        rate: The learning rate of the server.
    """

    reference: str
    clip_norm: float
    rounds: int
    rate: float

    def __str__(self) -> str:
        return f"{self.reference}, clip {self.clip_norm:g}, T {self.rounds}, rate {self.rate:g}"


GRID = tuple(
    Settings(reference=reference, clip_norm=clip_norm, rounds=rounds, rate=rate)
    for reference, clip_norm, (rounds, rate) in itertools.product(
        ("healthy", "middle"), (0.4, 1.4), ((1, 3.0), (3, 1.0), (3, 3.0), (10, 0.5), (10, 2.0), (30, 0.5), (30, 2.0))
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table: a target at an epsilon, in a convention."""

    name: str
    epsilon: float
    neighbours: Neighbours


ROWS = tuple(
    Row(name=name, epsilon=epsilon, neighbours=neighbours)
    for name, epsilon, neighbours in itertools.product(TIERS, EPSILONS, NEIGHBOURS)
)


@cache
def records(reference: str) -> FederatedRecords:
    """Returns the patients with one of the two codings of features by public ranges."""
    healthy = fulcrum.read_heart_disease(Path(os.environ[DATA_VARIABLE]) / "federations")
    return healthy if reference == "healthy" else healthy.scaled_by_middle()


def measure(split: int, settings: Settings, rows: Sequence[Row]) -> dict[Any, FloatArray]:
    """Returns the accuracy by hospital of rows and of training without privacy on one split."""
    data = records(settings.reference)
    test = data.split_by_person(seed=split, share=TEST_SHARE)
    task, federation = data.task(test), data.select(~test).federation(unit="person")
    plans = [
        fulcrum.plan(
            federation,
            rounds=settings.rounds,
            epsilon={TIERS[row.name]: row.epsilon},
            delta=DELTA,
            unit="person",
            unit_name="patient",
            neighbours=row.neighbours,
            clip_norm=settings.clip_norm,
        )
        for row in rows
    ]
    job = Job(
        seed=split,
        partition=partition_of(task, federation, seed=split),
        variants=Variants.from_plans(plans).with_reference(),
    )
    training = GradientTraining(learning_rate=settings.rate)
    (run,) = train_jobs([job], task, training, every_round=False, threads=1)
    order = [tested_silos(task).index(hospital) for hospital in HOSPITALS]
    return dict(zip([*rows, NOTHING], run.by_silo[order].T, strict=True))


def _work(job: tuple[int, Settings, Sequence[Row]]) -> dict[Any, FloatArray]:
    return measure(*job)


def choose(pool: ProcessPoolExecutor) -> dict[Any, Settings]:
    """Returns by row the settings of the highest mean accuracy of hospitals on the choosing splits."""
    jobs = [(split, settings, ROWS) for settings in GRID for split in CHOOSING_SPLITS]
    values: dict[tuple[Any, Settings], list[float]] = {}
    for (_, settings, _), by_row in zip(jobs, pool.map(_work, jobs, chunksize=4), strict=True):
        for row, by_hospital in by_row.items():
            values.setdefault((row, settings), []).append(float(by_hospital.mean()))
    best: dict[Any, tuple[Settings, float]] = {}
    for (row, settings), measured in values.items():
        mean = float(np.mean(measured))
        if row not in best or mean > best[row][1]:
            best[row] = settings, mean
    return {row: settings for row, (settings, _) in best.items()}


def report(pool: ProcessPoolExecutor, best: Mapping[Any, Settings]) -> dict[Any, FloatArray]:
    """Returns by row the accuracy by split and hospital, with the settings chosen before."""
    chosen = set(best.values())
    jobs = [
        (split, settings, [row for row in ROWS if best[row] == settings] or ROWS[:1])
        for settings in sorted(chosen, key=str)
        for split in REPORTED_SPLITS
    ]
    values: dict[Any, list[FloatArray]] = {}
    for (_, settings, _), by_row in zip(jobs, pool.map(_work, jobs), strict=True):
        for row, by_hospital in by_row.items():
            if best[row] == settings:
                values.setdefault(row, []).append(by_hospital)
    return {row: np.array(measured) for row, measured in values.items()}


def lines(values: Mapping[Any, FloatArray], best: Mapping[Any, Settings]) -> Iterator[dict[str, str]]:
    """Yields the rows of the table, each with the accuracy of every hospital and the mean of hospitals."""
    yield _line("", NOTHING, values[NOTHING], PUBLISHED[None], best[NOTHING])
    for epsilon, neighbours, name in itertools.product(reversed(EPSILONS), NEIGHBOURS, TIERS):
        row = Row(name=name, epsilon=epsilon, neighbours=neighbours)
        yield _line(f"{epsilon:g}, {neighbours}", name, values[row], PUBLISHED[epsilon], best[row])


def _line(epsilon: str, name: str, values: FloatArray, published: float, settings: Settings) -> dict[str, str]:
    columns = [*values.T, values.mean(axis=1)]
    errors = [float(column.std(ddof=1) / np.sqrt(len(column))) for column in columns]
    figures = [with_error(float(column.mean()), error) for column, error in zip(columns, errors, strict=True)]
    return {
        "epsilon": epsilon,
        "name": name,
        **dict(zip((*HOSPITALS, "mean"), figures, strict=True)),
        "published": f"{published:g}",
        "settings": str(settings),
    }


def accounted_epsilons(stated: float) -> dict[str, float]:
    """Returns by hospital the epsilon of FLamby's steps, if its accounting states an epsilon.

    A round takes 100 steps of Poisson batches, and the accounting counts one pass over the hospital's records a round.
    The noise is calibrated by Renyi accounting, as Opacus did by default, and the epsilon of all steps is by privacy
    loss distributions, a tight accountant. Neighbours are added or removed.
    """
    import dp_accounting
    from dp_accounting import pld, rdp

    logging.getLogger("absl").setLevel(logging.ERROR)  # orders without a value are left out

    def epsilon_of(accountant: Any, noise: float, rate: float, steps: int) -> float:
        event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps))
        return float(accountant.get_epsilon(DELTA))

    epsilons = {}
    for hospital, patients in FLAMBY_PATIENTS.items():
        batches = -(-patients // FLAMBY_BATCH)
        counted, taken = FLAMBY_ROUNDS * batches, FLAMBY_ROUNDS * FLAMBY_STEPS
        low, high = 0.2, 50.0
        while high - low > 1e-3:
            noise = (low + high) / 2
            is_short = epsilon_of(rdp.RdpAccountant(), noise, 1 / batches, counted) > stated
            low, high = (noise, high) if is_short else (low, noise)
        epsilons[hospital] = epsilon_of(pld.PLDAccountant(), high, 1 / batches, taken)
    return epsilons


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="number of processes")
    parser.add_argument("--accounting", action="store_true", help="print the epsilons of FLamby's steps, and end")
    options = parser.parse_args()
    if options.accounting:
        for stated in (1.0, 5.0):
            found = ", ".join(f"{name} {epsilon:.2f}" for name, epsilon in accounted_epsilons(stated).items())
            print(f"FLamby, epsilon {stated:g} stated: {found}")
        return
    with ProcessPoolExecutor(options.processes) as pool:
        best = choose(pool)
        values = report(pool, best)
    print(f"Heart disease: accuracy, mean and standard error over {len(REPORTED_SPLITS)} splits; FLamby's mean beside")
    titles = "".join(f"{title:16}" for title in (*HOSPITALS, "mean"))
    print(f"{'epsilon':16}{'row':28}{titles}{'FLamby':9}settings")
    for line in lines(values, best):
        figures = "".join(f"{line[name]:16}" for name in (*HOSPITALS, "mean"))
        print(f"{line['epsilon']:16}{line['name']:28}{figures}{line['published']:9}{line['settings']}")


if __name__ == "__main__":
    main()
