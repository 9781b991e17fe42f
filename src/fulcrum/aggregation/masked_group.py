"""The server's side of a masked group: carries messages between members, adds inputs, and unmasks the sum.

    aggregation = MaskedGroup(group, session, layout)
    requests = aggregation.requests()
    while isinstance(requests, dict):
        for answer in carried(requests):        # by any engine; silos without an answer are left out
            aggregation.take(answer)
        requests = aggregation.proceed()
    # requests is now a RegionalSum or a Withheld

Groups are independent: an engine sends the requests of all groups at once. A server that follows this protocol learns
the sum of a group and no single release. The members do not trust the server to do so:
`fulcrum.core.masking.member_protocol` protects the members against a server that deviates.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from fulcrum.aggregation.secret_recovery import secret_from
from fulcrum.core.masking.harary_graph import HararyGraph
from fulcrum.core.masking.masking_group import WIDTHS, Group, group_of
from fulcrum.core.masking.masking_messages import (
    ATTESTATION,
    INPUT,
    KEYS,
    SHARES,
    UNMASKING,
    Attested,
    Begin,
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
from fulcrum.core.messages.membership import members_of, senders_of
from fulcrum.core.messages.regional_reply import RegionalReply, RegionalSum, Withheld
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import ExchangeError

STAGES = (KEYS, SHARES, INPUT, ATTESTATION, UNMASKING)
"""The stages of a round, in their order."""

_HEAD_BYTES = 512
"""The bytes of an answer without names and body: plan, model and signature, with the names of fields."""

_SHARES_BYTES = 128
"""The bytes of two sealed shares for a neighbour, without the neighbour's name."""


def session_of(group: Group, round_number: int, input_digest: str, attempt: int = 1) -> Session:
    """Returns the session of a group's round, or raises `ExchangeError` for a round outside of the plan."""
    session = Session(
        plan_digest=group.plan_digest,
        group=group.name,
        round_number=round_number,
        attempt=attempt,
        input_digest=input_digest,
    )
    group.check_session(session)
    return session


class MaskedGroup:
    """A masked round of a group, at the server.

    Args:
        group: The silos that are masked together.
        session: The round and the model, from `session_of`.
        layout: The names and shapes of the model's arrays.
    """

    def __init__(self, group: Group, session: Session, layout: Layout) -> None:
        if group.parameters not in (None, layout.parameters):
            raise ExchangeError("model.parameters-differ", parameters=layout.parameters, expected=group.parameters)
        group.check_session(session)
        self._group, self._session, self._layout = group, session, layout
        self._most = longest_answer_of(replace(group, parameters=layout.parameters))
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
        self._requests = self._make_requests()

    @property
    def stage(self) -> str:
        """The present stage, a value of `STAGES`."""
        return STAGES[self._stage]

    @property
    def session(self) -> Session:
        """The round, the attempt and the model."""
        return self._session

    @property
    def parameters(self) -> int:
        """The number of coordinates of a masked input."""
        return self._layout.parameters

    @property
    def missing(self) -> frozenset[str]:
        """The silos with a request and without an answer."""
        return self._asked - self._taken

    def requests(self) -> dict[str, bytes]:
        """Returns the requests of this stage, by silo; a second call returns the same requests."""
        return dict(self._requests)

    def _make_requests(self) -> dict[str, bytes]:
        request: Any
        if self.stage == KEYS:
            group = self._group
            request = Begin(
                session=self._session, threshold=group.threshold, neighbours=group.neighbours, bits=group.bits
            )
        elif self.stage == SHARES:
            request = Roster(session=self._session, keys=self._roster)
        elif self.stage == INPUT:
            return {silo: self._inbox(silo).to_bytes() for silo in sorted(self._asked)}
        elif self.stage == ATTESTATION:
            request = Survivors(session=self._session, members=tuple(sorted(self._inputs)))
        else:
            enough = sorted(self._attestations)[
                : self._group.quorum
            ]  # no more than necessary: every silo checks every attestation
            request = Attested(session=self._session, attestations=tuple(self._attestations[silo] for silo in enough))
        return dict.fromkeys(sorted(self._asked), request.to_bytes())

    def take(self, data: bytes) -> str:
        """Stores an answer to a request of this stage and returns the silo of the answer.

        Raises:
            ExchangeError: The bytes are no good answer of a silo with a request, or a second answer; the answer has no
                effect.
        """
        answer = member_reply_from_bytes(data)
        if (size := memoryview(data).nbytes) > self._most:  # its shares would go on to other members
            raise ExchangeError("mask.reply-too-long", bytes=size, most=self._most)
        answer.check(self.stage, self._session, self._group.keys)
        silo = answer.silo
        if silo not in self._asked or silo in self._taken:
            raise ExchangeError("mask.reply-unexpected", silo=silo)
        if self.stage == KEYS:
            self._public[silo] = self._checked_keys(body_of(answer, PublicKeys), silo)
            self._keys[silo] = bytes(data)
        elif self.stage == SHARES:
            self._shares[silo] = body_of(answer, SealedShares)
        elif self.stage == INPUT:
            if len(answer.body) != self._sum.nbytes:
                raise ExchangeError("mask.input-length", silo=silo, bytes=len(answer.body), expected=self._sum.nbytes)
            np.add(self._sum, np.frombuffer(answer.body, dtype=self._sum.dtype), out=self._sum)
            self._inputs.add(silo)
        elif self.stage == ATTESTATION:
            self._check_attestation(bytes(answer.body), silo)
            self._attestations[silo] = bytes(data)
        else:
            self._revealed[silo] = body_of(answer, Revealed)
        self._taken.add(silo)
        return silo

    def proceed(self) -> dict[str, bytes] | RegionalReply:
        """Ends the stage: returns the next requests, the sum, or a `Withheld`."""
        if self.stage == KEYS:
            self._drop_deviating_settings()
        present = frozenset(self._taken)
        summed = self._inputs or present  # a silo that vanishes after its input is still in the sum
        if reason := self._group.lacking(summed):
            return self._withheld(reason, summed)
        if self.stage == UNMASKING:
            try:
                return self._unmask_sum()
            except ExchangeError as error:
                return self._withheld(str(error), summed)
        if self.stage == ATTESTATION and len(present) < self._group.quorum:
            return self._withheld(f"{len(present)} silos attest the survivors, {self._group.quorum} must", summed)
        if self.stage == KEYS:
            self._circle_seed = circle_seed_of(self._session, self._roster)
            self._circle = HararyGraph(self._group.regions, self._circle_seed, self._group.neighbours)
        self._asked, self._taken, self._stage = present, set(), self._stage + 1
        self._requests = self._make_requests()
        return self.requests()

    def _drop_deviating_settings(self) -> None:
        """Drops the keys of members with other settings than most: all members refuse a roster of unequal settings."""
        settings = Counter(keys.settings for keys in self._public.values())
        for silo, keys in list(self._public.items()):
            if keys.settings != settings.most_common(1)[0][0]:
                del self._public[silo], self._keys[silo]
                self._taken.remove(silo)

    def _checked_keys(self, keys: PublicKeys, silo: str) -> PublicKeys:
        """Returns valid and distinct keys; raises `ExchangeError` for keys that would make all members refuse."""
        for key in (keys.masking, keys.sealing):
            pair_secret(self._probe, key, silo)
        self._distinct.add(silo, keys)
        return keys

    def _check_attestation(self, attested: bytes, silo: str) -> None:
        """Raises `ExchangeError` unless a member attests the roster, sharers and survivors of this round.

        A single attestation of other survivors would make every member refuse to unmask.
        """
        sharers, survivors = tuple(sorted(self._shares)), tuple(sorted(self._inputs))
        if attested != survivors_digest(self._session, self._circle_seed, sharers, survivors):
            raise ExchangeError("mask.attested-survivors-differ", silo=silo)

    @property
    def _roster(self) -> tuple[bytes, ...]:
        return tuple(self._keys[silo] for silo in sorted(self._keys))

    def _inbox(self, silo: str) -> Inbox:
        near = [other for other in self._circle.neighbours(silo) if other in self._shares]
        sealed = {other: self._shares[other].sealed.get(silo, b"") for other in near}
        return Inbox(session=self._session, sharers=tuple(sorted(self._shares)), sealed=sealed)

    def _unmask_sum(self) -> RegionalSum:
        """Subtracts the self masks of the silos in the sum, and the pair masks of the silos that dropped out."""
        total = self._sum.copy()
        agreed = sharers_digest(self._session, self._circle_seed, tuple(sorted(self._shares)))
        for silo in sorted(self._inputs):
            seed = self._secret(silo, "seeds")
            if commitment(self._session, silo, seed) != self._shares[silo].commitment:
                raise ExchangeError("mask.seed-not-committed", silo=silo)
            add_mask(total, self_mask_key(self._session, seed, silo), negative=True)
        for silo in sorted(set(self._shares) - self._inputs):
            private = self._secret(silo, "keys")
            if public_half(private) != self._public[silo].masking:
                raise ExchangeError("mask.masking-key-differs", silo=silo)
            loaded = loaded_key(private)
            for other in self._circle.neighbours(silo):
                if other in self._inputs:
                    secret = pair_secret(loaded, self._public[other].masking, other)
                    key = pair_key(self._session, secret, silo, other, agreed)
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
        """Returns a secret of a member from the shares of as many holders as necessary.

        Holders are the member's neighbours on the circle of all members (`HararyGraph`). The nearest holders come
        first, so that most members have shares at the same points and share the computation of Lagrange factors.

        Args:
            silo: The member.
            which: A field of `Revealed`: "seeds" for the seed of the member's own mask, "keys" for its masking key.

        Raises:
            ExchangeError: Fewer holders than the threshold have revealed a share of the secret.
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
    """Returns the length of a silo's longest answer in any stage of a masked round, in bytes.

    The carrier of messages refuses longer messages. Returns None for a plan without a number of parameters. Where
    membership changes, the result is an upper bound, as if all silos of a region took part in a round.
    """
    if plan.parameters is None:
        return None
    if plan.federation.rosters is None:
        return max(longest_answer_of(group_of(plan, name)) for name in senders_of(plan))
    members = {name: list(members_of(plan, name)) for name in senders_of(plan)}
    widest = plan.parameters * max(WIDTHS) // 8
    return max(_longest_answer([name, *silos], len(silos), widest) for name, silos in members.items())


def longest_answer_of(group: Group) -> int:
    """Returns the length of a member's longest answer in bytes: the masked input, or shares for all neighbours."""
    return _longest_answer(
        [group.name, *group.regions], group.neighbours + 1, (group.parameters or 0) * group.bits // 8
    )


def _longest_answer(names: Iterable[str], holders: int, vector: int) -> int:
    """Returns the bytes of a member's longest answer, for a number of holders and the bytes of its masked vector."""
    name = max(len(silo.encode()) for silo in names)
    return _HEAD_BYTES + 2 * name + max(vector, holders * (_SHARES_BYTES + name))
