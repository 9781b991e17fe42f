"""A person as the unit of privacy: hospital mortality in eICU, 186 hospitals in five regions.

The unit is a patient's stays in one hospital; h = 2 protects a patient's stays in two hospitals. Every hospital sends
one sum of gradients a round, clipped by patient. Rows at the same epsilon: each hospital draws noise for its own
patients, regional sums, one masked sum of all hospitals, and the silo as the unit with the joint recipe; last, no
privacy. Splits are by patient. Coding, clip norm, start, rounds and learning rate of every row have the highest mean
AUC on splits that are not reported.

Limits of the table, to be stated wherever its numbers stand:

- The choosing splits divide the same patients in another way, so reported test patients took part in every choice, and
  no epsilon counts the choice. The numbers are those of settings known in advance, not of a search in private.
- The grid was widened after a first grid had done badly (one coding, intercept zero, clip norms 0.25 to 4, 10 to 40
  rounds: regional sums 0.60, one masked sum 0.66 at epsilon 1). Both the second coding and the starts were found by
  trials on six splits of the same patients. The start 0.09 is the share of deaths in these data, and 0.007 was found by
  trial: neither was taken from the literature.
- With the coding by the middle the first gradient already ranks patients: one round is mostly the direction away from
  the mean patient, which needs little learning. Rows with one round show little of what a longer training would learn.
- Standard errors are over splits of one data set, which overlap, and so understate the error for new patients.

Run: FULCRUM_DATA=... python examples/eicu_person_unit.py. The tables of eICU lie in the folder `federations` there.
"""

import argparse
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import fulcrum
from fulcrum.arrays import FloatArray
from fulcrum.core.choices import Neighbours
from fulcrum.simulation.data.federated_records import FederatedRecords
from fulcrum.simulation.data.tasks import DATA_VARIABLE, Task
from fulcrum.simulation.embedded.training_settings import GradientTraining, LocalTraining
from fulcrum.simulation.training_runs import train_variants
from fulcrum.words.numbers import with_error

REPORTED_SPLITS = range(20)
CHOOSING_SPLITS = range(1000, 1012)
"""The splits that choose the settings of every row."""

EPSILONS = (0.3, 1.0, 8.0)
NEIGHBOURS: tuple[Neighbours, ...] = ("replace", "add-remove")
SILOS_PER_PERSON = (1, 2)
PARAMETERS = 52

EACH, REGIONS, MASKED, SILO_UNIT, NOTHING = (
    "each hospital for itself",
    "regional sums",
    "one masked sum",
    "unit silo, joint",
    "no privacy",
)
TARGETS: Mapping[str, dict[str, Any]] = {
    EACH: {"tier": "aggregator"},
    REGIONS: {"tier": "region"},
    MASKED: {"tier": "federation", "aggregation": "masked"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of training; see the limits above on where their values come from.

    Attributes:
        reference: The value that becomes 0: a healthy person's, or the middle of the range.
        clip_norm: The clip norm of a person.
        deaths: The share of deaths from which the intercept begins.
        rounds: T.
        rate: The learning rate of the server.
    """

    reference: str
    clip_norm: float
    deaths: float
    rounds: int
    rate: float

    def __str__(self) -> str:
        return f"{self.reference}, clip {self.clip_norm:g}, start {self.deaths:g}, T {self.rounds}, rate {self.rate:g}"


GRID = tuple(
    Settings(reference=reference, clip_norm=clip_norm, deaths=deaths, rounds=rounds, rate=rate)
    for (reference, deaths), clip_norm, (rounds, rate) in itertools.product(
        (("healthy", 0.09), ("healthy", 0.007), ("middle", 0.5), ("middle", 0.09)),
        (0.4, 1.4),
        ((1, 10.0), (3, 3.0), (3, 10.0), (10, 2.0), (10, 5.0), (30, 2.0)),
    )
)
"""Rates below are for the softmax head, whose two columns move together: twice the rate of a logistic regression."""

SILO_GRID = tuple(
    (reference, rounds, rate)
    for reference, rounds, rate in itertools.product(("healthy", "middle"), (1, 3, 10), (0.1, 0.3, 1.0))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the table: a target at an epsilon, in a convention, for a person in so many silos."""

    name: str
    epsilon: float
    neighbours: Neighbours
    silos_per_person: int


ROWS = tuple(
    Row(name=name, epsilon=epsilon, neighbours=neighbours, silos_per_person=count)
    for name, epsilon, neighbours, count in itertools.product(TARGETS, EPSILONS, NEIGHBOURS, SILOS_PER_PERSON)
)


@cache
def records(reference: str) -> FederatedRecords:
    """Returns the stays of eICU with one of the two codings of features by public ranges."""
    healthy = fulcrum.read_eicu(Path(os.environ[DATA_VARIABLE]) / "federations")
    return healthy if reference == "healthy" else healthy.scaled_by_middle()


def task_of(split: int, reference: str) -> tuple[Task, Any]:
    """Returns the task of a split by patient, and the federation with the patients of the training split as sizes."""
    data = records(reference)
    test = data.split_by_person(seed=split)
    return data.task(test), data.select(~test).federation(unit="person")


def plan_of(row: Row, federation: Any, settings: Settings) -> Any:
    """Returns the plan of a row."""
    chosen = dict(TARGETS[row.name])
    return fulcrum.plan(
        federation,
        rounds=settings.rounds,
        epsilon={chosen.pop("tier"): row.epsilon},
        unit="person",
        unit_name="patient",
        neighbours=row.neighbours,
        silos_per_person=row.silos_per_person,
        clip_norm=settings.clip_norm,
        **chosen,
    )


def measure_persons(split: int, settings: Settings, rows: Sequence[Row]) -> dict[Any, float]:
    """Returns the AUC of rows and of training without privacy on one split."""
    task, federation = task_of(split, settings.reference)
    training = GradientTraining(learning_rate=settings.rate, class_shares=(1 - settings.deaths, settings.deaths))
    plans = [plan_of(row, federation, settings) for row in rows]
    trained = train_variants([plans], task, seeds=[split], training=training)
    return dict(zip(rows, trained.accuracy[0].tolist(), strict=True)) | {NOTHING: float(trained.reference[0])}


def measure_silos(split: int, settings: tuple[str, int, float], epsilons: Sequence[float]) -> dict[Any, float]:
    """Returns the AUC of the silo unit with the joint recipe on one split, by epsilon."""
    reference, rounds, rate = settings
    task, federation = task_of(split, reference)
    plans = [
        fulcrum.plan(federation, rounds=rounds, epsilon=epsilon, recipe="joint", parameters=PARAMETERS)
        for epsilon in epsilons
    ]
    trained = train_variants([plans], task, seeds=[split], training=LocalTraining(learning_rate=rate))
    return {(SILO_UNIT, epsilon): value for epsilon, value in zip(epsilons, trained.accuracy[0].tolist(), strict=True)}


def _work(job: tuple[str, int, Any, Any]) -> dict[Any, float]:
    kind, split, settings, rows = job
    return measure_persons(split, settings, rows) if kind == "persons" else measure_silos(split, settings, rows)


def choose(pool: ProcessPoolExecutor) -> dict[Any, tuple[Any, float]]:
    """Returns by row the settings of the highest mean AUC on the choosing splits, and that AUC."""
    grid: list[tuple[str, Any, Any]] = [("persons", settings, ROWS) for settings in GRID]
    grid += [("silos", settings, EPSILONS) for settings in SILO_GRID]
    jobs = [(kind, split, settings, rows) for kind, settings, rows in grid for split in CHOOSING_SPLITS]
    values: dict[tuple[Any, Any], list[float]] = {}
    for (_, _, settings, _), found in zip(jobs, pool.map(_work, jobs, chunksize=4), strict=True):
        for row, value in found.items():
            values.setdefault((row, settings), []).append(value)
    best: dict[Any, tuple[Any, float]] = {}
    for (row, settings), measured in values.items():
        mean = float(np.mean(measured))
        if row not in best or mean > best[row][1]:
            best[row] = settings, mean
    return best


def report(pool: ProcessPoolExecutor, best: Mapping[Any, tuple[Any, float]]) -> dict[Any, FloatArray]:
    """Returns by row the AUC on every reported split, with the settings chosen before."""
    by_settings: dict[Any, list[Any]] = {}
    for row, (settings, _) in best.items():
        by_settings.setdefault(settings, []).append(row)
    jobs = []
    for settings, rows in by_settings.items():
        kind = "persons" if isinstance(settings, Settings) else "silos"
        asked: list[Any] = [row for row in rows if isinstance(row, Row)]
        asked = asked or ([row[1] for row in rows] if kind == "silos" else [ROWS[0]])
        jobs += [(kind, split, settings, asked) for split in REPORTED_SPLITS]
    values: dict[Any, list[float]] = {}
    for (_, _, settings, _), found in zip(jobs, pool.map(_work, jobs), strict=True):
        for row, value in found.items():
            if best[row][0] == settings:
                values.setdefault(row, []).append(value)
    return {row: np.array(measured) for row, measured in values.items()}


def lines(values: Mapping[Any, FloatArray], best: Mapping[Any, tuple[Any, float]]) -> Iterator[dict[str, str]]:
    """Yields the rows of the table, each with the paired difference to each hospital for itself."""
    for epsilon, neighbours, count in itertools.product(EPSILONS, NEIGHBOURS, SILOS_PER_PERSON):
        own = values[Row(name=EACH, epsilon=epsilon, neighbours=neighbours, silos_per_person=count)]
        for name in TARGETS:
            row = Row(name=name, epsilon=epsilon, neighbours=neighbours, silos_per_person=count)
            yield _line(f"{epsilon:g}, {neighbours}, h {count}", name, values[row], values[row] - own, best[row][0])
    for epsilon in EPSILONS:
        key = (SILO_UNIT, epsilon)
        reference, rounds, rate = best[key][0]
        own = values[Row(name=REGIONS, epsilon=epsilon, neighbours="replace", silos_per_person=1)]
        words = f"{reference}, T {rounds}, rate {rate:g}; gain over regional sums"
        yield _line(f"{epsilon:g}", SILO_UNIT, values[key], values[key] - own, words)
    yield _line("", NOTHING, values[NOTHING], values[NOTHING] - values[NOTHING], best[NOTHING][0])
    for neighbours, count in itertools.product(NEIGHBOURS, SILOS_PER_PERSON):
        one = Row(name=REGIONS, epsilon=1.0, neighbours=neighbours, silos_per_person=count)
        eight = replace(one, name=EACH, epsilon=8.0)
        words = f"{neighbours}, h {count}"
        yield _line(words, "regional sums at 1, over each at 8", values[one], values[one] - values[eight], "")


def _line(epsilon: str, name: str, values: FloatArray, gain: FloatArray, settings: Any) -> dict[str, str]:
    error = [float(part.std(ddof=1) / np.sqrt(len(part))) for part in (values, gain)]
    return {
        "epsilon": epsilon,
        "name": name,
        "auc": with_error(float(values.mean()), error[0]),
        "gain": with_error(float(gain.mean()), error[1], "+.3f"),
        "settings": str(settings),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="number of processes")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.processes) as pool:
        best = choose(pool)
        values = report(pool, best)
    print(f"eICU: AUC of hospital mortality, mean and standard error over {len(REPORTED_SPLITS)} splits by patient")
    print(f"{'epsilon':22}{'row':36}{'AUC':16}{'paired gain':18}settings")
    for line in lines(values, best):
        print(f"{line['epsilon']:22}{line['name']:36}{line['auc']:16}{line['gain']:18}{line['settings']}")


if __name__ == "__main__":
    main()
