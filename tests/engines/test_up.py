"""`fulcrum up nvflare` from a plan to its report: one run of real processes, looked at from all sides.

At one silo training fails. The others compute a loss and the norm of their update, as training does, and keep both in a
file of their own, so that the tests know what must be nowhere else.
"""

import contextlib
import importlib.util
import io
import json
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.cli.run_commands.deployments import SiteOptions
from fulcrum.cli.shared_options.training_options import TrainingOptions
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.server.run_results import read_results

pytest.importorskip("nvflare", reason="needs the extra nvflare")
pytest.importorskip("cryptography", reason="needs the extra secure")

TRAINING = """
import json, pathlib
import numpy as np

def start(options):
    return {"weights": np.zeros(6)}

def train(model, assignment):
    if assignment.silo == "c1":
        raise ValueError("records.csv is not there")
    rng = np.random.default_rng([assignment.round_number, sum(map(ord, assignment.silo))])
    change = rng.normal(size=6)
    own = {"loss": rng.random(), "norm": float(np.linalg.norm(change))}
    place = pathlib.Path(assignment.options["own"]) / f"{assignment.silo}-{assignment.round_number}.json"
    place.write_text(json.dumps(own))
    print("loss", own["loss"], "norm", own["norm"])
    return {"weights": model["weights"] + change}

def evaluate(model, assignment):
    if assignment.round_number == 2:
        raise RuntimeError("public.csv is not there")
    return {"accuracy": 1 / (1 + assignment.round_number), "length": np.linalg.norm(model["weights"]), "odd": np.nan}
"""
PROMISE = {"rounds": 3, "epsilon": 5.0, "parameters": 6, "purpose": "deployment"}
TRACKERS = [name for name in ("tensorboard", "mlflow") if importlib.util.find_spec(name)]


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    """A run of three rounds with two silos in the north and one in the south, everything that it wrote and printed."""
    folder = tmp_path_factory.mktemp("up")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("COLUMNS", "100")
        Path("curve_training.py").write_text(TRAINING)
        Path("own").mkdir()
        Path("fed.csv").write_text("silo,records,region\na1,200,north\na2,220,north\nc1,300,south\n")
        fulcrum.save_plan(fulcrum.plan("fed.csv", **PROMISE), "plan.json")
        command = ["up", "nvflare", "plan.json", "--train", "curve_training", "--option", f"own={folder / 'own'}"]
        tracked = [word for name in TRACKERS for word in (f"--{name}", name)]
        printed, told = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
            code = run([*command, *tracked, "-o", "out"])
        sys.modules.pop("curve_training", None)
    assert code == 0, told.getvalue()
    return folder, printed.getvalue(), told.getvalue()


def test_metrics_by_round_are_in_the_terminal_as_rounds_end_and_in_the_table(up):
    _, printed, told = up
    lines = [line for line in told.splitlines() if " sums" in line]
    assert [line.split(", length")[0] for line in lines[:1]] == ["6 sites: round 1 of 3: 2 sums, accuracy 0.5"]
    assert lines[1] == "6 sites: round 2 of 3: 2 sums"
    assert "accuracy" in printed
    assert "length" in printed
    assert "0.25 after round 3 of 3" in printed.replace("0.2500", "0.25")


def test_no_site_waits_for_the_server_and_nobody_waits_for_the_end_of_the_job(up):
    """A site that finds no server waits one to two seconds before each try; NVIDIA FLARE ends a job in about ten."""
    folder, _, told = up
    assert told.index("starting the server") < told.index("starting 5 sites") < told.index("submitting the job")
    logs = {path.parent.name: path.read_text() for path in (folder / "out/kits").glob("*/output.log")}
    (listens,) = [line for line in logs["server"].splitlines() if "created backbone external listener" in line][:1]
    begins = {site: log.splitlines()[0][:23] for site, log in logs.items() if site != "server"}
    assert len(begins) == 5
    assert min(begins.values()) > listens[:23]
    assert "Round 2 started" in logs["server"]
    assert "Server runner finished" not in logs["server"]


def test_the_ledger_of_every_silo_is_whole_after_the_kill_of_the_sites(up):
    folder, printed, _ = up
    assert "9 releases of 3 silos charged" in " ".join(printed.split())
    for silo in ("a1", "a2", "c1"):
        with read_ledger(folder / f"out/kits/{silo}/local/fulcrum/state/{silo}.ledger") as ledger:
            assert [entry.round_number for entry in ledger.entries()] == [1, 2, 3]


def test_no_credentials_of_the_job_stay_in_the_kits_after_the_last_round(up):
    kits = up[0] / "out/kits"
    assert "Round 2 started" in (kits / "server/output.log").read_text()
    assert not list(kits.rglob("running-job.json"))


def test_what_evaluate_does_wrong_is_one_line_and_training_goes_on(up):
    printed = " ".join(up[1].split())
    assert "Rounds 1, 3: 'odd' is left out: a metric is one finite number, got nan." in printed
    assert "Round 2: nothing is measured, evaluate failed: RuntimeError: public.csv is not there." in printed


def test_whoever_owns_all_silos_is_told_at_how_many_training_failed_and_where_to_look(up):
    folder, printed, _ = up
    assert "Training failed at 1 of 3 silos, see" in " ".join(printed.split())
    assert "ValueError: records.csv is not there" in " ".join(printed.split())
    assert "training failed in round 1" in (folder / "out/kits/c1/output.log").read_text()
    assert "records.csv" not in (folder / "out/run.json").read_text()  # run.json is shown to others


def test_run_json_has_every_round_and_the_report_of_the_plan_shows_it(up):
    folder, _, _ = up
    plan = fulcrum.read_plan(folder / "plan.json")
    found = read_results(folder / "out", plan).run
    assert [(row.round, row.accuracy, row.regions, row.silos) for row in found.rounds] == [
        (1, 0.5, 2, 3),
        (2, None, 2, 3),
        (3, 0.25, 2, 3),
    ]
    with np.load(folder / "out/model.npz") as model:
        assert found.curves()["length"][-1].value == pytest.approx(float(np.linalg.norm(model["weights"])))
    pytest.importorskip("vl_convert", reason="needs the extra report")
    page = str(folder / "report.html")
    assert run(["report", str(folder / "plan.json"), "--run", str(folder / "out"), "-o", page, "--format", "json"]) == 0
    assert "curve_training" in Path(page).read_text()


def numbers_in(data):
    """Every number in some data, however deep."""
    if isinstance(data, dict):
        return [number for value in data.values() for number in numbers_in(value)]
    if isinstance(data, list | tuple):
        return [number for value in data for number in numbers_in(value)]
    return [float(data)] if isinstance(data, int | float) else []


def test_no_loss_and_no_norm_of_a_silo_is_in_anything_that_is_logged(up):
    """A silo's own figures, which no epsilon counts, stay in its own kit: run.json and trackers never hold them."""
    folder, printed, told = up
    secrets = [number for path in (folder / "own").iterdir() for number in json.loads(path.read_text()).values()]
    assert len(secrets) == 2 * 3 * 2
    kit = folder / "out/kits/server"
    seen = numbers_in(json.loads((folder / "out/run.json").read_text()))
    seen += numbers_in(json.loads((kit / "run.json").read_text()))
    seen += numbers_in(json.loads((kit / "local/fulcrum/state/metrics.json").read_text()))
    with np.load(kit / "local/fulcrum/state/checkpoint.npz") as checkpoint:
        seen += numbers_in(json.loads(checkpoint["state"].tobytes()))
    names = {"accuracy", "length", "federation/regions_summed", "federation/silos_in_sums"}
    if "tensorboard" in TRACKERS:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(folder / "tensorboard")).Reload()
        assert set(events.Tags()["scalars"]) == names
        seen += [at.value for tag in names for at in events.Scalars(tag)]
    if "mlflow" in TRACKERS:
        with sqlite3.connect(folder / "mlflow" / "mlflow.db") as database:
            rows = database.execute("select key, value from metrics").fetchall()
        database.close()
        assert {name for name, _ in rows} == names
        seen += [value for _, value in rows]
    assert 0.5 in seen  # they do hold what the server measured
    for secret in secrets:
        assert not any(number == pytest.approx(secret, rel=1e-6) for number in seen)
        for place in ("server", "north", "south"):
            logs = (folder / "out/kits" / place).rglob("*.txt")
            assert all(str(secret) not in log.read_text(errors="replace") for log in logs)
        assert str(secret) not in printed + told


def test_a_plan_is_given_up_where_training_fails_at_every_silo(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("fed.csv").write_text("silo,records,region\na1,200,north\na2,220,north\n")
    fulcrum.save_plan(fulcrum.plan("fed.csv", **PROMISE), "plan.json")
    broken = TRAINING.replace('if assignment.silo == "c1":', "if True:")
    Path("broken_training.py").write_text(broken)
    command = ["up", "nvflare", "plan.json", "--train", "broken_training", "-o", "out"]
    assert run([*command, "--option", "own=."]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    log = Path("out/kits/a1/output.log")
    failed = f"fulcrum: training failed at 2 of 2 silos, see {log}: ValueError: records.csv is not there"
    assert told == f"{failed}. Correct the training, and run the command again"
    assert log.exists()
    sys.modules.pop("broken_training", None)


@pytest.mark.parametrize(("runs_here", "place"), [(True, Path.absolute), (False, lambda path: path)])
def test_sites_on_this_machine_find_files_that_are_named_from_the_users_folder(runs_here, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("records.csv", "ranges.toml", "digits"):
        Path(name).touch()
    plan = fulcrum.plan("mild", **PROMISE)
    options = {}
    for data in ("records.csv", "digits", "elsewhere.csv"):
        training = TrainingOptions(data=data, ranges="ranges.toml")
        deployed = SiteOptions().deployment(plan, training, host="localhost", port=8002, runs_here=runs_here)
        options[data] = deployed.options
    own = {"data": Path("records.csv"), "ranges": Path("ranges.toml")}
    assert options["records.csv"] == {name: str(place(path)) for name, path in own.items()}
    assert options["digits"]["data"] == "digits"  # the built-in data, whatever a folder holds
    assert options["elsewhere.csv"]["data"] == "elsewhere.csv"
