import base64
import contextlib
import json
import os
import stat
import threading

import pytest
from error_codes import coded
from forging import lie, sealed, sign_anyway

import fulcrum
from fulcrum.core.plan.keys import private_key, public_key, public_text
from fulcrum.core.plan.plan_reader import read_content
from fulcrum.core.plan.signatures import read_signed_plan
from fulcrum.core.silo.policy import Policy
from fulcrum.errors import ParameterError, PlanError, SignatureError
from fulcrum.planning.files.plan_issue import check_signature, issue_checks, new_key, sign_plan, write_signature


def plan(rounds, purpose="deployment"):
    epsilon = {"region": 1.0, "aggregator": 8.0}
    return fulcrum.plan("mild", rounds=rounds, epsilon=epsilon, parameters=34, purpose=purpose)


@pytest.fixture
def signed(tmp_path):
    public = new_key(tmp_path / "issuer.key")
    fulcrum.save_plan(plan(rounds=2), tmp_path / "plan.json")
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
        with pytest.raises(SignatureError, check=coded("signature.issuer-differs")):
            check(path, public)
    check_signature(path, "other.key.pub")
    with pytest.raises(SignatureError, check=coded("key.public-invalid")):
        read_signed_plan(path, "other.key.pub")  # a program, a site and a policy hold the key itself
    with pytest.raises(SignatureError, check=coded("file.unreadable")):
        check_signature(path, "none.pub")
    (tmp_path / "junk.pub").write_bytes(b"\xff\xfe")
    with pytest.raises(SignatureError, check=coded("key.file-invalid")):
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
    with pytest.raises(SignatureError, check=coded("key.file-exists")):
        new_key(key)
    assert key.read_bytes() == before
    with pytest.raises(SignatureError, check=coded("storage.not-writable")):
        new_key(tmp_path / "none" / "key")


def test_another_issuer_another_plan_and_a_forged_signature_are_refused(signed, tmp_path):
    path, public = signed
    other = new_key(tmp_path / "other.key")
    with pytest.raises(SignatureError, check=coded("signature.issuer-differs")):
        check_signature(path, other)
    signature = path.with_name("plan.json.sig")
    good = signature.read_text()
    forged = json.loads(good) | {"public_key": other}
    signature.write_text(json.dumps(forged))
    with pytest.raises(SignatureError, check=coded("signature.invalid")):
        check_signature(path, other)
    signature.write_text(good)
    fulcrum.save_plan(plan(rounds=3), path)
    with pytest.raises(SignatureError, check=coded("signature.plan-differs")):
        check_signature(path, public)


def test_a_key_that_stands_twice_shows_no_reader_what_was_not_signed(signed):
    path, public = signed
    files = {path: '"purpose": "research"', path.with_name("plan.json.sig"): '"plan_digest": "00"'}
    for file, lie_first in files.items():
        good = file.read_text()
        file.write_text(good.replace("{", "{" + lie_first + ",", 1))
        for read in (check_signature, read_signed_plan):
            with pytest.raises((PlanError, SignatureError), match=r"the key '\w+' stands twice in one object"):
                read(path, public)
        file.write_text(good)
    check_signature(path, public)


def test_a_signature_of_another_format_is_refused(signed):
    path, public = signed
    signature = path.with_name("plan.json.sig")
    signature.write_text(signature.read_text().replace("fulcrum.signature/1", "fulcrum.signature/9"))
    with pytest.raises(SignatureError, check=coded("signature.format-unknown")):
        check_signature(path, public)
    assert [check.holds for check in issue_checks(path, read_content(path))] == [True, False, False]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_the_place_of_a_signature_is_refused_and_nobody_waits(signed):
    path, public = signed
    signature = path.with_name("plan.json.sig")
    signature.unlink()
    os.mkfifo(signature)
    writer = os.open(signature, os.O_RDWR)
    silence = threading.Timer(2, os.close, [writer])  # ends the wait of a reader that opens the pipe
    silence.start()
    with pytest.raises(SignatureError, check=coded("signature.file-unreadable")):
        check_signature(path, public)
    silence.cancel()
    os.close(writer)
    signature.unlink()
    signature.mkdir()
    with pytest.raises(SignatureError, check=coded("signature.file-unreadable")):
        check_signature(path, public)


def test_a_plan_in_another_spelling_of_json_keeps_its_signature(signed):
    path, public = signed
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7, sort_keys=False))
    check_signature(path, public)


def test_missing_and_broken_files_are_refused_in_one_line(signed, tmp_path):
    path, public = signed
    signature = path.with_name("plan.json.sig")
    signature.write_text("nonsense")
    with pytest.raises(SignatureError, check=coded("signature.malformed")):
        check_signature(path, public)
    signature.unlink()
    with pytest.raises(SignatureError, check=coded("signature.file-unreadable")):
        check_signature(path, public)
    with pytest.raises(SignatureError, check=coded("key.private-invalid", expected="a private key")):
        sign_plan(path, path)
    with pytest.raises(SignatureError, check=coded("file.unreadable")):
        sign_plan(path, tmp_path / "none.key")
    with pytest.raises(SignatureError):
        check_signature(path, "not a key")


@pytest.mark.parametrize(
    ("parameters", "told"), [(34, ""), (None, " --parameters N, the number of trained parameters")]
)
def test_no_issuer_signs_a_research_plan(tmp_path, parameters, told):
    new_key(tmp_path / "issuer.key")
    path = tmp_path / "plan.json"
    fulcrum.save_plan(fulcrum.plan("mild", rounds=2, epsilon=1.0, parameters=parameters), path)
    with pytest.raises(PlanError) as caught:
        sign_plan(path, tmp_path / "issuer.key")
    assert str(caught.value) == (
        f"{path} is a research plan. A research plan protects no silo, so an issuer signs deployment plans alone. "
        f"Run fulcrum plan with --purpose deployment{told}"
    )
    assert not path.with_name("plan.json.sig").exists()


def test_a_site_signs_a_plan_of_its_own_purpose_alone(signed, tmp_path):
    path, public = signed
    with pytest.raises(PlanError, check=coded("plan.purpose-not-research")):
        write_signature(path, tmp_path / "issuer.key", purpose="research")
    fulcrum.save_plan(plan(rounds=2, purpose="research"), path)
    write_signature(path, tmp_path / "issuer.key", purpose="research")
    assert read_signed_plan(path, public).purpose == "research"


def test_no_issuer_signs_a_plan_that_does_not_verify(signed, tmp_path):
    path, public = signed
    lie(path)
    with pytest.raises(PlanError, check=coded("plan.check-failed", check="epsilon at silo")):
        sign_plan(path, tmp_path / "issuer.key")
    with pytest.raises(SignatureError, check=coded("signature.plan-differs")):
        check_signature(path, public)


def rows(path, issuer=None):
    return {check.name: (check.holds, check.detail) for check in issue_checks(path, read_content(path), issuer)}


def test_the_checks_of_an_issue_are_purpose_signature_and_issuer(signed, tmp_path):
    path, public = signed
    digest, other = read_content(path).digest, new_key(tmp_path / "other.key")
    good = (True, f"good, of digest {digest[:12]}")
    assert rows(path) == {
        "purpose": (True, "deployment"),
        "signature": good,
        "issuer": (True, f"{public[:8]}.., to compare with --issuer"),
    }
    assert rows(path, public)["issuer"] == rows(path, str(tmp_path / "issuer.key.pub"))["issuer"]
    assert rows(path, public)["issuer"] == (True, f"{public[:8]}..")
    told = rows(path, other)
    assert told["signature"] == good
    assert told["issuer"] == (False, f"signed by {public[:8]}.., not by the issuer {other[:8]}..")
    with pytest.raises(SignatureError, check=coded("key.public-invalid")):
        rows(path, "not a key")


@pytest.mark.parametrize("issuer", [None, "the issuer"])
def test_a_bad_signature_fails_whether_or_not_an_issuer_is_asked_for(signed, issuer):
    path, public = signed
    signature = path.with_name("plan.json.sig")
    good = json.loads(signature.read_text())
    other = base64.b64encode(bytes(64)).decode()
    texts = [json.dumps(good | change) for change in ({"signature": other}, {"plan_digest": "0" * 64})]
    for data in (*(text.encode() for text in texts), b"nonsense", b"\xff\xfe"):
        signature.write_bytes(data)
        told = rows(path, public if issuer else None)
        assert (told["signature"][0], told["issuer"]) == (False, (False, "there is no good signature"))
        assert "\n" not in told["signature"][1]


def test_a_plan_that_nobody_signed_fails_where_an_issuer_is_asked_for(signed):
    path, public = signed
    path.with_name("plan.json.sig").unlink()
    assert rows(path)["signature"] == (True, "none. Sign the plan with: fulcrum sign")
    assert rows(path)["issuer"] == (True, "nobody signed this plan")
    assert {name for name, (holds, _) in rows(path, public).items() if not holds} == {"signature", "issuer"}


def test_a_research_plan_has_no_issuer_even_where_it_is_signed(signed, tmp_path):
    path, public = signed
    fulcrum.save_plan(plan(rounds=2, purpose="research"), path)
    path.with_name("plan.json.sig").unlink()
    assert rows(path)["purpose"] == (True, "research: it protects nobody")
    sign_anyway(path, tmp_path / "issuer.key")
    assert {name for name, (holds, _) in rows(path, public).items() if not holds} == {"purpose"}


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
    with pytest.raises(SignatureError, check=coded("key.private-invalid", expected="an Ed25519 key")):
        sign_plan(path, tmp_path / "north.key")
    with pytest.raises(SignatureError, check=coded("key.private-invalid", expected="an X25519 key")):
        private_key(tmp_path / "issuer.key", "sealing")
    with pytest.raises(SignatureError):
        check_signature(path, sealing)
    with pytest.raises(ParameterError, check=coded("errors.name-unknown", noun="kind of key", name="seal")):
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
        ("A" * 42 + "B=", "signing"),  # the spelling of bytes(32) ends in "A="
        ("x25519:" + "A" * 42 + "B=", "sealing"),
    ):
        with pytest.raises(SignatureError, check=coded("key.public-invalid")):
            public_key(text, kind)


@pytest.mark.parametrize(
    "settings",
    [
        {"unit": "person", "unit_name": "patient"},
        {"unit": "person", "neighbours": "add-remove", "silos_per_person": 2, "silo_epsilon": 300.0, "silo_clip": 20.0},
        {"unit": "record"},
    ],
)
def test_a_plan_for_persons_is_signed_and_a_changed_one_is_refused(settings, tmp_path):
    path, public = tmp_path / "plan.json", new_key(tmp_path / "issuer.key")
    by_person = fulcrum.plan("mild", rounds=2, epsilon=1.0, parameters=34, purpose="deployment", **settings)
    fulcrum.save_plan(by_person, path)
    sign_plan(path, tmp_path / "issuer.key")
    check_signature(path, public)
    made = read_signed_plan(path, public)
    assert (made.issuer, made.unit, made.digest) == (public, by_person.unit, by_person.digest)

    honest = json.loads(path.read_text())
    other = "replace" if "neighbours" in settings else "add-remove"
    for change in ({"unit": "silo"}, {"neighbours": other}, {"silos_per_person": 3}, {"rounds": 20}):
        content = honest | {"settings": honest["settings"] | change}
        path.write_text(json.dumps(content))  # with the digest of the signed plan
        for read in (check_signature, read_signed_plan):
            with pytest.raises(PlanError):
                read(path, public)
        path.write_bytes(sealed(content))  # with a digest of its own
        for read in (check_signature, read_signed_plan):
            with pytest.raises((PlanError, SignatureError)):
                read(path, public)
        with pytest.raises(PlanError):  # no issuer signs the false plan by this software
            sign_plan(path, tmp_path / "issuer.key")
        with contextlib.suppress(PlanError):  # a file that contradicts itself has no content to sign
            sign_anyway(path, tmp_path / "issuer.key")
        with pytest.raises(PlanError):
            read_signed_plan(path, public)
    path.write_text(json.dumps(honest))
    sign_plan(path, tmp_path / "issuer.key")
    check_signature(path, public)
