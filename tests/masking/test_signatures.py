"""Signatures of answers: checked once a process, by their own bytes, and as many as must be."""

import dataclasses

import msgspec
import pytest
from error_codes import coded
from groups import Round, inputs_of, names, private_key, region

from fulcrum.aggregation.masked_group import session_of
from fulcrum.core.masking.masking_messages import (
    ATTESTATION,
    KEYS,
    _verify,
    member_reply_from_bytes,
    request_from_bytes,
    signed_reply,
)
from fulcrum.errors import ExchangeError

pytest.importorskip("cryptography", reason="needs the extra secure")

ONE, OTHER = names(5)[:2]


@pytest.fixture
def group():
    return region(5, dropouts=1)


def test_whatever_differs_from_a_signature_found_good_is_refused(group):
    session = session_of(group, 1, "model-0")
    good = member_reply_from_bytes(signed_reply(KEYS, session, ONE, b"two keys", private_key(ONE)))
    for _ in range(2):
        good.check(KEYS, session, group.keys)
    flipped = bytes([good.signature[0] ^ 1]) + good.signature[1:]
    later = session_of(group, 2, "model-0")
    for changed, at in (
        (msgspec.structs.replace(good, body=b"two Keys"), session),
        (msgspec.structs.replace(good, signature=flipped), session),
        (msgspec.structs.replace(good, signature=b""), session),
        (msgspec.structs.replace(good, silo=OTHER), session),
        (msgspec.structs.replace(good, session=later), later),
    ):
        for _ in range(2):
            with pytest.raises(ExchangeError, check=coded("mask.reply-signature")):
                changed.check(KEYS, at, group.keys)
    swapped = dataclasses.replace(group, keys={**group.keys, ONE: group.keys[OTHER]})
    with pytest.raises(ExchangeError, check=coded("mask.reply-signature")):
        good.check(KEYS, session, swapped.keys)


def test_the_silos_of_one_process_check_a_signature_once(group):
    session = session_of(group, 1, "model-0")
    answer = member_reply_from_bytes(signed_reply(ATTESTATION, session, ONE, b"a story", private_key(ONE)))
    _verify.cache_clear()
    for _ in group.regions:
        answer.check(ATTESTATION, session, group.keys)
    assert (_verify.cache_info().misses, _verify.cache_info().hits) == (1, len(group.regions) - 1)


def test_a_silo_is_shown_as_many_attestations_as_it_asks_for(group):
    masked = Round(group, inputs_of(group, seed=3))
    for request in masked.until("unmasking").values():
        signers = {member_reply_from_bytes(data).silo for data in request_from_bytes(request).attestations}
        assert len(signers) == group.quorum < len(group.regions)
