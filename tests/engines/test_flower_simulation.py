"""Flower's simulation on Ray, by the commands that users run: research plans, and apps as they are exported."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fulcrum
from fulcrum.engines.local_sites import end_all, free_port, processes

pytest.importorskip("ray", reason="needs the extra flower-simulation")
pytest.importorskip("flwr", reason="needs the extra flower")

from numpy_app import write_app

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


def test_silos_join_and_leave_in_a_simulation(tmp_path):
    rows = ["a,300,north,,", "b,200,north,,2", "c,100,north,3,", "e,200,south,,", "f,220,south,,"]
    (tmp_path / "fed.csv").write_text("silo,records,region,from,until\n" + "\n".join(rows) + "\n")
    options = ["--rounds", "3", "--epsilon", "3", "--aggregation", "masked", "--parameters", "34"]
    command("plan", "fed.csv", *options, "-o", "plan.json", cwd=tmp_path)
    told = command("simulate", "flower", "plan.json", "-o", "run", "--format", "json", cwd=tmp_path)
    history = json.loads(told.stdout)["history"]
    assert [summary["members"]["north"] for summary in history] == [["a", "b"], ["a", "b"], ["a", "c"]]
    embedded = fulcrum.train(fulcrum.read_plan(tmp_path / "plan.json"), "digits", seeds=[0])
    with np.load(tmp_path / "run" / "model.npz") as model:
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


@pytest.fixture
def own(tmp_path):
    """A folder with an app of a user's, and a plan for its eight numbers."""
    write_app(tmp_path / "own")
    (tmp_path / "fed.csv").write_text("silo,records,region\n" + "\n".join(ROWS) + "\n")
    options = ["--rounds", "2", "--epsilon", "3", "--aggregation", "masked", "--parameters", "8"]
    command("plan", "fed.csv", *options, "-o", "plan.json", cwd=tmp_path)
    return tmp_path


def test_an_app_of_a_users_runs_under_a_plan_by_one_command_that_shows_every_stage(own):
    done = command("simulate", "flower", "plan.json", "--app", "own", "-o", "run", "--format", "json", cwd=own)
    run = json.loads(done.stdout)
    assert [sum(map(len, summary["members"].values())) for summary in run["history"]] == [6, 6]
    assert all("mean" in found["metrics"] for found in run["rounds"])
    steps = [line.partition(": ")[2] for line in done.stderr.splitlines()]
    assert steps[:2] == ["starting", "starting the SuperLink"]
    assert any(step.startswith("round 1 of 2, stage 1 of 5") for step in steps)
    assert run["command"] == "fulcrum simulate flower plan.json --app own -o run"


def test_an_app_that_fails_ends_the_command_with_its_exception(own):
    server = own / "own" / "steps" / "server_app.py"
    server.write_text(
        server.read_text().replace("strategy.start(", "raise LookupError('no table of nodes')\n    strategy.start(")
    )
    done = command("simulate", "flower", "plan.json", "--app", "own", "--format", "json", cwd=own, code=2)
    error = json.loads(done.stderr.strip().splitlines()[-1])["error"]
    assert error["details"]["cause"] == "flower.run-ended"
    assert "LookupError: no table of nodes" in error["message"]


@pytest.mark.engines
@pytest.mark.parametrize("built_in", [False, True], ids=["own", "built-in"])
def test_flwr_run_runs_an_app_without_an_index(own, built_in):
    """With the runtime installation of packages that a SuperLink for simulations has by default."""
    if built_in:
        (own / "plan.json").unlink()
        options = ["--rounds", "2", "--epsilon", "3", "--aggregation", "masked", "--parameters", "34"]
        command("plan", "fed.csv", *options, "-o", "plan.json", cwd=own)
    app = [] if built_in else ["--app", "own"]
    command("simulate", "flower", "plan.json", *app, "--only-sites", "-o", "sites", cwd=own)
    port, folder = free_port(), str(Path(sys.executable).parent)
    (own / "home").mkdir()
    (own / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    sites = {"FULCRUM_SITES": str(own / "sites"), "FULCRUM_SITE": str(own / "sites" / "server")}
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "UV_OFFLINE": "1",
        "FLWR_HOME": str(own / "home"),
    }
    mark = {"FULCRUM_KIT": str(own)}
    environment = os.environ | sites | quiet | mark | {"PATH": os.pathsep.join([folder, os.environ["PATH"]])}
    link = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    run = [
        "flwr",
        "run",
        "sites/app" if built_in else "own",
        "here",
        "--stream",
        "--federation-config",
        "num-supernodes=6",
    ]
    try:
        with (own / "superlink.log").open("wb") as log:
            started = subprocess.Popen(
                [f"{folder}/{link[0]}", *link[1:]], env=environment, cwd=own, stdout=log, stderr=log
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not listens(port):
            time.sleep(0.2)
        done = subprocess.run(
            [f"{folder}/{run[0]}", *run[1:]], env=environment, cwd=own, capture_output=True, text=True, timeout=300
        )
    finally:
        end_all(lambda: processes("environ", f"FULCRUM_KIT={own}".encode()))
        started.wait(30)
    rounds = json.loads((own / "sites" / "server" / "run.json").read_text())["rounds"]
    assert [found["silos"] for found in rounds] == [6, 6], done.stdout + done.stderr


def listens(port):
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
