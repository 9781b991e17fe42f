"""The signed decline of a silo in a masked round: no answer of the silo will come in this stage.

A decline is signed with the silo's key of the plan and bound to session and stage: no other party can decline for the
silo, so no other party can have a stage closed without the silo. A decline states no reason.
"""

from typing import Any

from fulcrum.core.masking.masking_messages import MemberReply, Request, Session, signed_reply
from fulcrum.errors import ExchangeError

DECLINED = "decline"
"""The kind of content of a decline, beside the five kinds of answers."""


def stage_of(request: Request) -> str:
    """Returns the stage of a request, which is the kind of content of an answer to the request."""
    return str(request.__struct_config__.tag)


def signed_decline(request: Request, silo: str, private: Any) -> bytes:
    """Returns a silo's decline of a request as bytes, signed with the silo's private Ed25519 key."""
    return signed_reply(DECLINED, request.session, silo, stage_of(request).encode(), private)


def check_decline(decline: MemberReply, stage: str, session: Session, keys: Any) -> None:
    """Raises `ExchangeError` unless a decline is of the stage and the session, signed by the claimed sender.

    Args:
        decline: A message of the kind `DECLINED`.
        stage: The current stage, as `stage_of` returns it.
        session: The current round.
        keys: By member, the public Ed25519 key of the plan.
    """
    decline.check(DECLINED, session, keys)
    if bytes(decline.body) != stage.encode():
        raise ExchangeError("mask.decline-other-stage", silo=decline.silo, stage=stage)
