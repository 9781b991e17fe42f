"""A server that does not follow the protocol: every attack is refused, and no ledger shows less than what left.

The server here is a modified one: it drives honest stages with `MaskedRound` and then asks for something else. Where it
has help from a silo, it holds that silo's key.
"""

import msgspec
import pytest
from error_codes import coded
from masked import MODEL, MaskedWorld, changed, refused

from fulcrum.core.masking.masking_messages import (
    ATTESTATION,
    KEYS,
    Attested,
    PublicKeys,
    Roster,
    body_of,
    member_reply_from_bytes,
    request_from_bytes,
    signed_reply,
)
from fulcrum.core.plan.keys import private_key
from fulcrum.errors import ExchangeError, FulcrumError

pytest.importorskip("cryptography", reason="needs the extra secure")

NORTH = ("caen", "lille", "metz", "nancy", "reims")


@pytest.fixture
def world(tmp_path):
    made = MaskedWorld(tmp_path, {"north": dict.fromkeys(NORTH, 100), "south": {"lyon": 100}}, dropouts=1)
    yield made
    made.check_ledgers()


def key_of(world, silo):
    return private_key(world.folder / f"{silo}.key")


def asked(world, stage, silo="caen"):
    """A round driven honestly until a stage, and what a silo is asked then."""
    masked = world.round()
    return masked, world.run(masked, until=stage)[silo]


def session_with(request, **fields):
    return msgspec.structs.replace(request_from_bytes(request).session, **fields)


# The first stage: how a round begins.


@pytest.mark.parametrize(
    ("field", "change"),
    [("threshold", -1), ("threshold", -2), ("threshold", +1), ("neighbours", -2), ("bits", 32)],
)
def test_a_server_has_no_say_in_threshold_graph_or_width(world, field, change):
    """Four of five is the plan's threshold: three are not above two thirds, and too few for colluders and dropouts."""
    _, request = asked(world, "keys")
    found = getattr(request_from_bytes(request), field)
    told = refused(world.answer, "caen", changed(request, **{field: found + change}))
    assert f"the server uses {found + change}" in told


@pytest.mark.parametrize(
    "fields",
    [
        {"plan_digest": "0" * 64},
        {"group": "south"},
        {"group": "federation"},
        {"round_number": 0},
        {"round_number": 4},
        {"attempt": 0},
        {"attempt": 2**63},  # more than a record of rounds holds
        {"input_digest": ""},
        {"input_digest": "0" * 65},  # every silo would keep it, and send it back
    ],
)
def test_a_round_of_another_plan_or_group_or_beyond_the_plan_is_not_begun(world, fields):
    _, request = asked(world, "keys")
    told = refused(world.answer, "caen", changed(request, session=session_with(request, **fields)))
    assert "another plan or group" in told or "a masked round has a number from 1 to 3" in told


def test_a_round_is_on_one_model_for_ever(world):
    asked(world, "attestation")
    world.restart()
    other = {"weight": MODEL["weight"] + 1, "bias": MODEL["bias"]}
    for attempt in (1, 2):
        request = world.round(model=other, attempt=attempt).requests()["caen"]
        with pytest.raises(FulcrumError, check=coded("mask.model-changed")):
            world.answer("caen", request)
    assert world.answer("caen", world.round(attempt=2).requests()["caen"])


def test_a_model_that_the_others_do_not_train_on_gets_no_update(world):
    """Who trains on a model of their own would be found in the sum by what the others' models cannot move."""
    _, request = asked(world, "input")
    chosen = {"weight": MODEL["weight"] * 0, "bias": MODEL["bias"]}
    with pytest.raises(FulcrumError, check=coded("mask.model-differs", round_number=1)):
        world.answer("caen", request, chosen)
    assert not world.ledger("caen")


def test_silos_on_different_models_do_not_take_each_others_keys(world):
    other = {"weight": MODEL["weight"] + 1, "bias": MODEL["bias"]}
    ours, theirs = world.round(), world.round(model=other)
    keys = [world.answer(silo, ours.requests()[silo]) for silo in NORTH[:3]]
    keys += [world.answer(silo, theirs.requests()[silo]) for silo in NORTH[3:]]
    request = Roster(session=member_reply_from_bytes(keys[0]).session, keys=tuple(keys)).to_bytes()
    with pytest.raises(FulcrumError, check=coded("mask.reply-foreign")):
        world.answer("caen", request)


# The second stage: whose keys.


def forged(world, request, silo, signer, **fields):
    """Keys in the name of one silo, signed by another; the server holds their private halves."""
    session = session_with(request, **fields)
    body = msgspec.msgpack.encode(PublicKeys(masking=b"m" * 32, sealing=b"s" * 32))
    return signed_reply(KEYS, session, silo, body, key_of(world, signer))


def replaced(request, silo, keys):
    """A roster in which a silo has other keys, or none."""
    old = request_from_bytes(request).keys
    left = [data for data in old if member_reply_from_bytes(data).silo != silo]
    return changed(request, keys=tuple(left if keys is None else [*left, keys]))


def test_keys_that_the_silo_they_claim_did_not_sign_are_refused(world):
    _, request = asked(world, "shares")
    told = refused(world.answer, "caen", replaced(request, "metz", forged(world, request, "metz", "reims")))
    assert "'metz' is not signed by the key that the plan carries" in told


def test_keys_of_another_round_or_attempt_are_refused(world):
    _, request = asked(world, "shares")
    for fields in ({"round_number": 2}, {"attempt": 2}, {"input_digest": "other"}):
        old = forged(world, request, "metz", "metz", **fields)
        with pytest.raises(FulcrumError, check=coded("mask.reply-foreign")):
            world.answer("caen", replaced(request, "metz", old))


def test_a_roster_is_the_plans_nobody_else_and_nobody_twice(world):
    _, request = asked(world, "shares")
    keys = request_from_bytes(request).keys
    stranger = forged(world, request, "lyon", "lyon")
    with pytest.raises(FulcrumError, check=coded("mask.reply-not-of-member", group="north")):
        world.answer("caen", changed(request, keys=(*keys, stranger)))
    second = forged(world, request, "metz", "metz")
    with pytest.raises(FulcrumError, check=coded("mask.roster-silo-repeated", silo="metz")):
        world.answer("caen", changed(request, keys=(*keys, second)))


def test_a_roster_without_the_silos_own_keys_is_refused(world):
    _, request = asked(world, "shares")
    with pytest.raises(FulcrumError, check=coded("mask.roster-without-own-keys", silo="caen")):
        world.answer("caen", replaced(request, "caen", None))
    stolen = forged(world, request, "caen", "caen")
    with pytest.raises(FulcrumError, check=coded("mask.roster-without-own-keys", silo="caen")):
        world.answer("caen", replaced(request, "caen", stolen))


def test_two_silos_with_one_key_are_refused(world):
    _, request = asked(world, "shares")
    keys = {member_reply_from_bytes(data).silo: data for data in request_from_bytes(request).keys}
    copied = body_of(member_reply_from_bytes(keys["caen"]), PublicKeys)
    session = request_from_bytes(request).session
    mirror = signed_reply(KEYS, session, "metz", msgspec.msgpack.encode(copied), key_of(world, "metz"))
    with pytest.raises(FulcrumError, check=coded("mask.key-shared")):
        world.answer("caen", replaced(request, "metz", mirror))


def test_a_sampled_group_is_refused(world):
    """Fewer than all but the plan's dropouts, however the server came to choose them."""
    _, request = asked(world, "shares")
    fewer = replaced(replaced(request, "metz", None), "reims", None)
    with pytest.raises(FulcrumError, check=coded("mask.members-missing")):
        world.answer("caen", fewer)
    assert world.answer("caen", replaced(request, "metz", None)), "one may be missing"


def test_a_group_smaller_than_the_silos_policy_is_refused(tmp_path):
    limits = "largest_epsilon_above = 1.0\nlargest_epsilon_inside = 50.0\nsmallest_region = 5\n"
    world = MaskedWorld(tmp_path, {"north": dict.fromkeys(NORTH, 100)}, dropouts=1, policy=limits)
    _, request = asked(world, "shares")
    told = refused(world.answer, "caen", replaced(request, "metz", None))
    assert told == "silo 'caen' asks for a group of at least 5 silos, got 4"


# The third stage: the masked input.


def test_shares_of_others_than_the_neighbours_that_shared_are_refused(world):
    _, request = asked(world, "input")
    inbox = request_from_bytes(request)
    fewer = {silo: text for silo, text in inbox.sealed.items() if silo != "metz"}
    with pytest.raises(FulcrumError, check=coded("mask.shares-not-of-neighbours")):
        world.answer("caen", changed(request, sealed=fewer))
    more = {**inbox.sealed, "lyon": b"text"}
    with pytest.raises(FulcrumError, check=coded("mask.shares-not-of-neighbours")):
        world.answer("caen", changed(request, sealed=more))
    assert not world.ledger("caen")


@pytest.mark.parametrize(
    ("sharers", "why"),
    [
        (("lille", "metz", "nancy", "reims"), "sorted list without repetition, with silo 'caen', and only"),
        (("caen", "lille", "lyon", "metz", "nancy"), "sorted list without repetition, with silo 'caen', and only"),
        (("lille", "caen", "metz", "nancy", "reims"), "sorted list without repetition, with silo 'caen', and only"),
        (
            ("caen", "caen", "lille", "metz", "nancy", "reims"),
            "sorted list without repetition, with silo 'caen', and only",
        ),
        (("caen", "lille", "metz"), "2 of 5 silos of region 'north' are missing"),
    ],
)
def test_a_list_of_sharers_that_no_honest_server_sends_is_refused(world, sharers, why):
    _, request = asked(world, "input")
    assert why in refused(world.answer, "caen", changed(request, sharers=sharers))
    assert not world.ledger("caen")


def test_a_silo_masks_one_input_for_one_set_of_neighbours(world):
    """With and without a neighbour's mask, the difference would be that mask."""
    _, request = asked(world, "input")
    world.answer("caen", request)
    inbox = request_from_bytes(request)
    fewer = {silo: text for silo, text in inbox.sealed.items() if silo != "metz"}
    sharers = tuple(silo for silo in inbox.sharers if silo != "metz")
    second = changed(request, sealed=fewer, sharers=sharers)
    with pytest.raises(FulcrumError, check=coded("mask.stage-out-of-turn")):
        world.answer("caen", second)
    world.restart()
    with pytest.raises(FulcrumError, check=coded("mask.stage-out-of-turn")):
        world.answer("caen", second)
    assert len({data for name, _, data in world.left if name == "caen"}) == 1


@pytest.mark.parametrize("stage", ["input", "attestation", "unmasking"])
def test_stages_come_in_their_order(world, stage):
    _, late = asked(world, stage)
    late = changed(late, session=session_with(late, attempt=2))
    second = world.round(attempt=2)
    for silo, request in second.requests().items():
        second.take(world.answer(silo, request))
    with pytest.raises(FulcrumError, check=coded("mask.stage-out-of-turn")):
        world.answer("caen", late)


def test_a_request_of_a_round_that_was_not_begun_is_refused(world):
    _, request = asked(world, "input")
    for fields in ({"round_number": 2}, {"attempt": 2}):
        told = refused(world.answer, "caen", changed(request, session=session_with(request, **fields)))
        assert "Begin the round first" in told or "than the round that the silo began" in told


# The fourth and fifth: who is in the sum.


@pytest.mark.parametrize(
    ("members", "why"),
    [
        (("lille", "metz", "nancy", "reims"), "sorted list without repetition, with silo 'caen', and only"),
        (("caen",), "4 of 5 silos of region 'north' are missing"),
        (("caen", "lille", "metz"), "2 of 5 silos of region 'north' are missing"),
        (
            ("caen", "lille", "lyon", "metz", "nancy", "reims"),
            "sorted list without repetition, with silo 'caen', and only",
        ),
        (
            ("caen", "caen", "lille", "metz", "nancy", "reims"),
            "sorted list without repetition, with silo 'caen', and only",
        ),
    ],
)
def test_survivors_that_no_honest_server_names_are_not_attested(world, members, why):
    _, request = asked(world, "attestation")
    assert why in refused(world.answer, "caen", changed(request, members=members))


def test_a_silo_both_active_and_dead_is_not_unmasked(world):
    """To some metz is in the sum, to the others it dropped out: shares of both its secrets would uncover it."""
    masked = world.round()
    requests = world.run(masked, until="attestation")
    everybody = {silo: requests[silo] for silo in NORTH}
    without = tuple(silo for silo in NORTH if silo != "metz")
    told = {
        silo: changed(everybody[silo], members=without) if silo in ("nancy", "reims") else everybody[silo]
        for silo in NORTH
    }
    attestations = {silo: world.answer(silo, told[silo]) for silo in NORTH}
    session = request_from_bytes(requests["caen"]).session
    for signers in (("caen", "lille", "metz"), ("nancy", "reims"), NORTH):
        request = attested(session, [attestations[silo] for silo in signers])
        for silo in NORTH:
            said = refused(world.answer, silo, request)
            assert (
                "was told other survivors" in said or "attest the survivors of group 'north', and 4 silos must" in said
            )
    for silo in without:
        other = told["caen" if silo in ("nancy", "reims") else "nancy"]
        assert "asked out of turn" in refused(world.answer, silo, other), "nor does anyone attest a second list"


def test_a_colluder_that_signs_two_lists_does_not_help(world):
    """Metz helps: it attests that nancy is in the sum, and that it is not. Four of five must agree, and three do."""
    masked = world.round()
    requests = world.run(masked, until="attestation")
    session = request_from_bytes(requests["caen"]).session
    without = changed(requests["caen"], members=tuple(silo for silo in NORTH if silo != "nancy"))
    one = {silo: world.answer(silo, requests[silo]) for silo in ("nancy", "reims")}
    two = {silo: world.answer(silo, without) for silo in ("caen", "lille")}
    for story in (one, two):
        body = member_reply_from_bytes(next(iter(story.values()))).body
        story["metz"] = signed_reply(ATTESTATION, session, "metz", body, key_of(world, "metz"))
        for silo in story:
            if silo != "metz":
                told = refused(world.answer, silo, attested(session, story.values()))
                assert "3 silos attest the survivors of group 'north', and 4 silos must" in told


def attested(session, attestations):
    return Attested(session=session, attestations=tuple(attestations)).to_bytes()


def test_fewer_signatures_than_the_quorum_unmask_nothing(world):
    _, request = asked(world, "unmasking")
    signed = request_from_bytes(request).attestations
    three = changed(request, attestations=signed[:3])
    with pytest.raises(FulcrumError, check=coded("mask.attestations-too-few", signers=3, group="north", quorum=4)):
        world.answer("caen", three)
    repeated = changed(request, attestations=(*signed[:3], signed[0]))
    with pytest.raises(FulcrumError, check=coded("mask.attestations-too-few", signers=3)):
        world.answer("caen", repeated)
    with pytest.raises(FulcrumError, check=coded("mask.attestations-too-few", quorum=4)):
        world.answer("caen", changed(request, attestations=()))


def test_signatures_of_another_list_round_or_silo_unmask_nothing(world):
    _, request = asked(world, "unmasking")
    session, signed = request_from_bytes(request).session, request_from_bytes(request).attestations
    body = member_reply_from_bytes(signed[0]).body
    forgeries = {
        "not signed by the key": signed_reply(ATTESTATION, session, "metz", body, key_of(world, "reims")),
        "was told other survivors": signed_reply(ATTESTATION, session, "metz", b"another", key_of(world, "metz")),
        "for another plan, group, round": signed_reply(
            ATTESTATION, session_with(request, round_number=2), "metz", body, key_of(world, "metz")
        ),
        "not from a member": signed_reply(ATTESTATION, session, "lyon", body, key_of(world, "lyon")),
    }
    for why, forgery in forgeries.items():
        assert why in refused(world.answer, "caen", changed(request, attestations=(*signed[:4], forgery)))


def test_a_round_is_unmasked_once(world):
    masked = world.round()
    requests = world.run(masked, until="unmasking")
    kept = {silo: world.answer(silo, request) for silo, request in requests.items()}
    world.restart()
    for silo in NORTH:
        assert world.answer(silo, requests[silo]) == kept[silo], "the same question has the same answer"
    signed = request_from_bytes(requests["caen"]).attestations
    again = changed(requests["caen"], attestations=signed[::-1])
    for silo in NORTH:
        with pytest.raises(FulcrumError, check=coded("mask.round-unmasked", round_number=1)):
            world.answer(silo, again)
        for attempt in (1, 2, 99):
            begin = world.round(attempt=attempt).requests()[silo]
            with pytest.raises(FulcrumError, check=coded("mask.round-unmasked", round_number=1)):
                world.answer(silo, begin)
    assert world.run(world.round(2))["north"].members == NORTH, "the next round goes on"


def test_two_attempts_of_a_round_are_not_both_unmasked(world):
    """Sums of two attempts with other survivors would differ by one silo's release; four of five unmask a sum."""
    first = world.round()
    requests = world.run(first, until="unmasking")
    for silo in NORTH[:3]:
        world.answer(silo, requests[silo])
    second = world.round(attempt=2)
    refusals = [silo for silo in NORTH if not answered(world, silo, second.requests()[silo])]
    assert refusals == list(NORTH[:3])
    for silo in NORTH[3:]:
        told = refused(world.answer, silo, requests[silo])
        assert "than the round that the silo began" in told, "who began again does not unmask what it left"


def answered(world, silo, request):
    try:
        return bool(world.answer(silo, request))
    except ExchangeError:
        return False


def test_secrets_of_a_round_are_gone_from_disk_once_it_is_unmasked(world):
    masked = world.round()
    requests = world.run(masked, until="attestation")
    secrets = {}
    for silo in NORTH:
        with (station := world.silo(silo))._masking(station._group) as masking:
            state = masking._record.state(request_from_bytes(requests[silo]).session)[0]
            secrets[silo] = [state.seed, *(pair.masking for pair in state.pairs.values())]
            assert (state.masking_key, state.sealing_key) == (b"", b""), "not needed once all pairs agree"
    held = {silo: on_disk(world, silo) for silo in NORTH}
    assert all(secret in held[silo] for silo in NORTH for secret in secrets[silo])
    finish(world, masked, requests)
    for silo in NORTH:
        left = on_disk(world, silo)
        assert not [secret for secret in secrets[silo] if secret in left]


def finish(world, masked, requests):
    while requests:
        for silo, request in requests.items():
            masked.take(world.answer(silo, request))
        requests = masked.proceed()


def on_disk(world, silo):
    return b"".join(path.read_bytes() for path in (world.folder / silo / "state").glob("*.masking*"))


@pytest.mark.parametrize("data", [b"", b"x", b"\x80", b"\xc0", None, 7, "text", b"\x81\xa4asks\xa4keys"])
def test_what_is_no_request_is_refused_in_one_line(world, data):
    with pytest.raises(FulcrumError, check=coded("message.malformed", noun="a request of a masked round")):
        world.answer("caen", data)


def test_an_answer_for_the_server_is_taken_from_its_silo_alone(world):
    """The server protects the sum in turn: a vector in another's name, a second one, or half of one is not added."""
    masked = world.round()
    requests = world.run(masked, until="input")
    good = world.answer("caen", requests["caen"])
    answer = member_reply_from_bytes(good)
    stolen = signed_reply("input", answer.session, "metz", answer.body, key_of(world, "caen"))
    with pytest.raises(FulcrumError, check=coded("mask.reply-signature")):
        masked.take(stolen)
    half = signed_reply("input", answer.session, "metz", answer.body[:-8], key_of(world, "metz"))
    with pytest.raises(FulcrumError, check=coded("mask.input-length")):
        masked.take(half)
    assert masked.take(good) == "caen"
    assert "replied without a request, or a second time" in refused(masked.take, good)
