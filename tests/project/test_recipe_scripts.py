"""The scripts of the recipe: runs in several processes, what a cell behind is, and seeds that choose nothing."""

import importlib
import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="the digits come with scikit-learn")

PAPER = Path(__file__).parents[2] / "paper"


@pytest.fixture(autouse=True)
def folder_of_scripts(monkeypatch):
    """Processes that a script starts import what the script imports."""
    monkeypatch.syspath_prepend(str(PAPER))


def load(name):
    return importlib.import_module(name)


def rows_of(script, capsys, *arguments):
    status = script.main([*arguments, "--seeds", "2", "--format", "json"])
    content = json.loads(capsys.readouterr().out)
    return status, {row["quantity"]: row["ours"] for row in content["rows"]}


@pytest.fixture
def small_suite(monkeypatch):
    """The suite with one family of the digits, two epsilons and few clip norms."""
    script = load("recipe_suite")
    monkeypatch.setattr(script, "EPSILONS", (0.99, 3))
    monkeypatch.setattr(script, "CLIP_NORMS", (1.0, 0.12))
    return script


def test_the_suite_has_at_least_a_hundred_cells_of_different_names():
    script = load("recipe_suite")
    names = [family.name for family in script.families()]
    assert len(set(names)) == len(names)
    assert len(names) * len(script.EPSILONS) >= 100
    bases = [family.base for family in script.families()]
    assert len(set(bases)) == len(bases)


def test_several_processes_print_the_numbers_of_one(small_suite, capsys):
    _, rows = rows_of(small_suite, capsys, "--cells", "digits, severe", "--choosing-seeds", "2", "--processes", "2")
    family = next(family for family in small_suite.families() if family.name == "digits, severe")
    study = load("_experiments").Study()

    def accuracy(setting, seeds):
        jobs = [study.job(setting, seed) for seed in seeds]
        return np.mean([run.accuracy[-1] for run in study.train_jobs(setting, jobs)], axis=0)

    names = {"recipe": "recipe", "recipe, least 0": "recipe at least influence 0"}
    for arm, mean in zip(family.plain.arms, accuracy(family.plain, [7000, 7001]), strict=True):
        if arm.parts in names:
            assert rows[f"digits, severe, epsilon {arm.epsilon:g}, {names[arm.parts]}"] == pytest.approx(mean, abs=1e-9)
    for epsilon in small_suite.EPSILONS:
        tried = {}
        for rate in small_suite.LEARNING_RATES:
            arms = zip(family.grid(rate).arms, accuracy(family.grid(rate), [8000, 8001]), strict=True)
            tried |= {(arm.clip_norm, rate): mean for arm, mean in arms if arm.epsilon == epsilon}
        cell = f"digits, severe, epsilon {epsilon:g}"
        best = rows[f"{cell}, tuned clip norm"], rows[f"{cell}, tuned learning rate"]
        assert tried[best] == max(tried.values())


def test_no_seed_that_is_reported_chooses():
    script = load("recipe_suite")
    family = script.families()[0]
    cell = script.Cell(family=family, epsilon=3, tuning=script.Tuning(clip_norm=0.5, learning_rate=0.1))
    firsts = sorted((script.REPORTED_FROM, script.CHOOSING_FROM, script.AGAIN_FROM))
    assert min(np.diff(firsts)) >= 1000
    assert {work.seed for work in cell.works(range(script.REPORTED_FROM, script.REPORTED_FROM + 3))} == {
        7000,
        7001,
        7002,
    }
    assert cell.rival.arms[0].clip_norm == 0.5
    assert cell.rival.learning_rate == 0.1
    with pytest.raises(SystemExit):
        script.main(["--seeds", "1001", "--cells", "digits"])


@pytest.mark.parametrize(("mean", "error", "behind"), [(-0.8, 0.1, True), (-0.8, 0.2, False), (-0.4, 0.0, False)])
def test_a_cell_is_behind_by_half_a_point_beyond_two_standard_errors(mean, error, behind):
    measured, script = load("_measured"), load("recipe_suite")
    lead = measured.Estimate(mean=mean, error=error, seeds=40)
    assert script.CellFigures(accuracy={}, lead={"recipe": lead}).is_behind() is behind


def test_the_recipe_reads_variances_of_frozen_embeddings_alone(monkeypatch):
    experiments = load("_experiments")
    study = experiments.Study()
    setting = experiments.Setting(task="digits", profile="mild")
    arms = {parts: experiments.Arm(allocation="optimal", parts=parts, epsilon=1) for parts in experiments.PARTS}
    assert study.plan(setting, arms["recipe"], 0).shrink == "even-heads"
    assert study.plan(setting, arms["recipe"], 0).least_influence == 0.5
    assert study.plan(setting, arms["recipe, prior"], 0).spectrum.origin == "training-split"
    whole = study.task("digits")
    object.__setattr__(whole, "embedding", True)
    assert study.plan(setting, arms["recipe"], 0).shrink == "even-scale"
    assert study.plan(setting, arms["masked recipe"], 0).one_group


def test_the_digits_lose_nothing_by_default(capsys, monkeypatch):
    script = load("recipe_promises")
    status, rows = rows_of(script, capsys, "--cells", "digits, severe", "--processes", "1")
    assert status == 0
    assert rows["digits, severe, epsilon 3, points lost, beyond 0.2"] == 0
    assert rows["digits, severe, epsilon 3, recipe"] == rows["digits, severe, epsilon 3, today's shrinkage"]
    assert rows["digits, severe, epsilon 3, recipe"] != rows["digits, severe, epsilon 3, prior all the same"]


def test_a_share_of_means_has_the_error_that_resampling_gives():
    script = load("recipe_promises")
    random = np.random.default_rng(1)
    whole = random.normal(2, 0.3, 400)
    part = 0.4 * whole + random.normal(0, 0.2, 400)
    draws = random.integers(0, 400, (2000, 400))
    spread = (part[draws].mean(axis=1) / whole[draws].mean(axis=1)).std()
    share = script._share(part, whole)
    assert share.mean == pytest.approx(0.4, abs=0.02)
    assert share.error == pytest.approx(spread, rel=0.1)


def test_every_promise_is_a_quantity_that_the_script_prints():
    script, measured = load("recipe_promises"), load("_measured")
    promised = tomllib.loads(measured.EXPECTED.read_text("utf-8"))["recipe_promises"]
    names = [block.name for block in script.blocks()]
    assert all(any(quantity.startswith(f"{name}, epsilon ") for name in names) for quantity in promised)
    assert {name for name in names if "persons" in name} == {"agnews, persons", "cifar10, persons"}


def test_scripts_say_what_they_lack(capsys, monkeypatch):
    monkeypatch.delenv("FULCRUM_DATA", raising=False)
    for name in ("recipe_suite", "recipe_promises"):
        assert load(name).main([]) == 0
        assert "it needs the folder of agnews.npz and cifar10.npz" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            load(name).main(["--seeds", "1"])
        assert load(name).main(["--list"]) == 0
        assert "digits" in capsys.readouterr().out
        with pytest.raises(SystemExit):
            load(name).main(["--cells", "digit, mild"])
