import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fulcrum.errors import FulcrumError, PlanError
from fulcrum.planfile import epsilon_entry, read_content, to_json
from fulcrum.planning import plan, read_plan


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "plan.json"
    plan("isic-paper", rounds=10, epsilon=1.0).save(path)
    return path


@given(st.floats(1e-12, 1e12))
def test_epsilons_are_rounded_up_and_never_down(epsilon):
    rounded = epsilon_entry(epsilon)
    assert epsilon <= rounded <= epsilon * (1 + 1.0001e-5)
    assert float(f"{rounded:.6g}") == rounded


def test_no_guarantee_is_null():
    assert epsilon_entry(float("inf")) is None
    assert epsilon_entry(0.0) == 0.0


def test_the_file_says_what_it_must(saved):
    content = json.loads(saved.read_text())
    assert content["format"] == "fulcrum.plan/1"
    assert content["guarantee"]["sensitivity"] == 2.0
    assert "replace one silo" in content["guarantee"]["adjacency"]
    assert len(content["guarantee"]["assumptions"]) == 7
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
    with pytest.raises(PlanError, match=r"was changed after it was made \(digest"):
        read_content(saved)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda c: c["settings"].update(rounds="ten"), r"Expected `int`, got `str` - at `\$.settings.rounds`"),
        (lambda c: c["settings"].pop("delta"), "missing required field `delta`"),
        (lambda c: c.update(surprise=1), "unknown field `surprise`"),
        (lambda c: c.update(format="fulcrum.plan/9"), "is not a plan of format fulcrum.plan/1, got 'fulcrum.plan/9'"),
        (lambda c: c.pop("format"), "is not a plan of format fulcrum.plan/1, got None"),
    ],
)
def test_a_malformed_file_is_refused_with_the_place(saved, edit, reason):
    edited(saved, edit)
    with pytest.raises(PlanError, match=reason) as caught:
        read_content(saved)
    assert "\n" not in str(caught.value)


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(PlanError, match="cannot be read: No such file"):
        read_plan(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("not json")
    with pytest.raises(PlanError, match="is not JSON"):
        read_plan(tmp_path / "text.json")
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(PlanError, match="is not a plan"):
        read_plan(tmp_path / "list.json")


@given(data=st.data())
def test_mangled_files_never_raise_anything_else(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("mangled") / "plan.json"
    whole = to_json(plan("isic-paper", rounds=10, epsilon=1.0).content())
    start = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(0, 40))
    path.write_bytes(whole[:start] + data.draw(st.binary(max_size=20)) + whole[start + length :])
    with contextlib.suppress(FulcrumError):
        read_plan(path)
