import json
from dataclasses import replace

import pytest
from error_codes import coded, error_shown

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.errors import DataError, ParameterError
from fulcrum.simulation import halving
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.tuned_rows import compare_settings

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

TARGET = {"epsilon": 3.0}
GRID = {"rounds": [1, 4], "clip_norms": [1.0, 0.1], "learning_rates": [0.3]}


@pytest.fixture(scope="module")
def tuned():
    return compare_settings("severe", "digits", tuned=True, seeds=3, choosing_seeds=2, **GRID, **TARGET)


@pytest.fixture(scope="module")
def rows(tuned):
    return {row.allocation: row for row in tuned.rows}


def test_every_row_stands_as_planned_and_tuned(rows):
    planned = {row.allocation: row for row in fulcrum.compare_trained("severe", "digits", seeds=3, rounds=4, **TARGET)}
    assert list(rows) == [name for row in planned for name in (row, f"{row}, tuned")]
    for name, row in planned.items():
        ours = rows[name]
        assert (ours.settings, ours.rounds, ours.learning_rate) == ("as planned", 4, 0.3)
        for figure in ("noise_budget", "accuracy", "accuracy_se", "gain", "gain_se", "worst_region", "reference"):
            assert getattr(ours, figure) == getattr(row, figure), (name, figure)
    assert (rows["optimal"].clip_norm, rows["joint"].clip_norm) == (1.0, None)


def test_a_tuned_row_is_its_plan_trained_under_seeds_that_chose_nothing(tuned, rows):
    assert (tuned.seeds, tuned.choosing_seeds) == ((0, 1, 2), (1000, 1001))
    for name, allocation in (("optimal, tuned", "optimal"), ("uniform, tuned", "uniform")):
        row = rows[name]
        assert (row.settings, row.chosen_by) == ("tuned", "digits, seeds 1000, 1001")
        made = fulcrum.plan("severe", rounds=row.rounds, allocation=allocation, clip_norm=row.clip_norm, **TARGET)
        run_of_row = fulcrum.train(made, "digits", seeds=3, training=LocalTraining(learning_rate=row.learning_rate))
        assert row.accuracy == pytest.approx(run_of_row.accuracy[:, -1].mean(), abs=1e-12)
        assert row.epsilon_above_worst == pytest.approx(3.0)
        assert row.gain == pytest.approx(row.accuracy - rows["uniform"].accuracy, abs=1e-12)


def test_the_choice_is_the_best_mean_under_the_choosing_seeds(rows):
    best = {}
    for rounds in (1, 4):
        for clip_norm in (1.0, 0.1):
            made = fulcrum.plan("severe", rounds=rounds, clip_norm=clip_norm, **TARGET)
            trained = fulcrum.train(made, "digits", seeds=[1000, 1001])
            best[rounds, clip_norm] = trained.accuracy[:, -1].mean()
    chosen = max(best, key=best.get)
    assert (rows["optimal, tuned"].rounds, rows["optimal, tuned"].clip_norm) == chosen


def test_one_number_of_rounds_stands_for_parts_of_it(monkeypatch):
    seen = set()
    real = halving.train_variants

    def watched(plans_by_seed, *arguments, **settings):
        if settings["seeds"][0] >= 1000:
            seen.update((plan.rounds, settings["training"].learning_rate) for plan in plans_by_seed[0])
        return real(plans_by_seed, *arguments, **settings)

    monkeypatch.setattr(halving, "train_variants", watched)
    compare_settings("mild", "digits", tuned=True, rounds=10, clip_norms=[1.0], seeds=2, choosing_seeds=2, **TARGET)
    assert seen == {(rounds, rate) for rounds in (1, 2, 5, 10) for rate in (0.1, 0.3, 1.0)}


def test_public_data_chooses_without_the_records_of_the_comparison(monkeypatch):
    task = load_task("digits")
    public = replace(task, name="pixels", features_train=task.features_train[::2], labels_train=task.labels_train[::2])
    chose = {}
    real = halving.train_variants

    def watched(plans_by_seed, data, **settings):
        chose.setdefault(data.name, set()).update(settings["seeds"])
        return real(plans_by_seed, data, **settings)

    monkeypatch.setattr(halving, "train_variants", watched)
    found = compare_settings(
        "mild", task, tuned=True, choosing_data=public, seeds=2, choosing_seeds=2, **GRID, **TARGET
    )
    assert chose == {"pixels": {1000, 1001}, "digits": {0, 1}}
    assert (found.choosing_data, found.is_same_data) == ("pixels", False)


def test_a_sweep_trains_every_combination_and_chooses_nothing():
    found = compare_settings("mild", "digits", seeds=2, rounds=[1, 4], clip_norms=[1.0, 0.1], **TARGET)
    swept = {(row.rounds, row.clip_norm): row for row in found.rows if row.allocation.startswith("optimal")}
    assert set(swept) == {(1, 1.0), (1, 0.1), (4, 1.0), (4, 0.1)}
    assert [row.allocation for row in found.rows if row.settings == "as planned"] == [
        row.allocation for row in fulcrum.compare_trained("mild", "digits", seeds=1, rounds=4, **TARGET)
    ]
    assert swept[1, 0.1].allocation == "optimal, 1 round, clip 0.1"
    assert swept[4, 1.0].allocation == "optimal"
    assert (found.choosing_seeds, found.choosing_data, {row.chosen_by for row in found.rows}) == ((), "", {""})
    joint = {row.clip_norm for row in found.rows if row.allocation.startswith("joint")}
    assert joint == {None, 1.0, 0.1}
    made = fulcrum.plan("mild", rounds=4, clip_norm=0.1, **TARGET)
    alone = fulcrum.train(made, "digits", seeds=2)
    assert swept[4, 0.1].accuracy == pytest.approx(alone.accuracy[:, -1].mean(), abs=1e-12)


def test_sizes_are_drawn_for_every_seed_that_chooses_or_is_reported():
    found = compare_settings(
        "mild", "digits", tuned=True, seeds=2, choosing_seeds=2, size_law="lognormal", **GRID, **TARGET
    )
    planned = fulcrum.compare_trained("mild", "digits", seeds=2, rounds=4, size_law="lognormal", **TARGET)
    rows = {row.allocation: row for row in found.rows}
    for row in planned:
        assert rows[row.allocation].accuracy == row.accuracy


def test_persons_have_rows_of_their_own_settings_and_the_row_without_privacy_last():
    found = compare_settings(
        "mild",
        load_task("digits", ranges="0,16"),
        tuned=True,
        rounds=[2, 4],
        clip_norms=[1.0],
        learning_rates=[2.0],
        seeds=2,
        choosing_seeds=2,
        unit="record",
        **TARGET,
    )
    assert found.rows[-1].allocation == "no privacy"
    assert found.rows[-1].accuracy == found.rows[0].reference > 0.5
    assert "each silo for itself, tuned" in {row.allocation for row in found.rows}


@pytest.mark.parametrize(
    ("settings", "error", "code"),
    [
        ({"seeds": [5, 1000]}, ParameterError, "tuning.seeds-shared"),
        ({"rounds": []}, ParameterError, "comparison.rounds-missing"),
        ({"clip_norms": [0.0]}, ParameterError, "plan.clip-norm-range"),
        ({"learning_rates": [-1.0]}, ParameterError, "training.learning-rate-range"),
        ({"choosing_seeds": 0}, ParameterError, "training.seeds-range"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_trained(monkeypatch, settings, error, code):
    monkeypatch.setattr(halving, "train_variants", lambda *_, **__: pytest.fail("nothing is to be trained"))
    usual = {"tuned": True, "seeds": 2, "choosing_seeds": 2}
    with pytest.raises(error, check=coded(code)):
        compare_settings("mild", "digits", **usual | GRID | TARGET | settings)


def test_data_of_silos_or_of_another_size_chooses_nothing(monkeypatch):
    monkeypatch.setattr(halving, "train_variants", lambda *_, **__: pytest.fail("nothing is to be trained"))
    task = load_task("digits")
    names = fulcrum.read_federation("mild").silo_names.tolist()
    own = replace(task, silo=tuple(names[place % len(names)] for place in range(len(task.labels_train))))
    for settings in ({"data": own}, {"data": task, "choosing_data": own}):
        with pytest.raises(DataError, check=coded("tuning.silos-named")):
            compare_settings("mild", tuned=True, seeds=2, **GRID, **TARGET, **settings)
    few = load_task("digits", components=8)
    with pytest.raises(DataError, check=coded("tuning.choosing-size", parameters=18, needed=34)):
        compare_settings("mild", task, tuned=True, choosing_data=few, seeds=2, **GRID, **TARGET)


COMPARE = ["compare", "mild", "--epsilon", "3", "--rounds", "1,4"]
SMALL = ["--clip-norms", "1,0.1", "--learning-rates", "0.3", "--seeds", "2"]


def test_the_command_says_which_seeds_chose_and_the_file_has_the_rows(tmp_path, capsys):
    tuned = [*COMPARE, "--train", "--tuned", "--choosing-seeds", "2", *SMALL]
    assert run([*tuned, "-o", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    printed = " ".join(shown.out.split())
    assert "were chosen on digits under seeds 1000 to 1001, which no row reports" in printed
    assert "no epsilon counts the choice" in printed
    assert "Settings of every row" in printed
    assert "optimal, tuned" in printed
    assert "uniform, tuned" in printed
    assert "Choosing settings" in shown.err
    stored = json.loads((tmp_path / "run" / "comparison.json").read_text())
    assert "--rounds 1,4" in stored["command"]
    assert "--tuned" in stored["command"]
    assert run([*tuned, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert stored["rows"] == rows
    assert {row["chosen_by"] for row in rows if row["settings"] == "tuned"} == {"digits, seeds 1000, 1001"}
    fulcrum.save_plan(fulcrum.plan("mild", rounds=4, epsilon=3.0), tmp_path / "plan.json")
    report = ["report", str(tmp_path / "plan.json"), "--run", str(tmp_path / "run"), "-o", str(tmp_path / "r.html")]
    assert run(report) == 0
    page = (tmp_path / "r.html").read_text()
    assert "optimal, tuned" in page
    assert "--tuned" in page


def test_the_command_warns_that_a_sweep_is_no_choice(capsys):
    assert run([*COMPARE, "--train", *SMALL]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "--tuned chooses by other seeds" in printed
    assert "optimal, 1 round, rate 0.3, clip 0.1" in printed


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--tuned"], "cli.compare-needs-train"),
        (["--clip-norms", "1"], "cli.compare-needs-train"),
        ([], "cli.compare-needs-train"),
        (["--train", "--choosing-seeds", "3"], "cli.choosing-without-tuned"),
        (["--train", "--choosing-data", "digits"], "cli.choosing-without-tuned"),
        (["--train", "--clip-norms", "1;2"], "cli.numbers-form"),
        (["--train", "--learning-rates", "fast"], "cli.numbers-form"),
        (["--train", "--tuned", "--seeds", "1001"], "tuning.seeds-shared"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_line(capsys, monkeypatch, words, code):
    monkeypatch.setattr(halving, "train_variants", lambda *_, **__: pytest.fail("nothing is to be trained"))
    assert run([*COMPARE, *words, "--format", "json"]) == 2
    assert error_shown(capsys.readouterr().err)["code"] == code


@pytest.mark.parametrize("rounds", ["ten", "1,x", "1.5"])
def test_rounds_that_are_no_numbers_are_refused(capsys, rounds):
    assert run(["compare", "mild", "--epsilon", "3", "--rounds", rounds, "--format", "json"]) == 2
    code = error_shown(capsys.readouterr().err)["code"]
    assert code == ("cli.whole-numbers-form" if "," in rounds else "cli.number-not-whole")


def test_a_real_federation_takes_no_settings_of_a_sweep(capsys):
    told = ["compare", "eicu", "--epsilon", "1", "--rounds", "10", "--train", "--tuned", "--format", "json"]
    assert run(told) == 2
    assert error_shown(capsys.readouterr().err)["code"] == "cli.real-training-unneeded"
