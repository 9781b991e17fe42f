import csv
import io
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from error_codes import error_shown

from fulcrum.cli.command_line import main, run
from fulcrum.core.plan.plan_file import PlanFile, to_json

CSV = "silo,records,region\nlille,120,north\nmetz,80,north\nnice,300,south\n"


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(capsys):
    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def test_exposure_shows_dispersion(command):
    code, out, _ = command("exposure", "severe")
    assert code == 0
    assert "79.17% of a uniform budget is waste, a factor 2.19" in out
    code, out, _ = command("exposure", "severe", "--format", "json", "--colluders", "1")
    assert json.loads(out)["tiers"][0]["dispersion"] == pytest.approx(0.8163, abs=5e-5)


def test_plan_writes_a_file_that_verifies(command):
    code, out, _ = command("plan", "severe", "--rounds", 10, "--epsilon", 1, "--epsilon-inside", 8, "-o", "plan.json")
    assert code == 0
    assert "fulcrum verify plan.json" in out
    code, out, _ = command("verify", "plan.json", "--federation", "severe")
    assert (code, "Every check holds." in out) == (0, True)
    settings = json.loads(Path("plan.json").read_text())["settings"]
    assert settings["epsilon"] == {"region": 1.0, "silo": 8.0}


def test_plan_as_json_is_the_file(command):
    _, out, _ = command("plan", "mild", "--rounds", 10, "--epsilon", 1, "-o", "plan.json", "--format", "json")
    assert out == Path("plan.json").read_text()
    Path("printed.json").write_text(out)
    assert command("verify", "printed.json")[0] == 0


def test_verify_as_json_says_what_a_sound_plan_is_worth_against_both_observers(command):
    _, shown, _ = command("plan", "severe", "--rounds", 10, "--epsilon", 0.99, "-o", "plan.json")
    found = json.loads(command("verify", "plan.json", "--format", "json")[1])["verdict"]
    assert found["sentence"] in " ".join(shown.split())
    assert found["level"] == "caution"
    above, inside = (found["observers"][observer] for observer in ("above", "inside"))
    assert (above["epsilon"], above["level"], inside["level"]) == (0.99, "calm", "caution")
    assert 0.55 < above["right"] < 0.56 < 0.84 < inside["right"] < 0.85
    assert inside["epsilon"] > 10
    written = json.loads(Path("plan.json").read_text())
    written["silos"][0]["noise_multiplier"] *= 0.5
    Path("plan.json").write_text(to_json(msgspec.convert(written | {"digest": ""}, PlanFile)).decode())
    code, out, _ = command("verify", "plan.json", "--format", "json")
    assert (code, json.loads(out)["verdict"]) == (1, None)


@pytest.mark.parametrize(
    ("arguments", "work"),
    [
        (["plan", "mild", "--rounds", 1, "--epsilon", 1], "fulcrum.cli.plan_commands.plans.plan"),
        (["export", "plan.json", "--to", "csv"], "fulcrum.cli.plan_commands.plans.export_plan"),
        (["report", "plan.json"], "fulcrum.cli.plan_commands.report.report"),
        (["report", "plan.json", "-o", "report.html", "--registry"], "fulcrum.cli.plan_commands.report.report"),
        (["tune", "plan.json", "--data", "digits"], "fulcrum.cli.run_commands.tune.public_task"),
        (["replan", "plan.json", "--federation", "mild", "--ledgers", "."], "fulcrum.cli.plan_commands.silos.replan"),
    ],
)
@pytest.mark.parametrize(("place", "why"), [("folder", "it is a folder. Name a file"), ("none/at/all", "No such file")])
def test_what_cannot_be_written_is_refused_before_the_work(command, monkeypatch, arguments, work, place, why):
    command("plan", "mild", "--rounds", 10, "--epsilon", 1, "-o", "plan.json")
    Path("folder").mkdir()
    monkeypatch.setattr(work, lambda *_, **__: pytest.fail("worked for nothing"))
    code, out, err = command(*arguments, *([] if "--registry" in arguments else ["-o"]), place)
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"fulcrum: {place} cannot be written: {why}.*\n", err)


def test_more_colluders_or_dropouts_than_a_region_can_have_are_noted_with_what_follows(command):
    rows = [f"{region}{k},10,{region}" for region, silos in (("a", 4), ("b", 9), ("c", 1)) for k in range(silos)]
    Path("silos.csv").write_text("silo,records,region\n" + "\n".join(rows) + "\n")
    told = (
        "leaves nobody to conceal a silo in region 'a' (4 silos): there every silo is protected by its own noise "
        "alone, as if it were the only one of its region"
    )
    for counts in (["--colluders", 5], ["--dropouts", 3]):
        given = f"note: {counts[0]} {counts[1]} "
        _, out, err = command("exposure", "silos.csv", *counts, "--format", "json")
        assert err == f"{given}{told}\n"
        assert json.loads(out)["notes"] == [f"{counts[0]} {counts[1]} {told}"]
        assert [node["exposure"] for node in json.loads(out)["nodes"]][::2] == [1, 1]
        for name in ("plan", "compare"):
            assert command(name, "silos.csv", "--rounds", 1, "--epsilon", 1, *counts)[2].startswith(f"{given}{told}\n")
    both = command("exposure", "silos.csv", "--colluders", 4, "--dropouts", 4)[2]
    assert both.startswith("note: --colluders 4 and --dropouts 4 leave nobody to conceal")
    assert "'a' (4 silos), 'b' (9 silos): " in both
    for few in (["--colluders", 2], ["--colluders", 0], ["--colluders", 1, "--dropouts", 1]):
        assert command("exposure", "silos.csv", *few)[2] == ""
    plan = ["plan", "silos.csv", "--rounds", 1, "--epsilon", 1, "--colluders", 5]
    assert command(*plan, "--injection", "aggregator")[2] == ""
    for refused in (["exposure", "silos.csv", "--colluders", -1], [*plan, "--recipe", "none"]):
        code, out, err = command(*refused)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_plan_as_csv_has_a_row_a_silo(command):
    Path("silos.csv").write_text(CSV)
    _, out, _ = command("plan", "silos.csv", "--rounds", 10, "--epsilon", 1, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["silo"] for row in rows] == ["lille", "metz", "nice"]


def test_plan_takes_every_kind_of_target(command):
    for options in (
        ["--epsilon", "region=1,federation=0.5"],
        ["--information", 0.88, "--floor", 0.85, "--bound", "capacity", "--parameters", 66],
        ["--information", 2.2, "--floor", "coupling=20"],
        ["--information", 1, "--floor", "region-1=0.1,region-2=0,region-3=0,region-4=0,region-5=0.2"],
        ["--budget", 0.5],
        [
            "--epsilon",
            1,
            "--colluders",
            1,
            "--allocation",
            "least-under-collusion",
            "--accountant",
            "renyi",
            "--delta",
            "1e-6",
        ],
        ["--epsilon", 1, "--injection", "aggregator"],
        ["--epsilon", 1, "--allocation", "misallocated", "--seed", 3, "--clip-norm", 2],
    ):
        code, out, err = command("plan", "severe", "--rounds", 10, *options)
        assert (code, err) == (0, ""), options
        assert "guarantee" in out


def test_compare_has_the_promised_keys(command):
    code, out, _ = command("compare", "consortium", "--rounds", 10, "--epsilon", 1, "--format", "json")
    rows = json.loads(out)
    assert code == 0
    assert [row["allocation"] for row in rows] == [
        "optimal",
        "uniform",
        "size",
        "inverse-size",
        "misallocated",
        "equal",
        "least-noise",
        "half the rounds",
        "one masked group",
        "unit person",
    ]
    assert set(rows[0]) == {
        "allocation",
        "noise_budget",
        "epsilon_above_worst",
        "epsilon_above_mean",
        "epsilon_inside_worst",
        "epsilon_inside_mean",
        "least_influence",
    }
    assert 1 - rows[0]["noise_budget"] / rows[1]["noise_budget"] == pytest.approx(0.88, abs=1e-12)
    _, out, _ = command("compare", "consortium", "--rounds", 10, "--epsilon", 1)
    assert "8.333" in out


def test_infinite_epsilon_is_null_in_json(command):
    arguments = ["--rounds", 10, "--epsilon", 1, "--injection", "aggregator", "--format", "json"]
    _, out, _ = command("compare", "mild", *arguments)
    assert json.loads(out)[0]["epsilon_inside_worst"] is None


def test_floor_shows_saturation_and_the_cost_of_a_wrong_coupling(command):
    code, out, _ = command("floor", "--coupling", 20, "--format", "json")
    assert code == 0
    assert json.loads(out)["saturation"] == pytest.approx(0.919, abs=3e-3)
    arguments = ["--coupling", 20, "--true-coupling", 100, "--information", 2.2, "--format", "json"]
    _, out, _ = command("floor", "severe", *arguments)
    assert json.loads(out)["worst_overshoot"] == pytest.approx(0.70, abs=0.01)
    code, out, _ = command("floor", "severe", "--information", 1.2)
    assert "informative" in out


def test_comparisons_leave_out_what_does_not_apply(command):
    arguments = ["--rounds", 10, "--epsilon", "region=1,aggregator=2", "--colluders", 1, "--format", "json"]
    code, out, _ = command("compare", "severe", *arguments)
    assert code == 0
    assert "least-under-collusion" not in {row["allocation"] for row in json.loads(out)}


def test_train_shows_rounds_and_writes_the_run(command):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    command("plan", "mild", "--rounds", 4, "--epsilon", 5, "-o", "plan.json")
    code, out, err = command("train", "plan.json", "--data", "digits", "--seeds", 2, "-o", "run", "--format", "json")
    assert code == 0
    result = json.loads(out)
    assert len(result["rounds"]) == 4
    assert 0.4 < result["accuracy"] <= result["reference"]
    assert "round 4 of 4" in err
    assert json.loads(Path("run/run.json").read_text())["plan_digest"] == result["plan_digest"]
    code, out, _ = command("train", "plan.json", "--seeds", 1, "--steps", 2)
    assert code == 0
    assert "over 1 seed" in out
    assert "1 seeds" not in out
    assert "nan" not in out
    assert "without clip and noise" in out
    assert "outside every epsilon" in out


def test_compare_trains_every_allocation(command):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    arguments = ["--rounds", 3, "--epsilon", 3, "--train", "--data", "digits", "--seeds", 2]
    code, out, _ = command("compare", "mild", *arguments, "--format", "json")
    rows = {row["allocation"]: row for row in json.loads(out)}
    assert code == 0
    assert {"accuracy", "accuracy_se", "gain", "gain_se"} <= set(rows["optimal"])
    assert rows["uniform"]["gain"] == 0
    assert rows["size"]["accuracy"] == rows["optimal"]["accuracy"]
    code, out, _ = command("compare", "balanced", *arguments, "--size-law", "lognormal")
    assert (code, "gain, points" in out) == (0, True)
    assert "outside every epsilon" in out
    assert "too few records for" in out
    _, out, _ = command("compare", "mild", "--rounds", 1, "--epsilon", 3, "--train", "--seeds", 1, "--records", 5)
    assert "1 seeds" not in out
    assert "nan" not in out
    assert "too few records" not in out


def test_a_comparison_rehearses_regions_that_disagree(command, tmp_path):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    arguments = ("severe", "--rounds", 2, "--epsilon", 9, "--train", "--seeds", 2, "--conflict")
    code, out, _ = command("compare", *arguments, "-o", tmp_path / "run")
    assert code == 0
    words = " ".join(out.split())
    assert "Conflict: the region with the most records has the labels of the next class" in words
    assert "Joint, least influence 0.5: 0 would leave the least represented region 0.094 times its share" in words
    recorded = json.loads((tmp_path / "run" / "comparison.json").read_text("utf-8"))
    assert recorded["conflict"] is True
    assert "--conflict" in recorded["command"]
    code, _, err = command("compare", "severe", "--rounds", 2, "--epsilon", 9, "--conflict")
    assert (code, "--train" in err) == (2, True)


def test_output_that_cannot_be_written_is_one_line():
    words = f"{shlex.quote(sys.executable)} -m fulcrum.cli exposure mild > /dev/full"
    done = subprocess.run(words, shell=True, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "fulcrum: the output cannot be written: No space left on device\n"


def test_a_terminal_without_unicode_gets_no_traceback():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "fulcrum.cli", "exposure", "mild"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_plans_of_two_federations_are_told_apart_on_a_narrow_screen(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command("plan", "mild", "--rounds", 10, "--epsilon", 1, "-o", "a.json")
    command("plan", "severe", "--rounds", 20, "--epsilon", 1, "-o", "b.json")
    _, out, _ = command("diff", "a.json", "b.json")
    assert re.search(r"federation +digest +[0-9a-f]{12} +[0-9a-f]{12} *\n", out)
    assert re.search(r"settings +rounds +10 +20 *\n", out)


def test_a_command_to_paste_quotes_the_file_that_it_names(command):
    _, out, _ = command("plan", "mild", "--rounds", 10, "--epsilon", 1, "-o", "our plan.json")
    assert "fulcrum verify 'our plan.json'" in " ".join(out.split())


def test_diff_says_what_changed(command):
    command("plan", "mild", "--rounds", 10, "--epsilon", 1, "-o", "a.json")
    command("plan", "mild", "--rounds", 10, "--epsilon", 2, "-o", "b.json")
    code, out, _ = command("diff", "a.json", "b.json")
    assert (code, "96 silos are affected" in out) == (0, True)
    code, out, _ = command("diff", "a.json", "a.json")
    assert "The plans are the same." in out
    _, out, _ = command("diff", "a.json", "b.json", "--format", "json")
    changed = {"kind": "", "subject": "settings", "what": "epsilon at region", "before": 1.0, "after": 2.0}
    assert changed in json.loads(out)
    _, out, _ = command("diff", "a.json", "a.json", "--format", "csv")
    assert out == "kind,subject,what,before,after\n"


def test_export_writes_settings_for_other_tools(command):
    command("plan", "mild", "--rounds", 10, "--epsilon", 1, "-o", "plan.json")
    code, out, _ = command("export", "plan.json", "--to", "flower")
    assert (code, "num-server-rounds = 10" in out) == (0, True)
    code, out, _ = command("export", "plan.json", "--to", "nvflare", "-o", "sites.json")
    assert (code, out) == (0, "")
    assert len(json.loads(Path("sites.json").read_text())["sites"]) == 96


BAD = {
    "no target": (["plan", "mild", "--rounds", 10], "plan.target-missing", {}),
    "rounds missing": (["plan", "mild", "--epsilon", 1], "cli.argument-missing", {"argument": "--rounds"}),
    "rounds zero": (["plan", "mild", "--rounds", 0, "--epsilon", 1], "accounting.rounds-range", {"rounds": 0}),
    "rounds a word": (
        ["plan", "mild", "--rounds", "ten", "--epsilon", 1],
        "cli.number-not-whole",
        {"option": "--rounds", "text": "ten"},
    ),
    "delta": (["plan", "mild", "--rounds", 1, "--epsilon", 1, "--delta", 1], "accounting.delta-range", {"delta": 1.0}),
    "negative epsilon": (
        ["plan", "mild", "--rounds", 1, "--epsilon", -1],
        "target.epsilon-range",
        {"tier": "region", "epsilon": -1.0},
    ),
    "epsilon a word": (
        ["plan", "mild", "--rounds", 1, "--epsilon", "one"],
        "cli.number-or-names-form",
        {"option": "--epsilon", "text": "one"},
    ),
    "misspelt tier": (
        ["plan", "mild", "--rounds", 1, "--epsilon", "regon=1"],
        "target.tier-unknown",
        {"tier": "regon", "suggestion": " Did you mean 'region'?"},
    ),
    "misspelt name": (
        ["plan", "sevre", "--rounds", 1, "--epsilon", 1],
        "federation.name-unknown",
        {"source": "sevre", "suggestion": " Did you mean 'severe'?"},
    ),
    "misspelt command": (["plam", "mild"], "cli.usage", {}),
    "misspelt option": (
        ["plan", "mild", "--round", 1, "--epsilon", 1],
        "cli.usage",
        {"reason": "Unknown option: --round. Did you mean --rounds?"},
    ),
    "option in another language": (
        ["plan", "mild", "--runden=10"],
        "cli.usage",
        {"reason": "Unknown option: --runden. Did you mean --rounds?"},
    ),
    "unknown option beside a missing one": (
        ["plan", "mild", "--zebra", "red", "--epsilon", 1],
        "cli.usage",
        {"reason": "Unknown option: --zebra."},
    ),
    "misspelt allocation": (
        ["plan", "mild", "--rounds", 1, "--epsilon", 1, "--allocation", "unifrom"],
        "allocation.name-unknown",
        {"allocation": "unifrom", "suggestion": " Did you mean 'uniform'?"},
    ),
    "unreachable": (
        ["plan", "mild", "--rounds", 1, "--information", 0.5, "--floor", 0.85],
        "target.information-below-floor",
        {"information": 0.5},
    ),
    "below the floor": (
        ["floor", "severe", "--information", 0.5],
        "target.information-below-floor",
        {"information": 0.5},
    ),
    "coupling": (["floor", "--coupling", -1], "prior.value-range", {"name": "coupling", "value": -1.0}),
    "coupling alone": (["floor", "--true-coupling", 5], "cli.true-coupling-without-information", {}),
    "sizes": (["floor", "--sizes", "1,two"], "cli.whole-numbers-form", {"option": "--sizes", "text": "1,two"}),
    "a target twice": (
        ["plan", "mild", "--rounds", 1, "--epsilon", "region=1,region=5"],
        "cli.name-repeated",
        {"option": "--epsilon", "name": "region", "text": "region=1,region=5", "advice": "Give it once"},
    ),
    "two numbers": (
        ["plan", "mild", "--rounds", 1, "--epsilon", "1,5"],
        "cli.name-repeated",
        {
            "option": "--epsilon",
            "name": "region",
            "text": "1,5",
            "advice": "If that is one number, write it with a point: 1.5",
        },
    ),
    "inside twice": (
        ["plan", "mild", "--rounds", 1, "--epsilon", "silo=1", "--epsilon-inside", 5],
        "cli.epsilon-inside-twice",
        {"observer": "aggregator"},
    ),
    "floor twice": (
        ["plan", "mild", "--rounds", 1, "--information", 1, "--floor", "0.5,0.1"],
        "cli.number-or-names-form",
        {"option": "--floor", "text": "0.5,0.1"},
    ),
    "nameless floor": (
        ["plan", "mild", "--rounds", 1, "--information", 1, "--floor", "=0.5"],
        "cli.number-or-names-form",
        {"option": "--floor", "text": "=0.5"},
    ),
    "part of a colluder": (
        ["plan", "mild", "--rounds", 1, "--epsilon", 1, "--colluders", 0.4],
        "cli.number-not-whole",
        {"option": "--colluders", "text": "0.4"},
    ),
    "part of a round": (
        ["plan", "mild", "--rounds", 10.5, "--epsilon", 1],
        "cli.number-not-whole",
        {"option": "--rounds", "text": "10.5"},
    ),
    "endless rounds": (
        ["plan", "mild", "--rounds", "9" * 400, "--epsilon", 1],
        "accounting.rounds-too-many",
        {"most": 1000000000},
    ),
    "negative seed": (
        ["compare", "mild", "--rounds", 1, "--epsilon", 1, "--seed", -1],
        "number.whole-range",
        {"name": "seed", "value": -1},
    ),
    "relative module": (
        ["plan", "mild", "--rounds", 1, "--epsilon", 1, "--allocation", "..:d"],
        "allocation.not-loadable",
        {"allocation": "..:d"},
    ),
    "endless levels": (["floor", "--levels", "1000000000"], "prior.levels-limit", {"most": 2000}),
    "two sources of sizes": (["floor", "mild", "--sizes", "3"], "cli.group-sizes-twice", {}),
    "endless epsilon": (["plan", "mild", "--rounds", 1, "--epsilon", "1e308"], "accounting.epsilon-range", {}),
    "no data": (
        ["compare", "mild", "--rounds", 1, "--epsilon", 1, "--train", "--data", "cifr10"],
        "data.file-missing",
        {"suggestion": " Did you mean 'cifar10'?"},
    ),
    "no such file": (["train", "plan.json", "--data", "none.csv"], "file.unreadable", {"file": "none.csv"}),
    "no seeds": (["train", "plan.json", "--data", "digits", "--seeds", 0], "training.seeds-range", {"seeds": 0}),
    "learning rate": (
        ["train", "plan.json", "--data", "digits", "--learning-rate", 0],
        "training.learning-rate-range",
        {"learning_rate": 0.0},
    ),
    "data's seed": (
        ["compare", "mild", "--rounds", 1, "--epsilon", 1, "--train", "--seed", 3],
        "comparison.seed-unneeded",
        {"seed": 3},
    ),
    "seeds without training": (
        ["compare", "mild", "--rounds", 1, "--epsilon", 1, "--seeds", 3],
        "cli.compare-needs-train",
        {},
    ),
    "data without training": (
        ["compare", "mild", "--rounds", 1, "--epsilon", 1, "--data", "digits"],
        "cli.compare-needs-train",
        {},
    ),
    "no records": (["train", "plan.json", "--records", 0], "federation.records-range", {"records": 0.0}),
    "endless records": (["train", "plan.json", "--records", "inf"], "federation.records-range", {}),
    "label of no table": (["train", "plan.json", "--label", "kind"], "data.column-unneeded", {"data": "digits"}),
    "run into a file": (["train", "plan.json", "-o", "silos.csv"], "run.folder-unusable", {"folder": "silos.csv"}),
    "misspelt folder": (["embed", "photoz/", "-o", "a.npz"], "cli.source-missing", {"source": "photoz"}),
    "features into nowhere": (
        ["embed", "silos.csv", "-o", "none/a.npz"],
        "storage.not-writable",
        {"file": "none/a.npz", "reason": "No such file or directory"},
    ),
    "size law": (
        ["compare", "mild", "--rounds", 1, "--epsilon", 1, "--train", "--size-law", "log"],
        "errors.name-unknown",
        {"noun": "size law", "name": "log"},
    ),
    "no plan": (["verify", "none.json"], "plan.file-unreadable", {"file": "none.json"}),
    "a key goes nowhere": (["keygen"], "cli.argument-missing", {"argument": "--output"}),
    "not a plan": (["verify", "silos.csv"], "plan.not-json", {"source": "silos.csv"}),
    "no remedy writes over the file": (
        ["verify", "silos.csv"],
        "plan.not-json",
        {"source": "silos.csv", "remedy": "Make one with: fulcrum plan FEDERATION -o plan.json"},
    ),
    "an option is missing": (["plan", "mild"], "cli.argument-missing", {"argument": "--rounds"}),
    "a value is missing": (["plan", "mild", "--rounds"], "cli.value-missing", {"option": "--rounds"}),
    "an argument is missing": (["exposure"], "cli.argument-missing", {"argument": "FEDERATION"}),
    "one argument too many": (["exposure", "mild", "severe"], "cli.argument-unknown", {"argument": "severe"}),
    "an option twice": (
        ["plan", "mild", "--rounds", 1, "--epsilon", 1, "--epsilon", "aggregator=2"],
        "cli.option-repeated",
        {"option": "--epsilon", "several": ", several targets as region=1,aggregator=2"},
    ),
    "rounds twice": (
        ["plan", "mild", "--rounds", 1, "--rounds", 2, "--epsilon", 1],
        "cli.option-repeated",
        {"option": "--rounds"},
    ),
    "foreign plan": (
        ["verify", "plan.json", "--federation", "severe"],
        "plan.federation-foreign",
        {"source": "severe", "remedy": "Run: fulcrum plan severe"},
    ),
    "unwritable": (
        ["plan", "mild", "--rounds", 1, "--epsilon", 1, "-o", "none/plan.json"],
        "storage.not-writable",
        {"file": "none/plan.json"},
    ),
    "bad records": (
        ["exposure", "bad.csv"],
        "sheet.records-range",
        {"place": "bad.csv line 2", "records": "-3", "rule": "at least 1"},
    ),
    "unknown export": (
        ["export", "plan.json", "--to", "flowr"],
        "errors.name-unknown",
        {"noun": "export", "name": "flowr", "suggestion": " Did you mean 'flower'?"},
    ),
}


NEED_DIGITS = (
    "no seeds",
    "learning rate",
    "data's seed",
    "no records",
    "endless records",
    "run into a file",
    "size law",
)


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_code_two(command, name, monkeypatch):
    monkeypatch.setenv("FULCRUM_DATA", ".")  # the same refusals with and without the real feature files
    Path("cifar10.npz").touch()
    Path("silos.csv").write_text(CSV)
    Path("bad.csv").write_text("silo,records,region\nlille,-3,north\n")
    command("plan", "mild", "--rounds", 10, "--epsilon", 1, "-o", "plan.json")
    before = Path("plan.json").read_bytes()
    (verb, *arguments), expected, values = BAD[name]
    if name in NEED_DIGITS:
        pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    code, out, line = command(verb, *arguments)
    assert (code, out, line.count("\n")) == (2, "", 1)
    code, out, parts = command(verb, "--format", "json", *arguments)
    assert (code, out) == (2, "")
    error = error_shown(parts)
    assert line == f"fulcrum: {error['message']}\n"
    assert error["code"] == expected
    details = error["details"] | {"remedy": error["remedy"]}
    assert {name: details[name] for name in values} == values
    assert Path("plan.json").read_bytes() == before


def test_a_misspelt_format_gets_the_nearest_one(command):
    code, out, line = command("exposure", "mild", "--format", "jsn")
    assert (code, out, line.count("\n")) == (2, "", 1)
    assert line.endswith("Did you mean 'json'?\n")


def test_a_plan_that_does_not_hold_is_exit_code_one(command):
    import msgspec

    from fulcrum.core.plan.plan_file import to_json
    from fulcrum.core.plan.plan_reader import read_content

    command("plan", "mild", "--rounds", 10, "--epsilon", 1, "-o", "plan.json")
    content = read_content("plan.json")
    content.silos[0] = msgspec.structs.replace(content.silos[0], noise_multiplier=0.01)
    Path("plan.json").write_bytes(to_json(content))  # sealed anew: only recomputing can tell
    code, out, _ = command("verify", "plan.json")
    assert code == 1
    assert "do not use this plan" in out


def test_a_command_in_a_process_of_its_own_leaves_no_traceback():
    script = [sys.executable, "-m", "fulcrum.cli"]
    done = subprocess.run([*script, "plan", "sevre", "--rounds", "1", "--epsilon", "1"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    version = subprocess.run([*script, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.strip() == "0.1.0"


def test_the_installed_command_is_the_command_line():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert pkgutil.resolve_name(project["project"]["scripts"]["fulcrum"]) is main


def test_an_allocation_of_ones_own_is_found_in_the_current_folder(command, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    Path("own_rule.py").write_text("def flat(federation, requirement):\n    return [1.0] * len(federation)\n")
    arguments = ["--rounds", 10, "--epsilon", 1, "--allocation", "own_rule:flat", "--format", "json"]
    code, out, _ = command("compare", "mild", *arguments)
    assert code == 0
    rows = {row["allocation"]: row["noise_budget"] for row in json.loads(out)}
    assert rows["own_rule:flat"] == pytest.approx(rows["uniform"], rel=1e-12)


def test_names_cannot_style_the_terminal(command):
    Path("silos.csv").write_text("silo,records,region\n[red]a[/red],1,[bold]r\nb,2,s\n")
    code, out, _ = command("plan", "silos.csv", "--rounds", 1, "--epsilon", 1)
    assert code == 0
    assert "[bold]r" in out
