"""What a silo answers in a masked round, and what it refuses: from a state and a request to the next state.

The protocol is that of Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning",
against a server that may deviate, on the graph of `fulcrum.core.masking.harary_graph`. With x the silo's release, v its
neighbours that take part, m(.) the mask of a key:

    sent = x + m(own seed) + sum over v of (+ m(key of the pair) if the silo's name comes first, else -)   mod 2^bits

In the sum over all members the masks of pairs cancel, if both were told the same before: keys of pairs are derived from
the whole roster and the list of sharers. The members' seeds are in shares with their holders, who give them up for
those whose input is in the sum. For a member that shared masks and then dropped out they give up its masking key
instead, so that its pairs' masks can be taken off. Both secrets of one member would uncover its input, and no holder
gives both: which of the two follows from one list of survivors, and a silo unmasks once, by a list that enough members
sign.

`fulcrum.core.masking.member_replies` keeps the states on disk, so that a silo answers every stage once even where each
message starts a process, and whatever kills it.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from fulcrum.core.masking import masks
from fulcrum.core.masking.harary_graph import Circle
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
    answer_from_bytes,
    body_of,
    signed_answer,
)
from fulcrum.core.masking.masks import Residues, agreed, derived_key, loaded_key, public_half, sealed
from fulcrum.core.masking.masks import opened as unsealed
from fulcrum.core.masking.roster import DistinctKeys
from fulcrum.core.masking.secret_sharing import shares_of
from fulcrum.core.messages.framing import decoded
from fulcrum.errors import ExchangeError, PolicyError, ReleaseError


class PairSecrets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What two neighbours agreed on: the secret that their mask comes from, and the one that seals their shares."""

    masking: bytes
    sealing: bytes


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a silo remembers of a masked round between two stages. It holds secrets until the sum is unmasked.

    Attributes:
        session: The round.
        requests: SHA-256 of every request that was accepted, in order.
        answers: What was answered; that of the masked input is made again when it is asked for.
        masking_key: The private key that pairs' masks come from, until all pairs' secrets are agreed on.
        sealing_key: The private key that opens neighbours' shares, as long.
        roster: By member that takes part, its public keys.
        pairs: By neighbour that takes part, what the two agreed on, until the masked input was given.
        circle_seed: What the arrangement of members follows from.
        seed: Of the self-mask, until the masked input was given.
        shares: By member, the shares that this silo holds of its secrets.
        sharers: The members that sent shares, sorted.
        survivors: The members whose inputs are in the sum, sorted.
        sent: The signature of the masked input, which is of one vector alone; empty before it is made.
        least: The most members in a sum that the silo's policy asked for whenever it answered in this round.
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
        """Returns what may be kept once the sum is unmasked: which requests came, the last answer, and who is in it."""
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
class Member:
    """A silo as a member of its group.

    Every method either returns what may be answered or raises, and then nothing may be sent: `ExchangeError` where the
    server asks for something that no honest server asks for, `PolicyError` where the silo's own policy forbids it.

    Attributes:
        group: Under the plan that the silo verified.
        silo: Its name.
        key: Its private Ed25519 key, whose public half the plan carries.
        least: Members that must be in a sum, this silo among them, by its own policy as it is now. A round is held to
            the most that was asked for when any of its stages was answered.
        settings: The digest of settings that training goes by and that no request names. All members of a round must
            have the same, and keep it until their inputs are made.
    """

    group: Group
    silo: str
    key: Any
    least: int = 1
    settings: str = ""

    def begun(self, request: Begin) -> State:
        """Returns the state of a new round, its first answer the silo's fresh keys."""
        self.group.check_session(request.session)
        self.group.check_numbers(request)
        self._check_enough(self.group.regions, self.least)
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
        return self._answered(state, request, KEYS, body)

    def shared(self, state: State, request: Roster) -> State:
        """Returns the next state, its answer the shares of this silo's secrets, sealed to its neighbours.

        Refused are keys that the silo they claim did not sign, for this very round; a silo that the plan does not know
        in this group, or twice; fewer silos than the plan and the policy allow; a key that two silos share, or that
        one silo has for both purposes; a silo that was told other settings; a roster without this silo's own keys, as
        it sent them.
        """
        self._check_turn(state, request, 1)
        roster = self._roster(state, request)
        seed = masks.new_seed()
        circle_seed = circle_seed_of(state.session, request.keys)
        circle = self._circle(circle_seed)
        holders = [silo for silo in circle.holders(self.silo) if silo in roster]
        points = {silo: circle.point(self.silo, silo) for silo in holders}
        threshold, places = self.group.threshold, tuple(points.values())
        seeds = shares_of(seed, threshold=threshold, points=places)
        keys = shares_of(state.masking_key, threshold=threshold, points=places)
        shares = {silo: SharePair(seed=seeds[point], key=keys[point]) for silo, point in points.items()}
        pairs = self._agreed(state, {silo: roster[silo] for silo in holders if silo != self.silo})
        texts = {}
        for silo, secret in pairs.items():
            info = state.session.info("sealed shares", circle_seed, self.silo, silo)
            texts[silo] = sealed(derived_key(secret.sealing, info), msgspec.msgpack.encode(shares[silo]), info)
        body = SealedShares(commitment=commitment(state.session, self.silo, seed), sealed=texts)
        known = msgspec.structs.replace(
            state,
            masking_key=b"",
            sealing_key=b"",
            roster=roster,
            pairs=pairs,
            circle_seed=circle_seed,
            seed=seed,
            shares={self.silo: shares[self.silo]},
        )
        return self._answered(known, request, SHARES, msgspec.msgpack.encode(body))

    def asked_again(self, state: State) -> State:
        """Returns the state in which a request is answered again, held to the policy as it is by now.

        The answer may not have left before: a silo that was killed has it on disk, and does not know.
        """
        least = self._least(state)
        if members := state.survivors or state.sharers or tuple(state.roster):
            self._check_enough(members, least)
        return state if least == state.least else msgspec.structs.replace(state, least=least)

    def check_settings(self, state: State) -> None:
        """Raises `ExchangeError` unless the settings are those that the members of the round agreed on."""
        if state.roster[self.silo].settings != self.settings:
            raise ExchangeError("mask.settings-changed", silo=self.silo)

    def received(self, state: State, request: Inbox) -> State:
        """Returns the next state, in which the neighbours' shares are there; `masked_input` is the answer.

        Shares that do not open are left out: whoever sealed them cannot be helped by this silo.
        """
        self._check_turn(state, request, 2)
        self.check_settings(state)
        sharers = request.sharers
        self._check_members(state, sharers, state.roster, "the silos that sent shares")
        near = set(self._circle(state.circle_seed).neighbours(self.silo)) & set(sharers)
        if set(request.sealed) != near:
            raise ExchangeError("mask.shares-not-of-neighbours", silo=self.silo)
        shares = dict(state.shares)
        for silo, text in request.sealed.items():
            info = state.session.info("sealed shares", state.circle_seed, silo, self.silo)
            plain = unsealed(derived_key(self._pair(state, silo).sealing, info), text, info)
            if plain is None:
                continue
            try:
                shares[silo] = decoded(plain, SharePair, f"shares of silo {silo!r}")
            except ExchangeError:
                continue
        known = msgspec.structs.replace(state, shares=shares, sharers=sharers)
        return self._accepted(known, request, b"")

    def masked_input(self, state: State, values: np.ndarray[Any, Any]) -> bytes:
        """Returns the masked input of a round as it is sent; the same values give the same bytes.

        Args:
            state: After `received`.
            values: The silo's release, whole numbers in steps of the group's lattice.
        """
        if len(state.requests) != 3:
            raise ExchangeError("mask.input-out-of-turn")
        self._check_enough(state.sharers, self._least(state))  # again: training came between, and takes long
        vector = self._residues(values)
        session = state.session
        told = told_before_inputs(session, state.circle_seed, state.sharers)
        masks.add_mask(vector, own_key(session, state.seed, self.silo))
        for silo in self._circle(state.circle_seed).neighbours(self.silo):
            if silo in state.sharers:
                key = pair_key(session, self._pair(state, silo).masking, self.silo, silo, told)
                masks.add_mask(vector, key, negative=silo < self.silo)
        return signed_answer(INPUT, session, self.silo, vector.data.cast("B"), self.key)

    def attested(self, state: State, request: Survivors) -> State:
        """Returns the next state, its answer a signature over who takes part, who shared and who survived."""
        self._check_turn(state, request, 3)
        self._check_members(state, request.members, state.sharers, "the survivors")
        known = msgspec.structs.replace(state, survivors=request.members, pairs={}, seed=b"")
        return self._answered(known, request, ATTESTATION, _story(known))

    def unmasked(self, state: State, request: Attested) -> State:
        """Returns the last state, without secrets, its answer the shares that unmask the sum.

        Of every member that it holds shares of, it gives up one of the two: the seed's if the member survived, the
        masking key's if not. Refused unless a quorum of members signed the same survivors as this silo did, and where
        they are fewer than its policy asks for by now.
        """
        self._check_turn(state, request, 4)
        self._check_enough(state.survivors, self._least(state))
        story, signers = _story(state), set()
        for data in request.attestations:
            answer = answer_from_bytes(data)
            answer.check(ATTESTATION, state.session, self.group.keys)
            if answer.silo not in state.survivors or bytes(answer.body) != story:
                raise ExchangeError("mask.survivors-differ", other_silo=answer.silo, silo=self.silo)
            signers.add(answer.silo)
        if len(signers) < self.group.quorum or len(signers) != len(request.attestations):
            raise ExchangeError(
                "mask.attestations-too-few", signers=len(signers), group=self.group.name, quorum=self.group.quorum
            )
        seeds = {silo: pair.seed for silo, pair in state.shares.items() if silo in state.survivors}
        keys = {silo: pair.key for silo, pair in state.shares.items() if silo not in state.survivors}
        body = msgspec.msgpack.encode(Revealed(seeds=seeds, keys=keys))
        return self._answered(state, request, UNMASKING, body).without_secrets()

    def _roster(self, state: State, request: Roster) -> dict[str, PublicKeys]:
        roster: dict[str, PublicKeys] = {}
        distinct = DistinctKeys()
        for data in request.keys:
            answer = answer_from_bytes(data)
            answer.check(KEYS, state.session, self.group.keys)
            if answer.silo in roster:
                raise ExchangeError("mask.roster-silo-repeated", silo=answer.silo)
            roster[answer.silo] = body_of(answer, PublicKeys)
            distinct.add(answer.silo, roster[answer.silo])
        if state.answers[0] not in request.keys:
            raise ExchangeError("mask.roster-without-own-keys", silo=self.silo)
        for silo, keys in roster.items():
            if keys.settings != self.settings:
                raise ExchangeError("mask.settings-differ", other_silo=silo, silo=self.silo)
        self._check_enough(roster, self._least(state))
        return roster

    @staticmethod
    def _agreed(state: State, neighbours: dict[str, PublicKeys]) -> dict[str, PairSecrets]:
        """Returns what this silo and its neighbours agree on; a key that is none is refused before any release."""
        masking, sealing = loaded_key(state.masking_key), loaded_key(state.sealing_key)
        return {
            silo: PairSecrets(masking=agreed(masking, keys.masking, silo), sealing=agreed(sealing, keys.sealing, silo))
            for silo, keys in neighbours.items()
        }

    def _pair(self, state: State, silo: str) -> PairSecrets:
        """Returns what this silo and a neighbour agreed on; a state of an earlier Fulcrum does not hold it."""
        if silo not in state.pairs:
            raise ExchangeError("mask.state-of-other-version", silo=self.silo, round_number=state.session.round_number)
        return state.pairs[silo]

    def _check_members(
        self, state: State, members: tuple[str, ...], known: Sequence[str] | dict[str, Any], what: str
    ) -> None:
        if list(members) != sorted(set(members)) or not set(members) <= set(known) or self.silo not in members:
            raise ExchangeError("mask.members-invalid", list_name=what, group=self.group.name, silo=self.silo)
        self._check_enough(members, self._least(state))

    def _least(self, state: State) -> int:
        """Returns how many members a sum of the round must have: a policy that became laxer is for the next one."""
        return max(self.least, state.least)

    def _check_enough(self, members: Collection[str], least: int) -> None:
        if reason := self.group.lacking(set(members)):
            raise ExchangeError("mask.members-missing", reason=reason)
        if len(members) < least:
            raise PolicyError("mask.group-below-policy", silo=self.silo, least=least, members=len(members))

    def _check_turn(self, state: State, request: Any, turn: int) -> None:
        if request.session != state.session:
            raise ExchangeError("mask.session-differs", silo=self.silo)
        if len(state.requests) != turn:
            raise ExchangeError("mask.stage-out-of-turn", silo=self.silo)

    def _circle(self, seed: bytes) -> Circle:
        return Circle(self.group.regions, seed, self.group.neighbours)

    def _residues(self, values: np.ndarray[Any, Any]) -> Residues:
        """Returns a copy of a release modulo 2^bits; one that could make the sum wrap is refused."""
        if values.ndim != 1 or values.dtype != np.int64 or len(values) != (self.group.parameters or len(values)):
            raise ReleaseError("mask.input-shape", parameters=self.group.parameters)
        most = self.group.largest[self.silo]
        if len(values) and not -most <= int(values.min()) <= int(values.max()) <= most:
            raise ReleaseError("mask.input-range", silo=self.silo, most=most)
        return values.astype(self.group.dtype)

    def _answered(self, state: State, request: Any, holds: str, body: bytes) -> State:
        return self._accepted(state, request, signed_answer(holds, state.session, self.silo, body, self.key))

    def _accepted(self, state: State, request: Any, answer: bytes) -> State:
        requests, answers = (*state.requests, request_digest(request.to_bytes())), (*state.answers, answer)
        return msgspec.structs.replace(state, requests=requests, answers=answers, least=self._least(state))


def request_digest(data: bytes) -> bytes:
    """Returns what a silo remembers a request by."""
    return hashlib.sha256(data).digest()


def circle_seed_of(session: Session, roster: Sequence[bytes]) -> bytes:
    """Returns what the arrangement of members follows from: all keys of the round, each drawn by its own silo."""
    return hashlib.sha256(session.info("circle", sorted(roster))).digest()


def commitment(session: Session, silo: str, seed: bytes) -> bytes:
    """Returns what a silo says of its seed beforehand, so that wrong shares of it are noticed."""
    return hashlib.sha256(session.info("commitment", silo, seed)).digest()


def told_before_inputs(session: Session, circle_seed: bytes, sharers: Sequence[str]) -> bytes:
    """Returns a digest of what a member was told before its input: who takes part with which keys, and who shared."""
    return hashlib.sha256(session.info("told before inputs", circle_seed, sharers)).digest()


def own_key(session: Session, seed: bytes, silo: str) -> bytes:
    """Returns the key of a member's own mask, which the sum is rid of once its holders gave the seed up."""
    return derived_key(seed, session.info("self mask", silo))


def pair_key(session: Session, secret: bytes, one: str, other: str, told: bytes) -> bytes:
    """Returns the key of the mask that two members share, the same from either side if both were told the same.

    A server that tells members of other keys or sharers gets masks that nothing cancels, and no sum of any part.
    """
    return derived_key(secret, session.info("pair mask", *sorted((one, other)), told))


def story_of(session: Session, circle_seed: bytes, sharers: Sequence[str], survivors: Sequence[str]) -> bytes:
    """Returns the digest that members attest: all keys of the roster, the sharers, the survivors."""
    before = told_before_inputs(session, circle_seed, sharers)
    return hashlib.sha256(session.info("survivors", before, survivors)).digest()


def _story(state: State) -> bytes:
    return story_of(state.session, state.circle_seed, state.sharers, state.survivors)
