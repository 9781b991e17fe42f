"""Refusals of tables and numbers name the columns and the types that a user can see in the own file or call."""

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.audit.replays.canary_game import audit
from fulcrum.cli.command_line import run
from fulcrum.errors import ParameterError

SIZES = {"north": {"lille": 20, "lyon": 20}, "south": {"nice": 20}}


@pytest.fixture
def plan():
    return fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), rounds=2, epsilon=5.0)


def written(folder, hospital=lambda name: name, **columns):
    """Writes twenty records of every silo."""
    names = [name for silos in SIZES.values() for name in silos] * 20
    table = {
        "age": list(range(60)),
        **{name: [value] * 60 for name, value in columns.items()},
        "hospital": [hospital(name) for name in names],
        "label": [index // 3 % 2 for index in range(60)],
    }
    lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values(), strict=True))]
    (folder / "records.csv").write_text("\n".join(lines))
    return folder / "records.csv"


@pytest.mark.parametrize("columns", [{}, {"sex": "f"}], ids=["alone", "after another column of words"])
def test_a_column_of_silo_names_suggests_the_option(tmp_path, plan, columns):
    path = written(tmp_path, **columns)
    named = coded("table.silo-column-named", column="hospital", silo="lille")
    with pytest.raises(fulcrum.DataError, check=named) as refusal:
        fulcrum.train(plan, path)
    assert "--silo-column" in refusal.value.remedy
    with pytest.raises(fulcrum.DataError, check=named):
        fulcrum.compare_trained(plan.federation, path, seeds=1, rounds=2, epsilon=5.0)


def test_the_suggested_option_trains(tmp_path, plan):
    assert fulcrum.train(plan, written(tmp_path), silo="hospital").task.silo is not None


def test_a_column_of_other_words_suggests_nothing(tmp_path, plan):
    with pytest.raises(fulcrum.DataError, check=coded("table.column-type", column="hospital")):
        fulcrum.train(plan, written(tmp_path, hospital=lambda name: f"{name} clinic"))


def test_a_silo_column_that_was_given_is_not_suggested_again(tmp_path, plan):
    path = written(tmp_path, ward="A")
    with pytest.raises(fulcrum.DataError, check=coded("table.column-type", column="ward")):
        fulcrum.train(plan, path, silo="hospital")


def test_the_command_line_suggests_the_option_in_one_line(tmp_path, plan, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fulcrum.save_plan(plan, "plan.json")
    written(tmp_path)
    assert run(["train", "plan.json", "--data", "records.csv"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert run(["train", "plan.json", "--data", "records.csv", "--silo-column", "hospital"]) == 0


@pytest.mark.parametrize("part", ["label", "silo", "person"])
def test_a_missing_column_lists_the_columns(tmp_path, plan, part):
    with pytest.raises(fulcrum.DataError, check=coded(f"table.{part}-column-missing", column="outcome")) as refusal:
        fulcrum.train(plan, written(tmp_path), **{part: "outcome"})
    assert "age, hospital, label" in refusal.value.remedy


@pytest.mark.parametrize(
    "settings",
    [
        {"rounds": "10"},
        {"epsilon": "1"},
        {"epsilon": {"region": "1"}},
        {"delta": "1e-5"},
        {"parameters": "66"},
        {"clip_norm": "1"},
        {"colluders": "1"},
        {"least_influence": "0.5"},
        {"seed": "1"},
    ],
    ids=str,
)
def test_a_string_in_place_of_a_number_is_shown_as_a_string(settings):
    [value] = settings.values()
    text = value["region"] if isinstance(value, dict) else value
    with pytest.raises(ParameterError) as refusal:
        fulcrum.plan("isic-paper", **{"rounds": 10, "epsilon": 1.0} | settings)
    assert f"got {text!r}, a string" in str(refusal.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda plan: fulcrum.LocalTraining(learning_rate="0.1"),
        lambda plan: fulcrum.LocalTraining(learning_rate=0.1, steps="2"),
        lambda plan: fulcrum.GradientTraining(learning_rate="0.1"),
        lambda plan: fulcrum.train(plan, "digits", seeds="10"),
        lambda plan: audit(plan, trials="2000"),
        lambda plan: audit(plan, seed="1"),
        lambda plan: audit(plan, confidence="0.9"),
    ],
)
def test_training_and_audit_show_a_string_too(plan, call):
    with pytest.raises(ParameterError, match="', a string"):
        call(plan)


def test_a_number_out_of_range_keeps_its_plain_form():
    for wrong in (0, 10.5, np.int64(-1)):
        with pytest.raises(ParameterError, check=coded("accounting.rounds-range")) as refusal:
            fulcrum.plan("isic-paper", rounds=wrong, epsilon=1.0)
        assert str(refusal.value).endswith(f"got {wrong}")
