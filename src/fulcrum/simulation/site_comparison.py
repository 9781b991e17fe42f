"""A real federation trained in every way at one target: both units, masked and trusted, no privacy, each silo alone.

Every row is trained on the same splits by person. The settings of a row (coding of features, start, clip norm and
learning rate, or the penalty of silos alone) have the best mean metric on splits apart from the reported splits.

>>> [row.name for row in ROWS if row.unit == "silo"][:2], RATES["person"]
(['uniform', 'optimal'], (0.3, 1.0, 3.0))

The splits that choose divide the same persons in another way, so reported test persons took part in the choices, and no
epsilon counts the choices. All rows have this advantage alike.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.choices import UnitName
from fulcrum.core.topology import ROOT, Topology
from fulcrum.errors import FulcrumError, ParameterError
from fulcrum.planning.comparisons.comparison import EACH_SILO, JOINT_GROUP, NO_PRIVACY, ONE_GROUP
from fulcrum.planning.content.plan_figures import changed_copy
from fulcrum.planning.plan import Plan
from fulcrum.planning.planner import plan
from fulcrum.simulation.data.federated_records import FederatedRecords
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import train_jobs
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.metrics import measure, measure_by_region, measure_by_silo, tested_silos
from fulcrum.simulation.embedded.training_settings import GradientTraining, LocalTraining
from fulcrum.simulation.local_models import local_scores
from fulcrum.simulation.model_engines import parameters_of
from fulcrum.simulation.training_runs import partition_of, standard_error

ALONE = "each silo alone"
"""The row without a federation: every silo's model is trained on the silo's own records, without privacy."""

FIRST_CHOOSING_SPLIT = 1000
CHOOSING_SPLITS = 6
"""The number of splits that choose the settings of every row, and the seed of the first."""

CODINGS: Mapping[str, tuple[float, ...]] = {"middle": (), "reference": (0.9, 0.1)}
RATES: Mapping[UnitName, tuple[float, ...]] = {"person": (0.3, 1.0, 3.0), "silo": (0.3, 1.0, 3.0)}
CLIP_NORMS: Mapping[UnitName, tuple[float, ...]] = {"person": (0.4, 1.4), "silo": (0.3, 1.0)}
PENALTIES = (1.0, 3.0, 10.0)
"""The settings to choose from. Codings: the value of a feature that becomes 0 is the middle of its range, or its
reference; beside the reference, training by person begins with the intercepts of a rare second class, a round number.
Learning rates: of the server for persons, of local steps for silos. Clip norms, and penalties of silos alone."""

LEAST_SHARE_OF_SPLITS = 0.5
"""A region or silo with a value in fewer of the splits is not compared: an AUC needs test records of both classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRow:
    """A row of the comparison: a unit of privacy, and the arguments of `plan` that differ from the plain target.

    Attributes:
        unit: The unit of privacy, a name of `core.choices.UNITS`; empty for a row without privacy.
        name: The name of the row, as in other comparisons.
        target: "region" for a target above the regions, "aggregator" inside, "federation" on one masked sum.
        settings: Further arguments of `plan`.
    """

    unit: UnitName
    name: str
    target: str
    settings: Mapping[str, Any]

    @property
    def has_own_clip(self) -> bool:
        """True if the row's recipe chooses the clip."""
        return self.settings.get("recipe") == "joint"


def _row(unit: UnitName, name: str, target: str = "region", **settings: Any) -> SiteRow:
    return SiteRow(unit=unit, name=name, target=target, settings=settings)


ROWS = (
    _row("person", EACH_SILO, "aggregator"),
    _row("person", "uniform", allocation="uniform"),
    _row("person", "optimal"),
    _row("person", "joint", recipe="joint"),
    _row("person", ONE_GROUP, "federation", aggregation="masked"),
    _row("silo", "uniform", allocation="uniform"),
    _row("silo", "optimal"),
    _row("silo", "least-noise", weights="least-noise"),
    _row("silo", "joint", recipe="joint"),
    _row("silo", ONE_GROUP, "federation", aggregation="masked"),
    _row("silo", JOINT_GROUP, "federation", aggregation="masked", recipe="joint"),
)
"""The rows with privacy, by unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A metric over the reported splits.

    Attributes:
        name: The name of the region or silo; empty for the whole federation.
        mean: The mean over splits; NaN if no region or silo can be compared.
        error: The standard error of the mean; NaN with a single split.
    """

    name: str
    mean: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteResult:
    """The results of a row.

    Attributes:
        unit: The unit of privacy; empty without privacy.
        name: The name of the row.
        epsilon_above: The worst epsilon against an observer of regional sums, or of the one masked sum; None without
            privacy.
        epsilon_inside: The worst epsilon against an aggregator that sees single releases; None if sums are masked
            always.
        epsilon_masked: The worst epsilon against the server together with a silo, if sums are masked with the same
            noise.
        overall: The metric on all test records.
        gain: The metric above the row of silos alone, paired by split.
        worst_region: The region with the lowest mean.
        worst_silo: The silo with the lowest mean.
        settings: The chosen settings, in words.
    """

    unit: str
    name: str
    epsilon_above: float | None
    epsilon_inside: float | None
    epsilon_masked: float | None
    overall: Measured
    gain: Measured
    worst_region: Measured
    worst_silo: Measured
    settings: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteComparison:
    """The table of a real federation.

    Attributes:
        name: The federation.
        metric: The metric.
        splits: The number of reported splits.
        silos_per_person: The number of silos of one person that the plans for persons provide for.
        regions_compared: The number of regions with a value in at least half of the splits.
        silos_compared: The same for silos.
        rows: The results: persons, silos, no privacy, silos alone.
        left_out: The rows that cannot keep the target, with the reasons.
    """

    name: str
    metric: str
    splits: int
    silos_per_person: int
    regions_compared: int
    silos_compared: int
    rows: tuple[SiteResult, ...]
    left_out: Mapping[str, str]


@dataclass(slots=True)
class _Values:
    """The values of one setting of one row: overall, by region and by silo, each by split."""

    overall: dict[int, float]
    by_region: dict[str, dict[int, float]]
    by_silo: dict[str, dict[int, float]]

    def add(self, split: int, overall: float, regions: Mapping[str, float], silos: Mapping[str, float]) -> None:
        self.overall[split] = overall
        for places, measured in ((self.by_region, regions), (self.by_silo, silos)):
            for name, value in measured.items():
                if not math.isnan(value):
                    places.setdefault(name, {})[split] = value


_Key = tuple[str, str]  # unit and name of a row


def compare_sites(
    records: FederatedRecords,
    *,
    rounds: int,
    epsilon: float,
    splits: int = 20,
    choosing_splits: int = CHOOSING_SPLITS,
    silos_per_person: int = 1,
    on_split: Callable[[int, int], None] | None = None,
    **target: Any,
) -> SiteComparison:
    """Returns all rows of a real federation, trained at one target.

    Sizes are counted from the training records of every split, so the comparison is for research.

    Args:
        records: The records of the federation.
        rounds: T, the same for every row.
        epsilon: The target: above the regions, inside for silos that protect their own persons, and on the one masked
            sum.
        splits: The number of reported splits by person.
        choosing_splits: The number of splits that choose the settings of every row.
        silos_per_person: The number of silos of one person that plans for persons provide for.
        on_split: Called with the number of trained splits, and the total.
        **target: Further arguments of every plan, such as `delta`.
    """
    if splits < 1 or choosing_splits < 1:
        raise ParameterError("number.whole-range", name="splits", least=1, value=min(splits, choosing_splits))
    chosen_on = range(FIRST_CHOOSING_SPLIT, FIRST_CHOOSING_SPLIT + choosing_splits)
    every = [*chosen_on, *range(splits)]
    values: dict[_Key, dict[str, _Values]] = {}
    plans: dict[_Key, list[Plan]] = {}
    left_out: dict[str, str] = {}
    arguments = {"rounds": rounds, "epsilon": epsilon, "silos_per_person": silos_per_person, **target}
    for done, split in enumerate(every, 1):
        test = records.split_by_person(seed=split)
        trained = records.select(~test)
        tasks = {"middle": records.scaled_by_middle().task(test), "reference": records.task(test)}
        for unit in RATES:
            federation = trained.federation(unit=unit)
            of_unit = _plans_of(unit, federation, tasks["middle"], arguments, left_out)
            if split < FIRST_CHOOSING_SPLIT:
                for key, plan_of_split in {key: own for (key, _), own in of_unit.items()}.items():
                    plans.setdefault(key, []).append(plan_of_split)
            _train_unit(unit, tasks, federation, of_unit, split, values)
        _measure_alone(tasks, trained.federation(), split, values)
        if on_split is not None:
            on_split(done, len(every))
    return _comparison(records, values, plans, left_out, chosen_on, silos_per_person)


def _plans_of(
    unit: UnitName, federation: Topology, task: Task, arguments: Mapping[str, Any], left_out: dict[str, str]
) -> dict[tuple[_Key, str], Plan]:
    """Returns the plans of a unit by row and clip; a row that cannot keep the target is left out with the reason.

    Raises:
        FulcrumError: No row can keep the target.
    """
    plans: dict[tuple[_Key, str], Plan] = {}
    last_error: FulcrumError | None = None
    for row in ROWS:
        if row.unit != unit:
            continue
        for clip_norm in (None,) if row.has_own_clip else CLIP_NORMS[unit]:
            try:
                key = (row.unit, row.name), "" if clip_norm is None else f"clip {clip_norm:g}, "
                plans[key] = plan_of_row(row, federation, task, clip_norm=clip_norm, **arguments)
            except FulcrumError as error:
                left_out[f"{row.unit}, {row.name}"] = str(error)
                last_error = error
    if not plans and last_error is not None:  # the target itself is wrong, for example a delta of 2
        raise last_error
    return plans


def plan_of_row(
    row: SiteRow,
    federation: Topology,
    task: Task,
    *,
    epsilon: float,
    silos_per_person: int,
    clip_norm: float | None = None,
    **arguments: Any,
) -> Plan:
    """Returns the plan of a row on a federation; a row with the joint recipe chooses its own clip."""
    tier = {"region": federation.innermost.name, "federation": ROOT}.get(row.target, row.target)
    settings = dict(arguments) | dict(row.settings) | {"epsilon": {tier: epsilon}}
    if row.unit == "person":
        settings |= {"unit": "person", "silos_per_person": silos_per_person}
    else:
        settings.pop("neighbours", None)  # silos are always replaced
    if clip_norm is not None:
        settings["clip_norm"] = clip_norm
    if row.has_own_clip:
        settings["parameters"] = parameters_of(None, task)
    return plan(federation, **settings)


def _train_unit(
    unit: UnitName,
    tasks: Mapping[str, Task],
    federation: Topology,
    plans: Mapping[tuple[_Key, str], Plan],
    split: int,
    values: dict[_Key, dict[str, _Values]],
) -> None:
    """Trains the rows of a unit on one split with all settings, and adds their values."""
    variants = Variants.from_plans(list(plans.values())).with_reference()
    keys = [*plans, (("", f"{NO_PRIVACY}, {unit}"), "")]
    for (coding, task), rate in itertools.product(tasks.items(), RATES[unit]):
        training = (
            GradientTraining(learning_rate=rate, class_shares=CODINGS[coding])
            if unit == "person"
            else LocalTraining(learning_rate=rate)
        )
        job = Job(seed=split, partition=partition_of(task, federation, seed=split), variants=variants)
        (run,) = train_jobs([job], task, training, every_round=False, threads=1)
        regions, silos = _region_names(task, federation), tested_silos(task)
        for place, (key, clip) in enumerate(keys):
            _values_of(values, key, f"{coding}, {clip}rate {rate:g}").add(
                split,
                float(run.accuracy[-1, place]),
                dict(zip(regions, run.by_region[:, place].tolist(), strict=True)),
                dict(zip(silos, run.by_silo[:, place].tolist(), strict=True)),
            )


def _measure_alone(
    tasks: Mapping[str, Task], federation: Topology, split: int, values: dict[_Key, dict[str, _Values]]
) -> None:
    """Adds the values of silos alone on one split, with all settings."""
    numbers = dict(zip(federation.silo_names.tolist(), federation.innermost.parent_of.tolist(), strict=True))
    for coding, task in tasks.items():
        scores = local_scores(task, penalties=PENALTIES)
        overall = measure(scores, task)[0]
        by_region, by_silo = measure_by_region(scores, task, numbers), measure_by_silo(scores, task)
        regions, silos = _region_names(task, federation), tested_silos(task)
        for place, penalty in enumerate(PENALTIES):
            _values_of(values, ("", ALONE), f"{coding}, penalty {penalty:g}").add(
                split,
                float(overall[place]),
                dict(zip(regions, by_region[:, place].tolist(), strict=True)),
                dict(zip(silos, by_silo[:, place].tolist(), strict=True)),
            )


def _values_of(values: dict[_Key, dict[str, _Values]], key: _Key, settings: str) -> _Values:
    return values.setdefault(key, {}).setdefault(settings, _Values({}, {}, {}))


def _region_names(task: Task, federation: Topology) -> list[str]:
    """Returns the names of the regions with test records, in the order of the federation."""
    numbers = dict(zip(federation.silo_names.tolist(), federation.innermost.parent_of.tolist(), strict=True))
    return [federation.innermost.nodes[number] for number in sorted({numbers[silo] for silo in task.silo_test or ()})]


def _comparison(
    records: FederatedRecords,
    values: Mapping[_Key, Mapping[str, _Values]],
    plans: Mapping[_Key, Sequence[Plan]],
    left_out: Mapping[str, str],
    chosen_on: Sequence[int],
    silos_per_person: int,
) -> SiteComparison:
    """Returns the table: for every row the settings that are best on the choosing splits, on the reported splits."""
    best: dict[_Key, tuple[str, _Values]] = {}
    for key, by_settings in values.items():
        best[key] = max(by_settings.items(), key=lambda item: _mean_over(item[1].overall, chosen_on))
    reported = sorted(set(best["", ALONE][1].overall) - set(chosen_on))
    alone = _values_over(best["", ALONE][1].overall, reported)
    comparable: dict[str, set[str]] = {}
    results = []
    for key, (settings, measured) in best.items():
        overall = _values_over(measured.overall, reported)
        places = {}
        for noun, by_place in (("region", measured.by_region), ("silo", measured.by_silo)):
            enough = {
                name: reported_values
                for name, by_split in by_place.items()
                if len(reported_values := _values_over(by_split, reported)) >= LEAST_SHARE_OF_SPLITS * len(reported)
            }
            comparable.setdefault(noun, set()).update(enough)
            places[noun] = _lowest(enough)
        results.append(
            SiteResult(
                unit=key[0],
                name=key[1],
                **_epsilons(plans.get(key, ())),
                overall=_mean_of("", overall),
                gain=_mean_of("", overall - alone),
                worst_region=places["region"],
                worst_silo=places["silo"],
                settings=settings,
            )
        )
    order = [*((row.unit, row.name) for row in ROWS), *(("", f"{NO_PRIVACY}, {unit}") for unit in RATES), ("", ALONE)]
    return SiteComparison(
        name=records.name,
        metric=records.metric,
        splits=len(reported),
        silos_per_person=silos_per_person,
        regions_compared=len(comparable.get("region", ())),
        silos_compared=len(comparable.get("silo", ())),
        rows=tuple(sorted(results, key=lambda result: order.index((result.unit, result.name)))),
        left_out=dict(left_out),
    )


def _epsilons(plans: Sequence[Plan]) -> dict[str, float | None]:
    """Returns the worst epsilons over all splits; masked sums need no other noise where no target is inside."""
    if not plans:
        return dict.fromkeys(("epsilon_above", "epsilon_inside", "epsilon_masked"))
    is_masked = plans[0].aggregation == "masked"
    inside = max(float(own.epsilon_inside.max()) for own in plans)
    masked = inside if is_masked else max(map(_masked_epsilon, plans))
    return {
        "epsilon_above": max(float(own.epsilon_above.max()) for own in plans),
        "epsilon_inside": None if is_masked else inside,
        "epsilon_masked": masked,
    }


def _masked_epsilon(trusted: Plan) -> float:
    """Returns the worst epsilon against the server and one silo, if sums were masked with the noise of a plan."""
    return float(changed_copy(trusted, aggregation="masked").epsilon_inside.max())


def _mean_over(by_split: Mapping[int, float], splits: Sequence[int]) -> float:
    return float(np.mean([by_split[split] for split in splits]))


def _values_over(by_split: Mapping[int, float], splits: Sequence[int]) -> FloatArray:
    return np.array([by_split[split] for split in splits if split in by_split])


def _mean_of(name: str, values: FloatArray) -> Measured:
    return Measured(name=name, mean=float(values.mean()), error=standard_error(values))


def _lowest(by_place: Mapping[str, FloatArray]) -> Measured:
    """Returns the region or silo with the lowest mean over splits; NaN if none can be compared."""
    if not by_place:
        return Measured(name="", mean=math.nan, error=math.nan)
    return min((_mean_of(name, values) for name, values in by_place.items()), key=lambda place: place.mean)
