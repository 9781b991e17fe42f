import base64
import json
import stat

import pytest

import fulcrum
from fulcrum.errors import ParameterError, SignatureError
from fulcrum.planning.signing import (
    check_signature,
    new_key,
    private_key,
    public_key,
    public_text,
    read_signed_plan,
    sign_plan,
)
from fulcrum.roles.policy import Policy


@pytest.fixture
def signed(tmp_path):
    public = new_key(tmp_path / "issuer.key")
    fulcrum.plan("mild", rounds=2, epsilon=1.0).save(tmp_path / "plan.json")
    sign_plan(tmp_path / "plan.json", tmp_path / "issuer.key")
    return tmp_path / "plan.json", public


def test_a_signed_plan_is_known_by_its_issuer(signed, tmp_path):
    path, public = signed
    check_signature(path, public)
    check_signature(path, str(tmp_path / "issuer.key.pub"))
    made = read_signed_plan(path, public)
    assert made.issuer == public
    Policy(largest_epsilon_above=1.0, largest_epsilon_inside=50.0, issuer=public).check(made, "region-1-1")


def test_an_issuer_is_read_from_a_file_only_where_its_name_ends_in_pub(signed, tmp_path, monkeypatch):
    path, public = signed
    monkeypatch.chdir(tmp_path)
    other = new_key(tmp_path / "other.key")
    sign_plan(path, tmp_path / "other.key")
    named = tmp_path / public  # a file named like the issuer's key holds another
    named.parent.mkdir(parents=True, exist_ok=True)
    named.write_text(other)
    for check in (check_signature, read_signed_plan):
        with pytest.raises(SignatureError, match="not by the issuer"):
            check(path, public)
    check_signature(path, "other.key.pub")
    with pytest.raises(SignatureError, match="is not a public key"):
        read_signed_plan(path, "other.key.pub")  # a program, a site and a policy hold the key itself
    with pytest.raises(SignatureError, match=r"none\.pub cannot be read"):
        check_signature(path, "none.pub")
    (tmp_path / "junk.pub").write_bytes(b"\xff\xfe")
    with pytest.raises(SignatureError, match=r"junk\.pub is not a public key"):
        check_signature(path, "junk.pub")


def test_a_private_key_is_synced_before_its_public_half_is_told(tmp_path, syncs):
    new_key(tmp_path / "issuer.key")
    key = (tmp_path / "issuer.key").stat()
    assert (syncs[0].inode, syncs[0].size) == (key.st_ino, key.st_size)
    assert syncs[-1].inode == tmp_path.stat().st_ino


def test_private_keys_are_for_their_owner_alone_and_never_overwritten(signed, tmp_path):
    key = tmp_path / "issuer.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_bytes()
    with pytest.raises(SignatureError, match="A key is never overwritten"):
        new_key(key)
    assert key.read_bytes() == before
    with pytest.raises(SignatureError, match="cannot be written"):
        new_key(tmp_path / "none" / "key")


def test_another_issuer_another_plan_and_a_forged_signature_are_refused(signed, tmp_path):
    path, public = signed
    other = new_key(tmp_path / "other.key")
    with pytest.raises(SignatureError, match="not by the issuer"):
        check_signature(path, other)
    signature = path.with_name("plan.json.sig")
    good = signature.read_text()
    forged = json.loads(good) | {"public_key": other}
    signature.write_text(json.dumps(forged))
    with pytest.raises(SignatureError, match="is not a good signature"):
        check_signature(path, other)
    signature.write_text(good)
    fulcrum.plan("mild", rounds=3, epsilon=1.0).save(path)
    with pytest.raises(SignatureError, match="signs another plan"):
        check_signature(path, public)


def test_missing_and_broken_files_are_refused_in_one_line(signed, tmp_path):
    path, public = signed
    signature = path.with_name("plan.json.sig")
    signature.write_text("nonsense")
    with pytest.raises(SignatureError, match="is not a signature"):
        check_signature(path, public)
    signature.unlink()
    with pytest.raises(SignatureError, match="Sign the plan with: fulcrum sign"):
        check_signature(path, public)
    with pytest.raises(SignatureError, match="is not a private key"):
        sign_plan(path, path)
    with pytest.raises(SignatureError, match="cannot be read"):
        sign_plan(path, tmp_path / "none.key")
    with pytest.raises(SignatureError):
        check_signature(path, "not a key")


def test_keys_are_for_signing_or_for_sealing_and_their_texts_say_which(signed, tmp_path):
    path, public = signed
    assert len(base64.b64decode(public, validate=True)) == 32
    sealing = new_key(tmp_path / "north.key", "sealing")
    assert sealing.startswith("x25519:")
    assert len(base64.b64decode(sealing.removeprefix("x25519:"), validate=True)) == 32
    assert (tmp_path / "north.key.pub").read_text() == sealing + "\n"
    assert stat.S_IMODE((tmp_path / "north.key").stat().st_mode) == 0o600
    assert (tmp_path / "north.key").read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert public_text(private_key(tmp_path / "north.key", "sealing")) == sealing
    assert public_text(private_key(tmp_path / "issuer.key")) == public
    with pytest.raises(SignatureError, match="is not an Ed25519 key"):
        sign_plan(path, tmp_path / "north.key")
    with pytest.raises(SignatureError, match=r"is not an X25519 key\. Make one with: fulcrum keygen --kind sealing"):
        private_key(tmp_path / "issuer.key", "sealing")
    with pytest.raises(SignatureError):
        check_signature(path, sealing)
    with pytest.raises(ParameterError, match=r"unknown kind of key 'seal'\. Known: signing, sealing\. Did you mean"):
        new_key(tmp_path / "other.key", "seal")
    assert not (tmp_path / "other.key").exists()


def test_public_keys_are_read_as_their_kind_alone(tmp_path):
    signing, sealing = new_key(tmp_path / "a"), new_key(tmp_path / "b", "sealing")
    assert public_key(signing) == private_key(tmp_path / "a").public_key()
    assert public_key(sealing, "sealing") == private_key(tmp_path / "b", "sealing").public_key()
    for text, kind in (
        (sealing, "signing"),
        (signing, "sealing"),
        ("x25519:" + signing[:-8], "sealing"),
        ("", "signing"),
        ("x25519:", "sealing"),
        ("ü" * 44, "signing"),
    ):
        with pytest.raises(SignatureError, match="is not a public key for"):
            public_key(text, kind)
