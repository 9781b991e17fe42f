"""The contributions of a round to the sum of a node: releases of silos at a region, sums of children further out.

`fulcrum.aggregation.regional_aggregator` stores contributions, and decides about sums, in one way for every tier.

An outer node accepts or refuses the sum of a child by everything except the values. The server sees which sums count,
and a test of one child's values would tell the server about that sum: a silo that helps the server could move the sum
to the edge of the test, and only the noise of one region would cover the outcome. The node adds up integers modulo 2^64
and tests the total, if the server sees the total anyway.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fulcrum.aggregation.norm_tests import largest_sum, least_sum, norm_bounds
from fulcrum.aggregation.presence import Aggregation
from fulcrum.aggregation.release_opening import Opener
from fulcrum.aggregation.stage_messages import StageEnd
from fulcrum.aggregation.sum_sealing import SumOpener
from fulcrum.core.messages.layout import Layout, dtype_of
from fulcrum.core.messages.membership import step_of
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld, regional_reply_from_bytes
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.store.database import MOST_BYTES
from fulcrum.core.topology import ROOT
from fulcrum.errors import ExchangeError

_LARGEST = 2**53  # a double holds every coordinate up to here exactly
_BEYOND = "the norm of the total is not the norm of honest sums"  # names no child: a name would tell about one sum


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contribution:
    """An opened release or sum.

    Attributes:
        sender: The silo of the release, or the child of the sum.
        round_number: The round.
        layout: The names and shapes of the arrays.
        values: All coordinates.
        step: The step of the lattice; None in research.
        silos: The silos whose releases the values include.
        data: The bytes to store, from which `Intake.restore` makes values and silos again.
    """

    sender: str
    round_number: int
    layout: Layout
    values: np.ndarray[Any, Any]
    step: float | None
    silos: tuple[str, ...]
    data: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A silo's decline, or the notice of a child that withholds its sum.

    Attributes:
        sender: The silo or child.
        round_number: The round.
    """

    sender: str
    round_number: int


class Intake(Protocol):
    """Opens and checks the contributions to a node's sum; a contribution from elsewhere is refused."""

    @property
    def senders(self) -> frozenset[str]:
        """The silos or children of the node."""

    def open(self, sealed: bytes) -> Contribution | Absence:
        """Returns the release or sum in an envelope, or the notice of a child without a sum."""

    def open_decline(self, data: bytes) -> Absence:
        """Returns the sender's statement that nothing follows; raises `ExchangeError` for every other message."""

    def check(self, contribution: Contribution) -> None:
        """Raises `ExchangeError` for a contribution that no honest sender sends, as far as one can show."""

    def fault_of(self, total: np.ndarray[Any, Any], silos: Collection[str], round_number: int) -> str | None:
        """Returns the reason against a total of accepted contributions that include silos; None for a good total."""

    def restore(self, sender: str, data: bytes) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
        """Returns values and silos of stored bytes."""


def intake_of(plan: VerifiedPlan, aggregation: Aggregation, node: str, key: str | Path) -> Intake:
    """Returns the intake of a node: of releases at a region, of sums further out.

    Args:
        plan: The plan.
        aggregation: The aggregation of the plan.
        node: The node.
        key: The node's private X25519 key file.
    """
    if aggregation.tree.level(node) == 0:
        return _Releases(plan, aggregation, node, key)
    return _Sums(plan, aggregation, node, key)


class _Releases:
    """The releases of a region's silos."""

    def __init__(self, plan: VerifiedPlan, aggregation: Aggregation, region: str, key: str | Path) -> None:
        self._plan, self._members = plan, aggregation.tree.silos(region)
        self._step, self._opener = step_of(plan, region), Opener(plan, region, key)

    @property
    def senders(self) -> frozenset[str]:
        return frozenset(self._members)

    def open(self, sealed: bytes) -> Contribution:
        release = self._opener.open(sealed)
        return Contribution(
            sender=release.silo,
            round_number=release.round_number,
            layout=release.layout,
            values=release.values,
            step=release.step,
            silos=(release.silo,),
            data=release.values.data.cast("B"),
        )

    def open_decline(self, data: bytes) -> Absence:
        silo, number = self._opener.open_decline(data)
        return Absence(sender=silo, round_number=number)

    def check(self, contribution: Contribution) -> None:
        plan, silo, values = self._plan, contribution.sender, contribution.values
        _check_length(plan, silo, values)
        # The bound keeps the sum of all senders within 64 bits: an overflow would wrap around unnoticed.
        most = min(_LARGEST, (2**63 - 1) // len(self._members))
        lattice = self._step is not None
        if not np.isfinite(values).all() or (lattice and not -most < values.min() <= values.max() < most):
            raise ExchangeError("region.release-not-finite", silo=silo)
        low, high = norm_bounds(plan, self._members[silo], len(values), contribution.round_number)
        if not low <= (size := _norm(values)) <= high:
            raise ExchangeError("region.release-norm", silo=silo, side="below" if size < low else "above")

    def fault_of(self, total: np.ndarray[Any, Any], silos: Collection[str], round_number: int) -> str | None:
        del total, silos, round_number  # every release was tested: the norm of no sum of them exceeds the largest sum
        return None

    def restore(self, sender: str, data: bytes) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
        return np.frombuffer(data, dtype=dtype_of(self._step)), (sender,)


class _Sums:
    """The sums of an outer node's children."""

    def __init__(self, plan: VerifiedPlan, aggregation: Aggregation, node: str, key: str | Path) -> None:
        self._plan, self._aggregation = plan, aggregation
        self._silos = {child: aggregation.tree.silos(child) for child in aggregation.tree.children(node)}
        self._reports = aggregation.tree.parent(node) == ROOT
        self._node, self._step, self._opener = node, step_of(plan, node), SumOpener(plan, node, key)

    @property
    def senders(self) -> frozenset[str]:
        return frozenset(self._silos)

    def open(self, sealed: bytes) -> Contribution | Absence:
        child, reply = self._opener.open(sealed)
        if isinstance(reply, StageEnd):
            raise ExchangeError("region.message-unexpected", region=self._node, child=child)
        if not set(reply.members if isinstance(reply, RegionalSum) else reply.missing) <= set(self._silos[child]):
            raise ExchangeError("region.child-sum-silos", child=child)
        if isinstance(reply, Withheld):
            return Absence(sender=child, round_number=reply.round_number)
        return Contribution(
            sender=child,
            round_number=reply.round_number,
            layout=reply.layout,
            values=reply.values,
            step=reply.step,
            silos=reply.members,
            data=memoryview(reply.to_bytes()),
        )

    def open_decline(self, data: bytes) -> Absence:
        opened = self.open(data)
        if isinstance(opened, Contribution):
            raise ExchangeError("region.message-unexpected", region=self._node, child=opened.sender)
        return opened

    def check(self, contribution: Contribution) -> None:
        child = contribution.sender
        if contribution.step != self._step:
            raise ExchangeError("region.child-sum-lattice", child=child)
        if reason := self._aggregation.lacking(child, contribution.silos):
            raise ExchangeError("region.child-sum-lacks-noise", child=child, reason=reason)
        _check_length(self._plan, child, contribution.values)  # and no test of the values: see the top of the module

    def fault_of(self, total: np.ndarray[Any, Any], silos: Collection[str], round_number: int) -> str | None:
        plan, size = self._plan, _norm(total)
        if not self._reports:  # the server does not see this total, and must not see the outcome of a test
            return None if np.isfinite(size) else _BEYOND
        below = {silo: index for members in self._silos.values() for silo, index in members.items()}
        rows = [below[silo] for silo in silos]
        least = least_sum(plan, rows, len(total), round_number)
        return None if least <= size <= largest_sum(plan, rows, len(total)) else _BEYOND

    def restore(self, sender: str, data: bytes) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
        reply = regional_reply_from_bytes(data)
        if not isinstance(reply, RegionalSum) or reply.region != sender:
            raise ExchangeError("region.child-sum-silos", child=sender)
        return reply.values, reply.members


def _check_length(plan: VerifiedPlan, sender: str, values: np.ndarray[Any, Any]) -> None:
    """Raises `ExchangeError` for values of another model, and for values too long to store."""
    if len(values) != (plan.parameters or len(values)) or not len(values):
        raise ExchangeError("region.release-parameters", silo=sender, parameters=len(values), expected=plan.parameters)
    if values.nbytes > MOST_BYTES:
        raise ExchangeError("region.release-too-long", silo=sender, bytes=values.nbytes, most=MOST_BYTES)


def _norm(values: np.ndarray[Any, Any]) -> float:
    with np.errstate(over="ignore"):
        return float(np.linalg.norm(values.astype(np.float64)))
