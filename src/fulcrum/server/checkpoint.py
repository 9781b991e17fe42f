"""A server's checkpoint: the model, what became of every round, and what a server that pools remembers of its regions.

The file is an .npz that anybody's NumPy reads: `model` is the global model in one row, `state` says what it is in JSON.
Where the plan's server pools there are also `start`, the model before round 1, and what `fulcrum.estimation` goes on
from: `moved`, `said`, `heard` and `noise`. It is written whole, so that it holds one round's end and no other's.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray, read_only
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.membership import joint_senders
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import ExchangeError, StorageError, in_one_line
from fulcrum.npz import read_npz
from fulcrum.parsing import json_of
from fulcrum.rules.server_rule import RoundDiagnostics, ServerState

FORMAT = "fulcrum.checkpoint/2"

_BEFORE = "fulcrum.checkpoint/1"  # knew servers that add up alone, and of them it says the same

NAME = "checkpoint.npz"
"""The file in a coordinator's folder."""


class RoundSummary(TypedDict):
    """What became of a round.

    Attributes:
        round: Which one.
        summed: The regions whose sums are in the model.
        members: For each of them, the silos in its sum.
        withheld: For each region whose sum was withheld, why.
        missing: The regions that did not answer.
        diagnostics: What a server that pools can tell of the round, from released sums alone.
    """

    round: int
    summed: list[str]
    members: dict[str, list[str]]
    withheld: dict[str, str]
    missing: list[str]
    diagnostics: NotRequired[RoundDiagnostics]


class PoolingSteps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a server that pools knows beside arrays: the classes of its softmax head, and the steps of its rounds."""

    classes: int | None
    steps: float
    step: float


class Standing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a federation stands between two rounds."""

    plan_digest: str
    round_number: int
    layout: Layout
    history: list[RoundSummary]
    format: str = FORMAT
    pooling: PoolingSteps | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pooling:
    """What a server that pools goes on from.

    Attributes:
        start: The model before round 1; the model is this and how far `state` has it moved.
        state: What regions said so far.
        classes: Of the softmax head that the model is, if it is one.
    """

    start: FloatArray
    state: ServerState
    classes: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """All that a server must know to go on.

    Attributes:
        standing: Where the federation stands.
        model: The global model in one row.
        pooling: What a server that pools goes on from; None for one that adds up.
    """

    standing: Standing
    model: FloatArray
    pooling: Pooling | None = None

    def write(self, folder: Path) -> None:
        """Writes the checkpoint whole; synced when it returns."""
        standing = msgspec.structs.replace(self.standing, format=FORMAT)
        arrays: dict[str, Any] = {"model": self.model}
        if self.pooling is not None:
            state = self.pooling.state
            arrays |= {"start": self.pooling.start} | {name: getattr(state, name) for name in _ARRAYS}
            steps = PoolingSteps(classes=self.pooling.classes, steps=state.steps, step=state.step)
            standing = msgspec.structs.replace(standing, pooling=steps)
        encoded = np.frombuffer(msgspec.json.encode(standing), dtype=np.uint8)
        write_whole(folder / NAME, lambda file: np.savez(file, state=encoded, **arrays))


_ARRAYS = ("moved", "said", "heard", "noise")
"""Of a `ServerState`."""

_ROUNDING = 1e-9  # relative, of sums of steps


def history_of(folder: Path, plan: VerifiedPlan) -> tuple[RoundSummary, ...]:
    """Returns what became of the rounds of a plan that are over; nothing where there is no checkpoint."""
    return tuple(read_checkpoint(folder, plan).standing.history) if (folder / NAME).exists() else ()


def read_checkpoint(folder: Path, plan: VerifiedPlan) -> Checkpoint:
    """Reads the checkpoint of a plan; what is not one, or of another plan, raises and is not written over."""
    file = folder / NAME
    with _opened(file) as found:
        standing = _standing(file, found, plan)
        names = ("model",) if standing.pooling is None else ("model", "start", *_ARRAYS)
        arrays: dict[str, FloatArray] = {name: found[name] for name in names}
    size, regions = standing.layout.parameters, len(plan.federation.innermost.nodes)
    shapes = {"said": (regions, size), "heard": (regions,), "noise": (regions,)}
    if any(array.shape != shapes.get(name, (size,)) or array.dtype != np.float64 for name, array in arrays.items()):
        raise _no_checkpoint(file)
    model, pooling = arrays.pop("model"), None
    if (steps := standing.pooling) is not None:
        start = arrays.pop("start")
        state = ServerState(**arrays, steps=steps.steps, step=steps.step, rounds=standing.round_number - 1)
        if not np.array_equal(model, start + state.moved) or not _can_be(state):
            raise _no_checkpoint(file)
        pooling = Pooling(start=start, state=state, classes=steps.classes)
    if not np.isfinite(model).all():
        raise _no_checkpoint(file)
    return Checkpoint(standing=standing, model=read_only(model), pooling=pooling)


def _can_be(state: ServerState) -> bool:
    """Whether a server that pools can have come to a state: one that cannot would give a model that nobody meant."""
    spoke = state.heard > 0
    return (
        state.said is not None
        and state.finite
        and state.step >= 0
        and bool(((state.heard >= 0) & (state.heard <= state.steps * (1 + _ROUNDING)) & (state.noise >= 0)).all())
        and bool((spoke == (state.noise > 0)).all())
        and bool(spoke.any()) == (state.step > 0)
        and not state.said[~spoke].any()
    )


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Reads the arrays of a checkpoint; whatever goes wrong with it is a `StorageError`."""
    if file.exists() and not file.is_file():  # opening a pipe would wait for ever
        raise StorageError(f"{file} is {'a folder' if file.is_dir() else 'no file'}. Choose another folder")
    try:
        yield read_npz(file)
    except (ExchangeError, StorageError):
        raise
    except OSError as error:
        raise StorageError(f"{file} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # whatever zipfile, numpy and msgspec make of it
        raise StorageError(f"{file} is not a checkpoint: {in_one_line(error)}") from None


def _standing(file: Path, found: Any, plan: VerifiedPlan) -> Standing:
    """Returns where a checkpoint says that the federation of a plan stands."""
    standing = json_of(found["state"].tobytes(), Standing)
    standing.layout.check("the model of the checkpoint")
    told = [entry["round"] for entry in standing.history]
    if standing.format not in (FORMAT, _BEFORE) or [*told, standing.round_number] != list(range(1, len(told) + 2)):
        raise _no_checkpoint(file)
    if standing.plan_digest != plan.digest:
        raise ExchangeError(f"{file} was written under another plan. Choose another folder")
    if standing.round_number > plan.rounds + 1:
        raise _no_checkpoint(file)
    if plan.server != "sum" and standing.format == _BEFORE:
        kept = "keeps nothing of what regions said"
        raise ExchangeError(f"{file} is of format {_BEFORE}, which {kept}, and this plan's server pools it. Start anew")
    if (standing.pooling is None) != (plan.server == "sum"):
        raise _no_checkpoint(file)
    _check_complete_rounds(file, standing, plan)
    return standing


def _check_complete_rounds(file: Path, standing: Standing, plan: VerifiedPlan) -> None:
    """Raises `ExchangeError` where a past round added some sums, and the plan counts on the noise of every region.

    Servers of earlier versions went on without a region under any plan. An observer of the model of such a round saw
    less noise than the plan's epsilon for the global sum counts on, and no later round mends this.
    """
    together = [regions for regions in joint_senders(plan) if len(regions) > 1]
    for entry in standing.history:
        summed = set(entry["summed"])
        partial = next((regions for regions in together if not (regions <= summed or regions.isdisjoint(summed))), None)
        if partial is not None:
            raise ExchangeError(
                f"{file}: round {entry['round']} has no sum of region {min(partial - summed)!r}, and the plan's "
                "epsilon for the global sum counts on the noise of every region. Continue under a new plan in another "
                "folder: fulcrum replan"
            )


def _no_checkpoint(file: Path) -> StorageError:
    return StorageError(f"{file} is not a checkpoint of format {FORMAT}")
