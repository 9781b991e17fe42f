"""Results of training from the files of a folder, checked against the plan of a report.

>>> run = RunResult(
...     plan_digest="", allocation="optimal", task="learning", seeds=[], notes=[],
...     rounds=[RoundResult(round=1, accuracy=0.5, metrics={"loss": 0.9}, regions=2, silos=5)],
... )
>>> run.round_rows()
[{'round': 1, 'regions': 2, 'silos': 5, 'accuracy': 0.5, 'loss': 0.9, 'withheld': ''}]
"""

import math
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from fulcrum.core.plan.plan_file import content_digest
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.errors import DataError
from fulcrum.parsing import json_of
from fulcrum.planning.comparisons.comparison import row_of
from fulcrum.planning.plan import Plan
from fulcrum.regular_files import regular_file

ROUND_COLUMNS = ("round", "regions", "silos", "withheld")
"""The columns of a table of rounds besides metrics."""


ERROR = "_se"
"""The end of the name of a standard error, behind the name of its metric."""


def is_error_of(name: str, metrics: Collection[str]) -> bool:
    """Returns true for the name of the standard error of one of the metrics.

    >>> is_error_of("auc_se", ["auc", "auc_se"]), is_error_of("auc_se", ["auc_se"])
    (True, False)
    """
    return name.endswith(ERROR) and name.removesuffix(ERROR) in metrics


class Measured(NamedTuple):
    """A point of a curve: the round, the value after the round, and the standard error over seeds, if any."""

    round: int
    value: float
    error: float | None


class RoundResult(msgspec.Struct, kw_only=True):
    """The results of a round.

    Attributes:
        round: The number of the round, from 1.
        accuracy: The accuracy on records that the server may see; None if not measured.
        accuracy_se: The standard error of the accuracy; None with a single seed.
        metrics: All further metrics, by name.
        regions: The number of sums in the model, of regions or of the outermost tier; None for training in process.
        silos: The number of silos in the sums; None for training in process.
        withheld: The regions, or nodes of the outermost tier, without a sum in the model.
    """

    round: int
    accuracy: float | None = None
    accuracy_se: float | None = None
    metrics: dict[str, float] = {}
    regions: int | None = None
    silos: int | None = None
    withheld: list[str] = []

    def in_words(self, *, of: int | None = None) -> str:
        """Returns the round as a line of text for progress messages; `of` is the number of rounds, if known.

        >>> RoundResult(round=1, accuracy=0.53765, metrics={"loss": 0.9}, regions=2, withheld=["south"]).in_words(of=9)
        'round 1 of 9: 2 sums, accuracy 0.5376, loss 0.9, withheld by south'
        """
        measured = ({} if self.accuracy is None else {"accuracy": self.accuracy}) | self.metrics
        parts = [] if self.regions is None else [f"{self.regions} sum{'' if self.regions == 1 else 's'}"]
        parts += [f"{name} {value:.4g}" for name, value in measured.items()]
        parts += [f"withheld by {', '.join(self.withheld)}"] if self.withheld else []
        return f"round {self.round}{f' of {of}' if of else ''}: {', '.join(parts)}"


class RunResult(msgspec.Struct, kw_only=True):
    """The results of a plan, as written by `save_run` in process or by `save_deployed_run` on a federation.

    Attributes:
        plan_digest: The digest of the plan.
        unkeyed_digest: The digest of the plan without the keys of sites, if known.
        allocation: The allocation of the plan.
        task: The name of the data, or of the training module.
        engine: The engine: `embedded`, `nvflare` or `flower`.
        seeds: The seeds; empty for cryptographic noise.
        metric: The name of the metric that stands in place of the accuracy, in words.
        accuracy: The accuracy after the last round; None if not measured.
        accuracy_se: The standard error of the accuracy over seeds.
        reference: The accuracy without clip and noise; None if not trained.
        rounds: The results by round.
        notes: Sentences for the reader.
        command: The command that trained the plan; empty if no command did.
    """

    plan_digest: str
    unkeyed_digest: str | None = None
    allocation: str
    task: str
    engine: str = "embedded"
    seeds: list[int]
    metric: str = "accuracy"
    accuracy: float | None = None
    accuracy_se: float | None = None
    reference: float | None = None
    rounds: list[RoundResult]
    notes: list[str]
    command: str = ""

    def curves(self) -> dict[str, list[Measured]]:
        """Returns the curve of every metric by round, accuracy first; rounds without the metric are left out.

        A metric `NAME_se` beside a metric `NAME` is the standard error of that metric, and no curve of its own.
        """
        curves: dict[str, list[Measured]] = {}
        for row in self.rounds:
            if row.accuracy is not None:
                curves.setdefault(self.metric, []).append(Measured(row.round, row.accuracy, row.accuracy_se))
        for row in self.rounds:
            for name, value in row.metrics.items():
                if is_error_of(name, row.metrics):
                    continue
                curves.setdefault(name, []).append(Measured(row.round, value, row.metrics.get(f"{name}{ERROR}")))
        return curves

    def round_rows(self) -> list[dict[str, Any]]:
        """Returns the rounds as rows with a column a metric; a metric with the name of a fixed column gets brackets."""
        columns = {name: f"({name})" if name in ROUND_COLUMNS else name for name in self.curves()}
        rows = []
        for result in self.rounds:
            measured = {self.metric: result.accuracy} | result.metrics
            rows.append(
                {"round": result.round, "regions": result.regions, "silos": result.silos}
                | {heading: measured.get(name) for name, heading in columns.items()}
                | {"withheld": ", ".join(result.withheld)}
            )
        return rows


class AllocationResult(msgspec.Struct, kw_only=True):
    """The results of an allocation.

    Standard errors (`_se`) are None if the run had a single seed. Fields with a default are None in files of earlier
    versions, which lack the fields.

    Attributes:
        allocation: The name of the row: an allocation or a recipe.
        noise_budget: The noise budget of the plan, in units of C².
        accuracy: The accuracy on test records, mean over seeds.
        accuracy_se: The standard error of `accuracy`.
        gain: The accuracy above the baseline of the comparison, mean of the paired differences.
        gain_se: The standard error of `gain`.
        least_influence: The least influence of any region, as a part of the region's share by size.
        worst_region: The accuracy for the worst region.
        worst_region_se: The standard error of `worst_region`.
        reference: The accuracy without clip and noise.
        metric: The name of the metric that stands in place of the accuracy.
    """

    allocation: str
    noise_budget: float
    accuracy: float
    accuracy_se: float | None
    gain: float
    gain_se: float | None
    least_influence: float | None = None
    worst_region: float | None = None
    worst_region_se: float | None = None
    reference: float | None = None
    metric: str = "accuracy"


class ComparisonResult(msgspec.Struct, kw_only=True):
    """The results of all allocations at the same target, as written by `save_comparison`.

    The file states the federation, the target (rounds, delta, accountant, epsilon by tier, information, budget,
    colluders, dropouts), the task, the seeds, the law of sizes, a row for each allocation, and the command.
    """

    federation_digest: str
    rounds: int
    delta: float
    accountant: str
    colluders: int
    dropouts: int = 0
    epsilon: dict[str, float]
    information: float | None
    budget: float | None
    task: str
    seeds: list[int]
    size_law: str
    rows: list[AllocationResult]
    command: str = ""


class Results(msgspec.Struct, kw_only=True):
    """The results in a folder: a run, a comparison, or both."""

    run: RunResult | None
    comparison: ComparisonResult | None


def run_folder(folder: str | Path) -> Path:
    """Makes the folder of a run and returns the path; refuses an unwritable folder before hours of training."""
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=target).close()
    except OSError as error:
        raise DataError("run.folder-unusable", folder=folder, reason=error.strerror) from None
    return target


def read_results(folder: str | Path, plan: Plan) -> Results:
    """Returns the results in run.json and comparison.json of a folder; refuses results of a different plan.

    Args:
        folder: A folder of `fulcrum train -o`, `up -o`, `follow -o` or `compare --train -o`.
        plan: The plan of the results.
    """
    where = Path(folder)
    run, comparison = _read(where / "run.json", RunResult), _read(where / "comparison.json", ComparisonResult)
    if run is None and comparison is None:
        raise DataError("run.results-missing", folder=folder)
    if run is not None and not _is_of(run, plan):
        raise DataError(
            "run.other-plan",
            file=where / "run.json",
            digest=run.plan_digest,
            expected=plan.digest,
            folder=folder,
        )
    if comparison is not None and not _same_target(comparison, plan):
        raise DataError("run.other-target", file=where / "comparison.json", folder=folder)
    return Results(run=run, comparison=comparison)


def _is_of(run: RunResult, plan: Plan) -> bool:
    """Returns True for a run of the plan, with or without the keys of sites, which a deployment adds."""
    return run.plan_digest == plan.digest or (
        run.unkeyed_digest is not None and run.unkeyed_digest == unkeyed_digest(plan)
    )


def unkeyed_digest(plan: SupportsContent) -> str:
    """Returns the digest of a plan without the keys of sites: a deployment may add keys."""
    return content_digest(msgspec.structs.replace(plan.content(), keys={}))


def _same_target(comparison: ComparisonResult, plan: Plan) -> bool:
    """Returns True if a comparison was trained for the federation and the target of the plan."""
    target = plan.target
    # A plan for a noise budget states the epsilon reached; a comparison states the target alone.
    promises = ({}, None) if target.budget is not None else (dict(target.epsilon), target.information)
    # The same allocation needs the same noise, unless sizes or regions were drawn anew for every seed.
    drawn = comparison.size_law != "declared" or plan.allocation == "misallocated"
    mine = [row.noise_budget for row in comparison.rows if row.allocation == row_of(plan) and not drawn]
    return (
        (
            comparison.federation_digest,
            comparison.rounds,
            comparison.delta,
            comparison.accountant,
            comparison.colluders,
            comparison.dropouts,
        )
        == (plan.federation.digest, plan.rounds, plan.delta, plan.accountant, plan.colluders, plan.dropouts)
        and (comparison.epsilon, comparison.information) == promises
        and comparison.budget == target.budget
        and all(math.isclose(budget, plan.model_noise, rel_tol=1e-6) for budget in mine)
    )


_Kind = TypeVar("_Kind", bound=msgspec.Struct)


def _read(path: Path, kind: type[_Kind]) -> _Kind | None:
    """Returns the results in a JSON file as an object of the type `kind`; None without a file."""
    try:
        return json_of(regular_file(path).read_bytes(), kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError("file.unreadable", file=path, reason=error.strerror) from None
    except msgspec.MsgspecError as error:
        raise DataError("run.file-malformed", file=path, reason=str(error)) from None
