"""What training left in a folder, read back and held against the plan that it is shown beside.

>>> run = RunResult(
...     plan_digest="", allocation="optimal", task="learning", seeds=[], notes=[],
...     rounds=[RoundResult(round=1, accuracy=0.5, metrics={"loss": 0.9}, regions=2, silos=5)],
... )
>>> run.round_rows()
[{'round': 1, 'regions': 2, 'silos': 5, 'accuracy': 0.5, 'loss': 0.9, 'withheld': ''}]
"""

import math
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from fulcrum.core.plan.plan_file import content_digest
from fulcrum.core.plan.plan_reader import SupportsContent
from fulcrum.errors import DataError
from fulcrum.parsing import json_of
from fulcrum.planning.comparison import row_of
from fulcrum.planning.plan import Plan

ROUND_COLUMNS = ("round", "regions", "silos", "withheld")
"""What a table of rounds has beside metrics."""


class Measured(NamedTuple):
    """One point of a curve: the round, what was measured after it, and its standard error over seeds, if it has one."""

    round: int
    value: float
    error: float | None


class RoundResult(msgspec.Struct, kw_only=True):
    """What was measured after one round.

    Attributes:
        round: From 1.
        accuracy: On records that the server may see; None where it was not measured.
        accuracy_se: Its standard error; None with a single seed.
        metrics: What else was measured, by name.
        regions: Of a deployed round, how many regional sums are in the model.
        silos: And how many silos are in these sums.
        withheld: And the regions whose sums are not.
    """

    round: int
    accuracy: float | None = None
    accuracy_se: float | None = None
    metrics: dict[str, float] = {}
    regions: int | None = None
    silos: int | None = None
    withheld: list[str] = []

    def in_words(self, *, of: int | None = None) -> str:
        """Returns the round in one line, as it is told when it ends, of how many where that is known.

        >>> RoundResult(round=1, accuracy=0.53765, metrics={"loss": 0.9}, regions=2, withheld=["south"]).in_words(of=9)
        'round 1 of 9: 2 regional sums, accuracy 0.5376, loss 0.9, withheld by south'
        """
        measured = ({} if self.accuracy is None else {"accuracy": self.accuracy}) | self.metrics
        told = [] if self.regions is None else [f"{self.regions} regional sum{'' if self.regions == 1 else 's'}"]
        told += [f"{name} {value:.4g}" for name, value in measured.items()]
        told += [f"withheld by {', '.join(self.withheld)}"] if self.withheld else []
        return f"round {self.round}{f' of {of}' if of else ''}: {', '.join(told)}"


class RunResult(msgspec.Struct, kw_only=True):
    """A plan trained, as `save_run` wrote it in process, or `save_deployed_run` on a federation.

    Attributes:
        plan_digest: What was run.
        unkeyed_digest: The same plan before it was given the keys of its sites, where it was.
        allocation: The plan's.
        task: What was learned: the name of the data, or of the training module.
        engine: What ran it: `embedded`, `nvflare` or `flower`.
        seeds: Under which seeds; none where the noise was cryptographic.
        accuracy: After the last round; None where it was not measured.
        accuracy_se: Its standard error over seeds.
        reference: The accuracy without clip and noise; None where it was not trained.
        rounds: By round.
        notes: What a reader should know.
        command: What trained it, where that was a command.
    """

    plan_digest: str
    unkeyed_digest: str | None = None
    allocation: str
    task: str
    engine: str = "embedded"
    seeds: list[int]
    accuracy: float | None = None
    accuracy_se: float | None = None
    reference: float | None = None
    rounds: list[RoundResult]
    notes: list[str]
    command: str = ""

    def curves(self) -> dict[str, list[Measured]]:
        """Returns every metric by round, accuracy first; a round in which one was not measured is left out of it."""
        found: dict[str, list[Measured]] = {}
        for row in self.rounds:
            if row.accuracy is not None:
                found.setdefault("accuracy", []).append(Measured(row.round, row.accuracy, row.accuracy_se))
        for row in self.rounds:
            for name, value in row.metrics.items():
                found.setdefault(name, []).append(Measured(row.round, value, None))
        return found

    def round_rows(self) -> list[dict[str, Any]]:
        """Returns the rounds as rows, every metric a column; one that is called as another column is in brackets."""
        columns = {name: f"({name})" if name in ROUND_COLUMNS else name for name in self.curves()}
        rows = []
        for found in self.rounds:
            measured = {"accuracy": found.accuracy} | found.metrics
            rows.append(
                {"round": found.round, "regions": found.regions, "silos": found.silos}
                | {heading: measured.get(name) for name, heading in columns.items()}
                | {"withheld": ", ".join(found.withheld)}
            )
        return rows


class AllocationResult(msgspec.Struct, kw_only=True):
    """One row trained; errors are None with a single seed, and what earlier versions did not write is None."""

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


class ComparisonResult(msgspec.Struct, kw_only=True):
    """Every allocation trained at one target, as `save_comparison` wrote it."""

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
    """What a folder holds: a run, a comparison, or both."""

    run: RunResult | None
    comparison: ComparisonResult | None


def run_folder(folder: str | Path) -> Path:
    """Makes the folder of a run and returns it; one that cannot be written to is refused before any work is done."""
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=target).close()
    except OSError as error:
        raise DataError("run.folder-unusable", folder=folder, reason=error.strerror) from None
    return target


def read_results(folder: str | Path, plan: Plan) -> Results:
    """Reads run.json and comparison.json of a folder; what was trained under another plan is refused.

    Args:
        folder: As `fulcrum train -o`, `up -o`, `follow -o` and `compare --train -o` write it.
        plan: Which plan the results must be of.
    """
    where = Path(folder)
    run, comparison = _read(where / "run.json", RunResult), _read(where / "comparison.json", ComparisonResult)
    if run is None and comparison is None:
        raise DataError("run.results-missing", folder=folder)
    if run is not None and not _is_of(run, plan):
        raise DataError(
            "run.other-plan",
            file=where / "run.json",
            digest=run.plan_digest[:4],
            expected=plan.digest[:4],
            folder=folder,
        )
    if comparison is not None and not _same_target(comparison, plan):
        raise DataError("run.other-target", file=where / "comparison.json", folder=folder)
    return Results(run=run, comparison=comparison)


def _is_of(run: RunResult, plan: Plan) -> bool:
    """Whether a run is one of this plan, or of the plan that was made of it when sites were given their keys."""
    return run.plan_digest == plan.digest or (
        run.unkeyed_digest is not None and run.unkeyed_digest == unkeyed_digest(plan)
    )


def unkeyed_digest(plan: SupportsContent) -> str:
    """Returns the digest that a plan has without the keys of its sites: deploying it may add them."""
    return content_digest(msgspec.structs.replace(plan.content(), keys={}))


def _same_target(found: ComparisonResult, plan: Plan) -> bool:
    target = plan.target
    # A budget's plan has the epsilon that it reached; a comparison has what was asked for.
    asked = ({}, None) if target.budget is not None else (dict(target.epsilon), target.information)
    # The same allocation needs the same noise, unless sizes or regions were dealt anew for every seed.
    drawn = found.size_law != "declared" or plan.allocation == "misallocated"
    mine = [row.noise_budget for row in found.rows if row.allocation == row_of(plan) and not drawn]
    return (
        (found.federation_digest, found.rounds, found.delta, found.accountant, found.colluders, found.dropouts)
        == (plan.federation.digest, plan.rounds, plan.delta, plan.accountant, plan.colluders, plan.dropouts)
        and (found.epsilon, found.information) == asked
        and found.budget == target.budget
        and all(math.isclose(budget, plan.model_noise, rel_tol=1e-6) for budget in mine)
    )


_Kind = TypeVar("_Kind", bound=msgspec.Struct)


def _read(path: Path, kind: type[_Kind]) -> _Kind | None:
    """Reads a file of results; None where there is none."""
    try:
        return json_of(path.read_bytes(), kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError("server.file-unreadable", file=path, reason=error.strerror) from None
    except msgspec.MsgspecError as error:
        raise DataError("run.file-malformed", file=path, reason=str(error)) from None
