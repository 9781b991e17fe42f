"""Inputs scaled by the public spectrum: what `fulcrum tune` gains on public records that no silo holds.

Half of the test records stand in for public data: no silo holds them, and no reported accuracy is measured on them.
They give the variances of the inputs, and `tune` chooses recipe, rounds, learning rate, prior and scaling on them, at
least influence 0.5. The choice is then trained on the silos' records and tested on the other half of the test records,
under seeds that chose nothing, beside the recipe as planned: the same prior, unscaled inputs, ten rounds, rate 0.3.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from _experiments import Study, measured_main
from _measured import Estimate, Measured, Measurements
from msgspec import structs
from rich.console import RenderableType

import fulcrum
from fulcrum.arrays import FloatArray
from fulcrum.core.topology import ROOT
from fulcrum.planning.planner import draft_plan
from fulcrum.simulation.data.input_scaling import scale_inputs
from fulcrum.simulation.data.input_variances import spectrum_of_task
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.training_runs import LEARNING_RATE, train_variants
from fulcrum.simulation.tuning import Tuned
from fulcrum.views.terminal.screen import table
from fulcrum.views.terminal.table_columns import Column

FEDERATION = "severe"
ROUNDS = 10
REPORTED_FROM = 7000
REPORTED_SEEDS = 40
CHOOSING = range(1000, 1020)
PUBLIC_SHARE, PUBLIC_TEST_SHARE = 0.5, 0.2
LEAST_INFLUENCE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One federation and target.

    Attributes:
        name: Its name in rows.
        epsilon: The target.
        as_one: Whether all silos are masked as one group.
    """

    name: str
    epsilon: float
    as_one: bool = False


CASES = (
    Case(name="severe, epsilon 0.3", epsilon=0.3),
    Case(name="one masked group, epsilon 0.3", epsilon=0.3, as_one=True),
)


def split_test_records(task: Task) -> tuple[Task, Task]:
    """Returns public data of one half of the test records, and the silos' task with the other half to test on."""
    order = np.random.default_rng(0).permutation(len(task.labels_test))
    public, tested = np.split(order, [round(PUBLIC_SHARE * len(order))])
    seen, held_out = np.split(public, [round((1 - PUBLIC_TEST_SHARE) * len(public))])
    records: dict[str, Any] = {
        "features_train": task.features_test[seen],
        "labels_train": task.labels_test[seen],
        "features_test": task.features_test[held_out],
        "labels_test": task.labels_test[held_out],
    }
    ours = replace(task, features_test=task.features_test[tested], labels_test=task.labels_test[tested])
    return replace(task, name=f"{task.name}-public", records=None, **records), ours


def planned(case: Case, public: Task) -> fulcrum.Plan:
    """Returns the plan of the recipe, with a prior from the public records."""
    spectrum = structs.replace(spectrum_of_task(public), origin="public")
    promise = {"epsilon": {ROOT: case.epsilon}, "aggregation": "masked"} if case.as_one else {"epsilon": case.epsilon}
    return draft_plan(
        FEDERATION,
        rounds=ROUNDS,
        recipe="joint",
        parameters=(public.width + 1) * len(public.classes),
        public=spectrum,
        least_influence=LEAST_INFLUENCE,
        **promise,
    )


def choose(case: Case, public: Task) -> Tuned:
    """Returns what `fulcrum.tune` chooses on the public records."""
    return fulcrum.tune(
        planned(case, public),
        public,
        least_influences=[LEAST_INFLUENCE],
        seeds=len(CHOOSING),
        choosing_seeds=CHOOSING,
    )


def accuracy(plan: fulcrum.Plan, task: Task, rate: float, seeds: Sequence[int]) -> FloatArray:
    """Returns the accuracy by seed."""
    training = LocalTraining(learning_rate=rate)
    return train_variants([[plan]] * len(seeds), task, seeds=seeds, training=training).accuracy[:, 0]


def rows_of(study: Study, name: str, case: Case) -> list[Measured]:
    """Returns accuracies, the gain and the choice."""
    printed, section = Measurements(__file__), f"{name}, {case.name}"
    public, task = split_test_records(study.task(name))
    print(f"tuning {section}", file=sys.stderr)
    tuned = choose(case, public)
    power = tuned.best.input_power
    scaled = scale_inputs(task, tuned.inputs) if tuned.inputs is not None and power else task
    seeds = range(REPORTED_FROM, REPORTED_FROM + len(study.seeds))
    before = accuracy(planned(case, public), task, LEARNING_RATE, seeds)
    after = accuracy(tuned.plan, scaled, tuned.best.learning_rate, seeds)
    gain = Estimate.of(100 * (after - before))
    print(f"{section}: {before.mean():.3f}, tuned {after.mean():.3f}", file=sys.stderr)
    return [
        printed.row(section, "as planned", Estimate.of(before)),
        printed.row(section, "tuned on public records", Estimate.of(after)),
        *printed.at_least(section, "tuned on public records", Estimate.of(after)),
        printed.row(section, "points gained", gain),
        printed.row(section, "power of the scaling", power),
        printed.row(section, "rounds", tuned.plan.rounds),
        printed.row(section, "learning rate", tuned.best.learning_rate),
        printed.row(section, "prior", float(tuned.best.prior)),
        printed.row(section, "least influence", tuned.plan.least_influence),
    ]


def rows(study: Study) -> list[Measured]:
    """Returns the rows of all data and cases."""
    return [row for name in study.tasks for case in CASES for row in rows_of(study, name, case)]


def picture(found: Sequence[Measured], study: Study) -> list[RenderableType]:
    """Returns the table of accuracies and choices."""
    value = {row.quantity: row for row in found}
    lines = [_line(value, f"{name}, {case.name}") for name in study.tasks for case in CASES]
    columns = [
        Column(key="what", heading="", figures=False),
        Column(key="before", heading="as planned"),
        Column(key="after", heading="tuned"),
        Column(key="gain", heading="points"),
        Column(key="choice", heading="power, rounds, rate"),
    ]
    return [table("Tuned on public records", columns, lines)]


def _line(value: Mapping[str, Measured], section: str) -> dict[str, str]:
    def shown(quantity: str, form: str) -> str:
        row = value[f"{section}, {quantity}"]
        return f"{row.ours:{form}} ±{row.error or 0:{form.removeprefix('+')}}"

    choice = (value[f"{section}, {what}"].ours for what in ("power of the scaling", "rounds", "learning rate"))
    return {
        "what": section,
        "before": shown("as planned", ".3f"),
        "after": shown("tuned on public records", ".3f"),
        "gain": shown("points gained", "+.1f"),
        "choice": ", ".join(f"{figure:g}" for figure in choice),
    }


main = measured_main(__doc__, rows, picture, seeds=REPORTED_SEEDS)


if __name__ == "__main__":
    sys.exit(main(None))
