"""A silo's answer in a masked round, encrypted to the aggregator of the region: no carrier can read the answer.

An engine with aggregators carries the answers of silos through its server. Masked vectors together with the shares that
unmask them are the sum of a region, so under a plan with aggregators above the regions every answer of a silo is
sealed to the region's X25519 key of the plan:

- HPKE (RFC 9180, base mode, the suite of sealed releases) encrypts the answer, with a fresh ephemeral key for every
  envelope, and with format, plan, silo, region and round as `info`;
- the answer inside has the silo's own Ed25519 signature over group, round, attempt, model and stage: an envelope by
  any other party holds no answer of the silo.

The region's key is the key of the signed plan, and no message names a key: requests are not signed, and a server that
plays the region gets answers that the region alone can open.

>>> import tempfile
>>> from fulcrum.aggregation.answer_opening import AnswerOpener
>>> from fulcrum.core.masking.masking_messages import KEYS, Session, signed_reply
>>> from fulcrum.core.plan.keys import private_key
>>> from fulcrum.core.plan.verified_plan import verified_plan
>>> from fulcrum.planning.files.plan_issue import new_key
>>> from fulcrum.planning.planner import plan
>>> from fulcrum.readers.federation import Federation
>>> folder = tempfile.TemporaryDirectory()
>>> keys = {silo: new_key(f"{folder.name}/{silo}") for silo in ("lille", "metz", "nancy")}
>>> keys |= {node: new_key(f"{folder.name}/{node}", "sealing") for node in ("north", "france")}
>>> federation = Federation.from_sizes(
...     {"north": dict.fromkeys(("lille", "metz", "nancy"), 100)}, outer={"country": {"france": ["north"]}}
... )
>>> one_round = verified_plan(plan(federation, rounds=1, epsilon=1.0, keys=keys, aggregation="masked"))
>>> session = Session(
...     plan_digest=one_round.digest, group="north", round_number=1, attempt=1, input_digest="model-0"
... )
>>> answer = signed_reply(KEYS, session, "lille", b"public keys", private_key(f"{folder.name}/lille"))
>>> sealed = AnswerSealer(one_round, "lille").seal(answer, 1)
>>> AnswerOpener(one_round, "north", f"{folder.name}/north").open(sealed) == answer
True
>>> folder.cleanup()

Limits: silo, region, round and length of an envelope stay visible, and so do the requests to silos, which hold public
keys, shares that silos sealed to each other, names and attestations. A thief of the region's key can open every
recorded answer, and so compute the sums of the region.
"""

from fulcrum.core.messages.framing import frame
from fulcrum.core.messages.membership import region_of
from fulcrum.core.messages.sealing_context import Context, sealing_suite
from fulcrum.core.plan.keys import plan_key
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.errors import ExchangeError

FORMAT = "fulcrum.sealed-answer/1"
"""The format of an envelope."""


class SealedAnswer(Context, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="format", tag=FORMAT):
    """The header of a sealed answer, whose fields are claims until the answer inside is checked."""


class AnswerSealer:
    """Seals the answers of one silo to its region; the region's key of the plan is read once.

    Args:
        plan: The plan, which carries the key of the silo's region.
        silo: The silo.
    """

    def __init__(self, plan: VerifiedPlan, silo: str) -> None:
        self._plan, self._silo, self._region = plan, silo, region_of(plan, silo)
        self._to = plan_key(plan, self._region, "sealing")

    def seal(self, answer: bytes, round_number: int) -> bytes:
        """Returns the envelope of an answer; every envelope has a fresh ephemeral key.

        Raises:
            ExchangeError: The region's key is of low order, so that everybody could compute the shared secret; or the
                answer is too large.
        """
        where = {"plan_digest": self._plan.digest, "silo": self._silo, "region": self._region}
        header = SealedAnswer(**where, round_number=round_number)
        try:
            sealed = sealing_suite().encrypt(answer, self._to, info=header.binding(FORMAT))
        except ValueError:
            raise ExchangeError("seal.key-low-order", region=self._region) from None
        except OverflowError:
            raise ExchangeError("seal.release-too-large", silo=self._silo) from None
        return frame(header, sealed)
