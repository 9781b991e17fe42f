"""Keys and masks: known answers, one key for each purpose, and masks that nobody tells from chance."""

import itertools
import secrets

import msgspec
import numpy as np
import pytest
from error_codes import coded

from fulcrum.core.masking.masking_messages import FORMAT, Session
from fulcrum.core.masking.masks import (
    add_mask,
    derived_key,
    loaded_key,
    new_private_key,
    pair_secret,
    public_half,
    seal,
    unseal,
)
from fulcrum.core.masking.member_protocol import commitment, pair_key
from fulcrum.errors import ExchangeError

SESSION = Session(plan_digest="3f2a", group="north", round_number=1, attempt=1, input_digest="model-0")


def mask(key, count, dtype="<u8"):
    vector = np.zeros(count, dtype=dtype)
    add_mask(vector, key)
    return vector


def test_a_pairs_secret_is_that_of_rfc_7748():
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert pair_secret(loaded_key(alice), bob, "bob") == shared
    assert public_half(alice).hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"


def test_fresh_keys_differ_and_agree_from_either_side():
    fresh = [new_private_key() for _ in range(20)]
    assert len(set(fresh)) == 20
    assert {len(key) for key in fresh} == {32}
    for one, other in itertools.pairwise(fresh):
        from_one = pair_secret(loaded_key(one), public_half(other), "other")
        assert from_one == pair_secret(loaded_key(other), public_half(one), "one")


def test_a_derived_key_is_that_of_rfc_5869():
    """Its third test case, which has neither salt nor info; the first 32 bytes."""
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert derived_key(b"\x0b" * 22, b"").hex() == expected


def test_a_mask_is_the_keystream_of_nist_sp_800_38a():
    """AES-256 of the counter blocks 0 and 1 under the key of zeros, as the standard's ECB encrypts them."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    blocks = b"".join(number.to_bytes(16, "big") for number in range(2))
    encryptor = Cipher(algorithms.AES256(bytes(32)), modes.ECB()).encryptor()
    assert mask(bytes(32), 4).tobytes() == encryptor.update(blocks)


@pytest.mark.parametrize("dtype", ["<u4", "<u8"])
@pytest.mark.parametrize("count", [0, 1, 3, 100, 2**15 + 7, 2**17])
def test_a_mask_comes_off_again_bit_for_bit_and_does_not_depend_on_chunks(dtype, count):
    vector = np.random.default_rng(count).integers(0, 2**32, size=count).astype(dtype)
    hidden = vector.copy()
    add_mask(hidden, b"k" * 32)
    assert (hidden - vector == mask(b"k" * 32, 2**17 + 1, dtype)[:count]).all()
    add_mask(hidden, b"k" * 32, negative=True)
    assert (hidden == vector).all()


def test_keys_of_no_point_or_of_low_order_are_refused():
    for public in (bytes(32), (1).to_bytes(32, "little"), b"short"):
        with pytest.raises(ExchangeError, check=coded("mask.key-invalid")):
            pair_secret(loaded_key(new_private_key()), public, "lille")


def test_every_purpose_pair_and_session_has_a_key_of_its_own():
    """One secret, derived for everything that the protocol derives keys and commitments for."""
    fields = msgspec.structs.asdict(SESSION)
    others = {"plan_digest": "4f2a", "group": "south", "round_number": 2, "attempt": 2, "input_digest": "model-1"}
    sessions = [SESSION, *(Session(**fields | {name: value}) for name, value in others.items())]
    found = []
    for session in sessions:
        found += [derived_key(b"s" * 32, session.info("self mask", silo)) for silo in ("lille", "metz")]
        found += [
            pair_key(session, b"s" * 32, *pair, told)
            for pair in itertools.combinations(("caen", "lille", "metz"), 2)
            for told in (b"one", b"other")
        ]
        found += [
            derived_key(b"s" * 32, session.info("sealed shares", *pair))
            for pair in itertools.permutations(("caen", "lille", "metz"), 2)
        ]
        found += [commitment(session, silo, b"s" * 32) for silo in ("lille", "metz")]
    assert len(set(found)) == len(found) == 6 * 16
    assert FORMAT.encode() in SESSION.info("self mask")


def test_names_that_read_alike_side_by_side_are_told_apart():
    assert SESSION.info("pair mask", "ab", "c") != SESSION.info("pair mask", "a", "bc")
    assert SESSION.info("pair mask", "a", "b") != SESSION.info("pair mask a", "b")


def test_what_is_sealed_opens_with_its_key_about_its_subject_alone():
    text = seal(b"k" * 32, b"share", b"from lille to metz")
    assert unseal(b"k" * 32, text, b"from lille to metz") == b"share"
    assert unseal(b"k" * 32, text, b"from metz to lille") is None
    assert unseal(b"l" * 32, text, b"from lille to metz") is None
    assert unseal(b"k" * 32, text[:-1], b"from lille to metz") is None
    assert unseal(b"k" * 32, b"", b"from lille to metz") is None


def test_200_000_masks_of_pairs_have_no_start_in_common_and_a_32_bit_seed_would_show():
    """633 members have 200,028 pairs; 64 bits of so many masks repeat with a chance of 10^-9."""
    pairs = list(itertools.combinations(map(str, range(633)), 2))
    assert len(pairs) == 200_028
    keys = [pair_key(SESSION, secrets.token_bytes(32), *pair, b"told") for pair in pairs]
    assert repeats(keys) == 0
    # Seeds of 32 bits, drawn once and for all so that this test has one outcome: about five pairs of masks are alike.
    short = np.random.default_rng(32).integers(0, 2**32, size=len(keys), dtype=np.uint64)
    assert 0 < repeats([int(seed).to_bytes(32, "little") for seed in short]) < 20


def repeats(keys):
    """How many masks begin with 64 bits that another one has."""
    return len(keys) - len({int(mask(key, 1)[0]) for key in keys})
