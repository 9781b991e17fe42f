"""A plan of which every check has held: the only type that lets something leave a silo.

>>> import msgspec
>>> from fulcrum.planning.planner import plan
>>> made = plan("isic-paper", rounds=2, epsilon=1.0)
>>> sound = verified_plan(made)
>>> sound.digest == made.digest, verified_plan(sound) is sound
(True, True)
>>> statement = msgspec.structs.replace(made.content().guarantee, statement="Everybody is safe.")
>>> verified_plan(msgspec.structs.replace(made.content(), guarantee=statement))
Traceback (most recent call last):
fulcrum.errors.PlanError: the plan does not hold what it says: words, the statement is not what the figures say

A content is verified once a process, by its digest. A `VerifiedPlan` is made from a copy of the content that was taken
before the first check, and from nothing else, so a plan object that somebody changes in memory has no part in it. It
cannot be copied or pickled, and one that `verified_plan` did not make is refused.
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
from fulcrum.core.plan.plan_reader import SupportsContent, all_or_none, content_in, federation_in, read_content
from fulcrum.core.plan.verification import verify
from fulcrum.core.privacy_unit import UNITS
from fulcrum.errors import FulcrumError, PlanError, suggestion

_MOST_KEPT = 4
"""Verified plans that are kept; of a large federation each is large."""

_MAKER = object()
_VERIFIED: set[str] = set()
"""Digests of contents whose every check held. A digest names one content, so nothing else needs to be kept."""

_KEPT: "dict[tuple[str, str], VerifiedPlan]" = {}
_MADE: "weakref.WeakSet[VerifiedPlan]" = weakref.WeakSet()
_VERIFYING = threading.Lock()


@dataclass(frozen=True, kw_only=True, eq=False)
class VerifiedPlan(PlanData):
    """The data of a plan that was verified; made by `verified_plan`, and by no other function.

    Attributes:
        encoded: The content of the file, as it was verified, in JSON.
        digest: The digest of that content.
        issuer: The public key whose signature of the file was checked; empty where none was.
        noise_variance: By silo, `figures.noise_variance`.
        lattice_steps: By region, `figures.lattice_steps`.
        index: By silo name, its place in the federation.
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
        _MADE.add(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a VerifiedPlan is not copied: hand on its content(), and verify it there")

    def content(self) -> PlanFile:
        """Returns the content of the plan's file as it was verified, in objects of its own each time."""
        return msgspec.json.decode(self.encoded, type=PlanFile)

    def index_of(self, silo: str, error: type[FulcrumError] = PlanError) -> int:
        """Returns the place of a silo in the federation, or raises `error`."""
        if silo not in self.index:
            raise error("plan.silo-unknown", silo=silo, suggestion=suggestion(silo, self.index))
        return self.index[silo]

    def release_cost(self, silo: str) -> dict[str, float]:
        """Returns the squared shift (mu²) that one release of a silo spends, by observer, inner to outer."""
        place = self.index_of(silo)
        if not self.noise_multiplier[place]:
            return dict.fromkeys(self.federation.tier_names, float("inf"))
        multipliers = {
            tier: figures.effective_multiplier(self, tier, variance=self.noise_variance)[place]
            for tier in self.federation.tier_names
        }
        return {tier: float(self.unit.sensitivity**2 / multiplier**2) for tier, multiplier in multipliers.items()}

    def release_cost_alone(self, silo: str) -> float:
        """Returns the squared shift that one release of a silo spends against somebody who sees its own update."""
        multiplier = float(self.noise_multiplier[self.index_of(silo)])
        return self.unit.sensitivity**2 / multiplier**2 if multiplier else float("inf")


def verified_plan(
    plan: SupportsContent | PlanFile | str | Path,
    *,
    error: type[FulcrumError] = PlanError,
    source: str = "the plan",
) -> VerifiedPlan:
    """Returns a plan of which every check of `fulcrum verify` holds; whose signature it bears is not looked at.

    Args:
        plan: A plan file to read, the content of one, or a plan in memory, whose content is taken anew.
        error: The exception to raise.
        source: The name of the plan in messages.

    Raises:
        FulcrumError: A check fails, or the content is none that a plan file can have.
    """
    if isinstance(plan, VerifiedPlan):
        if plan not in _MADE:
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
    if digest in _VERIFIED and content.digest in ("", digest) and (kept := _KEPT.get((digest, issuer))) is not None:
        return kept
    try:
        own = content_in(content)  # a copy: nobody changes it while it is checked
    except PlanError as malformed:
        raise error.at("", malformed) from None
    digest = check_verified(own, error, source=source)
    kept = _KEPT.setdefault((digest, issuer), _made_from(own, digest, issuer))  # of two threads, the first one's
    for oldest in list(_KEPT)[:-_MOST_KEPT]:
        _KEPT.pop(oldest, None)
    return kept


def check_verified(content: PlanFile, error: type[FulcrumError] = PlanError, *, source: str = "the plan") -> str:
    """Raises `error` unless every check of `fulcrum verify` holds for a content; returns the digest of the content.

    Args:
        content: As it was read, or as a plan in memory states it.
        error: The exception to raise.
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
    """Returns the fields of `PlanData` that a content holds."""
    settings, federation = content.settings, federation_in(content)
    entries = {entry.name: entry for entry in content.tiers[federation.innermost.name]}
    inner = [entries[name] for name in federation.innermost.nodes]
    injected = None if settings.injection == "silo" else read_only(np.array([node.noise_multiplier for node in inner]))
    rule_weights = all_or_none([node.rule_weight for node in inner])
    floor = settings.floor
    required = {
        tier: asked if isinstance(asked, float) else read_only(np.array(asked))
        for tier, asked in settings.required_multiplier.items()
    }
    spent = {
        tier: read_only(np.array([(entry.spent or {}).get(tier, 0.0) for entry in content.silos]))
        for tier in content.silos[0].spent or {}
    }
    plain = {
        name: getattr(settings, name)
        for name in settings.__struct_fields__
        if name not in ("epsilon", "weights", "required_multiplier", "floor", "unit")
    }
    return plain | {
        "federation": federation,
        "purpose": content.purpose,
        "unit": UNITS[settings.unit],
        "epsilon_target": settings.epsilon,
        "required_multiplier": required,
        "floor": None if floor is None else read_only(np.broadcast_to(floor, len(federation)).astype(np.float64)),
        "weights_rule": settings.weights,
        "rule_weights": None if rule_weights is None else read_only(rule_weights),
        "noise_multiplier": read_only(np.array([entry.noise_multiplier for entry in content.silos])),
        "aggregator_noise_multiplier": injected,
        "spent": spent,
        "moved": {entry.silo: entry.moved_from for entry in content.silos if entry.moved_from is not None},
        "keys": content.keys,
    }


def _made_from(content: PlanFile, digest: str, issuer: str) -> VerifiedPlan:
    data, encoded = data_in(content), msgspec.json.encode(content)
    fields = {name: MappingProxyType(value) if isinstance(value, Mapping) else value for name, value in data.items()}
    return VerifiedPlan(**fields, encoded=encoded, digest=digest, issuer=issuer, maker=_MAKER)  # type: ignore[arg-type]


def _after_fork_in_child() -> None:
    """Frees the lock in a forked child: the thread that held it runs in the parent alone, and never frees it here."""
    if _VERIFYING.locked():
        _VERIFYING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
