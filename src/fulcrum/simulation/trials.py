"""Every allocation trained at the same guarantee: accuracy beside budget and epsilon.

>>> rows = compare_trained("mild", "digits", seeds=2, rounds=3, epsilon=5.0)
>>> [row.allocation for row in rows][:2], rows[1].gain
(['optimal', 'uniform'], 0.0)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.plan.plan_file import Spectrum
from fulcrum.core.store.durable_files import write_whole
from fulcrum.core.topology import Topology
from fulcrum.errors import ParameterError, check_known
from fulcrum.planning.comparisons.comparison import (
    AS_ASKED,
    BEYOND,
    JOINT_GROUP,
    ComparedPlans,
    Comparison,
    Comparisons,
    compare_plans,
    comparison_row,
    row_plan,
    row_without_privacy,
)
from fulcrum.planning.inputs.inside_observer import with_observer_name
from fulcrum.planning.inputs.targets import epsilon_by_tier
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.allocation import AllocationRule
from fulcrum.planning.theory.scheduling import check_one_roster
from fulcrum.readers.federation_reader import read_federation
from fulcrum.readers.profiles import lognormal_sizes
from fulcrum.server.run_results import run_folder
from fulcrum.simulation.data.datasets import read_data
from fulcrum.simulation.data.input_variances import spectrum_of_task
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.models import Model
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.model_engines import metric_of, model_of, parameters_of
from fulcrum.simulation.torch.torch_device import TorchDevice
from fulcrum.simulation.torch.torch_model import TorchModel
from fulcrum.simulation.training_runs import (
    default_training,
    seeds_of,
    sized_by_data,
    standard_error,
    train_variants,
    with_metric,
)
from fulcrum.version import package_version

SIZE_LAWS = ("declared", "lognormal")
"""Silo sizes as the federation declares them, or drawn anew for every seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedComparison(Comparison):
    """Cost, guarantee and accuracy of an allocation.

    Attributes:
        accuracy: On the test split, mean over seeds.
        accuracy_se: The standard error of the accuracy; NaN with a single seed.
        gain: Accuracy above uniform's at weights by size, mean of the paired differences; for persons and records,
            above the accuracy of silos that each protect their own persons.
        gain_se: The standard error of the paired difference.
        worst_region: The accuracy for the worst region, on test records mixed like the records of the region's silos,
            mean over seeds.
        worst_region_se: The standard error of `worst_region`; NaN with a single seed.
        reference: The accuracy without clip and noise on the same batches, mean over seeds; the same in every row.
        metric: The name of the metric that stands in place of the accuracy, in words.
    """

    accuracy: float
    accuracy_se: float
    gain: float
    gain_se: float
    worst_region: float
    worst_region_se: float
    reference: float
    metric: str = "accuracy"


def compare_trained(
    federation: Any,
    data: Any = "digits",
    *,
    seeds: int | Sequence[int] = 10,
    training: LocalTraining | None = None,
    model: Any = None,
    device: str | TorchDevice | None = None,
    records: float | None = None,
    metric: str | None = None,
    size_law: str = "declared",
    allocation: str | AllocationRule | None = None,
    conflict: bool = False,
    on_round: Callable[[int, list[FloatArray]], None] | None = None,
    on_part: Callable[[float], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    data_options: dict[str, Any] | None = None,
    **target: Any,
) -> Comparisons[TrainedComparison]:
    """Returns the rows of `compare`, all trained on the same batches and noise draws.

    For persons and records, and data without silos, the sizes of every seed are the numbers of persons or records that
    are dealt to the silos: a plan for more persons than the data has would shorten the mean gradient.

    Args:
        federation: A `Federation`, or a source for `read_federation`.
        data: Data for `train`.
        seeds: Number of seeds, or the seeds.
        training: Learning rate, local steps and batch; `GradientTraining` for persons and records.
        model: A user's own model for `train`; the softmax head by default.
        device: Device of a PyTorch module.
        records: Mean records a silo.
        metric: A name of `tasks.METRIC_NAMES`, "auc" for example; the task's own metric by default.
        size_law: A name of `SIZE_LAWS`.
        allocation: A further allocation to compare.
        conflict: True to train the federation with the labels of its largest region permuted, a rehearsal of regions
            that disagree. `accuracy` is then the mean over regions, each by its own labels and counted once.
        on_round: Called after every round.
        on_part: Called within the rounds of a user's own model with the rounds done, as a fraction.
        on_note: Called at once with a note on slow training.
        data_options: Further arguments of `load_task`.
        **target: The targets of every row, as in `plan`; `parameters` are the model's by default.
    """
    compared = rows_on_task(
        federation,
        data,
        model=model,
        records=records,
        metric=metric,
        size_law=size_law,
        allocation=allocation,
        data_options=data_options,
        target=target,
    )
    task, user_model, rows, seed_list = compared.task, compared.model, compared.rows, seeds_of(seeds)
    plans = [[compared.plan(name, seed) for name in rows.rows] for seed in seed_list]
    results = train_variants(
        plans,
        task,
        seeds=seed_list,
        training=training or default_training(rows.unit),
        records=records,
        model=user_model,
        device=device,
        conflict=conflict,
        on_round=on_round,
        on_part=on_part,
        on_note=on_note,
    )
    metric_name = metric_of(user_model, task)
    baseline = results.accuracy[:, list(rows.rows).index(rows.baseline)]
    trained = [
        trained_row(
            [comparison_row(seed_plans[variant], name) for seed_plans in plans],
            accuracy=results.accuracy[:, variant],
            gain=results.accuracy[:, variant] - baseline,
            worst_region=results.worst_region[:, variant],
            reference=results.reference,
            metric=metric_name,
        )
        for variant, name in enumerate(rows.rows)
    ]
    if rows.unit.is_within_silo:
        trained.append(
            trained_row(
                [row_without_privacy()],
                accuracy=results.reference,
                gain=results.reference - baseline,
                worst_region=results.reference_worst_region,
                reference=results.reference,
                metric=metric_name,
            )
        )
    return Comparisons(trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOnTask:
    """The rows of a comparison on data, and their plans.

    Attributes:
        federation: The declared federation.
        task: The data.
        model: A user's own model; None for the softmax head.
        records: Mean records a silo, if requested.
        size_law: A name of `SIZE_LAWS`.
        target: The targets of every row, as in `plan`.
        rows: The rows.
    """

    federation: Topology
    task: Task
    model: Model | TorchModel | None
    records: float | None
    size_law: str
    target: Mapping[str, Any]
    rows: ComparedPlans
    _sized: dict[int, Topology] = field(default_factory=dict, compare=False)

    def plan(self, name: str, seed: int, *, rounds: int | None = None, clip_norm: float | None = None) -> Plan:
        """Returns the plan of a row under a seed.

        Args:
            name: The name of the row.
            seed: The seed, which draws sizes and deals misallocated noise.
            rounds: T; the target's by default.
            clip_norm: C; the row's own by default.
        """
        target = dict(self.target) | {"seed": seed} | ({} if rounds is None else {"rounds": rounds})
        row = dict(self.rows.rows[name]) | ({} if clip_norm is None else {"clip_norm": clip_norm})
        return row_plan_on_task(self._federation_of(seed), self.task, name, row, target, self.model)

    def _federation_of(self, seed: int) -> Topology:
        """Returns the federation of a seed."""
        if seed not in self._sized:
            drawn = draw_sizes(self.federation, self.size_law, seed)
            self._sized[seed] = sized_by_data(drawn, self.task, self.rows.unit, seed=seed, records=self.records)
        return self._sized[seed]


def rows_on_task(
    federation: Any,
    data: Any,
    *,
    model: Any,
    records: float | None,
    metric: str | None,
    size_law: str,
    allocation: str | AllocationRule | None,
    data_options: Mapping[str, Any] | None,
    target: Mapping[str, Any],
) -> RowsOnTask:
    """Returns the rows of `compare_trained`, from the arguments of `compare_trained`."""
    check_known("size law", size_law, SIZE_LAWS)
    if target.get("seed", 0) != 0:
        raise ParameterError("comparison.seed-unneeded", seed=target["seed"])
    topology = read_federation(federation)
    check_one_roster(topology, "a comparison")
    task, user_model = with_metric(read_data(data, topology, **(data_options or {})), metric), model_of(model)
    if task.silo is not None and size_law != "declared":
        raise ParameterError("comparison.sizes-named", data=task.name)
    aggregation = target.get("aggregation", "trusted")
    named = with_observer_name(topology, target.get("epsilon"), aggregation, stacklevel=4)
    target = dict(target) | {"epsilon": named}
    return RowsOnTask(
        federation=topology,
        task=task,
        model=user_model,
        records=records,
        size_law=size_law,
        target=target,
        rows=comparison_on_task(task, topology, allocation, target, user_model),
    )


def comparison_on_task(
    task: Task,
    federation: Topology,
    own: str | AllocationRule | None,
    target: Mapping[str, Any],
    model: Model | TorchModel | None = None,
) -> ComparedPlans:
    """Returns the rows to compare on a task; the model gives the number of parameters unless the target does."""
    without_parameters = compare_plans(federation, own, target)
    if target.get("parameters") is not None:
        return without_parameters
    with_parameters = compare_plans(federation, own, dict(target) | {"parameters": parameters_of(model, task)})
    rows = {**without_parameters.rows, **with_parameters.rows}
    if without_parameters.unit.is_within_silo:  # in the order of `compare_plans`, joint before one masked group
        rows = {name: rows[name] for name in {**with_parameters.rows, **rows}}
    return replace(without_parameters, rows=rows, left_out=with_parameters.left_out)


def row_plan_on_task(
    federation: Topology,
    task: Task,
    name: str,
    row: Mapping[str, Any],
    target: Mapping[str, Any],
    model: Model | TorchModel | None = None,
) -> Plan:
    """Returns the plan of the row `name`; rows beyond the paper get the number of parameters and input variances."""
    if name not in (*BEYOND, JOINT_GROUP, AS_ASKED):
        return row_plan(federation, row, target)
    public = default_spectrum(task, model) if target.get("public") is None else target["public"]
    parameters = parameters_of(model, task) if target.get("parameters") is None else target["parameters"]
    return row_plan(federation, row, dict(target) | {"parameters": parameters, "public": public})


def default_spectrum(task: Task, model: Model | TorchModel | None) -> Spectrum | None:
    """Returns the input variances for the joint row: of the training split, if the built-in head is on an embedding.

    The comparison is research on data that may be seen, and components and scale were fitted on the same split.
    """
    return spectrum_of_task(task) if model is None and task.embedding else None


def save_comparison(
    rows: Sequence[TrainedComparison],
    folder: str | Path,
    *,
    federation: Topology,
    task: str,
    seeds: int | Sequence[int],
    size_law: str = "declared",
    conflict: bool = False,
    command: str = "",
    **target: Any,
) -> None:
    """Writes comparison.json: the rows, with the federation and the target.

    Args:
        rows: The rows of `compare_trained`.
        folder: The folder to write to, made if missing.
        federation: The federation of the comparison.
        task: The name of the data.
        seeds: Number of seeds, or the seeds.
        size_law: A name of `SIZE_LAWS`.
        conflict: True if the labels of the largest region were permuted.
        command: The command that trained the rows, if any.
        **target: The targets of every allocation, as in `plan`.
    """
    document = {
        "version": package_version(),
        "federation_digest": federation.digest,
        "rounds": target["rounds"],
        "delta": target.get("delta", 1e-5),
        "accountant": target.get("accountant") or "exact",
        "colluders": target.get("colluders", 0),
        "dropouts": target.get("dropouts", 0),
        "epsilon": epsilon_by_tier(federation, target.get("epsilon"), target.get("aggregation", "trusted")),
        "information": target.get("information"),
        "unit": target.get("unit", "silo"),
        "neighbours": target.get("neighbours", "replace"),
        "silos_per_person": target.get("silos_per_person", 1),
        "budget": target.get("budget"),
        "task": task,
        "seeds": seeds_of(seeds),
        "size_law": size_law,
        **({"conflict": True} if conflict else {}),
        "rows": [asdict(row) for row in rows],
        "command": command,
    }
    write_whole(
        run_folder(folder) / "comparison.json", msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    )


def draw_sizes(federation: Topology, size_law: str, seed: int) -> Topology:
    """Returns the federation of a seed: with declared sizes, or with sizes drawn anew."""
    return lognormal_sizes(federation, seed=seed) if size_law == "lognormal" else federation


def trained_row(
    parts: Sequence[Comparison],
    *,
    accuracy: FloatArray,
    gain: FloatArray,
    worst_region: FloatArray,
    reference: FloatArray,
    metric: str,
) -> TrainedComparison:
    """Returns a row over all seeds: means of budgets and means, extremes of worst cases."""

    def every(name: str) -> list[float]:
        return [getattr(part, name) for part in parts]

    return TrainedComparison(
        allocation=parts[0].allocation,
        noise_budget=float(np.mean(every("noise_budget"))),
        epsilon_above_worst=max(every("epsilon_above_worst")),
        epsilon_above_mean=float(np.mean(every("epsilon_above_mean"))),
        epsilon_inside_worst=max(every("epsilon_inside_worst")),
        epsilon_inside_mean=float(np.mean(every("epsilon_inside_mean"))),
        least_influence=min(every("least_influence")),
        accuracy=float(accuracy.mean()),
        accuracy_se=standard_error(accuracy),
        gain=float(gain.mean()),
        gain_se=standard_error(gain),
        worst_region=float(worst_region.mean()),
        worst_region_se=standard_error(worst_region),
        reference=float(reference.mean()),
        metric=metric,
    )
