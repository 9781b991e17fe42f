import base64
import dataclasses
import hashlib
import hmac
import tracemalloc

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

import fulcrum
from fulcrum.errors import ExchangeError
from fulcrum.exchange import sealing
from fulcrum.exchange.sealing import Opener, Sealer, seal, unseal
from fulcrum.ledger.ledger import Ledger
from fulcrum.noise.sources import SeededNoise
from fulcrum.planning.signing import new_key, private_key
from fulcrum.roles.releasing import release

FEDERATION = {"north": {"lille": 120, "metz": 80}, "south": {"nice": 300}}
LOW_ORDER = [  # every point of order at most 8, with a clear top bit
    bytes(32),
    bytes([1]) + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    bytes.fromhex("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    bytes.fromhex("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
]


class World:
    """A federation with keys, and a release of lille in round 1."""

    def __init__(self, folder):
        self.folder = folder
        self.keys = {name: new_key(folder / name) for name in ("lille", "metz", "nice")}
        self.keys |= {name: new_key(folder / name, "sealing") for name in ("north", "south")}
        federation = fulcrum.Federation.from_sizes(FEDERATION)
        self.made = {
            purpose: fulcrum.plan(
                federation,
                rounds=3,
                epsilon={"region": 1.0, "silo": 6.0},
                parameters=6,
                purpose=purpose,
                keys=self.keys,
            )
            for purpose in ("research", "deployment")
        }
        self.plan = self.made["deployment"]
        self.opener = Opener(self.plan, "north", folder / "north")
        self.release = self.released("lille", 1)
        self.sealed = self.seal(self.release)

    def released(self, silo, round_number, plan=None):
        plan = plan or self.plan
        if plan.purpose == "research":
            return release(np.ones(6), plan, silo, round_number, noise=SeededNoise(seed=1))
        path = self.folder / f"{silo}-{plan.digest}.ledger"
        with Ledger.open(path, silo=silo) as ledger:
            return release(np.ones(6), plan, silo, round_number, ledger=ledger)

    def seal(self, made, plan=None):
        return seal(made, plan or self.plan, self.folder / made.silo)

    def unseal(self, data, region="north"):
        return unseal(data, self.plan, region, self.folder / region)

    def forged(self, *, signer="lille", plain=None, ephemeral=None, ciphertext=None, to="north", **context):
        """An envelope that its silo made and signed, of anything."""
        named = {
            "plan_digest": self.plan.digest,
            "silo": "lille",
            "region": "north",
            "round_number": 1,
        } | context
        secret = X25519PrivateKey.generate()
        public = ephemeral or secret.public_key().public_bytes_raw()
        region = base64.b64decode(self.keys[to].removeprefix("x25519:"))
        bound = sealing._context(**named)
        if ciphertext is None:
            once = sealing._one_time_key(secret, private_key(self.folder / to, "sealing").public_key(), public, region)
            ciphertext = AESGCM(once).encrypt(bytes(12), plain or self.release.to_bytes(), bound)
        signature = private_key(self.folder / signer).sign(sealing._signed(bound, public, ciphertext))
        envelope = sealing._Envelope(format=sealing.FORMAT, **named, ephemeral=public, signature=signature)
        header = msgspec.msgpack.encode(envelope)
        return len(header).to_bytes(4, "little") + header + ciphertext


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("sealing"))


def refusal(work, *arguments, **options):
    with pytest.raises(ExchangeError) as caught:
        work(*arguments, **options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
    return str(caught.value)


@pytest.mark.parametrize("purpose", ["research", "deployment"])
def test_what_is_sealed_comes_back_bit_for_bit(world, purpose):
    plan = world.made[purpose]
    for silo, region in (("lille", "north"), ("metz", "north"), ("nice", "south")):
        sent = world.released(silo, 2, plan)
        back = unseal(world.seal(sent, plan), plan, region, world.folder / region)
        assert back.to_bytes() == sent.to_bytes()
        assert back.values.dtype == sent.values.dtype


def test_sealed_again_a_release_has_other_bytes_throughout(world):
    sealer = Sealer(world.plan, "lille", world.folder / "lille")
    one, two = sealer.seal(world.release), sealer.seal(world.release)
    assert one != two
    assert one[-60:] != two[-60:]
    assert world.opener.open(one).to_bytes() == world.opener.open(two).to_bytes()


def test_values_do_not_show(world):
    assert world.release.values.tobytes()[:8] not in world.sealed
    assert world.release.values.tobytes()[-8:] not in world.sealed


@given(place=st.integers(0, 10**6), change=st.integers(1, 255))
def test_one_changed_byte_anywhere_is_refused(world, place, change):
    data = bytearray(world.sealed)
    data[place % len(data)] ^= change
    refusal(world.opener.open, bytes(data))


def test_every_single_bit_of_the_envelope_counts(world):
    for place in range(len(world.sealed)):
        for bit in range(8):
            data = bytearray(world.sealed)
            data[place] ^= 1 << bit
            with pytest.raises(ExchangeError):
                world.opener.open(bytes(data))


@given(junk=st.binary(max_size=200))
def test_what_is_no_envelope_is_refused(world, junk):
    assert "not a sealed release" in refusal(world.opener.open, junk)


def test_cut_and_lengthened_envelopes_are_refused(world):
    for size in (*range(0, len(world.sealed), 7), len(world.sealed) - 1):
        refusal(world.opener.open, world.sealed[:size])
    refusal(world.opener.open, world.sealed + b"\0")
    for nothing in (None, 7, "text"):
        assert "not a sealed release" in refusal(world.opener.open, nothing)


def test_an_envelope_has_one_encoding(world):
    size = int.from_bytes(world.sealed[:4], "little")
    header = msgspec.msgpack.decode(world.sealed[4 : 4 + size])
    turned = msgspec.msgpack.encode(dict(reversed(header.items())))
    other = len(turned).to_bytes(4, "little") + turned + world.sealed[4 + size :]
    assert "not a sealed release of format" in refusal(world.opener.open, other)


def test_a_changed_context_is_refused_for_what_it_is(world):
    def told(**context):
        return refusal(world.unseal, world.forged(**context))

    assert "under another plan (no digest, ours" in told(plan_digest="../..")
    assert "under another plan (ffff.., ours" in told(plan_digest="f" * 64)
    assert "to another region than 'north'" in told(region="south")
    assert "not from a silo of region 'north'" in told(silo="nice")
    assert "not from a silo of region 'north'" in told(silo="x" * 10**6)
    for wrong in (0, -1, 4, 2**62):
        assert f"is for round {wrong}, the plan's rounds are 1 to 3" in told(round_number=wrong)


def test_nobody_signs_for_another_silo(world):
    assert "'lille' for round 1 is not signed by the key" in refusal(world.unseal, world.forged(signer="metz"))
    assert "'metz' for round 1 is not signed" in refusal(world.unseal, world.forged(silo="metz"))


def test_the_signature_covers_every_part_and_is_checked_before_anything_is_decrypted(world):
    size = int.from_bytes(world.sealed[:4], "little")
    header = msgspec.msgpack.decode(world.sealed[4 : 4 + size], type=sealing._Envelope)
    body = world.sealed[4 + size :]
    other = world.seal(world.release)
    for change, ciphertext in (
        ({}, body[:-1] + bytes([body[-1] ^ 1])),
        ({}, b""),
        ({}, other[-len(body) :]),
        ({"ephemeral": bytes(32)}, body),
        ({"round_number": 2}, body),
        ({"silo": "metz"}, body),
        ({"signature": b""}, body),
    ):
        encoded = msgspec.msgpack.encode(msgspec.structs.replace(header, **change))
        changed = len(encoded).to_bytes(4, "little") + encoded + ciphertext
        assert "is not signed by the key" in refusal(world.unseal, changed)


def test_what_is_inside_must_be_what_the_envelope_says(world):
    for other in (
        world.released("metz", 1),
        world.released("lille", 2),
        dataclasses.replace(world.release, region="south"),
        dataclasses.replace(world.release, plan_digest="0" * 64),
    ):
        told = refusal(world.unseal, world.forged(plain=other.to_bytes()))
        assert "'lille' for round 1 holds a release of another plan, silo, region or round" in told
    for step in (world.release.step * 2, None):
        plain = dataclasses.replace(world.release, step=step).to_bytes()
        assert "not on the lattice of region 'north'" in refusal(world.unseal, world.forged(plain=plain))
    assert "does not hold a release" in refusal(world.unseal, world.forged(plain=b"nonsense"))


def test_what_was_sealed_to_another_key_does_not_open(world):
    assert "does not open with the key of region 'north'" in refusal(world.unseal, world.forged(to="south"))
    for ciphertext in (b"", b"x" * 8, b"x" * 100):
        assert "does not open" in refusal(world.unseal, world.forged(ciphertext=ciphertext))


def test_the_associated_data_binds_the_round_even_where_the_silo_signs_anew(world):
    size = int.from_bytes(world.sealed[:4], "little")
    header = msgspec.msgpack.decode(world.sealed[4 : 4 + size])
    moved = world.forged(round_number=2, ephemeral=header["ephemeral"], ciphertext=world.sealed[4 + size :])
    assert "for round 2 does not open" in refusal(world.unseal, moved)


@pytest.mark.parametrize("point", LOW_ORDER, ids=lambda point: hashlib.sha256(point).hexdigest()[:4])
def test_points_of_low_order_are_refused(world, point):
    assert "gives no secret" in refusal(world.unseal, world.forged(ephemeral=point, ciphertext=b"x" * 64))
    keys = world.keys | {"north": "x25519:" + base64.b64encode(point).decode()}
    weak = dataclasses.replace(world.plan, keys=keys)
    sealer = Sealer(weak, "lille", world.folder / "lille")
    told = refusal(sealer.seal, dataclasses.replace(world.release, plan_digest=weak.digest))
    assert "key of region 'north' is of low order" in told


def test_an_ephemeral_key_of_another_length_is_refused(world):
    assert "gives no secret" in refusal(world.unseal, world.forged(ephemeral=b"x" * 31, ciphertext=b"x" * 64))


def test_keys_are_held_against_the_plan_when_they_are_read(world):
    assert "metz is not the key of 'lille'" in refusal(Sealer, world.plan, "lille", world.folder / "metz")
    assert "south is not the key of 'north'" in refusal(Opener, world.plan, "north", world.folder / "south")
    assert "is not an X25519 key" in refusal(Opener, world.plan, "north", world.folder / "lille")
    assert "is not an Ed25519 key" in refusal(Sealer, world.plan, "lille", world.folder / "north")
    assert "cannot be read" in refusal(Sealer, world.plan, "lille", world.folder / "none")
    assert "knows no silo 'lile'. Did you mean 'lille'?" in refusal(Sealer, world.plan, "lile", world.folder / "lille")
    assert "knows no region 'nort'. Did you mean 'north'?" in refusal(
        Opener, world.plan, "nort", world.folder / "north"
    )


def test_plans_without_the_keys_are_refused(world):
    def without(name, key=None):
        kept = {other: text for other, text in world.keys.items() if other != name}
        return dataclasses.replace(world.plan, keys=kept if key is None else kept | {name: key})

    lille, north = world.folder / "lille", world.folder / "north"
    expected = "the plan carries no key of region 'north'. Plan with --keys"
    assert refusal(Sealer, without("north"), "lille", lille) == expected
    assert refusal(Opener, without("north"), "north", north) == expected
    assert "carries no key of silo 'lille'" in refusal(Sealer, without("lille"), "lille", lille)
    assert "carries no key of silo 'metz'" in refusal(Opener, without("metz"), "north", north)
    assert "key of region 'north' cannot be used" in refusal(
        Sealer, without("north", world.keys["metz"]), "lille", lille
    )
    assert "key of silo 'metz' cannot be used" in refusal(Opener, without("metz", world.keys["north"]), "north", north)
    assert "key of silo 'metz' cannot be used" in refusal(Opener, without("metz", "a2V5"), "north", north)


def test_a_silo_seals_its_own_releases_alone(world):
    sealer = Sealer(world.plan, "lille", world.folder / "lille")
    for other in (
        world.released("metz", 1),
        dataclasses.replace(world.release, region="south"),
        dataclasses.replace(world.release, plan_digest="0"),
        dataclasses.replace(world.release, step=None),
    ):
        assert "not one of silo 'lille' under this plan" in refusal(sealer.seal, other)
    assert "for round 4" in refusal(sealer.seal, dataclasses.replace(world.release, round_number=4))


# What is computed here stands beside RFC 7748 (the exchange) and RFC 5869 (the derivation), not beside the module.
EPHEMERAL = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"  # RFC 7748, 6.1: Alice
EPHEMERAL_PUBLIC = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
REGION = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"  # Bob
REGION_PUBLIC = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
SHARED = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
ONE_TIME_KEY = "2fe8c31dd29b847af3a674d47357205596ebf6a6edc724691a6578bf79b9d877"


def hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, no salt, 32 bytes."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def packed_info() -> bytes:
    """The three parts that a one-time key is bound to, in msgpack by hand: a text of 16 bytes, twice 32 bytes."""
    ephemeral, region = bytes.fromhex(EPHEMERAL_PUBLIC), bytes.fromhex(REGION_PUBLIC)
    return b"\x93\xb0fulcrum.sealed/1\xc4\x20" + ephemeral + b"\xc4\x20" + region


def test_the_derivation_of_this_test_is_that_of_the_rfc():
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"  # RFC 5869, A.3, the first 32 bytes
    assert hkdf(b"\x0b" * 22, b"").hex() == expected
    assert hkdf(bytes.fromhex(SHARED), packed_info()).hex() == ONE_TIME_KEY


def test_one_time_keys_are_what_they_have_always_been():
    ephemeral, region = (X25519PrivateKey.from_private_bytes(bytes.fromhex(key)) for key in (EPHEMERAL, REGION))
    raw = (bytes.fromhex(EPHEMERAL_PUBLIC), bytes.fromhex(REGION_PUBLIC))
    assert sealing._one_time_key(ephemeral, region.public_key(), *raw).hex() == ONE_TIME_KEY
    assert sealing._one_time_key(region, ephemeral.public_key(), *raw).hex() == ONE_TIME_KEY


def test_an_envelope_is_what_it_has_always_been_byte_for_byte(world, tmp_path, monkeypatch):
    """With the keys of the RFC, every part of an envelope is known without the module."""
    fixed = X25519PrivateKey.from_private_bytes(bytes.fromhex(EPHEMERAL))
    monkeypatch.setattr(X25519PrivateKey, "generate", lambda: fixed)
    public = "x25519:" + base64.b64encode(bytes.fromhex(REGION_PUBLIC)).decode()
    plan = dataclasses.replace(world.plan, keys=world.keys | {"north": public})
    sent = dataclasses.replace(world.release, plan_digest=plan.digest)
    sealed = seal(sent, plan, world.folder / "lille")

    digest = plan.digest.encode()
    assert len(digest) == 64
    context = b"\x95\xb0fulcrum.sealed/1\xd9\x40" + digest + b"\xa5lille\xa5north\x01"
    ciphertext = AESGCM(bytes.fromhex(ONE_TIME_KEY)).encrypt(bytes(12), sent.to_bytes(), context)
    ephemeral = bytes.fromhex(EPHEMERAL_PUBLIC)
    message = b"\x94\xb0fulcrum.sealed/1\xc4" + bytes([len(context)]) + context + b"\xc4\x20" + ephemeral
    message += b"\xc4\x20" + hashlib.sha256(ciphertext).digest()
    signature = private_key(world.folder / "lille").sign(message)  # Ed25519 signs the same message the same way
    header = b"\x87\xa6format\xb0fulcrum.sealed/1\xabplan_digest\xd9\x40" + digest
    header += b"\xa4silo\xa5lille\xa6region\xa5north\xacround_number\x01"
    header += b"\xa9ephemeral\xc4\x20" + ephemeral + b"\xa9signature\xc4\x40" + signature
    assert sealed == len(header).to_bytes(4, "little") + header + ciphertext


def test_a_decline_is_known_byte_for_byte_and_by_its_signature_alone(world):
    declined = Sealer(world.plan, "lille", world.folder / "lille").decline(2)
    digest = world.plan.digest.encode()
    message = b"\x95\xb2fulcrum.declined/1\xd9\x40" + digest + b"\xa5lille\xa5north\x02"
    signature = private_key(world.folder / "lille").sign(message)
    expected = b"\x86\xa6format\xb2fulcrum.declined/1\xabplan_digest\xd9\x40" + digest
    expected += b"\xa4silo\xa5lille\xa6region\xa5north\xacround_number\x02\xa9signature\xc4\x40" + signature
    assert declined == expected
    assert world.opener.open_decline(declined) == ("lille", 2)
    for place in range(len(declined)):
        changed = bytearray(declined)
        changed[place] ^= 1
        refusal(world.opener.open_decline, bytes(changed))
    for junk in (None, b"", b"x", "text", 7, declined[:-1], declined + b"\0", world.sealed, world.release.to_bytes()):
        refusal(world.opener.open_decline, junk)
    assert "not a sealed release" in refusal(world.opener.open, declined)


def test_nobody_declines_for_another(world):
    metz = Sealer(world.plan, "metz", world.folder / "metz").decline(2)
    forged = metz.replace(b"metz", b"lille").replace(b"\xa4lille", b"\xa5lille")
    assert "that silo 'lille' declines round 2 is not signed by its key" in refusal(world.opener.open_decline, forged)
    nice = Sealer(world.plan, "nice", world.folder / "nice").decline(2)
    assert "to another region than 'north'" in refusal(world.opener.open_decline, nice)
    other = Sealer(world.made["research"], "lille", world.folder / "lille").decline(2)
    assert "the decline is one under another plan" in refusal(world.opener.open_decline, other)
    for wrong in (0, 4, -1):
        assert "the plan's rounds are 1 to 3" in refusal(
            Sealer(world.plan, "lille", world.folder / "lille").decline, wrong
        )


def test_a_release_is_no_decline_and_gives_none_away(world):
    """What a silo signed for its release cannot be made into a decline of the same round."""
    size = int.from_bytes(world.sealed[:4], "little")
    header = msgspec.msgpack.decode(world.sealed[4 : 4 + size])
    taken = {name: header[name] for name in ("plan_digest", "silo", "region", "round_number", "signature")}
    made = msgspec.msgpack.encode({"format": sealing.DECLINED} | taken)
    assert "is not signed by its key" in refusal(world.opener.open_decline, made)


def test_large_releases_are_not_copied_needlessly(world):
    parameters = 2_000_000
    plan = fulcrum.plan(
        fulcrum.Federation.from_sizes(FEDERATION), rounds=1, epsilon=1.0, parameters=parameters, keys=world.keys
    )
    sent = release(np.ones(parameters), plan, "lille", 1, noise=SeededNoise(seed=1))
    sealer, opener = Sealer(plan, "lille", world.folder / "lille"), Opener(plan, "north", world.folder / "north")
    plan.digest  # noqa: B018
    sealed = sealer.seal(sent)
    tracemalloc.start()
    try:
        back = opener.open(sealed)
        assert tracemalloc.get_traced_memory()[1] < 1.1 * sent.values.nbytes
    finally:
        tracemalloc.stop()
    assert (back.values == sent.values).all()
