"""The messages between the server and a regional aggregator in a masked round: a stage to run, and the end of a stage.

>>> where = {"plan_digest": "3f2a", "round_number": 1, "attempt": 1, "stage": "keys"}
>>> reply_of_region(StageEnd(**where, region="north").to_bytes()).region
'north'
>>> reply_of_region(b"junk")
Traceback (most recent call last):
...
fulcrum.errors.ExchangeError: these bytes are not a region's answer: ...

The server sets the pace and has no part in the content: the aggregator makes the requests to the silos, adds the masked
vectors, and sends the sum behind the last stage. Neither message is signed. The engine names the sender.
"""

import contextlib

import msgspec

from fulcrum.core.messages.framing import decode
from fulcrum.core.messages.regional_reply import RegionalReply, regional_reply_from_bytes
from fulcrum.errors import ExchangeError


class _Stage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    plan_digest: str
    round_number: int
    attempt: int
    stage: str

    def to_bytes(self) -> bytes:
        """Returns the bytes to send."""
        return msgspec.msgpack.encode(self)


class StageCall(_Stage, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fulcrum.stage/1"):
    """Asks a regional aggregator to run a stage of its masked group.

    Attributes:
        plan_digest: The digest of the plan.
        round_number: The round, from 1.
        attempt: The attempt of the round, from 1; every region receives the same number.
        stage: A value of `masked_group.STAGES`.
    """


class StageEnd(_Stage, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="fulcrum.stage-end/1"):
    """The notice of a regional aggregator that a stage is over; the fields of the call are repeated.

    Attributes:
        region: The region.
        interrupted: True if the aggregator has not run the stage before, such as after a restart: the group of the
            region can have no sum in this attempt.
    """

    region: str
    interrupted: bool = False


def stage_call_from_bytes(data: object) -> StageCall:
    """Returns the server's call, or raises `ExchangeError`."""
    return decode(data, StageCall, "a stage of a masked round")


def reply_of_region(data: bytes) -> StageEnd | RegionalReply:
    """Returns the reply of a regional aggregator: the end of a stage, or the answer for the round.

    All fields are the sender's claims.

    Raises:
        ExchangeError: The bytes are no such message.
    """
    with contextlib.suppress(ExchangeError):
        return decode(data, StageEnd, "the end of a stage")
    return regional_reply_from_bytes(data)
