"""A server that tells members different things before their inputs: it gets no sum that any of them is in.

Seven members, of whom one may be missing and one helps the server; five must attest who is in the sum. So one honest
member may have been told something else than the others, and does not attest, and yet be in the sum.
"""

import itertools
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from error_codes import coded
from groups import Round, inputs_of, names, plain_sum, private_key, refusal, region

from fulcrum.core.masking.masking_messages import (
    ATTESTATION,
    KEYS,
    SHARES,
    Attested,
    PublicKeys,
    Revealed,
    Roster,
    SealedShares,
    Survivors,
    body_of,
    member_reply_from_bytes,
    request_from_bytes,
    signed_reply,
)
from fulcrum.core.masking.masking_thresholds import threshold_for, tolerates
from fulcrum.core.masking.masks import add_mask, new_private_key, public_half
from fulcrum.core.masking.member_protocol import pair_key, sharers_digest
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.errors import ExchangeError, ReleaseError

pytest.importorskip("cryptography", reason="needs the extra secure")

SILOS = names(7)
ALONE, HELPER = SILOS[0], SILOS[-1]


@pytest.fixture
def masked():
    group = region(7, dropouts=1, colluders=1)
    assert (group.threshold, group.quorum) == (5, 5)
    return Round(group, inputs_of(group, seed=1))


def drive(masked, requests, *, changed=None, silent=()):
    """Answers what is asked, `ALONE` what it is asked in its place, and goes on to the next stage."""
    for name, request in requests.items():
        if name not in silent:
            masked.server.take(masked.answer(name, changed if changed and name == ALONE else request))
    return masked.server.proceed()


def ended(masked, requests):
    """The last two stages, without the helper, whose input is not in the sum, and without whom was told otherwise."""
    requests = drive(masked, requests, silent=(HELPER, ALONE))
    return drive(masked, requests, silent=(HELPER, ALONE))


def second_keys(session):
    """Keys that the helper shows to one member alone."""
    public = PublicKeys(masking=public_half(new_private_key()), sealing=public_half(new_private_key()))
    return signed_reply(KEYS, session, HELPER, msgspec.msgpack.encode(public), private_key(HELPER))


def test_a_member_that_is_shown_other_keys_is_in_no_sum(masked):
    requests = masked.until("shares")
    honest = request_from_bytes(requests[ALONE]).keys
    other = tuple(
        second_keys(masked.session) if member_reply_from_bytes(data).silo == HELPER else data for data in honest
    )
    requests = drive(masked, requests, changed=Roster(session=masked.session, keys=other).to_bytes())
    requests = drive(masked, requests, silent=(HELPER,))
    outcome = ended(masked, requests)
    assert isinstance(outcome, Withheld)
    assert f"shares of silo '{ALONE}'" in outcome.reason


@pytest.mark.parametrize("told_otherwise", [False, True])
def test_masks_of_members_that_were_told_of_other_sharers_do_not_cancel(masked, told_otherwise):
    requests = masked.until("input")
    inbox = request_from_bytes(requests[ALONE])
    secret = masked.silo(HELPER).state.pairs[ALONE].masking
    fewer = msgspec.structs.replace(
        inbox,
        sharers=tuple(SILOS[:-1]),
        sealed={silo: text for silo, text in inbox.sealed.items() if silo != HELPER},
    )
    changed = fewer.to_bytes() if told_otherwise else None
    requests = drive(masked, requests, changed=changed, silent=(HELPER,))
    outcome = ended(masked, requests)
    assert isinstance(outcome, RegionalSum)
    found = outcome.values.astype(masked.group.dtype)
    if told_otherwise:  # an honest server takes off a mask that the member did not add: this one puts it back
        told = sharers_digest(masked.session, masked.server._circle_seed, inbox.sharers)
        add_mask(found, pair_key(masked.session, secret, ALONE, HELPER, told), negative=False)
    expected = np.array(plain_sum(masked.inputs, SILOS[:-1])).astype(masked.group.dtype)
    assert bool((found == expected).all()) is not told_otherwise


def test_a_masking_key_of_low_order_is_refused_before_anything_is_released(masked):
    requests = masked.until("shares")
    public = PublicKeys(masking=bytes(32), sealing=public_half(new_private_key()))
    bad = signed_reply(KEYS, masked.session, HELPER, msgspec.msgpack.encode(public), private_key(HELPER))
    keys = [data for data in request_from_bytes(requests[ALONE]).keys if member_reply_from_bytes(data).silo != HELPER]
    request = Roster(session=masked.session, keys=(*keys, bad)).to_bytes()
    with pytest.raises(ExchangeError, check=coded("mask.key-invalid")):
        masked.answer(ALONE, request)


def test_a_member_whose_keys_are_of_no_use_is_missing_and_the_others_go_on(masked):
    """With its keys in the roster every other member would refuse, and the round be lost."""
    for name, request in masked.server.requests().items():
        if name != HELPER:
            masked.server.take(masked.answer(name, request))
    good = public_half(new_private_key())
    for masking, sealing in ((bytes(32), good), (good, bytes(32)), (b"short", good), (good, b"")):
        public = PublicKeys(masking=masking, sealing=sealing)
        answer = signed_reply(KEYS, masked.session, HELPER, msgspec.msgpack.encode(public), private_key(HELPER))
        with pytest.raises(ExchangeError, check=coded("mask.key-invalid")):
            masked.server.take(answer)
    requests = masked.server.proceed()
    while isinstance(requests, dict):
        requests = drive(masked, requests)
    assert requests.members == tuple(SILOS[:-1])


def own_keys_twice(_):
    key = public_half(new_private_key())
    return key, key


def own_keys_in_two_encodings(_):
    key = public_half(new_private_key())
    return key, key[:31] + bytes([key[31] ^ 0x80])


def the_keys_of_another(masked):
    known = masked.server._public[SILOS[1]]
    return known.sealing, public_half(new_private_key())


@pytest.mark.parametrize("chosen", [own_keys_twice, own_keys_in_two_encodings, the_keys_of_another])
def test_a_member_whose_keys_the_others_would_refuse_is_missing_and_the_others_go_on(masked, chosen):
    """One such member, in every attempt of its group, would have ended them all."""
    for name, request in masked.server.requests().items():
        if name != HELPER:
            masked.server.take(masked.answer(name, request))
    masking, sealing = chosen(masked)
    public = msgspec.msgpack.encode(PublicKeys(masking=masking, sealing=sealing))
    answer = signed_reply(KEYS, masked.session, HELPER, public, private_key(HELPER))
    assert refusal(masked.server.take, answer).endswith(("sent the same key twice", "have one key"))
    requests = masked.server.proceed()
    while isinstance(requests, dict):
        requests = drive(masked, requests)
    assert requests.members == tuple(SILOS[:-1])


def test_an_answer_longer_than_any_honest_answer_goes_on_to_no_member(masked):
    """A relay of the one group may pass a member's answer of any length; the server sends shares on to their holders."""
    requests = masked.until("shares")
    for name, request in requests.items():
        if name != HELPER:
            masked.server.take(masked.answer(name, request))
    shares = SealedShares(commitment=bytes(32), sealed={ALONE: bytes(1 << 16)})
    answer = signed_reply(SHARES, masked.session, HELPER, msgspec.msgpack.encode(shares), private_key(HELPER))
    with pytest.raises(ExchangeError, check=coded("mask.reply-too-long")):
        masked.server.take(answer)
    requests = masked.server.proceed()
    assert max(map(len, requests.values())) < 1 << 12
    while isinstance(requests, dict):
        requests = drive(masked, requests)
    assert requests.members == tuple(SILOS[:-1])


def test_a_member_that_attests_something_else_is_not_shown_to_the_others(masked):
    """Every member refuses to unmask where one of the attestations is of other survivors."""
    requests = masked.until("attestation")
    for name, request in requests.items():
        if name != ALONE:
            masked.server.take(masked.answer(name, request))
    answer = signed_reply(ATTESTATION, masked.session, ALONE, bytes(32), private_key(ALONE))
    assert refusal(masked.server.take, answer).endswith("attests other survivors than the survivors in its request")
    outcome = drive(masked, masked.server.proceed())
    assert isinstance(outcome, RegionalSum)
    assert outcome.members == tuple(SILOS)


def test_a_member_that_was_told_other_settings_is_missing_and_the_others_go_on(masked):
    for name, request in masked.server.requests().items():
        masked.silo(name).member = replace(masked.silo(name).member, settings="9" if name == HELPER else "7")
        masked.server.take(masked.answer(name, request))
    requests = masked.server.proceed()
    assert HELPER not in requests
    while isinstance(requests, dict):
        requests = drive(masked, requests)
    assert requests.members == tuple(SILOS[:-1])


def test_a_member_refuses_a_roster_with_one_that_was_told_other_settings(masked):
    requests = masked.until("shares")
    public = PublicKeys(masking=public_half(new_private_key()), sealing=public_half(new_private_key()), settings="9")
    bad = signed_reply(KEYS, masked.session, HELPER, msgspec.msgpack.encode(public), private_key(HELPER))
    keys = [data for data in request_from_bytes(requests[ALONE]).keys if member_reply_from_bytes(data).silo != HELPER]
    request = Roster(session=masked.session, keys=(*keys, bad)).to_bytes()
    with pytest.raises(ExchangeError, check=coded("mask.settings-differ")):
        masked.answer(ALONE, request)


def test_a_member_that_is_told_other_settings_after_the_roster_takes_no_shares_in(masked):
    """Its update would come from other settings than the members of the round agreed on."""
    inbox = request_from_bytes(masked.until("input")[ALONE])
    silo = masked.silo(ALONE)
    other = replace(silo.member, settings="9")
    told = refusal(other.accept_shares, silo.state, inbox)
    assert told == f"silo '{ALONE}' was told other settings when the round began. Nothing is sent"
    assert len(silo.member.accept_shares(silo.state, inbox).requests) == 3


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("place", [0, 39])
def test_a_release_beyond_its_range_is_not_masked(masked, side, place):
    """The sum of the group could wrap, and the server would take a wrong sum for the right one."""
    inbox = request_from_bytes(masked.until("input")[ALONE])
    silo = masked.silo(ALONE)
    state = silo.member.accept_shares(silo.state, inbox)
    most = int(masked.group.largest[ALONE])
    values = np.zeros(40, dtype=np.int64)
    values[place] = side * most
    assert silo.member.masked_input(state, values)
    values[place] += side
    told = refusal(silo.member.masked_input, state, values, kind=ReleaseError)
    assert told == f"a masked input of silo '{ALONE}' must be within {most} steps, and this input is larger"


@pytest.mark.parametrize("twisted", [0, 0x80], ids=["the same bytes", "other bytes of the same key"])
def test_a_member_refuses_a_roster_in_which_two_have_one_key(masked, twisted):
    requests = masked.until("shares")
    by_name = {member_reply_from_bytes(data).silo: data for data in request_from_bytes(requests[ALONE]).keys}
    stolen = body_of(member_reply_from_bytes(by_name[SILOS[1]]), PublicKeys)
    masking, sealing = (key[:31] + bytes([key[31] ^ twisted]) for key in (stolen.masking, stolen.sealing))
    public = PublicKeys(masking=masking, sealing=sealing, settings=stolen.settings)
    by_name[HELPER] = signed_reply(KEYS, masked.session, HELPER, msgspec.msgpack.encode(public), private_key(HELPER))
    request = Roster(session=masked.session, keys=tuple(by_name.values())).to_bytes()
    with pytest.raises(ExchangeError, check=coded("mask.key-shared")):
        masked.answer(ALONE, request)


@pytest.mark.parametrize("members", range(2, 8))
def test_no_division_of_a_small_group_into_stories_gives_both_secrets_or_a_second_attempt(members):
    """All ways to tell every honest member one of two stories, or nothing, with any colluders who tell both."""
    for colluders, dropouts in itertools.product(range(1, members), range(members)):
        if not tolerates(members, colluders=colluders, dropouts=dropouts):
            continue
        threshold = threshold_for(members, colluders=colluders, dropouts=dropouts)
        for stories in itertools.product((0, 1, 2), repeat=members - colluders):
            one, two = (stories.count(story) + colluders for story in (1, 2))
            assert min(one, two) < threshold
        # A second attempt needs all but the dropouts to begin it, and who unmasked the first does not.
        for unmasked in range(members - colluders + 1):
            assert unmasked + colluders < threshold or members - unmasked < members - dropouts


@pytest.mark.parametrize("members", [3, 4, 5])
def test_a_server_that_tells_every_member_any_list_of_survivors_gets_one_secret_of_each_at_most(members):
    """All lists to all members, with a helper that signs all of them and gives up all shares that it holds."""
    group = region(members, dropouts=int(members > 3), colluders=1)
    masked = Round(group, inputs_of(group, seed=1))
    masked.until("attestation")
    *honest, helper = names(members)
    states = {silo: masked.silo(silo).state for silo in honest}
    held = masked.silo(helper).state.shares
    told = {silo: attestations(masked.silo(silo).member, states[silo]) for silo in honest}
    unmasked = 0
    for choice in itertools.product(*(told[silo] for silo in honest)):
        shares = {silo: {"seeds": 1, "keys": 1} for silo in held}  # the helper's own of either kind
        for silo, state in zip(honest, choice, strict=True):
            revealed = revealed_by(masked.silo(silo).member, state, choice, helper)
            unmasked += revealed is not None
            for which in ("seeds", "keys") if revealed else ():
                for owner in getattr(revealed, which):
                    shares[owner][which] += 1
        for owner in honest:
            assert min(shares[owner].values()) < group.threshold, f"both secrets of {owner}"
    assert unmasked, "lists that all agree on are unmasked"


def attestations(member, state):
    """The silo's next state for every list that it attests."""
    found = []
    for size in range(len(state.sharers) + 1):
        for members in itertools.combinations(state.sharers, size):
            try:
                found.append(member.attest_survivors(state, Survivors(session=state.session, members=members)))
            except ExchangeError:
                continue
    return found


def revealed_by(member, state, choice, helper):
    """What a silo gives up if it is shown the signatures of all that agree with it, the helper's among them."""
    agree = [other.answers[-1] for other in choice if other.survivors == state.survivors]
    if helper in state.survivors:
        body = member_reply_from_bytes(state.answers[-1]).body
        agree.append(signed_reply(ATTESTATION, state.session, helper, body, private_key(helper)))
    try:
        last = member.unmask_sum(state, Attested(session=state.session, attestations=tuple(agree)))
    except ExchangeError:
        return None
    return body_of(member_reply_from_bytes(last.answers[-1]), Revealed)
