"""A server's checkpoint: the model, what became of every round, and what the server's rule goes on from.

The file is an .npz that anybody's NumPy reads: `model` is the global model in one row, `state` says what it is in JSON.
By every rule but "sum" there are also the arrays of the rule's state, by their names; its numbers stand in the JSON.
The file is written whole, so that it holds one round's end and no other's.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
import numpy as np

from fulcrum.aggregation.presence import aggregation_of
from fulcrum.arrays import FloatArray, read_only
from fulcrum.core.messages.layout import Layout
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import ExchangeError, ParameterError, StorageError, in_one_line, listing
from fulcrum.npz import read_npz
from fulcrum.parsing import json_of
from fulcrum.planning.server_settings import server_rule_of
from fulcrum.rules.server_rule import RESERVED, RoundDiagnostics, ServerRule, ServerState

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
        diagnostics: The figures of the round that the server's rule can tell, from released sums alone.
    """

    round: int
    summed: list[str]
    members: dict[str, list[str]]
    withheld: dict[str, str]
    missing: list[str]
    diagnostics: NotRequired[RoundDiagnostics]


class Standing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a federation stands between two rounds.

    `pooling` has the classes of the softmax head that the model is, if it is one, and the numbers of the server's
    state by their names; it is null by the rule "sum".
    """

    plan_digest: str
    round_number: int
    layout: Layout
    history: list[RoundSummary]
    format: str = FORMAT
    pooling: dict[str, float | int | None] | None = None

    @property
    def classes(self) -> int | None:
        """The classes of the softmax head that the model is; None for another model, and by the rule "sum"."""
        classes = (self.pooling or {}).get("classes")
        return classes if isinstance(classes, int) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """All that a server must know to go on.

    Attributes:
        standing: Where the federation stands.
        state: What the server's rule goes on from, the global model in one row first.
    """

    standing: Standing
    state: ServerState

    def write(self, folder: Path) -> None:
        """Writes the checkpoint whole; synced when it returns.

        Raises:
            ParameterError: The state of the server's rule has a name that a checkpoint cannot keep.
        """
        for name in (*self.state.arrays, *self.state.numbers):
            if not name.isidentifier() or name in RESERVED:
                raise ParameterError("rule.state-name", reserved=listing(sorted(RESERVED)), name=name)
        standing = msgspec.structs.replace(self.standing, format=FORMAT)
        if standing.pooling is not None:
            pooling = {"classes": standing.classes, **self.state.numbers}
            standing = msgspec.structs.replace(standing, pooling=pooling)
        encoded = np.frombuffer(msgspec.json.encode(standing), dtype=np.uint8)
        arrays: dict[str, Any] = {"model": self.state.model, **self.state.arrays}
        write_whole(folder / NAME, lambda file: np.savez(file, state=encoded, **arrays))


def history_of(folder: Path, plan: VerifiedPlan) -> tuple[RoundSummary, ...]:
    """Returns what became of the rounds of a plan that are over; nothing where there is no checkpoint."""
    return tuple(read_checkpoint(folder, plan).standing.history) if (folder / NAME).exists() else ()


def read_checkpoint(folder: Path, plan: VerifiedPlan) -> Checkpoint:
    """Reads the checkpoint of a plan; what is not one, or of another plan, raises and is not written over."""
    file, rule = folder / NAME, server_rule_of(plan)
    with _opened(file) as found:
        standing = _standing(file, found, plan, rule)
        model: FloatArray = found["model"]
        if model.shape != (standing.layout.parameters,) or model.dtype != np.float64:
            raise _no_checkpoint(file)
        first = rule.begin(model)
        arrays: dict[str, FloatArray] = {name: found[name] for name in first.arrays}
        if set(found) != {"state", "model", *arrays}:
            raise _no_checkpoint(file)
    numbers = {name: value for name, value in (standing.pooling or {}).items() if name != "classes"}
    fits = set(numbers) == set(first.numbers) and None not in numbers.values()
    fits &= all(arrays[name].shape == like.shape for name, like in first.arrays.items())
    if not fits or any(array.dtype != np.float64 for array in arrays.values()):
        raise _no_checkpoint(file)
    values = {name: float(value or 0.0) for name, value in numbers.items()}
    state = ServerState(model=read_only(model), arrays=arrays, numbers=values)
    if not state.finite or not rule.can_be(state):
        raise _no_checkpoint(file)
    if standing.round_number == 1 and not _same(state, first):
        raise _no_checkpoint(file)
    return Checkpoint(standing=standing, state=state)


def _same(state: ServerState, other: ServerState) -> bool:
    """Returns True for states of the same model that have the same arrays and numbers, by the same names."""
    arrays = (np.array_equal(array, other.arrays[name]) for name, array in state.arrays.items())
    return all(arrays) and dict(state.numbers) == dict(other.numbers)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Reads the arrays of a checkpoint; whatever goes wrong with it is a `StorageError`."""
    if file.exists() and not file.is_file():  # opening a pipe would wait for ever
        raise StorageError("checkpoint.not-a-file", file=file, kind="a folder" if file.is_dir() else "no file")
    try:
        yield read_npz(file)
    except (ExchangeError, StorageError):
        raise
    except OSError as error:
        raise StorageError("server.file-unreadable", file=file, reason=error.strerror or str(error)) from None
    except Exception as error:  # whatever zipfile, numpy and msgspec make of it
        raise StorageError("checkpoint.malformed", file=file, reason=in_one_line(error)) from None


def _standing(file: Path, found: Any, plan: VerifiedPlan, rule: ServerRule) -> Standing:
    """Returns where a checkpoint says that the federation of a plan stands."""
    standing = json_of(found["state"].tobytes(), Standing)
    standing.layout.check("the model of the checkpoint")
    told = [entry["round"] for entry in standing.history]
    if standing.format not in (FORMAT, _BEFORE) or [*told, standing.round_number] != list(range(1, len(told) + 2)):
        raise _no_checkpoint(file)
    if standing.plan_digest != plan.digest:
        raise ExchangeError("checkpoint.other-plan", file=file)
    if standing.round_number > plan.rounds + 1:
        raise _no_checkpoint(file)
    if not rule.adds_up and standing.format == _BEFORE:
        raise ExchangeError("checkpoint.format-outdated", file=file, format=_BEFORE)
    if (standing.pooling is None) != rule.adds_up:
        raise _no_checkpoint(file)
    if standing.pooling is not None and isinstance(standing.pooling.get("classes", 0.0), float):
        raise _no_checkpoint(file)
    _check_complete_rounds(file, standing, plan)
    return standing


def _check_complete_rounds(file: Path, standing: Standing, plan: VerifiedPlan) -> None:
    """Raises `ExchangeError` where a past round added some sums, and the plan counts on the noise of every region.

    Servers of earlier versions went on without a region under any plan. An observer of the model of such a round saw
    less noise than the plan's epsilon for the global sum counts on, and no later round mends this.
    """
    together = [regions for regions in aggregation_of(plan).joint_senders() if len(regions) > 1]
    for entry in standing.history:
        summed = set(entry["summed"])
        partial = next((regions for regions in together if not (regions <= summed or regions.isdisjoint(summed))), None)
        if partial is not None:
            raise ExchangeError(
                "checkpoint.round-incomplete", file=file, round=entry["round"], region=min(partial - summed)
            )


def _no_checkpoint(file: Path) -> StorageError:
    return StorageError("checkpoint.format-unknown", file=file, format=FORMAT)
