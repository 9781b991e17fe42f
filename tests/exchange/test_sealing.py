import base64
import dataclasses
import hashlib
import hmac
import subprocess
import sys
import tracemalloc

import msgspec
import numpy as np
import pytest
from error_codes import coded
from hypothesis import given
from hypothesis import strategies as st

import fulcrum
from fulcrum.aggregation.release_opening import Opener, unseal
from fulcrum.core.messages import sealing
from fulcrum.core.messages.framing import frame, unframe
from fulcrum.core.messages.sealing import Sealer, seal
from fulcrum.core.noise.noise_sources import SeededNoise
from fulcrum.core.plan.keys import private_key
from fulcrum.core.silo.releasing import release
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import ExchangeError
from fulcrum.planning.files.plan_issue import new_key

pytest.importorskip("cryptography", reason="needs the extra secure")

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SEALED = "a sealed release of format fulcrum.sealed/2"
REWRITTEN = "it is written in another way than Fulcrum writes it"
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
                epsilon={"region": 1.0, "aggregator": 6.0},
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

    def forged(self, *, signer="lille", plain=None, sealed=None, to="north", **context):
        """An envelope that its silo made and signed, of anything."""
        named = {
            "plan_digest": self.plan.digest,
            "silo": "lille",
            "region": "north",
            "round_number": 1,
        } | context
        bound = sealing.Context(**named)
        if sealed is None:
            to = private_key(self.folder / to, "sealing").public_key()
            sealed = sealing.sealing_suite().encrypt(
                plain or self.release.to_bytes(), to, info=bound.binding(sealing.FORMAT)
            )
        message = bound.binding(sealing.FORMAT, hashlib.sha256(sealed).digest())
        signature = private_key(self.folder / signer).sign(message)
        return frame(sealing.Envelope(**named, signature=signature), sealed)


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
    with pytest.raises(ExchangeError, check=coded("message.malformed", noun=SEALED)):
        world.opener.open(junk)


def test_cut_and_lengthened_envelopes_are_refused(world):
    for size in (*range(0, len(world.sealed), 7), len(world.sealed) - 1):
        refusal(world.opener.open, world.sealed[:size])
    refusal(world.opener.open, world.sealed + b"\0")
    for nothing in (None, 7, "text"):
        with pytest.raises(ExchangeError, check=coded("message.malformed", noun=SEALED)):
            world.opener.open(nothing)


def test_an_envelope_has_one_encoding(world):
    size = int.from_bytes(world.sealed[:4], "little")
    header = msgspec.msgpack.decode(world.sealed[4 : 4 + size])
    turned = msgspec.msgpack.encode(dict(reversed(header.items())))
    other = len(turned).to_bytes(4, "little") + turned + world.sealed[4 + size :]
    with pytest.raises(ExchangeError, check=coded("message.malformed", noun=SEALED, reason=REWRITTEN)):
        world.opener.open(other)


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
    with pytest.raises(ExchangeError, check=coded("seal.signature-invalid", silo="lille", round_number=1)):
        world.unseal(world.forged(signer="metz"))
    with pytest.raises(ExchangeError, check=coded("seal.signature-invalid", silo="metz", round_number=1)):
        world.unseal(world.forged(silo="metz"))


def test_the_signature_covers_every_part_and_is_checked_before_anything_is_decrypted(world):
    header, body = unframe(world.sealed, sealing.Envelope, "an envelope")
    body = bytes(body)
    other = world.seal(world.release)
    for change, ciphertext in (
        ({}, body[:-1] + bytes([body[-1] ^ 1])),
        ({}, b""),
        ({}, other[-len(body) :]),
        ({}, bytes(32) + body[32:]),
        ({"round_number": 2}, body),
        ({"silo": "metz"}, body),
        ({"signature": b""}, body),
    ):
        changed = frame(msgspec.structs.replace(header, **change), ciphertext)
        with pytest.raises(ExchangeError, check=coded("seal.signature-invalid")):
            world.unseal(changed)


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
        with pytest.raises(ExchangeError, check=coded("seal.content-lattice", region="north")):
            world.unseal(world.forged(plain=plain))
    with pytest.raises(ExchangeError, check=coded("seal.content-malformed")):
        world.unseal(world.forged(plain=b"nonsense"))


def test_what_was_sealed_to_another_key_does_not_open(world):
    with pytest.raises(ExchangeError, check=coded("seal.not-opened", region="north")):
        world.unseal(world.forged(to="south"))
    for sealed in (b"", b"x" * 8, b"x" * 31, b"x" * 47, b"x" * 100):
        with pytest.raises(ExchangeError, check=coded("seal.not-opened")):
            world.unseal(world.forged(sealed=sealed))


def test_the_encryption_binds_plan_silo_region_and_round_even_where_the_silo_signs_anew(world):
    sealed = bytes(unframe(world.sealed, sealing.Envelope, "an envelope")[1])
    assert world.unseal(world.forged(sealed=sealed)).to_bytes() == world.release.to_bytes()
    with pytest.raises(ExchangeError, check=coded("seal.not-opened", round_number=2)):
        world.unseal(world.forged(round_number=2, sealed=sealed))
    other = world.forged(silo="metz", signer="metz", sealed=sealed)
    with pytest.raises(ExchangeError, check=coded("seal.not-opened", silo="metz", round_number=1)):
        world.unseal(other)
    key = private_key(world.folder / "north", "sealing")
    bound = {"plan_digest": world.plan.digest, "silo": "lille", "region": "north", "round_number": 1}
    right = sealing.Context(**bound).binding(sealing.FORMAT)
    assert sealing.sealing_suite().decrypt(sealed, key, info=right) == world.release.to_bytes()
    changes = ({"plan_digest": "0" * 64}, {"silo": "metz"}, {"region": "south"}, {"round_number": 2})
    wrong = [sealing.Context(**bound | change).binding(sealing.FORMAT) for change in changes]
    for info in (*wrong, sealing.Context(**bound).binding("fulcrum.sealed/3")):
        with pytest.raises(InvalidTag):
            sealing.sealing_suite().decrypt(sealed, key, info=info)


def test_envelopes_of_the_first_format_are_refused_in_one_line(world):
    named = {"plan_digest": world.plan.digest, "silo": "lille", "region": "north", "round_number": 1}
    old = {"format": "fulcrum.sealed/1", **named, "ephemeral": bytes(32), "signature": bytes(64)}
    told = refusal(world.unseal, frame(old, bytes(100)))
    assert told.startswith("these bytes are not a sealed release of format fulcrum.sealed/2: ")
    assert "fulcrum.sealed/1" in told


@pytest.mark.parametrize("point", LOW_ORDER, ids=lambda point: hashlib.sha256(point).hexdigest()[:4])
def test_points_of_low_order_are_refused(world, point):
    with pytest.raises(ExchangeError, check=coded("seal.not-opened")):
        world.unseal(world.forged(sealed=point + b"x" * 64))
    keys = world.keys | {"north": "x25519:" + base64.b64encode(point).decode()}
    weak = dataclasses.replace(world.plan, keys=keys)
    sealer = Sealer(weak, "lille", world.folder / "lille")
    told = refusal(sealer.seal, dataclasses.replace(world.release, plan_digest=weak.digest))
    assert "key of region 'north' is of low order" in told


def test_keys_are_held_against_the_plan_when_they_are_read(world):
    with pytest.raises(ExchangeError, check=coded("key.not-of-plan", name="lille")):
        Sealer(world.plan, "lille", world.folder / "metz")
    with pytest.raises(ExchangeError, check=coded("key.not-of-plan", name="north")):
        Opener(world.plan, "north", world.folder / "south")
    with pytest.raises(ExchangeError, check=coded("key.private-invalid")):
        Opener(world.plan, "north", world.folder / "lille")
    with pytest.raises(ExchangeError, check=coded("key.private-invalid")):
        Sealer(world.plan, "lille", world.folder / "north")
    with pytest.raises(ExchangeError, check=coded("file.unreadable")):
        Sealer(world.plan, "lille", world.folder / "none")
    with pytest.raises(ExchangeError, check=coded("plan.silo-unknown", silo="lile")):
        Sealer(world.plan, "lile", world.folder / "lille")
    with pytest.raises(ExchangeError, check=coded("plan.region-unknown", region="nort")):
        Opener(world.plan, "nort", world.folder / "north")


def test_plans_without_the_keys_are_refused(world):
    def without(name, key=None):
        kept = {other: text for other, text in world.keys.items() if other != name}
        return dataclasses.replace(world.plan, keys=kept if key is None else kept | {name: key})

    lille, north = world.folder / "lille", world.folder / "north"
    expected = "the plan carries no key of region 'north'. Plan with --keys"
    assert refusal(Sealer, without("north"), "lille", lille) == expected
    assert refusal(Opener, without("north"), "north", north) == expected
    with pytest.raises(ExchangeError, check=coded("plan.key-missing", name="lille")):
        Sealer(without("lille"), "lille", lille)
    with pytest.raises(ExchangeError, check=coded("plan.key-missing", name="metz")):
        Opener(without("metz"), "north", north)
    with pytest.raises(ExchangeError, check=coded("plan.key-invalid", name="north")):
        Sealer(without("north", world.keys["metz"]), "lille", lille)
    with pytest.raises(ExchangeError, check=coded("plan.key-invalid", name="metz")):
        Opener(without("metz", world.keys["north"]), "north", north)
    with pytest.raises(ExchangeError, check=coded("plan.key-invalid", name="metz")):
        Opener(without("metz", "a2V5"), "north", north)


def test_a_silo_seals_its_own_releases_alone(world):
    sealer = Sealer(world.plan, "lille", world.folder / "lille")
    for other in (
        world.released("metz", 1),
        dataclasses.replace(world.release, region="south"),
        dataclasses.replace(world.release, plan_digest="0"),
        dataclasses.replace(world.release, step=None),
    ):
        with pytest.raises(ExchangeError, check=coded("seal.release-foreign", silo="lille")):
            sealer.seal(other)
    with pytest.raises(ExchangeError, check=coded("release.round-range", round_number=4)):
        sealer.seal(dataclasses.replace(world.release, round_number=4))


class Hpke:
    """RFC 9180 by hand, for one message: base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, and an AEAD of GCM."""

    def __init__(self, aead, key_bytes):
        self.key_bytes = key_bytes
        self.kem = b"KEM" + (0x0020).to_bytes(2, "big")
        self.suite = b"HPKE" + b"".join(number.to_bytes(2, "big") for number in (0x0020, 0x0001, aead))

    @staticmethod
    def extract(suite, salt, label, secret):
        return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + secret, "sha256")

    @staticmethod
    def expand(suite, key, label, info, size):
        assert size <= 32
        return hmac.digest(key, size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info + b"\x01", "sha256")[:size]

    def cipher(self, exchanged, enc, public, info):
        """Returns the AEAD and the nonce of the first message."""
        shared = self.expand(
            self.kem, self.extract(self.kem, b"", b"eae_prk", exchanged), b"shared_secret", enc + public, 32
        )
        context = b"\0" + self.extract(self.suite, b"", b"psk_id_hash", b"")
        context += self.extract(self.suite, b"", b"info_hash", info)
        secret = self.extract(self.suite, shared, b"secret", b"")
        key = self.expand(self.suite, secret, b"key", context, self.key_bytes)
        return AESGCM(key), self.expand(self.suite, secret, b"base_nonce", context, 12)

    def encrypt(self, plain, ephemeral, to, info, associated=b""):
        enc = ephemeral.public_key().public_bytes_raw()
        aead, nonce = self.cipher(ephemeral.exchange(to), enc, to.public_bytes_raw(), info)
        return enc + aead.encrypt(nonce, plain, associated)

    def decrypt(self, sealed, private, info, associated=b""):
        enc = sealed[:32]
        exchanged = private.exchange(X25519PublicKey.from_public_bytes(enc))
        aead, nonce = self.cipher(exchanged, enc, private.public_key().public_bytes_raw(), info)
        return aead.decrypt(nonce, sealed[32:], associated)


def test_the_hpke_of_this_test_is_that_of_the_rfc():
    """RFC 9180, A.1.1, with AES-128-GCM; its first message has associated data, which envelopes have not."""
    ephemeral, region = (
        X25519PrivateKey.from_private_bytes(bytes.fromhex(key))
        for key in (
            "52c4a758a802cd8b936eceea314432798d5baf2d7e9235dc084ab1b9cfa2f736",
            "4612c550263fc8ad58375df3f557aac531d26850903e55a9f23f21d8534e8ac8",
        )
    )
    by_hand, info = Hpke(aead=0x0001, key_bytes=16), b"Ode on a Grecian Urn"
    sealed = by_hand.encrypt(b"Beauty is truth, truth beauty", ephemeral, region.public_key(), info, b"Count-0")
    assert sealed.hex() == (
        "37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431"
        "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a"
    )
    assert by_hand.decrypt(sealed, region, info, b"Count-0") == b"Beauty is truth, truth beauty"


AES_256_GCM = Hpke(aead=0x0002, key_bytes=32)


def test_an_envelope_is_known_byte_for_byte(world):
    """Every part of an envelope is known without the module, which opens one made by hand and makes one like it."""
    north = private_key(world.folder / "north", "sealing")
    digest = world.plan.digest.encode()
    assert len(digest) == 64
    names = b"\xb0fulcrum.sealed/2\xd9\x40" + digest + b"\xa5lille\xa5north\x01"

    def enclosed(sealed):
        message = b"\x96" + names + b"\xc4\x20" + hashlib.sha256(sealed).digest()
        signature = private_key(world.folder / "lille").sign(message)  # Ed25519 signs the same message the same way
        header = b"\x86\xa6format\xb0fulcrum.sealed/2\xabplan_digest\xd9\x40" + digest
        header += b"\xa4silo\xa5lille\xa6region\xa5north\xacround_number\x01\xa9signature\xc4\x40" + signature
        return len(header).to_bytes(4, "little") + header + sealed

    plain, info = world.release.to_bytes(), b"\x95" + names
    made = enclosed(AES_256_GCM.encrypt(plain, X25519PrivateKey.generate(), north.public_key(), info))
    assert world.unseal(made).to_bytes() == plain
    sealed = world.sealed[len(enclosed(b"")) :]
    assert world.sealed == enclosed(sealed)
    assert AES_256_GCM.decrypt(sealed, north, info) == plain


def test_a_cryptography_without_hpke_is_named():
    hidden = "import sys; sys.modules['cryptography.hazmat.primitives.hpke'] = None"
    code = f"{hidden}; from fulcrum.core.messages.sealing import sealing_suite; sealing_suite()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    told = ran.stderr.splitlines()[-1]
    assert "sealed releases need the package cryptography, 47 or later. Run: pip install -U" in told
    assert told.startswith("fulcrum.errors.MissingExtraError: ")


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
    with pytest.raises(ExchangeError, check=coded("message.malformed", noun=SEALED)):
        world.opener.open(declined)


def test_nobody_declines_for_another(world):
    metz = Sealer(world.plan, "metz", world.folder / "metz").decline(2)
    forged = metz.replace(b"metz", b"lille").replace(b"\xa4lille", b"\xa5lille")
    with pytest.raises(ExchangeError, check=coded("seal.signature-invalid", silo="lille", round_number=2)):
        world.opener.open_decline(forged)
    nice = Sealer(world.plan, "nice", world.folder / "nice").decline(2)
    with pytest.raises(ExchangeError, check=coded("seal.region-differs", region="north")):
        world.opener.open_decline(nice)
    other = Sealer(world.made["research"], "lille", world.folder / "lille").decline(2)
    with pytest.raises(ExchangeError, check=coded("seal.plan-differs")):
        world.opener.open_decline(other)
    for wrong in (0, 4, -1):
        with pytest.raises(ExchangeError, check=coded("release.round-range", rounds=3)):
            Sealer(world.plan, "lille", world.folder / "lille").decline(wrong)


def test_a_release_is_no_decline_and_gives_none_away(world):
    """What a silo signed for its release cannot be made into a decline of the same round."""
    envelope, _ = unframe(world.sealed, sealing.Envelope, "an envelope")
    made = msgspec.msgpack.encode(sealing.Decline(**msgspec.structs.asdict(envelope)))
    with pytest.raises(ExchangeError, check=coded("seal.signature-invalid")):
        world.opener.open_decline(made)


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
