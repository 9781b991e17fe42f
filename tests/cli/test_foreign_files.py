"""Files that somebody else wrote, in every way that is not what they should hold: one line, and no traceback."""

import json
import tomllib
from pathlib import Path

import msgspec
import pytest

import fulcrum
from fulcrum.audit.evidence.findings import AUDIT_FILE, read_audit
from fulcrum.audit.integration.recorded_noise import read_recorded_run
from fulcrum.cli.command_line import run
from fulcrum.core.silo.policy import read_policy
from fulcrum.core.silo.site import read_site
from fulcrum.errors import FulcrumError
from fulcrum.npz import read_npz
from fulcrum.parsing import json_of, toml_of
from fulcrum.planning.files.plan_issue import check_signature, new_key, sign_plan
from fulcrum.server.run_results import read_results
from fulcrum.views.report.dossier import read_answers

pytest.importorskip("cryptography", reason="needs the extra secure")

DEEP = b"[" * 100_000
JSON = [b"", b"\xff\xfe", b'{"format": "\xff"}', DEEP, b'{"format": ' + DEEP, b"null", b'{"signature": "\xc3\x28"}']
TOML = [b"\xff\xfe", b"a = " + DEEP, b"a = " + b"9" * 5_000, b"a = {b = " * 100_000, b"a = 2024-02-31"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    fulcrum.save_plan(
        fulcrum.plan("severe", rounds=2, epsilon=1.0, purpose="deployment", parameters=10), folder / "plan.json"
    )
    new_key(folder / "issuer.key")
    return folder / "plan.json"


def refusal(work, *arguments):
    with pytest.raises(FulcrumError) as caught:
        work(*arguments)
    assert "\n" not in str(caught.value)


class Small(msgspec.Struct):
    number: int = 0


@pytest.mark.parametrize("data", JSON)
def test_json_that_cannot_be_read_is_one_kind_of_error(data):
    kind = dict[str, str]
    with pytest.raises(msgspec.MsgspecError):
        json_of(data, kind)
    assert json_of(b'{"number": 3}', Small).number == 3


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (b'{"number"', Small, "Input data was truncated"),
        (b'{"number": "3"}', Small, "Expected `int`, got `str` - at `$.number`"),
        (b'{"number": "\xff"}', dict, "it is not UTF-8"),
        (DEEP, list, "it is nested too deeply to be read"),
        (b'{"number": 3, "n\\u0075mber": 4}', Small, "the key 'number' stands twice in one object"),
        (b'[{"a": {"b": 1, "c": 2, "b": 1}}]', list, "the key 'b' stands twice in one object"),
    ],
    ids=["truncated", "of another type", "of another alphabet", "nested", "twice", "twice further in"],
)
def test_the_error_of_json_names_the_damage(data, kind, reason):
    with pytest.raises(msgspec.MsgspecError) as caught:
        json_of(data, kind)
    assert str(caught.value) == reason


@pytest.mark.parametrize("data", TOML)
def test_toml_that_cannot_be_read_is_one_kind_of_error(data):
    with pytest.raises(tomllib.TOMLDecodeError):
        toml_of(data)


@pytest.mark.parametrize("data", JSON)
def test_a_signature_that_is_none_is_refused_in_one_line(plan, data, capsys):
    public = Path(f"{plan.parent}/issuer.key.pub").read_text().strip()
    sign_plan(plan, plan.parent / "issuer.key")
    check_signature(plan, public)
    Path(f"{plan}.sig").write_bytes(data)
    refusal(check_signature, plan, public)
    capsys.readouterr()
    assert run(["verify", str(plan), "--issuer", public, "--format", "json"]) == 1
    failed = [check for check in json.loads(capsys.readouterr().out)["checks"] if not check["holds"]]
    assert {check["name"] for check in failed} <= {"signature", "issuer"}
    assert all(len(check["detail"].splitlines()) == 1 for check in failed)


@pytest.mark.parametrize("data", JSON)
@pytest.mark.parametrize("name", ["run.json", "comparison.json"])
def test_results_that_are_none_are_refused_in_one_line(plan, tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    refusal(read_results, tmp_path, fulcrum.read_plan(plan))


@pytest.mark.parametrize("data", JSON)
def test_an_audit_that_is_none_is_refused_in_one_line(tmp_path, data):
    (tmp_path / AUDIT_FILE).write_bytes(data)
    refusal(read_audit, tmp_path)


@pytest.mark.parametrize("name", ["run.json", "comparison.json", AUDIT_FILE, "observed.npz"])
def test_a_device_in_the_place_of_a_result_is_refused_unread(plan, tmp_path, name):
    """Somebody's folder may hold a pipe, which is waited for, or a link to /dev/zero, which fills the memory."""
    (tmp_path / name).symlink_to("/dev/null")
    made = fulcrum.read_plan(plan)
    works = {AUDIT_FILE: lambda: read_audit(tmp_path), "observed.npz": lambda: read_npz(tmp_path / name)}
    with pytest.raises((FulcrumError, OSError), match="it is not a regular file"):
        works.get(name, lambda: read_results(tmp_path, made))()
    if name == "run.json":
        with pytest.raises(FulcrumError, match=r"run\.json cannot be read: it is not a regular file"):
            read_recorded_run(tmp_path, made)


@pytest.mark.parametrize("data", TOML)
@pytest.mark.parametrize("work", [read_policy, read_answers], ids=["policy", "answers"])
def test_toml_files_that_are_none_are_refused_in_one_line(tmp_path, work, data):
    (tmp_path / "file.toml").write_bytes(data)
    refusal(work, tmp_path / "file.toml")


@pytest.mark.parametrize("data", TOML)
def test_a_site_that_is_none_is_refused_in_one_line(tmp_path, data):
    (tmp_path / "site.toml").write_bytes(data)
    refusal(read_site, tmp_path)


@pytest.mark.parametrize("data", TOML)
def test_keys_that_are_none_are_refused_in_one_line(tmp_path, data, capsys):
    (tmp_path / "keys.toml").write_bytes(data)
    words = ["plan", "severe", "--rounds", "2", "--epsilon", "1", "--keys", str(tmp_path / "keys.toml")]
    assert run(words) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
