"""What one silo releases in one round: its update clipped, perturbed, weighted and accounted for, and nothing else.

>>> import numpy as np
>>> from fulcrum.noise import SeededNoise
>>> from fulcrum.planning import plan
>>> made = plan("isic-paper", rounds=2, epsilon=1.0)
>>> sent = release({"head": np.ones((2, 3))}, made, "region-1-1", 1, noise=SeededNoise(seed=0))
>>> sent.values.shape, sent.step
((6,), None)

In research a release is floating point and its noise seeded. In deployment it is integers on the region's lattice,
its noise cryptographic, and its bytes are in the silo's ledger, charged, before they are returned: what is returned
may be sent, and sent again, as it is.
"""

import hashlib
import logging
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np

from fulcrum.errors import DivergedUpdateError, RefusedReleaseError, ReleaseError, suggestion
from fulcrum.federation import SILO
from fulcrum.lattice import check_width
from fulcrum.ledger import Allowance, Cost, Ledger
from fulcrum.mechanism import clip
from fulcrum.noise import SecureNoise, SeededNoise
from fulcrum.plans import Plan
from fulcrum.policy import Policy
from fulcrum.verification import verify

Update: TypeAlias = np.ndarray[Any, Any] | Sequence[np.ndarray[Any, Any]] | Mapping[str, np.ndarray[Any, Any]]
"""An array, a list of arrays, or a mapping of arrays, of any float dtype and shape."""

_PASSED: set[tuple[str, str, bytes, Allowance]] = set()

alarm = logging.getLogger("fulcrum.alarm")
"""Where a silo is told, and nobody else, that its training diverged."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The names and shapes of an update's arrays, in order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def parameters(self) -> int:
        """The number of coordinates."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def digest(self) -> str:
        """A short name for the layout, the same for the same names and shapes."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    plan_digest: str
    silo: str
    region: str
    round_number: int
    layout: Layout
    step: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Release:
    """A silo's weighted, noisy contribution to its region's sum.

    Attributes:
        plan_digest: The plan it was made under.
        silo: Whose it is.
        region: Whose sum it goes into.
        round_number: In which round.
        layout: The names and shapes of the arrays.
        values: All coordinates: integers in units of `step`, or floating point in research.
        step: The step of the region's lattice; None in research.
    """

    plan_digest: str
    silo: str
    region: str
    round_number: int
    layout: Layout
    values: np.ndarray[Any, Any]
    step: float | None

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the contribution as arrays by name, in the units of the update."""
        scaled = self.values * (1.0 if self.step is None else self.step)
        ends = np.cumsum([math.prod(shape) for shape in self.layout.shapes])
        parts = np.split(scaled, ends[:-1]) if len(ends) else []
        named = zip(self.layout.names, self.layout.shapes, parts, strict=True)
        return {name: part.reshape(shape) for name, shape, part in named}

    def to_bytes(self) -> bytes:
        """Returns the bytes to send: a header, then the values, little-endian."""
        header = _Header(
            plan_digest=self.plan_digest,
            silo=self.silo,
            region=self.region,
            round_number=self.round_number,
            layout=self.layout,
            step=self.step,
        )
        encoded = msgspec.msgpack.encode(header)
        kind = "<f8" if self.step is None else "<i8"
        return len(encoded).to_bytes(4, "little") + encoded + self.values.astype(kind).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Release":
        """Returns the release that these bytes are, or raises `ReleaseError`."""
        try:
            size = int.from_bytes(data[:4], "little")
            header = msgspec.msgpack.decode(data[4 : 4 + size], type=_Header)
            values = np.frombuffer(data[4 + size :], dtype="<f8" if header.step is None else "<i8")
        except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
            raise ReleaseError(f"these bytes are not a release: {error}") from None
        if len(values) != header.layout.parameters:
            raise ReleaseError(f"a release of {header.layout.parameters} coordinates holds {len(values)}")
        return cls(
            plan_digest=header.plan_digest,
            silo=header.silo,
            region=header.region,
            round_number=header.round_number,
            layout=header.layout,
            values=values,
            step=header.step,
        )


def release(
    update: Update,
    plan: Plan,
    silo: str,
    round_number: int,
    *,
    ledger: Ledger | None = None,
    noise: SeededNoise | SecureNoise | None = None,
    policy: Policy | None = None,
    basis: str = "",
) -> Release:
    """Returns what a silo may send in a round.

    Guarantees in deployment, neighbours differing in the silo's whole dataset (sensitivity 2C):

    - the norm of what enters the noise is at most weight times C, whatever the dtype, shape or rounding;
    - noise is at least as wide as the plan says, drawn for this release alone;
    - the plan verifies and the policy passes it, or nothing is released;
    - bytes and cost are on disk before this returns; asked again on the same basis, the same bytes come back free;
    - past the plan's rounds or budget, or on another basis for a round already released: refused;
    - an update that is not finite is released as zero plus noise, and the silo alone is told (`alarm`): refusing would
      tell the observer that this silo diverged, which no epsilon covers.

    Args:
        update: What local training changed: float arrays; integers are refused, since counts and buffers are not
            updates.
        plan: What to release under. A research plan takes seeded noise, a deployment plan refuses it.
        silo: Whose update it is.
        round_number: From 1.
        ledger: The silo's ledger; required in deployment.
        noise: `SeededNoise` in research; in deployment `SecureNoise`, the default.
        policy: What the silo itself insists on; checked before the first release under a plan.
        basis: What the update was computed from, such as the digest of the global model.
    """
    index = _index_of(plan, silo)
    round_number = checked_round(plan, round_number)
    if plan.purpose == "research":
        return _research_release(update, plan, index, round_number, noise)
    if isinstance(noise, SeededNoise):
        raise ReleaseError("a deployment plan refuses seeded noise: it can be drawn again. Leave noise out")
    if noise is not None and type(noise) is not SecureNoise:
        raise ReleaseError(f"a deployment plan takes SecureNoise alone, got {type(noise).__name__}. Leave noise out")
    if plan.injection != "silo":
        raise ReleaseError("in deployment every silo draws its own noise, and this plan leaves it to aggregators")
    if ledger is None:
        raise ReleaseError("a deployment release needs the silo's ledger. Open one with Ledger.open")
    if ledger.silo != silo:
        raise ReleaseError(f"the ledger is that of silo {ledger.silo!r}, not of {silo!r}")
    kept = prepared_release(update, plan, silo, round_number, ledger=ledger, policy=policy, basis=basis)
    if kept is not None:
        return kept
    layout, flat = _flattened(update)
    made = _lattice_release(flat, layout, plan, index, round_number, noise or SecureNoise())
    recorded = ledger.record(
        round_number=round_number, basis=_asked(layout, basis), payload=made.to_bytes(), cost=_cost_of(plan, index)
    )
    return made if recorded.fresh else Release.from_bytes(recorded.payload)


def checked_round(plan: Plan, round_number: Any) -> int:
    """Returns a round as a number, or raises `ReleaseError` unless the plan has it."""
    try:
        found = operator.index(round_number)
    except TypeError:
        raise ReleaseError(f"a round is a whole number from 1, got {round_number!r}") from None
    if not 1 <= found <= plan.rounds:
        raise ReleaseError(f"round {found} is outside the plan's rounds 1 to {plan.rounds}. Nothing is released")
    return found


def prepared_release(
    model: Update,
    plan: Plan,
    silo: str,
    round_number: int,
    *,
    ledger: Ledger,
    policy: Policy | None = None,
    basis: str = "",
) -> Release | None:
    """Asks before anything is trained: returns a round's release if the ledger holds it, None if it may be made.

    Args:
        model: Arrays of the update's names and shapes, such as the global model.
        plan: What is released under, for deployment.
        silo: Whose release it is.
        round_number: From 1.
        ledger: The silo's ledger.
        policy: What the silo itself insists on.
        basis: What the update is computed from.

    Raises:
        FulcrumError: Whatever `release` would refuse it for, whichever update it were given.
    """
    index, round_number = _index_of(plan, silo), checked_round(plan, round_number)
    begin(plan, silo, ledger, policy=policy)
    layout, _ = _flattened(model)
    _check_layout(plan, layout, ledger)
    kept = ledger.stored(round_number, _asked(layout, basis))
    if kept is not None:
        return Release.from_bytes(kept)
    reason = ledger.would_exceed(_cost_of(plan, index), round_number, basis=_asked(layout, basis))
    if reason is not None:
        raise RefusedReleaseError(reason)
    return None


def _cost_of(plan: Plan, index: int) -> Cost:
    return Cost(**_both(plan.cost(index), plan))


def _asked(layout: Layout, basis: str) -> str:
    """What a ledger knows a round's release by: the layout, and what it was computed from."""
    return f"{layout.digest} {basis}"


def begin(plan: Plan, silo: str, ledger: Ledger, *, policy: Policy | None = None) -> None:
    """Binds a silo's ledger to a plan that verifies and that the silo's own policy passes; both are asked once."""
    allowance = allowance_of(plan, silo)
    rules = b"" if policy is None else msgspec.json.encode(policy)
    if (passed := (plan.digest, silo, rules, allowance)) not in _PASSED:
        failed = next((check for check in verify(plan) if not check.holds), None)
        if failed is not None:
            raise ReleaseError(f"the plan does not hold what it says: {failed.name}, {failed.detail}")
        if policy is not None:
            policy.check(plan, silo)
        _PASSED.add(passed)
    if ledger.allowance != allowance:
        ledger.begin(allowance)  # refuses other numbers under the digest it is bound to


def allowance_of(plan: Plan, silo: str) -> Allowance:
    """Returns what a plan allows a silo in all, what it spent before included."""
    index = _index_of(plan, silo)
    each = plan.cost(index)
    before = {tier: float(plan.target.spent[tier][index]) if tier in plan.target.spent else 0.0 for tier in each}
    total = {tier: before[tier] + plan.rounds * each[tier] for tier in each}
    return Allowance(plan_digest=plan.digest, rounds=plan.rounds, **_both(total, plan))


def _both(by_tier: Mapping[str, float], plan: Plan) -> dict[str, float]:
    return {"shift_above": by_tier[plan.federation.innermost.name], "shift_inside": by_tier[SILO]}


def _index_of(plan: Plan, silo: str) -> int:
    names: list[str] = plan.federation.silo_names.tolist()
    if silo not in names:
        raise ReleaseError(f"the plan knows no silo {silo!r}.{suggestion(silo, names)}")
    return names.index(silo)


def _flattened(update: Update) -> tuple[Layout, np.ndarray[Any, Any]]:
    """Returns an update's layout and its coordinates in double precision, which holds every float dtype exactly."""
    if update is None:
        raise ReleaseError("there is no update to release")
    if isinstance(update, Mapping):
        named = {str(name): np.asarray(array) for name, array in update.items()}
    elif isinstance(update, np.ndarray):
        named = {"update": np.asarray(update)}
    else:
        named = {str(number): np.asarray(array) for number, array in enumerate(update)}
    for name, array in named.items():
        if array.dtype.kind != "f":
            raise ReleaseError(
                f"the array {name!r} is {array.dtype}, not floating point. Counts and buffers are not released: "
                "leave it out"
            )
    if any(not name.isprintable() for name in named):
        raise ReleaseError("the names of arrays must be printable")
    layout = Layout(names=tuple(named), shapes=tuple(array.shape for array in named.values()))
    parts = [array.astype(np.float64).ravel() for array in named.values()]
    return layout, np.concatenate(parts) if parts else np.zeros(0)


def _check_layout(plan: Plan, layout: Layout, ledger: Ledger) -> None:
    if layout.parameters != plan.parameters:
        raise ReleaseError(
            f"the update has {layout.parameters} parameters, the plan was made for {plan.parameters}. "
            "Release every layer"
        )
    for entry in ledger.entries():
        if entry.plan_digest == plan.digest and entry.basis.split(" ")[0] != layout.digest:
            raise ReleaseError(
                f"the update has other names or shapes than that of round {entry.round_number}. Release the same layers"
            )


def _research_release(
    update: Update, plan: Plan, index: int, round_number: int, noise: SeededNoise | SecureNoise | None
) -> Release:
    if not isinstance(noise, SeededNoise):
        raise ReleaseError(
            "a research plan takes seeded noise and cannot be deployed. Give noise=SeededNoise(seed=...), or plan with "
            "purpose='deployment'"
        )
    layout, flat = _flattened(update)
    clipped = clip(flat, plan.clip_norm)
    drawn = noise.standard_normal(round_number=round_number, block=index, shape=(layout.parameters,))
    scale = float(plan.noise_multiplier[index]) * plan.clip_norm
    return _made(plan, index, round_number, layout, plan.federation.weights[index] * (clipped + scale * drawn), None)


@np.errstate(all="ignore")  # what training told numpy to raise on must not make a release fail, or records would show
def _lattice_release(
    flat: np.ndarray[Any, Any], layout: Layout, plan: Plan, index: int, round_number: int, noise: SecureNoise
) -> Release:
    """Clips, weights and cuts the update onto the region's lattice, and adds integers as wide as the plan says."""
    steps = plan.lattice_steps
    if steps is None:
        raise ReleaseError("a research plan has no lattice")
    step = float(steps[plan.federation.innermost.parent_of[index]])
    try:
        clipped = clip(flat, plan.clip_norm)
    except DivergedUpdateError:
        alarm.critical("the update of round %d is not finite: zero plus noise is released in its place", round_number)
        clipped = np.zeros_like(flat)
    weight = float(plan.federation.weights[index])
    # Cut toward zero: no coordinate grows, so the norm stays at most weight * C.
    scaled = np.trunc(clipped * (weight / step))
    if not (np.abs(scaled) < 2.0**52).all():
        raise ReleaseError("the update does not fit the lattice's integers. Plan with another clip norm")
    width = plan.lattice_width(index)
    region_of = plan.federation.innermost.parent_of
    check_width(width, int((region_of == region_of[index]).sum()), plan.federation.silo_name(index))
    whole = scaled.astype(np.int64)
    drawn = noise.integers(width=width, count=layout.parameters)
    return _made(plan, index, round_number, layout, whole + drawn, step)


def _made(
    plan: Plan, index: int, round_number: int, layout: Layout, values: np.ndarray[Any, Any], step: float | None
) -> Release:
    inner = plan.federation.innermost
    return Release(
        plan_digest=plan.digest,
        silo=plan.federation.silo_name(index),
        region=inner.nodes[inner.parent_of[index]],
        round_number=round_number,
        layout=layout,
        values=values,
        step=step,
    )
