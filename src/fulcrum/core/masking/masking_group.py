"""The masked groups of a plan: members, neighbours, threshold, lattice and width of a masked integer.

>>> import tempfile
>>> from fulcrum.readers.federation import Federation
>>> from fulcrum.planning.planner import plan
>>> from fulcrum.planning.files.plan_issue import new_key
>>> folder = tempfile.TemporaryDirectory()
>>> keys = {silo: new_key(f"{folder.name}/{silo}") for silo in "abcde"}
>>> issued = plan(Federation.from_sizes({"north": dict.fromkeys("abcde", 100)}), rounds=2, epsilon=1.0, dropouts=1,
...               purpose="deployment", parameters=66, keys=keys, aggregation="masked")
>>> group = group_of(issued, "north")
>>> group.neighbours, group.threshold, group.quorum, group.bits
(4, 4, 4, 32)
>>> group.lacking(set("abcd")), group.lacking(set("abc"))
(None, "2 of 5 silos of region 'north' are missing, the plan does without 1")
>>> folder.cleanup()

All numbers follow from the verified plan, so silos and server agree on the numbers without messages. A server has no
influence on the members of a group, on the number of silos that may be missing, or on the number of shares that unmask
a sum.
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
from fulcrum.core.plan.figures import group_tier, unmet_tiers
from fulcrum.core.plan.keys import plan_key
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.topology import SILO
from fulcrum.errors import ExchangeError, ParameterError, ReleaseError

RESEARCH_STEP = 2.0**-40
"""The lattice step of research plans, divided by the clip norm. Deployed silos use the plan's own lattice."""

WIDTHS = (32, 64)
"""The possible widths of a masked integer, in bits."""

_MOST_ATTEMPTS = 2**63 - 1  # the largest number that a silo's record holds
_LONGEST_DIGEST = 64  # SHA-256, in hexadecimal digits
_TOLERANCE = 1e-9  # relative, of products rounded in another order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Silos that are masked together under a plan.

    Attributes:
        plan_digest: The digest of the plan.
        name: The name of the region, or "federation".
        regions: By member, sorted, the region of the member.
        keys: By member, the public Ed25519 key.
        rounds: The number of rounds of the plan.
        parameters: The number of coordinates of an update, or None if the plan has no number.
        colluders: The number of members whose secrets the server may know: the plan's number of every region, at least
            1.
        dropouts: The number of members of a region that may be missing from a sum.
        round_number: The only round of the group, where membership changes; None for the group of all rounds.
        neighbours: The number of members with which a member shares masks.
        threshold: The number of holders of a member, the member included, that restore a secret.
        quorum: The number of members that must attest the same survivors before a member helps to unmask.
        step: The lattice step of the masked integers.
        deployed: True if `step` is the plan's own lattice step; a research plan is masked on a finer lattice.
        largest: By member, the largest possible coordinate of a release, in steps.
        bits: The width of a masked integer; a sum over all honest members never wraps. Always 64 under a target on an
            outer tier, whose aggregators add modulo 2^64.
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
    round_number: int | None = None

    @property
    def dtype(self) -> str:
        """The NumPy type in which masked integers are stored and sent."""
        return f"<u{self.bits // 8}"

    def check_session(self, session: Session) -> None:
        """Raises `ExchangeError` unless a session belongs to the group and to a round of the plan."""
        if (session.plan_digest, session.group) != (self.plan_digest, self.name):
            raise ExchangeError("mask.request-foreign", group=self.name)
        if self.round_number not in (None, session.round_number):  # another round may have another roster
            raise ExchangeError("mask.round-of-other-roster", group=self.name, round_number=session.round_number)
        # Without a model in the session, two attempts of a round could train on different models. The silo keeps the
        # digest and sends it back: a longer digest would fill the disk of the ledger.
        named = 1 <= session.attempt <= _MOST_ATTEMPTS and 0 < len(session.input_digest) <= _LONGEST_DIGEST
        if not named or not 1 <= session.round_number <= self.rounds:
            raise ExchangeError(
                "mask.session-range", rounds=self.rounds, round_number=session.round_number, attempt=session.attempt
            )

    def check_numbers(self, request: Begin) -> None:
        """Raises `ExchangeError` unless the server states the numbers that follow from the plan."""
        # A lower threshold would let fewer holders uncover a release; fewer bits would make a sum wrap.
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
        """Returns the reason to refuse a sum of the `present` silos: too many are missing. None if the sum is allowed.

        The plan's noise suffices without the noise of any `dropouts` silos of every region and without the colluders'
        noise. With more missing silos the sum would have less noise than the plan promises.
        """
        if not set(present) & set(self.regions):
            return f"no silo of group {self.name!r} is there"
        # By region: the plan computes its noise for `dropouts` missing silos of every region.
        for region in sorted(set(self.regions.values())):
            members = {silo for silo, place in self.regions.items() if place == region}
            if (absent := len(members - set(present))) > self.dropouts:
                missing = f"{absent} of {len(members)} silos of region {region!r} are missing"
                return f"{missing}, the plan does without {self.dropouts}"
        return None


def group_of(plan: VerifiedPlan, name: str, round_number: int | None = None) -> Group:
    """Returns a group of a plan that carries the keys of all members.

    Where membership changes, the members are the roster of one round. All numbers follow from this roster: a silo
    outside of the roster neither counts as missing, nor holds a share, nor signs.

    Args:
        plan: A verified plan with masked sums.
        name: The name of the group: a region, or "federation" if all silos are one group.
        round_number: The round of the group; required where membership changes, and without effect elsewhere.

    Raises:
        ExchangeError: The plan has no such group, lacks a key, has a key twice, or has silos that draw no noise.
        ParameterError: The numbers of dropouts and colluders are too large for a masked group.
        ReleaseError: The integers of a sum do not fit 64 bits; or membership changes without a round of the plan.
    """
    # An aggregator that adds noise would have to see the sum without masks.
    if not plan.silos_draw_noise:
        raise ExchangeError("mask.noise-not-of-silos")
    if not plan.is_masked or name not in senders_of(plan):
        raise ExchangeError("mask.group-unknown", group=name)
    number = None
    if plan.federation.rosters is not None:
        if round_number is None:
            raise ReleaseError("release.round-missing")
        if not 1 <= round_number <= plan.rounds:
            raise ReleaseError("release.round-outside-plan", round_number=round_number, rounds=plan.rounds)
        number = round_number
    places = regions_of(plan.federation)
    regions = {silo: places[silo] for silo in members_of(plan, name, number)}
    size = len(regions)
    colluders, dropouts = expected_absences(plan, regions.values())
    try:
        neighbours = neighbour_count(size, colluders=colluders, dropouts=dropouts)
    except ParameterError as error:
        raise ParameterError.at(repr(name), error) from None
    keys = {silo: plan_key(plan, silo, "signing") for silo in regions}
    # The owner of two equal keys would sign as two members, and a quorum would count a colluder twice.
    if pair := silos_of_one_key(list(keys), {silo: key.public_bytes_raw() for silo, key in keys.items()}):
        raise ExchangeError("mask.plan-key-shared", silo=pair[0], other_silo=pair[1])
    step = step_of(plan, name)
    own_step = RESEARCH_STEP * plan.clip_norm if step is None else step
    index = {silo: place for place, silo in enumerate(plan.federation.silo_names.tolist())}
    signal = plan.federation.weights * plan.clip_norm / own_step
    # An upper bound, not a typical size: a sum that wraps modulo 2^bits would be a wrong sum without an error.
    widest = plan.largest_sums + FARTHEST_DRAW * plan.noise_multiplier
    reach = np.ceil(signal * widest * (1 + _TOLERANCE)) + 1
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
        # A masked sum wraps modulo 2^bits, and an outer aggregator that hides the sum adds modulo 2^64. With fewer bits
        # here a silo could move the sum to the edge: the total would show the server how each coordinate wrapped.
        bits=max(_bits(largest.values(), name), WIDTHS[-1] if unmet_tiers(plan) else 0),
        round_number=number,
    )


def check_sheltered(plan: PlanData, silo: str) -> None:
    """Raises `ReleaseError` if the masked sum does not conceal a silo and the silo's own noise misses the target.

    In a group of at most c + 1 silos the server and c colluders subtract the colluders' releases from the sum. The rest
    is the release of a single silo. The plan's promise then holds only if the silo's own noise meets the targets
    against the server, on the region and inside.

    Where membership changes, the verified epsilons themselves count, phase by phase, the noise that the worst colluders
    of the roster leave: that of the silo alone in so small a group.
    """
    if plan.federation.rosters is not None:
        return
    tier, name = group_tier(plan), group_name_of(plan, silo)
    index = plan.federation.silo_names.tolist().index(silo)
    places = regions_of(plan.federation)
    regions = [places[other] for other in members_of(plan, name)]
    size, colluders = len(regions), of_all_regions(plan.colluders, regions)
    if size > colluders + 1:
        return
    targets = [plan.required_multiplier[name] for name in (tier, SILO) if name in plan.required_multiplier]
    required = max((np.broadcast_to(target, len(plan.federation))[index] for target in targets), default=math.inf)
    if plan.noise_multiplier[index] < required * (1 - _TOLERANCE):
        raise ReleaseError("mask.silo-exposed", silo=silo, size=size, colluders=plan.colluders, tier=tier)


def _bits(largest: Iterable[float], name: str) -> int:
    """Returns the least width of integers, in bits, in which a sum over all members never wraps.

    Args:
        largest: By member, the largest absolute coordinate of a release, in lattice steps.
        name: The group, for the error.
    """
    whole = sum(math.ceil(size) for size in largest)
    for bits in WIDTHS:
        if whole < 2 ** (bits - 1):
            return bits
    raise ReleaseError("mask.sum-too-large", group=name, steps=whole, bits=WIDTHS[-1])
