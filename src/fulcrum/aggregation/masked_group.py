"""What the server does in a masked round: carries messages between members, adds up, and takes the masks off the sum.

    aggregation = MaskedGroup(group, session, layout)
    requests = aggregation.requests()
    while isinstance(requests, dict):
        for answer in carried(requests):        # by whatever engine; silos that do not answer are left out
            aggregation.take(answer)
        requests = aggregation.proceed()
    # a RegionalSum, or Withheld

Groups have nothing to do with each other: an engine sends the requests of all of them at once. A server that follows
this learns the sum of a group and nothing finer. One that does not is what `fulcrum.core.masking.member_protocol`
guards against.
"""

from collections import Counter
from typing import Any

import numpy as np

from fulcrum.aggregation.secret_recovery import secret_from
from fulcrum.core.masking.harary_graph import HararyGraph
from fulcrum.core.masking.masking_group import Group, group_of
from fulcrum.core.masking.masking_messages import (
    ATTESTATION,
    INPUT,
    KEYS,
    SHARES,
    UNMASKING,
    Attested,
    Inbox,
    PublicKeys,
    Revealed,
    Roster,
    SealedShares,
    Session,
    Survivors,
    body_of,
    member_reply_from_bytes,
)
from fulcrum.core.masking.masks import add_mask, loaded_key, new_private_key, pair_secret, public_half
from fulcrum.core.masking.member_protocol import (
    circle_seed_of,
    commitment,
    pair_key,
    self_mask_key,
    sharers_digest,
    survivors_digest,
)
from fulcrum.core.masking.roster import DistinctKeys
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.membership import senders_of
from fulcrum.core.messages.regional_reply import RegionalReply, RegionalSum, Withheld
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import ExchangeError

STAGES = (KEYS, SHARES, INPUT, ATTESTATION, UNMASKING)
"""What is asked for, in this order."""

_HEAD_BYTES = 512
"""Of an answer, beside names: plan, model and signature, with the names of fields."""

_SHARES_BYTES = 128
"""Of two sealed shares for a neighbour, beside the neighbour's name."""


class MaskedGroup:
    """One masked round of one group, at the server.

    Args:
        group: Who is masked together.
        session: `Group.session`: which round, on which model.
        layout: The names and shapes of the model's arrays.
    """

    def __init__(self, group: Group, session: Session, layout: Layout) -> None:
        if group.parameters not in (None, layout.parameters):
            raise ExchangeError("model.parameters-differ", parameters=layout.parameters, expected=group.parameters)
        group.check_session(session)
        self._group, self._session, self._layout = group, session, layout
        self._stage = 0
        self._asked: frozenset[str] = frozenset(group.regions)
        self._taken: set[str] = set()
        self._keys: dict[str, bytes] = {}
        self._public: dict[str, PublicKeys] = {}
        self._distinct = DistinctKeys()
        self._shares: dict[str, SealedShares] = {}
        self._sum = np.zeros(layout.parameters, dtype=group.dtype)
        self._inputs: set[str] = set()
        self._attestations: dict[str, bytes] = {}
        self._revealed: dict[str, Revealed] = {}
        self._probe = loaded_key(new_private_key())
        self._circle_seed = b""
        self._circle = HararyGraph((), b"", 0)
        self._requests = self._made_requests()

    @property
    def stage(self) -> str:
        """What is asked for now, one of `STAGES`."""
        return STAGES[self._stage]

    @property
    def missing(self) -> frozenset[str]:
        """The silos that were asked and whose answers are not there."""
        return self._asked - self._taken

    def requests(self) -> dict[str, bytes]:
        """Returns what is asked of whom now; asked again, it is the same."""
        return dict(self._requests)

    def _made_requests(self) -> dict[str, bytes]:
        request: Any
        if self.stage == KEYS:
            request = self._group.begin(self._session)
        elif self.stage == SHARES:
            request = Roster(session=self._session, keys=self._roster)
        elif self.stage == INPUT:
            return {silo: self._inbox(silo).to_bytes() for silo in sorted(self._asked)}
        elif self.stage == ATTESTATION:
            request = Survivors(session=self._session, members=tuple(sorted(self._inputs)))
        else:
            enough = sorted(self._attestations)[: self._group.quorum]  # every silo checks each: no more than must be
            request = Attested(session=self._session, attestations=tuple(self._attestations[silo] for silo in enough))
        return dict.fromkeys(sorted(self._asked), request.to_bytes())

    def take(self, data: bytes) -> str:
        """Takes in an answer to what is asked for now, and returns whose it is.

        Raises:
            ExchangeError: It is not a good answer of a silo that was asked, or a second one; nothing of it was used.
        """
        answer = member_reply_from_bytes(data)
        answer.check(self.stage, self._session, self._group.keys)
        silo = answer.silo
        if silo not in self._asked or silo in self._taken:
            raise ExchangeError("mask.reply-unexpected", silo=silo)
        if self.stage == KEYS:
            self._public[silo] = self._usable(body_of(answer, PublicKeys), silo)
            self._keys[silo] = bytes(data)
        elif self.stage == SHARES:
            self._shares[silo] = body_of(answer, SealedShares)
        elif self.stage == INPUT:
            if len(answer.body) != self._sum.nbytes:
                raise ExchangeError("mask.input-length", silo=silo, bytes=len(answer.body))
            np.add(self._sum, np.frombuffer(answer.body, dtype=self._sum.dtype), out=self._sum)
            self._inputs.add(silo)
        elif self.stage == ATTESTATION:
            self._check_story(bytes(answer.body), silo)
            self._attestations[silo] = bytes(data)
        else:
            self._revealed[silo] = body_of(answer, Revealed)
        self._taken.add(silo)
        return silo

    def proceed(self) -> dict[str, bytes] | RegionalReply:
        """Ends a stage: returns what is asked next, or the sum, or that it is withheld."""
        if self.stage == KEYS:
            self._leave_out_other_settings()
        present = frozenset(self._taken)
        summed = self._inputs or present  # after the inputs, whoever goes is still in the sum
        if reason := self._group.lacking(summed):
            return self._withheld(reason, summed)
        if self.stage == UNMASKING:
            try:
                return self._unmasked()
            except ExchangeError as error:
                return self._withheld(str(error), summed)
        if self.stage == ATTESTATION and len(present) < self._group.quorum:
            return self._withheld(f"{len(present)} silos attest the survivors, {self._group.quorum} must", summed)
        if self.stage == KEYS:
            self._circle_seed = circle_seed_of(self._session, self._roster)
            self._circle = HararyGraph(self._group.regions, self._circle_seed, self._group.neighbours)
        self._asked, self._taken, self._stage = present, set(), self._stage + 1
        self._requests = self._made_requests()
        return self.requests()

    def _leave_out_other_settings(self) -> None:
        """Takes back the keys of members that were told other settings than most: with them no other would go on."""
        told = Counter(keys.settings for keys in self._public.values())
        for silo, keys in list(self._public.items()):
            if keys.settings != told.most_common(1)[0][0]:
                del self._public[silo], self._keys[silo]
                self._taken.remove(silo)

    def _usable(self, keys: PublicKeys, silo: str) -> PublicKeys:
        """Returns keys that others can agree on secrets with: no member goes on with a roster that has any other."""
        for key in (keys.masking, keys.sealing):
            pair_secret(self._probe, key, silo)
        self._distinct.add(silo, keys)
        return keys

    def _check_story(self, story: bytes, silo: str) -> None:
        """Raises `ExchangeError` unless a member attests the roster, sharers and survivors of this round.

        Every member refuses to unmask after a single attestation of other survivors.
        """
        sharers, survivors = tuple(sorted(self._shares)), tuple(sorted(self._inputs))
        if story != survivors_digest(self._session, self._circle_seed, sharers, survivors):
            raise ExchangeError("mask.attested-survivors-differ", silo=silo)

    @property
    def _roster(self) -> tuple[bytes, ...]:
        return tuple(self._keys[silo] for silo in sorted(self._keys))

    def _inbox(self, silo: str) -> Inbox:
        near = [other for other in self._circle.neighbours(silo) if other in self._shares]
        sealed = {other: self._shares[other].sealed.get(silo, b"") for other in near}
        return Inbox(session=self._session, sharers=tuple(sorted(self._shares)), sealed=sealed)

    def _unmasked(self) -> RegionalSum:
        """Takes off the self-masks of those in the sum, and the pairs' masks of those that shared and dropped out."""
        total = self._sum.copy()
        told = sharers_digest(self._session, self._circle_seed, tuple(sorted(self._shares)))
        for silo in sorted(self._inputs):
            own = self._secret(silo, "seeds")
            if commitment(self._session, silo, own) != self._shares[silo].commitment:
                raise ExchangeError("mask.seed-not-committed", silo=silo)
            add_mask(total, self_mask_key(self._session, own, silo), negative=True)
        for silo in sorted(set(self._shares) - self._inputs):
            private = self._secret(silo, "keys")
            if public_half(private) != self._public[silo].masking:
                raise ExchangeError("mask.masking-key-differs", silo=silo)
            loaded = loaded_key(private)
            for other in self._circle.neighbours(silo):
                if other in self._inputs:
                    secret = pair_secret(loaded, self._public[other].masking, other)
                    key = pair_key(self._session, secret, silo, other, told)
                    add_mask(total, key, negative=other < silo)
        whole = total.view(f"<i{self._group.bits // 8}").astype(np.int64)
        return RegionalSum(
            plan_digest=self._session.plan_digest,
            region=self._group.name,
            round_number=self._session.round_number,
            members=tuple(sorted(self._inputs)),
            layout=self._layout,
            values=whole if self._group.deployed else whole * self._group.step,
            step=self._group.step if self._group.deployed else None,
        )

    def _secret(self, silo: str, which: str) -> bytes:
        """Returns a secret of a member, from as many of its holders' shares as give it back.

        The holders next on the circle are asked first, so that most members' shares are at the same points.
        """
        shares: dict[int, bytes] = {}
        nearest = sorted((self._circle.point(silo, holder), holder) for holder in self._circle.holders(silo))
        for point, holder in nearest:
            if holder in self._revealed and len(shares) < self._group.threshold:
                share = getattr(self._revealed[holder], which).get(silo)
                if share is not None:
                    shares[point] = share
        if len(shares) < self._group.threshold:
            raise ExchangeError("mask.shares-too-few", shares=len(shares), silo=silo, threshold=self._group.threshold)
        return secret_from(shares)

    def _withheld(self, reason: str, present: Any) -> Withheld:
        return Withheld(
            plan_digest=self._session.plan_digest,
            region=self._group.name,
            round_number=self._session.round_number,
            missing=tuple(sorted(set(self._group.regions) - set(present))),
            reason=reason,
        )


def largest_answer(plan: VerifiedPlan) -> int | None:
    """Returns the bytes of the longest answer of a silo in any stage of a masked round of a plan.

    The carrier of messages refuses longer requests. None where the plan has no number of parameters.
    """
    if plan.parameters is None:
        return None
    return max(longest_answer_of(group_of(plan, name)) for name in senders_of(plan))


def longest_answer_of(group: Group) -> int:
    """Returns the bytes of the longest answer of a member: the masked input, or shares for every neighbour."""
    name = max(len(silo.encode()) for silo in (group.name, *group.regions))
    shares = (group.neighbours + 1) * (_SHARES_BYTES + name)
    return _HEAD_BYTES + 2 * name + max((group.parameters or 0) * group.bits // 8, shares)
