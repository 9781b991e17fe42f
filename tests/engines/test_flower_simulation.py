"""Flower's simulation on Ray, by the commands that users run: research plans, and apps as they are exported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fulcrum

pytest.importorskip("ray", reason="needs the extra flower-simulation")
pytest.importorskip("flwr", reason="needs the extra flower")

ROWS = ["a,300,north", "b,200,north", "c,100,north", "d,150,north", "e,200,south", "f,220,south"]


def command(*words, cwd, code=0):
    """Runs `fulcrum` in a process of its own: Ray keeps its processes for as long as the one that began it lives."""
    done = subprocess.run(
        [sys.executable, "-m", "fulcrum.cli", *words], cwd=cwd, capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.parametrize("recipe", ["paper", "joint"])
def test_a_research_plan_learns_the_model_of_the_embedded_engine(tmp_path, recipe):
    (tmp_path / "fed.csv").write_text("silo,records,region\n" + "\n".join(ROWS) + "\n")
    options = ["--rounds", "2", "--epsilon", "3", "--aggregation", "masked", "--recipe", recipe, "--parameters", "34"]
    command("plan", "fed.csv", *options, "-o", "plan.json", cwd=tmp_path)
    told = command("simulate", "flower", "plan.json", "-o", "run", "--format", "json", cwd=tmp_path)
    run = json.loads(told.stdout)
    assert run["engine"] == "flower"
    assert [sum(map(len, summary["members"].values())) for summary in run["history"]] == [6, 6]
    plan = fulcrum.read_plan(tmp_path / "plan.json")
    embedded = fulcrum.train(plan, "digits", seeds=[0])
    with np.load(tmp_path / "run" / "model.npz") as model:
        assert np.abs(embedded.models[0]).max() > 1e-3
        assert np.abs(embedded.models[0] - model["head"]).max() < 1e-5


@pytest.mark.engines
def test_96_silos_learn_the_model_of_the_embedded_engine_with_its_accuracy_after_each_round(tmp_path):
    options = ["--rounds", "2", "--epsilon", "3", "--aggregation", "masked"]
    command("plan", "severe", *options, "-o", "plan.json", cwd=tmp_path)
    told = command("simulate", "flower", "plan.json", "-o", "run", "--format", "json", cwd=tmp_path)
    run = json.loads(told.stdout)
    assert [sum(map(len, summary["members"].values())) for summary in run["history"]] == [96, 96]
    embedded = fulcrum.train(fulcrum.read_plan(tmp_path / "plan.json"), "digits", seeds=[0])
    assert [found["accuracy"] for found in run["rounds"]] == pytest.approx(embedded.accuracy[0].tolist(), abs=1e-3)
    with np.load(tmp_path / "run" / "model.npz") as model:
        assert np.abs(embedded.models[0]).max() > 1e-3
        assert np.abs(embedded.models[0] - model["head"]).max() < 1e-5


def test_a_plan_for_trusted_aggregators_is_refused_in_one_line(tmp_path):
    command("plan", "isic-paper", "--rounds", "2", "--epsilon", "1", "-o", "plan.json", cwd=tmp_path)
    for words in (["simulate"], ["up"]):
        done = command(*words, "flower", "plan.json", cwd=tmp_path, code=2)
        assert done.stderr.strip().splitlines()[-1].endswith("Plan with --aggregation masked")


def test_a_masked_plan_is_exported_as_an_app_that_flower_builds_and_loads(tmp_path):
    (tmp_path / "fed.csv").write_text("silo,records,region\n" + "\n".join(ROWS) + "\n")
    command(
        "plan", "fed.csv", "--rounds", "2", "--epsilon", "3", "--aggregation", "masked", "-o", "p.json", cwd=tmp_path
    )
    command("export", "p.json", "--to", "flower", "-o", "app", cwd=tmp_path)
    flwr = [str(Path(sys.executable).with_name("flwr")), "build", "--app", "app"]
    built = subprocess.run(flwr, cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ))
    assert built.returncode == 0, built.stdout + built.stderr
    assert list(tmp_path.glob("*.fab"))
    loading = "from fulcrum_app.client_app import app as c; from fulcrum_app.server_app import app as s; print(c, s)"
    loaded = subprocess.run(
        [sys.executable, "-c", loading], cwd=tmp_path / "app", capture_output=True, text=True, env=dict(os.environ)
    )
    assert "ClientApp" in loaded.stdout, loaded.stderr
    assert "ServerApp" in loaded.stdout
    done = command("export", "p.json", "--to", "flower", "-o", "app", cwd=tmp_path, code=2)
    assert "Name a new folder" in done.stderr
