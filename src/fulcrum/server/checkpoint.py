"""A server's checkpoint: the model, the history of rounds, and the state of the server's rule.

The file is an .npz for NumPy: `model` is the global model as a row, `state` describes the model in JSON. Under every
rule but "sum" the file also has the arrays of the rule's state, by name; the numbers of the state are in the JSON. The
file is written whole: a crash leaves the end of a single round, never a mixture of two.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec
import numpy as np

from fulcrum.aggregation.presence import Aggregation, aggregation_of
from fulcrum.arrays import FloatArray, read_only
from fulcrum.core.messages.layout import Layout
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import ExchangeError, ParameterError, StorageError, in_one_line, listing
from fulcrum.npz import read_npz
from fulcrum.parsing import json_of
from fulcrum.planning.inputs.server_settings import server_rule_of
from fulcrum.rules.server_rule import RESERVED, RoundDiagnostics, ServerRule, ServerState

FORMAT = "fulcrum.checkpoint/2"

_BEFORE = "fulcrum.checkpoint/1"  # for the rule "sum" alone, with the same content

NAME = "checkpoint.npz"
"""The file in a coordinator's folder."""


class RoundSummary(TypedDict):
    """The outcome of a round.

    Attributes:
        round: The number of the round.
        summed: The regions with sums in the model.
        members: By region of `summed`, the silos in the sum.
        withheld: By region with a withheld sum, the reason.
        missing: The regions without an answer.
        diagnostics: The figures of the server's rule, computed from released sums alone.
    """

    round: int
    summed: list[str]
    members: dict[str, list[str]]
    withheld: dict[str, str]
    missing: list[str]
    diagnostics: NotRequired[RoundDiagnostics]


class Standing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The standing of a federation between two rounds.

    `pooling` has the number of classes, if the model is a softmax head, and the numbers of the server's state by name;
    under the rule "sum" `pooling` is null.
    """

    plan_digest: str
    round_number: int
    layout: Layout
    history: list[RoundSummary]
    format: str = FORMAT
    pooling: dict[str, float | int | None] | None = None

    @property
    def classes(self) -> int | None:
        """The number of classes of a softmax head; None for any further model, and under the rule "sum"."""
        classes = (self.pooling or {}).get("classes")
        return classes if isinstance(classes, int) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """The whole memory of a server between two rounds.

    Attributes:
        standing: The standing of the federation.
        state: The state of the server's rule, with the global model as a row.
    """

    standing: Standing
    state: ServerState

    def write(self, folder: Path) -> None:
        """Writes the checkpoint whole; the file is synced at the return.

        Raises:
            ParameterError: The state of the server's rule has a name that no checkpoint can store.
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


def history_of(folder: Path, plan: VerifiedPlan, *, logical: bool = False) -> tuple[RoundSummary, ...]:
    """Returns the outcomes of all finished rounds of a plan; () without a checkpoint."""
    there = (folder / NAME).exists()
    return tuple(read_checkpoint(folder, plan, logical=logical).standing.history) if there else ()


def read_checkpoint(folder: Path, plan: VerifiedPlan, *, logical: bool = False) -> Checkpoint:
    """Returns the checkpoint of a plan.

    The caller never writes over a refused file: a checkpoint of a different plan may be the only copy of a model.

    Args:
        folder: The folder of the checkpoint.
        plan: The plan of the checkpoint.
        logical: True for an engine without aggregators: the history then names regions, whatever the tiers further out.

    Raises:
        StorageError: The file cannot be read, or is no checkpoint that a server under the plan could have written.
        ExchangeError: The checkpoint belongs to a different plan, has no state of the plan's rule, or has a round that
            the plan's epsilon does not cover.
    """
    file, rule = folder / NAME, server_rule_of(plan)
    with _open_arrays(file) as stored:
        standing = _standing(file, stored, plan, rule)
        _check_complete_rounds(file, standing, aggregation_of(plan, logical=logical))
        model: FloatArray = stored["model"]
        if model.shape != (standing.layout.parameters,) or model.dtype != np.float64:
            raise _no_checkpoint(file)
        first = rule.begin(model)
        arrays: dict[str, FloatArray] = {name: stored[name] for name in first.arrays}
        if set(stored) != {"state", "model", *arrays}:
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


def _same(state: ServerState, expected: ServerState) -> bool:
    """Returns True if the arrays and numbers of both states are equal, by name."""
    arrays = (np.array_equal(array, expected.arrays[name]) for name, array in state.arrays.items())
    return all(arrays) and dict(state.numbers) == dict(expected.numbers)


@contextlib.contextmanager
def _open_arrays(file: Path) -> Iterator[Any]:
    """Reads the arrays of a checkpoint; every failure in the body becomes a `StorageError`."""
    if file.exists() and not file.is_file():  # to open a pipe would wait for ever
        raise StorageError("checkpoint.not-a-file", file=file, kind="a folder" if file.is_dir() else "no file")
    try:
        yield read_npz(file)
    except (ExchangeError, StorageError):
        raise
    except OSError as error:
        raise StorageError("file.unreadable", file=file, reason=error.strerror or str(error)) from None
    except Exception as error:  # zipfile, NumPy and msgspec raise many kinds for damaged bytes
        raise StorageError("checkpoint.malformed", file=file, reason=in_one_line(error)) from None


def _standing(file: Path, stored: Any, plan: VerifiedPlan, rule: ServerRule) -> Standing:
    """Returns the standing in a checkpoint, after the checks against the plan and the rule."""
    standing = json_of(stored["state"].tobytes(), Standing)
    standing.layout.check("the model of the checkpoint")
    rounds = [entry["round"] for entry in standing.history]
    if standing.format not in (FORMAT, _BEFORE) or [*rounds, standing.round_number] != list(range(1, len(rounds) + 2)):
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
    return standing


def _check_complete_rounds(file: Path, standing: Standing, aggregation: Aggregation) -> None:
    """Raises `ExchangeError` if a past round lacks a region's sum, and the plan counts on the noise of every region.

    Servers of earlier versions went on without a region under any plan. An observer of the model after an incomplete
    round saw less noise than the plan's epsilon for the global sum counts on, and no later round can add the noise.
    """
    together = [regions for regions in aggregation.joint_senders() if len(regions) > 1]
    for entry in standing.history:
        summed = set(entry["summed"])
        partial = next((regions for regions in together if not (regions <= summed or regions.isdisjoint(summed))), None)
        if partial is not None:
            raise ExchangeError(
                "checkpoint.round-incomplete", file=file, round=entry["round"], region=min(partial - summed)
            )


def _no_checkpoint(file: Path) -> StorageError:
    return StorageError("checkpoint.format-unknown", file=file, format=FORMAT)
