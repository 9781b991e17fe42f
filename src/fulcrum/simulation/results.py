"""What training left in a folder, read back and held against the plan that it is shown beside."""

import math
from pathlib import Path
from typing import TypeVar

import msgspec

from fulcrum.errors import DataError
from fulcrum.planning.comparing import model_noise, row_of
from fulcrum.planning.plan import Plan


class RoundResult(msgspec.Struct, kw_only=True):
    """Accuracy after one round; the error is None with a single seed."""

    round: int
    accuracy: float
    accuracy_se: float | None


class RunResult(msgspec.Struct, kw_only=True):
    """A plan trained, as `save_run` wrote it."""

    plan_digest: str
    allocation: str
    task: str
    seeds: list[int]
    accuracy: float
    accuracy_se: float | None
    reference: float
    rounds: list[RoundResult]
    notes: list[str]


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


class Results(msgspec.Struct, kw_only=True):
    """What a folder holds: a run, a comparison, or both."""

    run: RunResult | None
    comparison: ComparisonResult | None


def read_results(folder: str | Path, plan: Plan) -> Results:
    """Reads run.json and comparison.json of a folder; what was trained under another plan is refused.

    Args:
        folder: As `fulcrum train -o` and `fulcrum compare --train -o` write it.
        plan: Which plan the results must be of.
    """
    where = Path(folder)
    run, comparison = _read(where / "run.json", RunResult), _read(where / "comparison.json", ComparisonResult)
    if run is None and comparison is None:
        raise DataError(
            f"{folder} holds no run.json and no comparison.json. Make one with: fulcrum train PLAN -o {folder}"
        )
    if run is not None and run.plan_digest != plan.digest:
        raise DataError(
            f"{where / 'run.json'} is of another plan (digest {run.plan_digest[:4]}.., expected {plan.digest[:4]}..). "
            f"Run: fulcrum train PLAN -o {folder}"
        )
    if comparison is not None and not _same_target(comparison, plan):
        raise DataError(
            f"{where / 'comparison.json'} is of another federation or target. "
            f"Run: fulcrum compare FEDERATION --train -o {folder}, with the plan's settings"
        )
    return Results(run=run, comparison=comparison)


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
        and all(math.isclose(budget, model_noise(plan), rel_tol=1e-6) for budget in mine)
    )


_Kind = TypeVar("_Kind", bound=msgspec.Struct)


def _read(path: Path, kind: type[_Kind]) -> _Kind | None:
    """Reads a file of results; None where there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not what training writes: {error}") from None
