"""The messages of an aggregator to the aggregator of the next tier: encrypted to the parent, with proof of the sender.

A plan carries one X25519 key for every aggregator. A child's reply of a round, or the end of a stage, becomes an
envelope: a header with format, plan, child, parent and round, then the ciphertext.

- HPKE (RFC 9180, base mode, the suite of sealed releases) encrypts the content to the parent's key, with format, plan,
  child, parent and round as `info`: the server and all other carriers learn the length alone.
- An HMAC-SHA256 over the same fields and the SHA-256 of the ciphertext proves the sender. Child and parent derive the
  key of the HMAC from their X25519 keys (HKDF-SHA256). Without the proof, a carrier could put sums of its own in the
  place of all sums but one, and subtract them from the parent's sum.

>>> import tempfile
>>> from fulcrum.readers.federation import Federation
>>> from fulcrum.core.messages.regional_reply import Withheld
>>> from fulcrum.core.plan.verified_plan import verified_plan
>>> from fulcrum.planning.planner import plan
>>> from fulcrum.planning.files.plan_issue import new_key
>>> folder = tempfile.TemporaryDirectory()
>>> keys = {node: new_key(f"{folder.name}/{node}", "sealing") for node in ("north", "france")}
>>> federation = Federation.from_sizes({"north": [100]}, outer={"country": {"france": ["north"]}})
>>> one_round = verified_plan(plan(federation, rounds=1, epsilon=1.0, keys=keys))
>>> reply = Withheld(plan_digest=one_round.digest, region="north", round_number=1, missing=(), reason="none answered")
>>> sealed = SumSealer(one_round, "north", f"{folder.name}/north").seal(reply.to_bytes(), 1)
>>> child, content = SumOpener(one_round, "france", f"{folder.name}/france").open(sealed)
>>> child, content.reason
('north', 'none answered')
>>> folder.cleanup()

Limits: parent, child, round and length of an envelope stay visible. A thief of the parent's key can open every recorded
envelope to the parent, and write envelopes to the parent in the name of every child.
"""

import hashlib
import hmac
from pathlib import Path
from typing import Any

import msgspec

from fulcrum.aggregation.stage_messages import StageEnd, reply_of_region
from fulcrum.core.messages.aggregation_tree import tree_of
from fulcrum.core.messages.framing import frame, unframe
from fulcrum.core.messages.regional_reply import RegionalReply
from fulcrum.core.messages.sealing import ciphertext_digest
from fulcrum.core.messages.sealing_context import sealing_suite
from fulcrum.core.plan.keys import load_private_key, plan_key
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.topology import ROOT
from fulcrum.errors import ExchangeError
from fulcrum.primitives import primitives

FORMAT = "fulcrum.sealed-sum/1"
"""The format of an envelope."""

_PRIME = 2**255 - 19  # of X25519


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="format", tag=FORMAT):
    plan_digest: str
    child: str
    parent: str
    round_number: int
    proof: bytes = b""

    def binding(self, *more: bytes) -> bytes:
        """Returns the bytes for the `info` of the encryption, and for the proof of the sender."""
        return msgspec.msgpack.encode((FORMAT, self.plan_digest, self.child, self.parent, self.round_number, *more))


class SumSealer:
    """Seals the messages of one aggregator to its parent; the key is read, and compared with the plan, once.

    Args:
        plan: The plan of the sums.
        node: The aggregator, which has a parent in the plan.
        key: The aggregator's private X25519 key file.
    """

    def __init__(self, plan: VerifiedPlan, node: str, key: str | Path) -> None:
        self._plan, self._node, self._parent = plan, node, tree_of(plan).parent(node)
        if self._parent == ROOT:
            raise ExchangeError("seal.parent-missing", node=node)
        private = load_private_key(plan, node, key, "sealing")
        check_node_keys(plan)
        self._to = plan_key(plan, self._parent, "sealing")
        self._secret = _shared_secret(private, self._to, plan, self._node, self._parent)

    def seal(self, content: bytes, round_number: int) -> bytes:
        """Returns the envelope of a reply or of the end of a stage; every envelope has a fresh ephemeral key."""
        envelope = _Envelope(
            plan_digest=self._plan.digest, child=self._node, parent=self._parent, round_number=round_number
        )
        try:
            sealed = sealing_suite().encrypt(content, self._to, info=envelope.binding())
        except (ValueError, OverflowError):
            raise ExchangeError("seal.sum-too-large", node=self._node) from None
        return frame(msgspec.structs.replace(envelope, proof=_proof(self._secret, envelope, sealed)), sealed)


class SumOpener:
    """Opens the messages of an aggregator's children; reads and checks all keys once.

    Guarantees, against a sender without a key of the plan:

    - only an envelope of a child under the plan opens, with a proof by the child's key;
    - plan, child, parent and round are bound to proof and ciphertext, and equal those of the content.

    Args:
        plan: The plan of the sums.
        node: The aggregator of the seal.
        key: The aggregator's private X25519 key file.
    """

    def __init__(self, plan: VerifiedPlan, node: str, key: str | Path) -> None:
        self._plan, self._node = plan, node
        self._private = load_private_key(plan, node, key, "sealing")
        check_node_keys(plan)
        self._secrets: dict[str, bytes] = {}
        for child in tree_of(plan).children(node):
            public = plan_key(plan, child, "sealing")
            self._secrets[child] = _shared_secret(self._private, public, plan, child, node)

    def open(self, data: bytes) -> tuple[str, RegionalReply | StageEnd]:
        """Returns the child of an envelope and the content; raises `ExchangeError` for every other message."""
        envelope, sealed = unframe(data, _Envelope, f"a sealed sum of format {FORMAT}")
        child, number = envelope.child, envelope.round_number
        expected = (self._plan.digest, self._node)
        if (envelope.plan_digest, envelope.parent) != expected or child not in self._secrets:
            raise ExchangeError("seal.sum-foreign", node=self._node)
        if not hmac.compare_digest(_proof(self._secrets[child], envelope, sealed), envelope.proof):
            raise ExchangeError("seal.sum-forged", child=child, round_number=number)
        try:
            plain = sealing_suite().decrypt(sealed, self._private, info=envelope.binding())
        except (primitives("sealed sums need").invalid_tag, ValueError, OverflowError):
            raise ExchangeError("seal.sum-not-opened", child=child, round_number=number, node=self._node) from None
        content = reply_of_region(plain)
        if (content.plan_digest, content.region, content.round_number) != (self._plan.digest, child, number):
            raise ExchangeError("seal.sum-content-foreign", child=child, round_number=number)
        return child, content


def check_node_keys(plan: VerifiedPlan) -> None:
    """Raises `ExchangeError` if two aggregators of a plan have one key: each would open the messages to the other.

    All aggregators count, also of distant branches. X25519 ignores the highest bit and reduces the rest modulo its
    prime, so that one key has several texts.
    """
    owners: dict[int, str] = {}
    for node in [node for tier in tree_of(plan).levels for node in tier.nodes]:
        raw = plan_key(plan, node, "sealing").public_bytes_raw()
        number = int.from_bytes(raw, "little") % 2**255 % _PRIME
        if (owner := owners.setdefault(number, node)) != node:
            raise ExchangeError("seal.nodes-share-key", node=node, other_node=owner)


def _shared_secret(private: Any, public: Any, plan: VerifiedPlan, child: str, parent: str) -> bytes:
    """Returns the key of the proofs between a child and its parent, for one plan and one direction."""
    suite = primitives("sealed sums need")
    try:
        secret = private.exchange(public)
    except ValueError:  # a key of low order: everybody could compute the secret
        raise ExchangeError("seal.node-key-low-order", node=child, other_node=parent) from None
    purpose = msgspec.msgpack.encode((FORMAT, "proof", plan.digest, child, parent))
    key: bytes = suite.hkdf(suite.sha256(), 32, None, purpose).derive(secret)
    return key


def _proof(secret: bytes, envelope: _Envelope, sealed: bytes | memoryview) -> bytes:
    """Returns the proof that a holder of the child's key made the envelope."""
    return hmac.digest(secret, envelope.binding(ciphertext_digest(sealed)), hashlib.sha256)
