import contextlib
import json
import math
import os
import stat
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from error_codes import coded
from forging import sealed
from hypothesis import given
from hypothesis import strategies as st

import fulcrum
from fulcrum.core.plan.plan_file import PlanFile, to_json
from fulcrum.core.plan.plan_reader import read_content
from fulcrum.core.plan.verification import verify
from fulcrum.errors import FulcrumError, ParameterError, PlanError, StorageError
from fulcrum.planning.content.plan_document import epsilon_entry
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.planning.inputs.execution import Execution
from fulcrum.planning.inputs.past_releases import Past
from fulcrum.planning.inputs.targets import Target
from fulcrum.planning.planner import make_plan, plan
from fulcrum.readers.profiles import profile


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "plan.json"
    fulcrum.save_plan(plan("isic-paper", rounds=10, epsilon=1.0), path)
    return path


@given(st.floats(1e-12, 1e12))
def test_epsilons_are_rounded_up_and_never_down(epsilon):
    rounded = epsilon_entry(epsilon)
    assert epsilon <= rounded <= epsilon * (1 + 1.0001e-5)
    assert float(f"{rounded:.6g}") == rounded


def test_no_guarantee_is_null():
    assert epsilon_entry(float("inf")) is None
    assert epsilon_entry(0.0) == 0.0


def test_a_plan_of_the_first_format_is_refused_with_the_reason(tmp_path):
    path = tmp_path / "plan.json"
    fulcrum.save_plan(plan("mild", rounds=3, epsilon=1.0), path)
    path.write_text(path.read_text().replace("fulcrum.plan/2", "fulcrum.plan/1"))
    with pytest.raises(PlanError, check=coded("plan.format-outdated")):
        read_plan(path)


def test_the_file_says_what_it_must(saved):
    content = json.loads(saved.read_text())
    assert content["format"] == "fulcrum.plan/2"
    assert content["guarantee"]["sensitivity"] == 2.0
    assert "replace one silo" in content["guarantee"]["adjacency"]
    assert len(content["guarantee"]["assumptions"]) == 8
    assert len(content["federation"]["digest"]) == 64
    assert {"silo", "region", "federation"} == set(content["silos"][0]["epsilon"])
    assert content["silos"][0]["epsilon"]["region"] <= 1.0
    assert content["tiers"]["region"][0]["noise_multiplier"] > 0


def test_the_file_is_the_same_for_the_same_plan():
    made = plan("isic-paper", rounds=10, epsilon=1.0)
    again = plan("isic-paper", rounds=10, epsilon=1.0)
    assert to_json(made.content()) == to_json(again.content())


def edited(path, edit):
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def sealed_anew(path, edit):
    """Changes a file and gives it the digest of what it now says, as a forger would."""
    content = json.loads(path.read_text())
    edit(content)
    path.write_bytes(sealed(content))


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda c: c["settings"].update(required_multiplier={}), "its targets are not on its tiers"),
        (lambda c: c["settings"].update(required_multiplier={"country": 1.0}), "its targets are not on its tiers"),
        (lambda c: c["settings"].update(required_multiplier={"region": [1.0]}), "another length than the roster"),
        (lambda c: c["settings"].update(floor=[0.1]), "another length than the roster"),
        (lambda c: c["settings"].update(epsilon={"land": 1.0}), "its targets are not on its tiers"),
        (lambda c: c["settings"].update(injection="foo"), "Invalid enum value 'foo' - at `$.settings.injection`"),
        (lambda c: c["settings"].update(bound="foo"), "Invalid enum value 'foo' - at `$.settings.bound`"),
        (lambda c: c["settings"].update(clip_norm=-1.0), "Expected `float` >= 1e-100 - at `$.settings.clip_norm`"),
        (lambda c: c["settings"].update(rounds=0), "Expected `int` >= 1 - at `$.settings.rounds`"),
        (lambda c: c["settings"].update(parameters=0), "Expected `int` >= 1 - at `$.settings.parameters`"),
        (lambda c: c["federation"].update(silos=5000), "it counts 5000 silos and lists 6"),
        (lambda c: c["federation"].update(name="a\nb"), "name is not printable"),
        (lambda c: c["federation"].update(tiers=[]), "no silos or no tiers"),
        (lambda c: c["federation"].update(digest="0" * 64), "the roster has digest"),
        (lambda c: c.update(silos=[]), "no silos or no tiers"),
        (lambda c: c["tiers"].update(country=[]), "it describes the tiers"),
        (lambda c: c["tiers"]["region"][0].update(parent="france"), "has the parent 'france', which is not there"),
        (lambda c: c["silos"][0].update(node="nowhere"), "which is not there"),
        (lambda c: c["silos"][0].update(records=0), "Expected `int` >= 1 - at `$.silos[0].records`"),
        (
            lambda c: c["silos"][0].update(noise_multiplier=1e200),
            "Expected `float` <= 1e+100 - at `$.silos[0].noise_multiplier`",
        ),
        (lambda c: c["silos"][0]["epsilon"].update(moon=0.1), "has epsilons against"),
    ],
)
def test_a_sealed_file_that_does_not_hold_together_is_refused(saved, edit, reason):
    sealed_anew(saved, edit)
    with pytest.raises(PlanError) as caught:
        read_content(saved)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_links_are_followed_and_devices_are_left_alone(tmp_path):
    made = plan("isic-paper", rounds=10, epsilon=1.0)
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    fulcrum.save_plan(made, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert read_plan(tmp_path / "real.json").digest == made.digest
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, check=coded("storage.target-not-a-file", kind="not a regular file")):
        fulcrum.save_plan(made, tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize(
    "edit",
    [
        lambda c: c["silos"][0].update(noise_multiplier=0.001),
        lambda c: c["settings"].update(rounds=99),
        lambda c: c["summary"].update(epsilon_above_worst=0.1),
        lambda c: c["guarantee"]["assumptions"].clear(),
        lambda c: c.update(digest="0" * 64),
    ],
)
def test_a_changed_file_is_noticed(saved, edit):
    edited(saved, edit)
    with pytest.raises(PlanError, check=coded("plan.digest-changed")):
        read_content(saved)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda c: c["settings"].update(rounds="ten"), r"Expected `int`, got `str` - at `\$.settings.rounds`"),
        (lambda c: c["settings"].pop("delta"), "missing required field `delta`"),
        (lambda c: c.update(surprise=1), "unknown field `surprise`"),
        (lambda c: c.update(format="fulcrum.plan/9"), "is not a plan of format fulcrum.plan/2, got 'fulcrum.plan/9'"),
        (lambda c: c.pop("format"), "is not a plan of format fulcrum.plan/2, got None"),
    ],
)
def test_a_malformed_file_is_refused_with_the_place(saved, edit, reason):
    edited(saved, edit)
    with pytest.raises(PlanError, match=reason) as caught:
        read_content(saved)
    assert "\n" not in str(caught.value)


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(PlanError, check=coded("plan.file-unreadable")):
        read_plan(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("not json")
    with pytest.raises(PlanError, check=coded("plan.not-json")):
        read_plan(tmp_path / "text.json")


@pytest.mark.parametrize(
    ("text", "kind"),
    [("[1, 2]", "a list"), ('"plan"', "a text"), ("7.5", "a number"), ("false", "true or false"), ("null", "null")],
)
def test_json_that_is_no_object_is_named_for_what_it_is(tmp_path, text, kind):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(PlanError, check=coded("plan.not-an-object")):
        read_plan(tmp_path / "other.json")


def numbers_in(value, path=()):
    """Every number in a decoded file, by its path."""
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in numbers_in(item, (*path, key))]
    if isinstance(value, list):
        return [found for index, item in enumerate(value) for found in numbers_in(item, (*path, index))]
    return [path] if isinstance(value, (int, float)) else []


def at(content, path):
    for key in path:
        content = content[key]
    return content


WHOLE = json.loads(to_json(plan("isic-paper", rounds=10, epsilon={"region": 1.0, "aggregator": 3.0}).content()))


@given(
    path=st.sampled_from(numbers_in(WHOLE)),
    value=st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**20), 10**20)),
)
def test_a_number_that_was_changed_and_sealed_anew_is_refused_or_fails_a_check(path, value):
    content = json.loads(json.dumps(WHOLE))
    at(content, path[:-1])[path[-1]] = value
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        try:
            file.write_bytes(to_json(msgspec.convert(content, PlanFile)))
            checks = verify(file)
        except (FulcrumError, msgspec.ValidationError):
            return
    harmless = path[-1] in ("seed", "coupling", "parameters")
    close = math.isclose(value, at(WHOLE, path), rel_tol=1e-4, abs_tol=1e-5)
    looser = path[:2] == ("settings", "epsilon") and value > at(WHOLE, path)  # a weaker promise is kept all the more
    assert harmless or close or looser or not all(check.holds for check in checks), path


@given(data=st.data())
def test_mangled_files_never_raise_anything_else(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("mangled") / "plan.json"
    whole = to_json(plan("isic-paper", rounds=10, epsilon=1.0).content())
    start = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(0, 40))
    path.write_bytes(whole[:start] + data.draw(st.binary(max_size=20)) + whole[start + length :])
    with contextlib.suppress(FulcrumError):
        read_plan(path)


def forged(path, change, **settings):
    """The content of a plan file with something changed, sealed anew."""
    content = json.loads(to_json(plan("isic-paper", rounds=10, epsilon=1.0, **settings).content()))
    change(content)
    path.write_bytes(sealed(content))
    return path


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda c: c["tiers"]["region"][0].update(noise_multiplier=1e308),
            r"at `\$\.tiers\[\.\.\.\]\[0\]\.noise_multiplier`",
        ),
        (lambda c: c["tiers"]["region"][0].update(noise_multiplier=-1.0), r"Expected `float` >= 0\.0 - at `\$\.tiers"),
        (lambda c: c["tiers"]["region"][0].update(lattice_step=0.5), "steps of a lattice stand elsewhere"),
        (lambda c: c["settings"].update(seed=-1), r"Expected `int` >= 0 - at `\$\.settings\.seed`"),
        (lambda c: c["settings"].update(coupling=0.0), r"Expected `float` > 0\.0 - at `\$\.settings\.coupling`"),
        (lambda c: c["settings"].update(coupling=-20.0), r"Expected `float` > 0\.0 - at `\$\.settings\.coupling`"),
        (lambda c: [entry.update(spent={}) for entry in c["silos"]], "what was spent before is not told"),
        (lambda c: c["silos"][0].update(spent={}), "what was spent before is not told"),
        (lambda c: c["silos"][0].update(moved_from="elsewhere"), "moved since a plan before, and there was none"),
    ],
)
def test_a_file_sealed_anew_that_does_not_hold_together_is_refused_in_one_line(tmp_path, change, problem):
    for settings in ({}, {"injection": "aggregator"}):
        path = forged(tmp_path / "plan.json", change, **settings)
        with pytest.raises(PlanError, match=problem) as caught:
            verify(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("moved", [{"nobody": "x"}, {"region-1-1": "region-1"}, {"region-1-1": ""}])
def test_who_moved_is_a_silo_that_was_elsewhere_before(moved):
    spent = {"region": np.full(6, 1e-3), "silo": np.full(6, 1e-3)}

    def after(**past):
        target = Target(rounds=10, epsilon={"region": 1.0})
        return make_plan(profile("isic-paper"), target, Execution(), Past(**past))

    with pytest.raises(ParameterError, check=coded("plan.moved-invalid")):
        after(spent=spent, moved=moved)
    with pytest.raises(ParameterError, check=coded("plan.moved-invalid", moved="no spent")):
        after(moved={"region-1-1": "x"})
    assert after(spent=spent, moved={"region-1-1": "x"}).moved == {"region-1-1": "x"}
