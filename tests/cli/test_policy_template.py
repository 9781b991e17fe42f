"""A policy to fill in, and policies with unknown limits."""

import re

import msgspec
import pytest
from error_codes import coded

from fulcrum.cli.command_line import run
from fulcrum.core.silo.policy import Policy, read_policy
from fulcrum.errors import PolicyError
from fulcrum.planning.files.plan_issue import new_key
from fulcrum.words.policy_template import policy_template


def test_the_template_is_a_policy_and_names_every_limit_with_its_default(tmp_path):
    (tmp_path / "policy.toml").write_text(policy_template())
    assert read_policy(tmp_path / "policy.toml") == Policy(largest_epsilon_above=1.0, largest_epsilon_inside=4.0)
    whole = re.sub(r"(?m)^# (?=\[|[a-z_]+ = )", "", policy_template())
    (tmp_path / "whole.toml").write_text(whole)
    limits = read_policy(tmp_path / "whole.toml")
    for field in msgspec.structs.fields(Policy):
        assert re.search(rf"(?m)^\[?{field.name}\b", whole), field.name
    assert (limits.largest_delta, limits.unit, limits.neighbours) == (1e-5, "silo", "replace")
    assert limits.peers == {"lyon": ""}


def test_the_command_writes_the_template_once_and_never_over_a_file(tmp_path, capsys):
    assert run(["policy", "--template", "-o", str(tmp_path / "policy.toml")]) == 0
    assert (tmp_path / "policy.toml").read_text() == policy_template()
    assert run(["policy", "--template", "-o", str(tmp_path / "policy.toml")]) == 2
    assert run(["policy"]) == 2
    assert "fulcrum policy --template -o policy.toml" in capsys.readouterr().err


def test_an_unknown_limit_is_answered_with_the_known_limits_and_the_nearest(tmp_path):
    (tmp_path / "policy.toml").write_text("largest_epsilon_abov = 1\nlargest_epsilon_inside = 4\n")
    with pytest.raises(PolicyError, check=coded("policy.field-unknown")) as refused:
        read_policy(tmp_path / "policy.toml")
    assert "Did you mean 'largest_epsilon_above'?" in str(refused.value)
    for field in msgspec.structs.fields(Policy):
        assert field.name in refused.value.details["known"]


def test_the_template_on_stdout_is_the_policy_itself_for_a_file(tmp_path, capsys):
    """A line that is wrapped to the width of a terminal ends a comment, and its rest is no TOML."""
    assert run(["policy", "--template"]) == 0
    (tmp_path / "policy.toml").write_text(capsys.readouterr().out)
    assert read_policy(tmp_path / "policy.toml") == Policy(largest_epsilon_above=1.0, largest_epsilon_inside=4.0)


def test_the_template_shows_keys_in_the_form_of_keygen(tmp_path):
    """A policy compares the text of a key, and an issuer's key has no kind in front."""
    shown = dict(re.findall(r'(?m)^# (issuer|region_key) = "(.*)"', policy_template()))
    for kind, name in (("signing", "issuer"), ("sealing", "region_key")):
        assert new_key(tmp_path / name, kind).startswith(shown[name].rstrip(".")), name
        assert (":" in shown[name]) == (kind == "sealing")
