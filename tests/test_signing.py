import json
import stat

import pytest

import fulcrum
from fulcrum.errors import SignatureError
from fulcrum.policy import Policy
from fulcrum.signing import check_signature, new_key, read_signed_plan, sign_plan


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
