"""Plans whose membership changes, in the terminal, the report, differences and the commands."""

import json

import pytest
from error_codes import coded, error_shown

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.errors import ParameterError
from fulcrum.views.charts.region_charts import region_rows
from fulcrum.views.report.html_report import report
from fulcrum.views.terminal.silo_columns import silo_table
from fulcrum.words.reproduction import reproducing_commands

TABLE = """silo,records,region,from,until
lille,120,north,,
metz,90,north,,2
caen,180,north,3,
nice,150,south,,
"""


@pytest.fixture
def table(tmp_path):
    (tmp_path / "fed.csv").write_text(TABLE)
    return tmp_path / "fed.csv"


@pytest.fixture
def plan(table):
    return fulcrum.plan(table, rounds=4, epsilon=2.0)


def test_the_terminal_lists_phases_and_the_span_of_noise(table, tmp_path, capsys):
    assert run(["plan", str(table), "--rounds", "4", "--epsilon", "2", "-o", str(tmp_path / "p.json")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "phases rounds 1-2: 3 silos; rounds 3-4: 3 silos" in shown
    assert "Membership changes over 2 phases" in shown
    assert run(["verify", str(tmp_path / "p.json"), "--federation", str(table), "--format", "json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert {check["name"]: check["holds"] for check in checks}["certificate"] is True


def test_verify_with_another_schedule_refuses_the_federation(table, tmp_path, capsys):
    assert run(["plan", str(table), "--rounds", "4", "--epsilon", "2", "-o", str(tmp_path / "p.json")]) == 0
    table.write_text(TABLE.replace("metz,90,north,,2", "metz,90,north,,3"))
    capsys.readouterr()
    command = ["verify", str(tmp_path / "p.json"), "--federation", str(table), "--format", "json"]
    assert run(command) == 2
    assert error_shown(capsys.readouterr().err.splitlines(keepends=True)[-1])["code"] == "plan.federation-foreign"


def test_the_table_of_silos_has_rounds_and_noise_by_silo(plan):
    columns = {column["heading"]: column for column in silo_table(plan)["columns"]}
    assert columns["rounds"]["values"] == ["1-4", "1-2", "3-4", "1-4"]
    lille, metz, caen, nice = columns["noise multiplier"]["values"]
    first, second = (f"{value:.6g}" for value in plan.phase_multiplier[:, 0])
    assert (metz, caen) == (first, second)
    assert lille in (f"{first} to {second}", f"{second} to {first}")
    assert " to " not in nice
    north = region_rows(plan)[0]
    assert (north["noise_low"], north["noise"]) == tuple(sorted(plan.phase_multiplier[:, 0].tolist()))


def test_the_report_says_who_takes_part_when(plan):
    pytest.importorskip("vl_convert", reason="needs the extra report")
    page = report(plan)
    assert "Rounds of silos" in page
    assert reproducing_commands(plan)[0].startswith("fulcrum plan FEDERATION_WITH_ROUNDS --rounds 4 ")
    assert "rounds 1-2: 3 silos; rounds 3-4: 3 silos" in page
    assert "Information about a silo" not in page  # a chart that adds the same in every round
    plain = fulcrum.plan("isic-paper", rounds=2, epsilon=1.0)
    assert "Rounds of silos" not in report(plain)


def test_differences_name_changed_rounds_and_noise(plan, table):
    table.write_text(TABLE.replace("metz,90,north,,2", "metz,90,north,,3"))
    changes = fulcrum.differences(plan, fulcrum.plan(table, rounds=4, epsilon=2.0))
    assert ("metz", "rounds") in {(change.subject, change.what) for change in changes}
    assert ("north", "phase_multipliers") in {(change.subject, change.what) for change in changes}


def test_exposure_says_that_it_takes_all_silos_together(table, capsys):
    assert run(["exposure", str(table)]) == 0
    assert "the rounds of silos count in a plan alone" in capsys.readouterr().err


def test_tuning_refuses_rounds_by_name(plan):
    with pytest.raises(ParameterError, check=coded("schedule.not-here")):
        fulcrum.tune(plan, "digits")


def test_training_keeps_absent_silos_out_of_the_sums(table):
    """With a loose target, region north learns nothing of a silo whose rounds are over."""
    table.write_text("silo,records,region,from,until\na,50,north,,\nb,50,north,,1\nc,50,south,,\n")
    plan = fulcrum.plan(table, rounds=2, epsilon=1e6)
    run = fulcrum.train(plan, "digits", seeds=1, keep_regional_sums=True)
    full = fulcrum.train(
        fulcrum.plan(
            fulcrum.Federation.from_sizes({"north": {"a": 50, "b": 50}, "south": {"c": 50}}), rounds=2, epsilon=1e6
        ),
        "digits",
        seeds=1,
        keep_regional_sums=True,
    )
    first, second = (run.regional_sums[0][number, 0] for number in (0, 1))
    whole = full.regional_sums[0][0, 0]
    assert abs(first - whole).max() < 1e-2 * abs(whole).max()  # the same silos, batches and hardly any noise
    clipped = plan.weights[0] * plan.clip_norm
    assert (first**2).sum() ** 0.5 > 1.2 * clipped  # two silos
    assert (second**2).sum() ** 0.5 < 1.02 * clipped  # one silo
