"""The rules of a masked round for a silo: from a state and a request to the next state, or to a refusal.

The protocol is of Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning", against
a server that may deviate, on the graph of `fulcrum.core.masking.harary_graph`. With x the silo's release, v the
neighbours that take part and m(.) the mask of a key:

    sent = x + m(own seed) + sum over v of (+ m(key of the pair) if the silo's name comes first, else -)   mod 2^bits

In the sum over all members the masks of pairs cancel if both members of a pair received the same roster and the same
list of sharers: the keys of pairs are derived from both lists.

Every member has two secrets, and the holders have shares of both:

- the seed of the self-mask: the holders reveal the seed of a member whose input is in the sum;
- the masking key: the holders reveal the key of a member that shared masks and then dropped out, so that the masks of
  its pairs can be removed from the sum.

Both secrets of a member would reveal its input. No holder reveals both: the choice follows from a single list of
survivors, and a silo unmasks once, by a list that a quorum of members has signed.

`fulcrum.core.masking.member_replies` stores the states on disk, so a silo answers every stage once even if every
message starts a new process, and whenever the process is killed.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from fulcrum.core.masking import masks
from fulcrum.core.masking.harary_graph import HararyGraph
from fulcrum.core.masking.masking_group import Group
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
    SharePair,
    Survivors,
    body_of,
    member_reply_from_bytes,
    signed_reply,
)
from fulcrum.core.masking.masks import Residues, derived_key, loaded_key, pair_secret, public_half, seal, unseal
from fulcrum.core.masking.roster import DistinctKeys
from fulcrum.core.masking.secret_sharing import shares_of
from fulcrum.core.messages.framing import decode
from fulcrum.errors import ExchangeError, PolicyError, ReleaseError


class PairSecrets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The two secrets of a pair of neighbours: a source of the mask, and a source of the key that seals the shares."""

    masking: bytes
    sealing: bytes


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A silo's memory of a masked round between two stages. The state holds secrets until the sum is unmasked.

    Attributes:
        session: The round.
        requests: SHA-256 of every accepted request, in order.
        answers: The answers; the masked input is not stored but computed again on a repeated request.
        masking_key: The private key of the pairs' masks, until all pair secrets are computed.
        sealing_key: The private key that opens the neighbours' shares, until all pair secrets are computed.
        roster: By participant, the public keys.
        pairs: By neighbour that takes part, the pair secrets, until the masked input was given.
        circle_seed: The seed of the order of members.
        seed: The seed of the self-mask, until the masked input was given.
        shares: By member, the shares of the member's secrets that the silo holds.
        sharers: The members that sent shares, sorted.
        survivors: The members with an input in the sum, sorted.
        sent: The signature of the masked input, which fixes a single vector; empty before the input is made.
        least: The largest minimum of members that the silo's policy had at any answer of the round.
    """

    session: Session
    requests: tuple[bytes, ...]
    answers: tuple[bytes, ...]
    masking_key: bytes
    sealing_key: bytes
    roster: dict[str, PublicKeys] = {}
    pairs: dict[str, PairSecrets] = {}
    circle_seed: bytes = b""
    seed: bytes = b""
    shares: dict[str, SharePair] = {}
    sharers: tuple[str, ...] = ()
    survivors: tuple[str, ...] = ()
    sent: bytes = b""
    least: int = 1

    def without_secrets(self) -> "State":
        """Returns the state as stored after the unmasking: request digests, last answer and survivors alone."""
        last = (b"",) * (len(self.answers) - 1) + self.answers[-1:]
        return State(
            session=self.session,
            requests=self.requests,
            answers=last,
            masking_key=b"",
            sealing_key=b"",
            survivors=self.survivors,
            least=self.least,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemberProtocol:
    """A silo as a member of its group.

    Every method returns the state with the next answer, or raises. After an exception nothing may be sent:

    - `ExchangeError`: the server's request is not a request of an honest server;
    - `PolicyError`: the silo's own policy forbids the answer.

    Attributes:
        group: The group under the plan that the silo verified.
        silo: The name of the silo.
        key: The silo's private Ed25519 key; the plan carries the public half.
        least: The least number of members in a sum, the silo included, by the silo's present policy. A round keeps the
            largest minimum of all its answered stages.
        settings: The digest of training settings that no request names. All members of a round must have the same
            digest, and keep the digest until their inputs are made.
    """

    group: Group
    silo: str
    key: Any
    least: int = 1
    settings: str = ""

    def begin(self, request: Begin) -> State:
        """Returns the state of a new round; the first answer is the silo's fresh public keys."""
        self.group.check_session(request.session)
        self.group.check_numbers(request)
        self._check_enough(self.group.regions, self.least)
        # Two keys: the masking key of a dropped-out member is revealed, and must not open shares sealed to the member.
        masking, sealing = masks.new_private_key(), masks.new_private_key()
        public = PublicKeys(masking=public_half(masking), sealing=public_half(sealing), settings=self.settings)
        body = msgspec.msgpack.encode(public)
        state = State(
            session=request.session,
            requests=(),
            answers=(),
            masking_key=masking,
            sealing_key=sealing,
            least=self.least,
        )
        return self._append_reply(state, request, KEYS, body)

    def share_secrets(self, state: State, request: Roster) -> State:
        """Returns the next state; the answer is the shares of the silo's secrets, sealed to its neighbours.

        Refused rosters:

        - a key without the signature of the named silo for exactly this round;
        - a silo that is not in the group of the plan, or a silo twice;
        - fewer silos than the plan and the policy allow;
        - a key that two silos share, or that a silo uses for both purposes;
        - a silo with different settings;
        - a roster without the silo's own keys as the silo sent them.
        """
        self._check_turn(state, request, 1)
        roster = self._roster(state, request)
        seed = masks.new_seed()
        circle_seed = circle_seed_of(state.session, request.keys)
        graph = self._graph(circle_seed)
        holders = [silo for silo in graph.holders(self.silo) if silo in roster]
        points = {silo: graph.point(self.silo, silo) for silo in holders}
        threshold, places = self.group.threshold, tuple(points.values())
        # The points follow from the circle: the server, who restores a secret, knows the point of every share.
        seeds = shares_of(seed, threshold=threshold, points=places)
        keys = shares_of(state.masking_key, threshold=threshold, points=places)
        shares = {silo: SharePair(seed=seeds[point], key=keys[point]) for silo, point in points.items()}
        pairs = self._pair_secrets(state, {silo: roster[silo] for silo in holders if silo != self.silo})
        texts = {}
        for silo, secret in pairs.items():
            info = state.session.info("sealed shares", circle_seed, self.silo, silo)
            texts[silo] = seal(derived_key(secret.sealing, info), msgspec.msgpack.encode(shares[silo]), info)
        body = SealedShares(commitment=commitment(state.session, self.silo, seed), sealed=texts)
        following = msgspec.structs.replace(
            state,
            masking_key=b"",
            sealing_key=b"",
            roster=roster,
            pairs=pairs,
            circle_seed=circle_seed,
            seed=seed,
            shares={self.silo: shares[self.silo]},
        )
        return self._append_reply(following, request, SHARES, msgspec.msgpack.encode(body))

    def repeat_answer(self, state: State) -> State:
        """Returns the state for a repeated request, held to the silo's present policy.

        A silo that was killed has its answer on disk and cannot know if the answer has left. So a policy that became
        stricter since then also forbids the repetition.
        """
        least = self._least(state)
        if members := state.survivors or state.sharers or tuple(state.roster):
            self._check_enough(members, least)
        return state if least == state.least else msgspec.structs.replace(state, least=least)

    def check_settings(self, state: State) -> None:
        """Raises `ExchangeError` unless the settings are those on which the members of the round agreed."""
        if state.roster[self.silo].settings != self.settings:
            raise ExchangeError("mask.settings-changed", silo=self.silo)

    def accept_shares(self, state: State, request: Inbox) -> State:
        """Returns the next state with the neighbours' shares; the answer is `masked_input`.

        Shares that do not open are left out: the silo cannot help to restore the sender's secrets.
        """
        self._check_turn(state, request, 2)
        self.check_settings(state)
        sharers = request.sharers
        self._check_members(state, sharers, state.roster, "the silos that sent shares")
        near = set(self._graph(state.circle_seed).neighbours(self.silo)) & set(sharers)
        if set(request.sealed) != near:
            raise ExchangeError("mask.shares-not-of-neighbours", silo=self.silo)
        shares = dict(state.shares)
        for silo, text in request.sealed.items():
            info = state.session.info("sealed shares", state.circle_seed, silo, self.silo)
            plain = unseal(derived_key(self._pair(state, silo).sealing, info), text, info)
            if plain is None:  # a faulty neighbour alone must not stop the round
                continue
            try:
                shares[silo] = decode(plain, SharePair, f"shares of silo {silo!r}")
            except ExchangeError:
                continue
        following = msgspec.structs.replace(state, shares=shares, sharers=sharers)
        return self._append_request(following, request, b"")

    def masked_input(self, state: State, values: np.ndarray[Any, Any]) -> bytes:
        """Returns the masked input of a round as bytes to send; the same values give the same bytes.

        Args:
            state: After `accept_shares`.
            values: The silo's release, whole numbers in steps of the group's lattice.
        """
        if len(state.requests) != 3:
            raise ExchangeError("mask.input-out-of-turn")
        self._check_enough(state.sharers, self._least(state))  # again: the policy may have changed during training
        vector = self._residues(values)
        session = state.session
        agreed = sharers_digest(session, state.circle_seed, state.sharers)
        masks.add_mask(vector, self_mask_key(session, state.seed, self.silo))
        for silo in self._graph(state.circle_seed).neighbours(self.silo):
            if silo in state.sharers:
                key = pair_key(session, self._pair(state, silo).masking, self.silo, silo, agreed)
                # The first name of a pair adds the mask and the second name subtracts, so the masks cancel in the sum.
                masks.add_mask(vector, key, negative=silo < self.silo)
        return signed_reply(INPUT, session, self.silo, vector.data.cast("B"), self.key)

    def attest_survivors(self, state: State, request: Survivors) -> State:
        """Returns the next state; the answer is a signature over the roster, the sharers and the survivors."""
        self._check_turn(state, request, 3)
        self._check_members(state, request.members, state.sharers, "the survivors")
        # Without the seed and the pair secrets the silo can make no second masked input of the round.
        following = msgspec.structs.replace(state, survivors=request.members, pairs={}, seed=b"")
        return self._append_reply(following, request, ATTESTATION, _survivors_digest(following))

    def unmask_sum(self, state: State, request: Attested) -> State:
        """Returns the last state, without secrets; the answer is the shares that unmask the sum.

        For every member of which the silo holds shares, the answer reveals exactly one share: of the seed if the member
        survived, of the masking key if the member dropped out.

        Refused:

        - fewer attestations than the quorum, or attestations of different survivors than the silo has signed;
        - fewer survivors than the silo's present policy requires.
        """
        self._check_turn(state, request, 4)
        self._check_enough(state.survivors, self._least(state))
        digest, signers = _survivors_digest(state), set()
        for data in request.attestations:
            answer = member_reply_from_bytes(data)
            answer.check(ATTESTATION, state.session, self.group.keys)
            # A server that reports different survivors to different members would collect both secrets of a member.
            if answer.silo not in state.survivors or bytes(answer.body) != digest:
                raise ExchangeError("mask.survivors-differ", other_silo=answer.silo, silo=self.silo)
            signers.add(answer.silo)
        # Two quorums have an honest member in common, so no second list of survivors finds a quorum.
        if len(signers) < self.group.quorum or len(signers) != len(request.attestations):
            raise ExchangeError(
                "mask.attestations-too-few", signers=len(signers), group=self.group.name, quorum=self.group.quorum
            )
        # Never both shares of a member: t holders that reveal both would uncover the member's release.
        seeds = {silo: pair.seed for silo, pair in state.shares.items() if silo in state.survivors}
        keys = {silo: pair.key for silo, pair in state.shares.items() if silo not in state.survivors}
        body = msgspec.msgpack.encode(Revealed(seeds=seeds, keys=keys))
        return self._append_reply(state, request, UNMASKING, body).without_secrets()

    def _roster(self, state: State, request: Roster) -> dict[str, PublicKeys]:
        """Returns the checked roster of a request: by participant, the public keys."""
        roster: dict[str, PublicKeys] = {}
        distinct = DistinctKeys()
        for data in request.keys:
            answer = member_reply_from_bytes(data)
            answer.check(KEYS, state.session, self.group.keys)
            if answer.silo in roster:
                raise ExchangeError("mask.roster-silo-repeated", silo=answer.silo)
            roster[answer.silo] = body_of(answer, PublicKeys)
            distinct.add(answer.silo, roster[answer.silo])
        # Neighbours derive the masks of pairs from the keys of the roster, so the silo's must be the keys it sent.
        if state.answers[0] not in request.keys:
            raise ExchangeError("mask.roster-without-own-keys", silo=self.silo)
        for silo, keys in roster.items():
            if keys.settings != self.settings:
                raise ExchangeError("mask.settings-differ", other_silo=silo, silo=self.silo)
        self._check_enough(roster, self._least(state))
        return roster

    @staticmethod
    def _pair_secrets(state: State, neighbours: dict[str, PublicKeys]) -> dict[str, PairSecrets]:
        """Returns the pair secrets with all neighbours; an invalid key is refused here, before any release."""
        masking, sealing = loaded_key(state.masking_key), loaded_key(state.sealing_key)
        return {
            silo: PairSecrets(
                masking=pair_secret(masking, keys.masking, silo), sealing=pair_secret(sealing, keys.sealing, silo)
            )
            for silo, keys in neighbours.items()
        }

    def _pair(self, state: State, silo: str) -> PairSecrets:
        """Returns the pair secrets with a neighbour; a state of an earlier version of Fulcrum has no such secrets."""
        if silo not in state.pairs:
            raise ExchangeError("mask.state-of-other-version", silo=self.silo, round_number=state.session.round_number)
        return state.pairs[silo]

    def _check_members(
        self, state: State, members: tuple[str, ...], participants: Sequence[str] | dict[str, Any], list_name: str
    ) -> None:
        """Raises an error unless `members` is a sorted list of participants with the silo, and of sufficient length."""
        # A sorted list without repetition has a single digest, and a member counts once.
        if list(members) != sorted(set(members)) or not set(members) <= set(participants) or self.silo not in members:
            raise ExchangeError("mask.members-invalid", list_name=list_name, group=self.group.name, silo=self.silo)
        self._check_enough(members, self._least(state))

    def _least(self, state: State) -> int:
        """Returns the least number of members in a sum; a policy that became laxer counts from the next round."""
        return max(self.least, state.least)

    def _check_enough(self, members: Collection[str], least: int) -> None:
        """Raises an error if the plan or the policy forbids a sum of these members.

        `least` is the least number of members by the silo's policy. The plan's refusal is an `ExchangeError`, the
        policy's a `PolicyError`.
        """
        if reason := self.group.lacking(set(members)):
            raise ExchangeError("mask.members-missing", reason=reason)
        if len(members) < least:
            raise PolicyError("mask.group-below-policy", silo=self.silo, least=least, members=len(members))

    def _check_turn(self, state: State, request: Any, turn: int) -> None:
        """Raises `ExchangeError` unless the request belongs to the session and is the next stage."""
        if request.session != state.session:
            raise ExchangeError("mask.session-differs", silo=self.silo)
        if len(state.requests) != turn:
            raise ExchangeError("mask.stage-out-of-turn", silo=self.silo)

    def _graph(self, seed: bytes) -> HararyGraph:
        return HararyGraph(self.group.regions, seed, self.group.neighbours)

    def _residues(self, values: np.ndarray[Any, Any]) -> Residues:
        """Returns a copy of a release modulo 2^bits; a release that could make the sum wrap is refused."""
        if values.ndim != 1 or values.dtype != np.int64 or len(values) != (self.group.parameters or len(values)):
            raise ReleaseError("mask.input-shape", parameters=self.group.parameters)
        most = self.group.largest[self.silo]
        if len(values) and not -most <= int(values.min()) <= int(values.max()) <= most:
            raise ReleaseError("mask.input-range", silo=self.silo, most=most)
        return values.astype(self.group.dtype)

    def _append_reply(self, state: State, request: Any, holds: str, body: bytes) -> State:
        """Returns the state with an accepted request and its signed answer."""
        return self._append_request(state, request, signed_reply(holds, state.session, self.silo, body, self.key))

    def _append_request(self, state: State, request: Any, answer: bytes) -> State:
        """Returns the state with an accepted request and its answer."""
        # The strictest minimum so far is stored: a policy that becomes laxer counts from the next round.
        requests, answers = (*state.requests, request_digest(request.to_bytes())), (*state.answers, answer)
        return msgspec.structs.replace(state, requests=requests, answers=answers, least=self._least(state))


def request_digest(data: bytes) -> bytes:
    """Returns the SHA-256 by which a silo recognizes a repeated request."""
    return hashlib.sha256(data).digest()


def circle_seed_of(session: Session, roster: Sequence[bytes]) -> bytes:
    """Returns the seed of the order of members: a digest of all keys of the round, drawn by the silos themselves."""
    return hashlib.sha256(session.info("circle", sorted(roster))).digest()


def commitment(session: Session, silo: str, seed: bytes) -> bytes:
    """Returns a silo's commitment to its seed, so that wrong shares of the seed are detected."""
    return hashlib.sha256(session.info("commitment", silo, seed)).digest()


def sharers_digest(session: Session, circle_seed: bytes, sharers: Sequence[str]) -> bytes:
    """Returns a digest of the lists that a member received before its input: roster with keys, and sharers."""
    return hashlib.sha256(session.info("told before inputs", circle_seed, sharers)).digest()


def self_mask_key(session: Session, seed: bytes, silo: str) -> bytes:
    """Returns the key of a member's self-mask, which is removed from the sum after the holders reveal the seed."""
    return derived_key(seed, session.info("self mask", silo))


def pair_key(session: Session, secret: bytes, silo: str, other: str, agreed: bytes) -> bytes:
    """Returns the key of the mask of two members, the same from both sides if both received the same lists.

    A server that sends different keys or sharers to different members gets masks that never cancel, and no partial sum.

    Args:
        session: The round.
        secret: The masking secret of the pair.
        silo: A member of the pair.
        other: The second member of the pair, in any order.
        agreed: The digest of `sharers_digest`.
    """
    return derived_key(secret, session.info("pair mask", *sorted((silo, other)), agreed))


def survivors_digest(session: Session, circle_seed: bytes, sharers: Sequence[str], survivors: Sequence[str]) -> bytes:
    """Returns the digest that members attest: over all keys of the roster, the sharers and the survivors."""
    before = sharers_digest(session, circle_seed, sharers)
    return hashlib.sha256(session.info("survivors", before, survivors)).digest()


def _survivors_digest(state: State) -> bytes:
    """Returns the digest that a silo in the state attests."""
    return survivors_digest(state.session, state.circle_seed, state.sharers, state.survivors)
