"""Every row of a comparison under several settings: swept by hand, or the best ones chosen by seeds apart.

>>> result = compare_settings("mild", "digits", tuned=True, rounds=[1, 3], clip_norms=[1, 0.1], learning_rates=[0.3],
...     seeds=2, choosing_seeds=2, epsilon=5.0)
>>> [row.allocation for row in result.rows][:2], result.choosing_seeds
(['optimal', 'optimal, tuned'], (1000, 1001))

A tuned row has the clip norm, learning rate and number of rounds that do best on the choosing data under the choosing
seeds, at the promise of all rows. The row as planned stands beside the tuned row. Settings that are chosen on the
silos' own data are a release that no epsilon counts: tuned rows are for public data, or for research.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import DataError, ParameterError, listing
from fulcrum.planning.comparisons.comparison import Comparison, Comparisons, comparison_row, row_without_privacy
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.allocation import ALLOCATIONS, AllocationRule
from fulcrum.simulation.data.datasets import read_data
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.halving import halve, train_in_groups
from fulcrum.simulation.model_engines import metric_of, parameters_of
from fulcrum.simulation.torch.torch_device import TorchDevice
from fulcrum.simulation.training_runs import TrainedVariants, default_training, seeds_of, with_metric
from fulcrum.simulation.trials import RowsOnTask, TrainedComparison, rows_on_task, trained_row
from fulcrum.simulation.tuning import FIRST_CHOOSING_SEED, check_seeds_apart, learning_rates_of

CLIP_NORMS = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015)
"""The clip norms to choose from by default, besides the row's own."""

PARTS_OF_ROUNDS = (5, 2, 1)
"""With one number of rounds, a tuned row chooses among 1 and these parts of the number."""

CHOOSING_SEEDS = 20
"""The number of seeds that choose by default."""

AS_PLANNED, TUNED, SWEPT = "as planned", "tuned", "swept"
"""The origins of a row's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """The settings of a row.

    Attributes:
        row: The name of the row.
        rounds: T.
        learning_rate: Learning rate of the local steps; of the server for the units "person" and "record".
        clip_norm: C; None for the row's own: the target's clip norm, or a share of C that follows from the noise.
    """

    row: str
    rounds: int
    learning_rate: float
    clip_norm: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowUnderSettings(TrainedComparison):
    """A row of a comparison, trained under some settings.

    Attributes:
        settings: `AS_PLANNED`, `TUNED` or `SWEPT`.
        rounds: T.
        learning_rate: Learning rate.
        clip_norm: C; None for a share of C that follows from the noise, and without privacy.
        chosen_by: The data and the seeds that chose the settings; empty for settings that nothing chose.
    """

    settings: str
    rounds: int
    learning_rate: float
    clip_norm: float | None
    chosen_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSettings:
    """The rows of a comparison under several settings.

    Attributes:
        rows: The rows: each as planned, then under other settings.
        seeds: The seeds of the rows.
        choosing_data: The name of the data that chose the tuned rows; empty without a choice.
        choosing_seeds: The seeds that chose the tuned rows; empty without a choice.
        is_same_data: True if the rows are tested on the data that chose.
    """

    rows: Comparisons[RowUnderSettings]
    seeds: tuple[int, ...]
    choosing_data: str = ""
    choosing_seeds: tuple[int, ...] = ()
    is_same_data: bool = False


def compare_settings(
    federation: Any,
    data: Any = "digits",
    *,
    tuned: bool = False,
    rounds: int | Sequence[int],
    learning_rates: Sequence[float] | None = None,
    clip_norms: Sequence[float] | None = None,
    choosing_data: Any = None,
    choosing_seeds: int | Sequence[int] = CHOOSING_SEEDS,
    seeds: int | Sequence[int] = 10,
    training: LocalTraining | None = None,
    model: Any = None,
    device: str | TorchDevice | None = None,
    records: float | None = None,
    metric: str | None = None,
    size_law: str = "declared",
    allocation: str | AllocationRule | None = None,
    conflict: bool = False,
    on_choice: Callable[[int, int], None] | None = None,
    on_row: Callable[[int, int], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    data_options: dict[str, Any] | None = None,
    **target: Any,
) -> ComparedSettings:
    """Returns the rows of `compare_trained` as planned, and under tuned or under all swept settings.

    All rows have the same batches and noise draws of a seed, and gains are paired over seeds.

    Args:
        federation: A `Federation`, or a source for `read_federation`.
        data: Data for `train`.
        tuned: True to choose settings for every row; False to train every row under all combinations.
        rounds: The numbers of rounds; the largest is the number as planned. With `tuned` a single number stands for the
            number, a half and a fifth of the number, and 1.
        learning_rates: The learning rates; for a sweep that of `training` by default, else the rates of `tune`.
        clip_norms: The clip norms; for a sweep the row's own by default, else `CLIP_NORMS` and the row's own.
        choosing_data: Public data that chooses; by default `data`, for research.
        choosing_seeds: Number of seeds that choose, from `FIRST_CHOOSING_SEED` on, or the seeds.
        seeds: Number of seeds of the rows, or the seeds. No seed may choose and be reported.
        training: Local steps and batch, and the learning rate as planned.
        model: A user's own model for `train`; the softmax head by default.
        device: Device of a PyTorch module.
        records: Mean records a silo.
        metric: A name of `tasks.METRIC_NAMES`, "auc" for example; the task's own metric by default.
        size_law: A name of `trials.SIZE_LAWS`.
        allocation: A further allocation to compare.
        conflict: True to permute the labels of the largest region, as for `compare_trained`.
        on_choice: Called during the choice with the number of trained settings times seeds, and the total.
        on_row: Called with the number of trained rows, and the total.
        on_note: Called at once with a note on slow training.
        data_options: Further arguments of `load_task`.
        **target: The targets of every row, as in `plan`.
    """
    counts = [int(rounds)] if isinstance(rounds, (int, np.integer)) else sorted(set(rounds))
    if not counts:
        raise ParameterError("comparison.rounds-missing")
    reported, choosing = seeds_of(seeds), choosing_seeds_of(choosing_seeds)
    compared = rows_on_task(
        federation,
        data,
        model=model,
        records=records,
        metric=metric,
        size_law=size_law,
        allocation=allocation,
        data_options=data_options,
        target=target | {"rounds": counts[-1]},
    )
    training = training or default_training(compared.rows.unit)
    trainer = _Trainer(compared=compared, training=training, device=device, conflict=conflict, on_note=on_note)
    planned = trainer.as_planned()
    if not tuned:
        sweep = trainer.grid(counts, learning_rates or [training.learning_rate], clip_norms or [None])
        chosen = {settings: _label(settings, counts, learning_rates, clip_norms) for settings in sweep}
        chosen = {settings: label for settings, label in chosen.items() if settings not in planned.values()}
        rows = trainer.rows(planned, chosen, reported, SWEPT, on_row)
        return ComparedSettings(rows=rows, seeds=tuple(reported))
    check_seeds_apart(reported, choosing)
    chooser = trainer
    if choosing_data is not None:
        public = with_metric(read_data(choosing_data, compared.federation, **(data_options or {})), metric)
        chooser = replace(trainer, compared=replace(compared, task=public, _sized={}), _plans={})
    _check_choosing(chooser.compared.task, compared)
    if len(counts) == 1:
        counts = sorted({max(1, counts[0] // part) for part in (counts[0], *PARTS_OF_ROUNDS)})
    rates = sorted({*learning_rates_of(learning_rates, compared.rows.unit), training.learning_rate})
    grid = trainer.grid(counts, rates, [None, *(CLIP_NORMS if clip_norms is None else clip_norms)])
    halving = halve(grid, chooser.accuracies, seeds=choosing, group_of=lambda settings: settings.row, on_try=on_choice)
    if halving.stopped:  # a table with rows that were tuned less than others would not be fair
        raise KeyboardInterrupt
    best = {row: halving.best(entry for entry in halving.finalists if entry.row == row) for row in planned}
    labels = {settings: f"{row}, tuned" for row, settings in best.items()}
    public_name = chooser.compared.task.name
    rows = trainer.rows(planned, labels, reported, TUNED, on_row)
    by = f"{public_name}, seeds {listing(map(str, choosing))}"
    return ComparedSettings(
        rows=Comparisons(replace(row, chosen_by=by) if row.settings == TUNED else row for row in rows),
        seeds=tuple(reported),
        choosing_data=public_name,
        choosing_seeds=tuple(choosing),
        is_same_data=choosing_data is None,
    )


def choosing_seeds_of(seeds: int | Sequence[int]) -> list[int]:
    """Returns the seeds that choose: a number of seeds from `FIRST_CHOOSING_SEED` on, or a list of seeds."""
    chosen = seeds_of(seeds)
    is_number = isinstance(seeds, (int, np.integer))
    return [FIRST_CHOOSING_SEED + seed for seed in chosen] if is_number else chosen


_Results: TypeAlias = tuple[list[Plan], TrainedVariants, int]
"""The plans of a row by seed, the results of the rows trained together, and the place of the row among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trainer:
    """The rows of a comparison on data, trained under any settings."""

    compared: RowsOnTask
    training: LocalTraining
    device: str | TorchDevice | None
    conflict: bool
    on_note: Callable[[str], None] | None
    _plans: dict[tuple[str, int, float | None, int], Plan] = field(default_factory=dict)

    def as_planned(self) -> dict[str, RowSettings]:
        """Returns the settings as planned by row."""
        rounds, rate = self.compared.target["rounds"], self.training.learning_rate
        return {
            row: RowSettings(row=row, rounds=rounds, learning_rate=rate, clip_norm=None)
            for row in self.compared.rows.rows
        }

    def grid(
        self, rounds: Sequence[int], rates: Sequence[float], clip_norms: Sequence[float | None]
    ) -> list[RowSettings]:
        """Returns all settings of all rows; a setting out of its range is refused here, before any training."""
        settings: dict[RowSettings, None] = {}
        for row, count, rate, clip_norm in itertools.product(self.compared.rows.rows, rounds, rates, clip_norms):
            checked_rate = replace(self.training, learning_rate=rate).learning_rate
            own = self.compared.rows.plans[row] if row in self.compared.rows.plans else self._plan(row, count, None, 0)
            is_own = own.clip_share == 1 and clip_norm == own.clip_norm
            settings[
                RowSettings(row=row, rounds=count, learning_rate=checked_rate, clip_norm=None if is_own else clip_norm)
            ] = None
        for entry in settings:
            self._plan(entry.row, entry.rounds, entry.clip_norm, 0)
        return list(settings)

    def plan(self, settings: RowSettings, seed: int) -> Plan:
        """Returns the plan of a row under settings and a seed."""
        return self._plan(settings.row, settings.rounds, settings.clip_norm, seed)

    def _plan(self, row: str, rounds: int, clip_norm: float | None, seed: int) -> Plan:
        rule = self.compared.rows.rows[row].get("allocation", "optimal")
        is_drawn = self.compared.size_law != "declared" or self.compared.rows.unit.is_within_silo
        by_seed = is_drawn or rule not in ALLOCATIONS or rule == "misallocated"
        key = (row, rounds, clip_norm, seed if by_seed else 0)
        if key not in self._plans:
            self._plans[key] = self.compared.plan(row, key[3], rounds=rounds, clip_norm=clip_norm)
        return self._plans[key]

    def train(
        self, settings: Sequence[RowSettings], seeds: Sequence[int]
    ) -> Iterator[tuple[list[RowSettings], list[list[Plan]], TrainedVariants]]:
        """Trains rows; yields the results of rows with the same rounds and learning rate together."""
        return train_in_groups(
            settings,
            seeds,
            alike=lambda entry: (entry.rounds, entry.learning_rate),
            plan_of=self.plan,
            task_of=lambda _: self.compared.task,
            training_of=lambda entry: replace(self.training, learning_rate=entry.learning_rate),
            records=self.compared.records,
            model=self.compared.model,
            device=self.device,
            conflict=self.conflict,
            on_note=self.on_note,
        )

    def accuracies(
        self, settings: Sequence[RowSettings], seeds: Sequence[int]
    ) -> Iterator[Mapping[RowSettings, FloatArray]]:
        """Trains rows; yields accuracies by seed."""
        for members, _, results in self.train(settings, seeds):
            yield {entry: results.accuracy[:, place] for place, entry in enumerate(members)}

    def rows(
        self,
        planned: Mapping[str, RowSettings],
        others: Mapping[RowSettings, str],
        seeds: Sequence[int],
        origin: str,
        on_row: Callable[[int, int], None] | None,
    ) -> Comparisons[RowUnderSettings]:
        """Trains every row as planned and under other settings.

        Args:
            planned: The settings as planned, by row.
            others: The names of rows under other settings.
            seeds: The reported seeds.
            origin: `TUNED` or `SWEPT`, for the other settings.
            on_row: Called with the number of trained rows, and the total.
        """
        requested = list(dict.fromkeys([*planned.values(), *others]))
        trained: dict[RowSettings, _Results] = {}
        for members, plans, results in self.train(requested, seeds):
            for place, entry in enumerate(members):
                trained[entry] = [by_row[place] for by_row in plans], results, place
            if on_row is not None:
                on_row(len(trained), len(requested))
        baseline = self._accuracy(trained[planned[self.compared.rows.baseline]])
        reference = trained[next(iter(planned.values()))][1]
        rows = []
        for row, settings in planned.items():
            shown = [(settings, row, AS_PLANNED)]
            shown += [(entry, label, origin) for entry, label in others.items() if entry.row == row]
            rows += [self._row(label, kind, entry, trained[entry], baseline, reference) for entry, label, kind in shown]
        if self.compared.rows.unit.is_within_silo:
            gain = reference.reference - baseline
            parts = [row_without_privacy()]
            figures = (reference.reference, gain, reference.reference_worst_region, reference.reference)
            rows.append(self._figures(parts, figures, AS_PLANNED, next(iter(planned.values())), None))
        return Comparisons(rows)

    @staticmethod
    def _accuracy(results: _Results) -> FloatArray:
        return results[1].accuracy[:, results[2]]

    def _row(
        self,
        label: str,
        origin: str,
        settings: RowSettings,
        results: _Results,
        baseline: FloatArray,
        reference: TrainedVariants,
    ) -> RowUnderSettings:
        """Returns a row under settings, over all seeds."""
        plans, variants, place = results
        accuracy = variants.accuracy[:, place]
        figures = (accuracy, accuracy - baseline, variants.worst_region[:, place], reference.reference)
        clip_norm = plans[0].clip_norm if plans[0].clip_share == 1 else None
        return self._figures([comparison_row(plan, label) for plan in plans], figures, origin, settings, clip_norm)

    def _figures(
        self,
        parts: Sequence[Comparison],
        figures: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
        origin: str,
        settings: RowSettings,
        clip_norm: float | None,
    ) -> RowUnderSettings:
        """Returns a row from accuracy, gain, worst region and reference by seed."""
        accuracy, gain, worst_region, reference = figures
        row = trained_row(
            parts,
            accuracy=accuracy,
            gain=gain,
            worst_region=worst_region,
            reference=reference,
            metric=metric_of(self.compared.model, self.compared.task),
        )
        return RowUnderSettings(
            **{declared.name: getattr(row, declared.name) for declared in fields(TrainedComparison)},
            settings=origin,
            rounds=settings.rounds,
            learning_rate=settings.learning_rate,
            clip_norm=clip_norm,
        )


def _label(
    settings: RowSettings,
    rounds: Sequence[int],
    learning_rates: Sequence[float] | None,
    clip_norms: Sequence[float] | None,
) -> str:
    """Returns the name of a swept row, with the settings that the sweep varies."""
    words = [settings.row]
    words += [f"{settings.rounds} round{'s' * (settings.rounds != 1)}"] if len(rounds) > 1 else []
    words += [f"rate {settings.learning_rate:g}"] if learning_rates else []
    words += ["own clip" if settings.clip_norm is None else f"clip {settings.clip_norm:g}"] if clip_norms else []
    return ", ".join(words)


def _check_choosing(task: Task, compared: RowsOnTask) -> None:
    """Raises for data that may not choose: data of silos, or data for a model of another size."""
    if task.silo is not None:
        raise DataError("tuning.silos-named", data=task.name)
    needed, parameters = (parameters_of(compared.model, data) for data in (compared.task, task))
    if needed != parameters:
        raise DataError(
            "tuning.choosing-size", data=task.name, parameters=parameters, compared=compared.task.name, needed=needed
        )
