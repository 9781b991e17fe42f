"""Who is masked together under a plan, and by which numbers: neighbours, threshold, lattice and width.

>>> import tempfile
>>> from fulcrum.readers.federation import Federation
>>> from fulcrum.planning.planner import plan
>>> from fulcrum.planning.files.plan_issue import new_key
>>> folder = tempfile.TemporaryDirectory()
>>> keys = {silo: new_key(f"{folder.name}/{silo}") for silo in "abcde"}
>>> made = plan(Federation.from_sizes({"north": dict.fromkeys("abcde", 100)}), rounds=2, epsilon=1.0, dropouts=1,
...             purpose="deployment", parameters=66, keys=keys, aggregation="masked")
>>> group = group_of(made, "north")
>>> group.neighbours, group.threshold, group.quorum, group.bits
(4, 4, 4, 32)
>>> group.lacking(set("abcd")), group.lacking(set("abc"))
(None, "2 of 5 silos of region 'north' are missing, the plan does without 1")
>>> folder.cleanup()

All of it follows from the plan, so that silos and server agree without asking each other: a server has no say in who
belongs to a group, how many may be missing, or how many shares unmask a sum.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fulcrum.core.lattice import FARTHEST_DRAW
from fulcrum.core.masking.harary_graph import neighbour_count
from fulcrum.core.masking.masking_messages import Begin, Session
from fulcrum.core.masking.masking_thresholds import expected_absences, of_all_regions, silos_of_one_key, threshold_for
from fulcrum.core.messages.membership import group_name_of, members_of, regions_of, senders_of, step_of
from fulcrum.core.plan.figures import group_tier
from fulcrum.core.plan.keys import plan_key
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import ExchangeError, ParameterError, ReleaseError

RESEARCH_STEP = 2.0**-40
"""Of the lattice that research is masked on, over the clip norm. Deployed silos release on the plan's own."""

WIDTHS = (32, 64)
"""Bits that a masked integer may have."""

_TOLERANCE = 1e-9  # relative, of products rounded in another order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Silos that are masked together.

    Attributes:
        plan_digest: The plan.
        name: The name of the region, or "federation".
        regions: By member, sorted, the region that it is in.
        keys: By member, its public Ed25519 key.
        rounds: Of the plan.
        parameters: Coordinates of an update, where the plan says.
        colluders: Members that the server may know all secrets of: the plan's number of each region, at least one.
        dropouts: Members of each region that may be missing from a sum.
        neighbours: Members that each member shares masks with.
        threshold: Holders of a member, itself among them, that give its secret back.
        quorum: Members that must have been told the same survivors before anyone unmasks.
        step: Of the lattice of the integers that are masked.
        deployed: Whether that is the plan's own lattice; in research it is a finer one.
        largest: By member, how large a coordinate of its release can be, in steps.
        bits: Of a masked integer; sums of all members stay within.
    """

    plan_digest: str
    name: str
    regions: Mapping[str, str]
    keys: Mapping[str, Any]
    rounds: int
    parameters: int | None
    colluders: int
    dropouts: int
    neighbours: int
    threshold: int
    quorum: int
    step: float
    deployed: bool
    largest: Mapping[str, float]
    bits: int

    @property
    def dtype(self) -> str:
        """How masked integers are held and sent."""
        return f"<u{self.bits // 8}"

    def session(self, round_number: int, basis: str, attempt: int = 1) -> Session:
        """Returns the session of a round, or raises `ExchangeError` where the plan has none such."""
        session = Session(
            plan_digest=self.plan_digest,
            group=self.name,
            round_number=round_number,
            attempt=attempt,
            basis=basis,
        )
        self.check_session(session)
        return session

    def check_session(self, session: Session) -> None:
        """Raises `ExchangeError` unless a session is one of this group under this plan."""
        if (session.plan_digest, session.group) != (self.plan_digest, self.name):
            raise ExchangeError("mask.request-foreign", group=self.name)
        if not 1 <= session.round_number <= self.rounds or session.attempt < 1 or not session.basis:
            raise ExchangeError(
                "mask.session-range", rounds=self.rounds, round_number=session.round_number, attempt=session.attempt
            )

    def begin(self, session: Session) -> Begin:
        """Returns how a round begins."""
        return Begin(session=session, threshold=self.threshold, neighbours=self.neighbours, bits=self.bits)

    def check_numbers(self, request: Begin) -> None:
        """Raises `ExchangeError` unless the server goes by the numbers that follow from the plan."""
        for name, ours, theirs in (
            ("a threshold", self.threshold, request.threshold),
            ("neighbours", self.neighbours, request.neighbours),
            ("bits", self.bits, request.bits),
        ):
            if ours != theirs:
                raise ExchangeError(
                    "mask.numbers-differ", group=self.name, number=name, expected=ours, server_value=theirs
                )

    def lacking(self, present: Collection[str]) -> str | None:
        """Returns why the sum of those present may not be taken, if so: more are missing than the plan allows for.

        The plan's noise is enough without any `dropouts` silos of each region and without the colluders' own.
        """
        if not set(present) & set(self.regions):
            return f"no silo of group {self.name!r} is there"
        for region in sorted(set(self.regions.values())):
            members = {silo for silo, place in self.regions.items() if place == region}
            if (absent := len(members - set(present))) > self.dropouts:
                missing = f"{absent} of {len(members)} silos of region {region!r} are missing"
                return f"{missing}, the plan does without {self.dropouts}"
        return None


def group_of(plan: VerifiedPlan, name: str) -> Group:
    """Returns a group of a plan, which carries the keys of its members.

    Raises:
        ExchangeError: The plan has no such group, lacks a key, or has one twice; or its silos draw no noise.
        ParameterError: So many dropouts or colluders cannot be masked.
        ReleaseError: The integers of a sum do not fit 64 bits.
    """
    if plan.injection != "silo":
        raise ExchangeError("mask.noise-not-of-silos")
    if plan.aggregation != "masked" or name not in senders_of(plan):
        raise ExchangeError("mask.group-unknown", group=name)
    places = regions_of(plan.federation)
    regions = {silo: places[silo] for silo in members_of(plan, name)}
    size = len(regions)
    colluders, dropouts = expected_absences(plan, regions.values())
    try:
        neighbours = neighbour_count(size, colluders=colluders, dropouts=dropouts)
    except ParameterError as error:
        raise ParameterError.at(repr(name), error) from None
    keys = {silo: plan_key(plan, silo, "signing") for silo in regions}
    if pair := silos_of_one_key(list(keys), {silo: key.public_bytes_raw() for silo, key in keys.items()}):
        raise ExchangeError("mask.plan-key-shared", silo=pair[0], other_silo=pair[1])
    step = step_of(plan, name)
    own_step = RESEARCH_STEP * plan.clip_norm if step is None else step
    index = {silo: place for place, silo in enumerate(plan.federation.silo_names.tolist())}
    signal = plan.federation.weights * plan.clip_norm / own_step
    reach = np.ceil(signal * (1 + FARTHEST_DRAW * plan.noise_multiplier) * (1 + _TOLERANCE)) + 1
    largest = {silo: float(reach[index[silo]]) for silo in regions}
    return Group(
        plan_digest=plan.digest,
        name=name,
        regions=regions,
        keys=keys,
        rounds=plan.rounds,
        parameters=plan.parameters,
        colluders=colluders,
        dropouts=plan.dropouts,
        neighbours=neighbours,
        threshold=threshold_for(neighbours + 1, colluders=colluders, dropouts=dropouts),
        quorum=threshold_for(size, colluders=colluders, dropouts=dropouts),
        step=own_step,
        deployed=step is not None,
        largest=largest,
        bits=_bits(largest.values(), name),
    )


def check_sheltered(plan: PlanData, silo: str) -> None:
    """Raises `ReleaseError` where a masked sum hides nothing of a silo and the plan does not count on that.

    In a group of at most c + 1 silos the server and c of them know the sum of one silo: its own release. That is what
    the plan promises only where the silo's own noise meets its region's target.
    """
    tier, name = group_tier(plan), group_name_of(plan, silo)
    index = plan.federation.silo_names.tolist().index(silo)
    places = regions_of(plan.federation)
    regions = [places[other] for other in members_of(plan, name)]
    size, colluders = len(regions), of_all_regions(plan.colluders, regions)
    if size > colluders + 1:
        return
    asked = np.broadcast_to(plan.required_multiplier.get(tier, math.inf), len(plan.federation))[index]
    if plan.noise_multiplier[index] < asked * (1 - _TOLERANCE):
        raise ReleaseError("mask.silo-exposed", silo=silo, size=size, colluders=plan.colluders, tier=tier)


def _bits(largest: Iterable[float], name: str) -> int:
    """Returns the least width that sums of all members never wrap in."""
    whole = sum(math.ceil(size) for size in largest)
    for bits in WIDTHS:
        if whole < 2 ** (bits - 1):
            return bits
    raise ReleaseError("mask.sum-too-large", group=name, steps=whole, bits=WIDTHS[-1])
