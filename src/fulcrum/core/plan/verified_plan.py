"""The verified plan: every check has held, and no other type lets a release leave a silo.

>>> import msgspec
>>> from fulcrum.planning.planner import plan
>>> draft = plan("isic-paper", rounds=2, epsilon=1.0)
>>> sound = verified_plan(draft)
>>> sound.digest == draft.digest, verified_plan(sound) is sound
(True, True)
>>> statement = msgspec.structs.replace(draft.content().guarantee, statement="Everybody is safe.")
>>> verified_plan(msgspec.structs.replace(draft.content(), guarantee=statement))
Traceback (most recent call last):
fulcrum.errors.PlanError: the plan does not hold what it says: words, the statement is not what the figures say. ...

A process verifies a content once, by the digest. `verified_plan` takes a copy of the content before the first check
and makes the `VerifiedPlan` from this copy alone: a plan object changed in memory, even between check and use, has no
part in a release. A `VerifiedPlan` cannot be copied or pickled, and a forged instance is refused.
"""

import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray, read_only
from fulcrum.core.plan import figures
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.plan.plan_file import PlanFile, content_digest
from fulcrum.core.plan.plan_reader import SupportsContent, all_or_none, content_in, federation_in, read_content, unit_in
from fulcrum.core.plan.verification import verify
from fulcrum.errors import FulcrumError, PlanError, suggestion

_MOST_CACHED = 4
"""The number of cached plans; the plan of a large federation is large."""

_UNIT_SETTINGS = ("unit", "neighbours", "silos_per_person", "unit_name")
"""Settings of a plan file that together are the `PrivacyUnit` of the plan."""

_MAKER = object()
_VERIFIED: set[str] = set()
"""Digests of contents whose every check held. A digest names a single content, so the content itself is not kept."""

_CACHE: "dict[tuple[str, str], VerifiedPlan]" = {}
_INSTANCES: "weakref.WeakSet[VerifiedPlan]" = weakref.WeakSet()
_VERIFYING = threading.Lock()


@dataclass(frozen=True, kw_only=True, eq=False)
class VerifiedPlan(PlanData):
    """The data of a verified plan, with read-only arrays and mappings; made by `verified_plan` and `read_signed_plan`.

    Attributes:
        encoded: The verified content of the file, in JSON.
        digest: The digest of the content.
        issuer: The public key of the checked signature; empty for a plan without a checked signature.
        noise_variance: By silo, `figures.noise_variance`.
        lattice_steps: By region, `figures.lattice_steps`.
        index: By silo name, the silo's place in the federation.
    """

    encoded: bytes = field(repr=False)
    digest: str
    issuer: str = ""
    maker: InitVar[object]
    noise_variance: FloatArray = field(init=False, repr=False)
    lattice_steps: FloatArray | None = field(init=False, repr=False)
    index: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self, maker: object) -> None:
        if maker is not _MAKER:
            raise TypeError("a VerifiedPlan is made by fulcrum.verified_plan alone")
        steps = figures.lattice_steps(self)
        object.__setattr__(self, "noise_variance", read_only(figures.noise_variance(self)))
        object.__setattr__(self, "lattice_steps", None if steps is None else read_only(steps))
        names: list[str] = self.federation.silo_names.tolist()
        object.__setattr__(self, "index", MappingProxyType({name: place for place, name in enumerate(names)}))
        _INSTANCES.add(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a VerifiedPlan is not copied: hand on its content(), and verify it there")

    def content(self) -> PlanFile:
        """Returns the verified content of the plan's file, in new objects at every call."""
        return msgspec.json.decode(self.encoded, type=PlanFile)

    def index_of(self, silo: str, error: type[FulcrumError] = PlanError) -> int:
        """Returns the place of a silo in the federation, or raises `error`."""
        if silo not in self.index:
            raise error("plan.silo-unknown", silo=silo, suggestion=suggestion(silo, self.index))
        return self.index[silo]

    def release_cost(self, silo: str, round_number: int | None = None) -> dict[str, float]:
        """Returns the squared shift (mu²) of a single release of a silo, by observer, inner to outer.

        Where membership changes, the shift belongs to one round: infinite for a round without the silo, and for no
        round.

        Neighbouring relation: the relation of the plan's unit. The shift is kappa / s, for the unit's sensitivity kappa
        and the effective multiplier s, which counts on the noise of the other silos in the sum. A silo without noise of
        its own has an infinite cost against every observer.
        """
        place = self.index_of(silo)
        if self.phase_multiplier is not None and round_number is not None:
            return {
                tier: figures.shift_of_round(self, place, round_number, figures.charged_tier(self, tier))
                for tier in self.federation.tier_names
            }
        if self.phase_multiplier is not None or not self.noise_multiplier[place]:
            return dict.fromkeys(self.federation.tier_names, float("inf"))
        shifts = {}
        for tier in self.federation.tier_names:
            charged = figures.charged_tier(self, tier)
            multiplier = figures.effective_multiplier(self, charged, variance=self.noise_variance)[place]
            kappa = np.broadcast_to(figures.sensitivity(self, charged), len(self.federation))[place]
            shifts[tier] = float(kappa**2 / multiplier**2)
        return shifts

    def whole_cost(self, silo: str) -> dict[str, float]:
        """Returns the squared shift (mu²) of all releases of a silo under the plan, by observer, inner to outer."""
        if (rosters := self.federation.rosters) is None:
            return {tier: self.rounds * shift for tier, shift in self.release_cost(silo).items()}
        place = self.index_of(silo)
        starts = (np.unique(rosters.phase_of_round, return_index=True)[1] + 1).tolist()
        costs = [
            (length, self.release_cost(silo, start))
            for length, start, there in zip(rosters.lengths.tolist(), starts, rosters.present[:, place], strict=True)
            if there
        ]
        return {tier: sum(length * cost[tier] for length, cost in costs) for tier in self.federation.tier_names}

    def release_cost_alone(self, silo: str, round_number: int = 0) -> float:
        """Returns the squared shift of a single release of a silo against an observer of the silo's own update."""
        place, rosters = self.index_of(silo), self.federation.rosters
        if rosters is not None and not (round_number and rosters.has(place, round_number)):
            return float("inf")
        multiplier = figures.multiplier_of_round(self, place, round_number)
        alone = self.unit.sensitivity * float(self.unit.factors([1])[0])
        return alone**2 / multiplier**2 if multiplier else float("inf")


def verified_plan(
    plan: SupportsContent | PlanFile | str | Path,
    *,
    error: type[FulcrumError] = PlanError,
    source: str = "the plan",
) -> VerifiedPlan:
    """Returns the verified plan of a plan whose every check of `fulcrum verify` holds.

    - The signature is not checked: `read_signed_plan` reads signed plans.
    - A `VerifiedPlan` of this process is returned unchanged; a forged instance is refused.
    - The content of a plan in memory is taken anew: changes after an earlier call are verified, or refused.

    Args:
        plan: A plan file to read, the content of a plan file, or a plan in memory.
        error: The class of the exception.
        source: The name of the plan in messages.

    Raises:
        FulcrumError: A check fails, or no plan file can have the content.
    """
    if isinstance(plan, VerifiedPlan):
        if plan not in _INSTANCES:  # made by object.__new__, without a check
            raise error("plan.not-verified", source=source)
        return plan
    if isinstance(plan, str | Path):
        plan, source = read_content(plan), str(plan)
    return verified_of_issuer(plan if isinstance(plan, PlanFile) else plan.content(), "", error=error, source=source)


def verified_of_issuer(
    content: PlanFile, issuer: str, *, error: type[FulcrumError] = PlanError, source: str = "the plan"
) -> VerifiedPlan:
    """Returns the verified plan of a content of which the caller has checked the signature by `issuer`."""
    digest = content_digest(content)
    if digest in _VERIFIED and content.digest in ("", digest) and (cached := _CACHE.get((digest, issuer))) is not None:
        return cached
    try:
        own = content_in(content)  # a copy: a thread that changes the caller's object cannot change it after a check
    except PlanError as malformed:
        raise error.at("", malformed) from None
    digest = check_verified(own, error, source=source)
    cached = _CACHE.setdefault((digest, issuer), _new_plan(own, digest, issuer))  # the first of two threads wins
    for oldest in list(_CACHE)[:-_MOST_CACHED]:
        _CACHE.pop(oldest, None)
    return cached


def check_verified(content: PlanFile, error: type[FulcrumError] = PlanError, *, source: str = "the plan") -> str:
    """Returns the digest of a content, or raises `error` unless every check of `fulcrum verify` holds.

    Args:
        content: The content of a plan file, or of a plan in memory.
        error: The class of the exception.
        source: The name of the plan in messages.
    """
    digest = content_digest(content)
    with _VERIFYING:
        if digest in _VERIFIED and content.digest in ("", digest):
            return digest
        try:
            checks = verify(content)
        except PlanError as malformed:  # a content in memory that no file can have
            raise error.at("", malformed) from None
        for check in checks:
            if not check.holds:
                raise error("plan.check-failed", source=source, check=check.name, detail=check.detail)
        _VERIFIED.add(digest)
    return digest


def data_in(content: PlanFile) -> dict[str, object]:
    """Returns the fields of `PlanData` from a content."""
    settings, federation = content.settings, federation_in(content)
    entries = {entry.name: entry for entry in content.tiers[federation.innermost.name]}
    inner = [entries[name] for name in federation.innermost.nodes]
    by_phase = [node.phase_multipliers for node in inner if node.phase_multipliers is not None]
    injected = None if settings.injection == "silo" else read_only(np.array([node.noise_multiplier for node in inner]))
    rule_weights = all_or_none([node.rule_weight for node in inner])
    floor = settings.floor
    prices = all_or_none([entry.price for entry in content.silos])
    inside = np.array([entry.inside_price or 0.0 for entry in content.silos])
    required = {
        tier: value if isinstance(value, float) else read_only(np.array(value))
        for tier, value in settings.required_multiplier.items()
    }
    spent = {
        tier: read_only(np.array([(entry.spent or {}).get(tier, 0.0) for entry in content.silos]))
        for tier in content.silos[0].spent or {}
    }
    plain = {
        name: getattr(settings, name)
        for name in settings.__struct_fields__
        if name not in ("epsilon", "weights", "required_multiplier", "floor", *_UNIT_SETTINGS)
    }
    return plain | {
        "federation": federation,
        "purpose": content.purpose,
        "unit": unit_in(content),
        "epsilon_target": settings.epsilon,
        "required_multiplier": required,
        "floor": None if floor is None else read_only(np.broadcast_to(floor, len(federation)).astype(np.float64)),
        "weights_rule": settings.weights,
        "rule_weights": None if rule_weights is None else read_only(rule_weights),
        "noise_multiplier": read_only(np.array([entry.noise_multiplier for entry in content.silos])),
        "aggregator_noise_multiplier": injected,
        "phase_multiplier": read_only(np.array(by_phase).T) if by_phase else None,
        "prices": None if prices is None else read_only(np.stack([prices, inside])),
        "spent": spent,
        "moved": {entry.silo: entry.moved_from for entry in content.silos if entry.moved_from is not None},
        "keys": content.keys,
    }


def _new_plan(content: PlanFile, digest: str, issuer: str) -> VerifiedPlan:
    """Returns a `VerifiedPlan` of a checked content, with mappings that cannot be changed."""
    data, encoded = data_in(content), msgspec.json.encode(content)
    fields = {name: MappingProxyType(value) if isinstance(value, Mapping) else value for name, value in data.items()}
    return VerifiedPlan(**fields, encoded=encoded, digest=digest, issuer=issuer, maker=_MAKER)  # type: ignore[arg-type]


def _after_fork_in_child() -> None:
    """Frees the lock in a forked child: a thread with the lock runs in the parent alone, and the child would wait."""
    if _VERIFYING.locked():
        _VERIFYING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
