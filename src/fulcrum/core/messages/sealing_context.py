"""The plan, silo, region and round to which every sealed message of a silo is bound, and the suite that encrypts.

>>> where = Context(plan_digest="3f2a", silo="lille", region="north", round_number=1)
>>> where.binding("fulcrum.sealed/2") == where.binding("fulcrum.sealed-answer/1")
False
"""

from typing import Any

import msgspec

from fulcrum.errors import MissingExtraError
from fulcrum.primitives import primitives


class Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan, silo, region and round to which signature and encryption bind a message.

    Attributes:
        plan_digest: The digest of the plan.
        silo: The silo that sends the message.
        region: The region that receives the message.
        round_number: The round, from 1.
    """

    plan_digest: str
    silo: str
    region: str
    round_number: int

    def binding(self, kind: str, *more: bytes) -> bytes:
        """Returns the bytes for the `info` of the encryption, and for the signature.

        - The kind stands first: the signature of a decline never verifies for a release, nor the reverse.
        - The bytes are msgpack, and a plan's signature is over a text: neither signature verifies for the other.
        """
        return msgspec.msgpack.encode((kind, self.plan_digest, self.silo, self.region, self.round_number, *more))


def sealing_suite() -> Any:
    """Returns the HPKE suite for releases; raises `MissingExtraError` where the package cryptography has no HPKE."""
    suite = primitives("sealed releases need").hpke
    if suite is None:
        raise MissingExtraError("extra.cryptography-old")
    return suite
