"""Recorded runs and engines under plans for persons: `fulcrum audit --run` and `fulcrum audit --engine`."""

import csv
import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from error_codes import error_shown

import fulcrum
from fulcrum.audit.evidence.findings import CONSISTENT, VIOLATED
from fulcrum.audit.evidence.judging import Errors
from fulcrum.audit.integration.canary_training import OVERSIZE, expected_signal, gradient_rows
from fulcrum.audit.integration.engine_runs import engine_run_probes
from fulcrum.cli.command_line import run
from fulcrum.core.noise.mechanism import apply_by_person
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.releasing import seeded_mechanism
from fulcrum.core.training.assignment import Assignment
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.training_runs import save_run

SIZES = {"north": {"a1": 12, "a2": 10, "a3": 8}, "south": {"b1": 9, "b2": 11}}
FEATURES = 40
OPTIONS = ["--trials", "1000", "--seed", "1", "--confidence", "0.9999", "--format", "json"]


def made(**options):
    options = {"rounds": 3, "epsilon": 5.0, "unit": "person"} | options
    return fulcrum.plan(fulcrum.Federation.from_sizes(SIZES), **options)


@pytest.fixture(scope="module")
def stays(tmp_path_factory):
    """A table of stays: patients with one to three stays each."""
    path, rng = tmp_path_factory.mktemp("stays") / "stays.csv", np.random.default_rng(3)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["silo", "patient", "split", *(f"f{number}" for number in range(FEATURES)), "label"])
        for silo, patients in (item for members in SIZES.values() for item in members.items()):
            for patient in range(patients):
                for _ in range(rng.integers(1, 4)):
                    values = rng.uniform(0, 10, size=FEATURES).round(3)
                    split = "test" if patient == 0 else "train"
                    table.writerow([silo, f"{silo}-{patient}", split, *values, "yes" if values[0] > 5 else "no"])
    return path


def data_of(stays):
    return ["--data", stays, "--person-column", "patient", "--ranges", "0,10"]


def recorded(plan, stays, folder, *, noise=1.0):
    """Records a run with a share of the plan's noise, and names the plan itself in the run's file."""
    fulcrum.save_plan(plan, folder / "plan.json")
    plan = fulcrum.read_plan(folder / "plan.json")
    narrow = dataclasses.replace(plan, noise_multiplier=noise * plan.noise_multiplier)
    task = load_task(stays, person="patient", ranges="0,10")
    save_run(fulcrum.train(narrow, task, seeds=[0, 1]), folder / "run")
    about = json.loads((folder / "run" / "run.json").read_text()) | {"plan_digest": plan.digest}
    (folder / "run" / "run.json").write_text(json.dumps(about))
    return folder / "plan.json", folder / "run"


def audited(capsys, *arguments):
    """Returns exit code, verdicts on the sums of the recorded run, and the line on standard error."""
    code = run(["audit", *map(str, arguments), *OPTIONS])
    out, err = capsys.readouterr()
    results = json.loads(out) if out else {"probes": []}
    return code, {probe["node"]: probe for probe in results["probes"] if probe["of"] == "the recorded run"}, err


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"neighbours": "add-remove", "silos_per_person": 2, "server": "random-effects"},
        {"silo_epsilon": 60.0, "silo_clip": 4.0},  # sums of silos with more than four persons are scaled down
        {"unit": "record"},
    ],
)
def test_a_recorded_run_holds_the_noise_of_a_plan_for_persons(options, stays, tmp_path, capsys):
    plan, folder = recorded(made(**options), stays, tmp_path)
    code, probes, _ = audited(capsys, plan, "--run", folder, *data_of(stays))
    assert code == 0
    assert {node: probe["verdict"] for node, probe in probes.items()} == dict.fromkeys(SIZES, CONSISTENT)
    # 492 values for each region: a width within 15 % of the plan's is within 4.7 standard errors.
    assert all(probe["values"] == 3 * 2 * 2 * (FEATURES + 1) for probe in probes.values())
    assert all(probe["noise_ratio"] == pytest.approx(1, abs=0.15) for probe in probes.values())


@pytest.mark.parametrize("share", [2 / 3, 3 / 2])
def test_a_recorded_run_with_other_noise_violates_the_plan(share, stays, tmp_path, capsys):
    plan, folder = recorded(made(), stays, tmp_path, noise=share)
    code, probes, _ = audited(capsys, plan, "--run", folder, *data_of(stays))
    violated = {node: probe["verdict"] for node, probe in probes.items()} == dict.fromkeys(SIZES, VIOLATED)
    assert (code, violated) == ((1, True) if share < 1 else (0, False))  # more noise than stated protects more


def test_records_clipped_one_by_one_show_in_a_recorded_run(stays, tmp_path, capsys):
    """A run whose silos took each record for a person: the auditor subtracts the sums of persons."""
    plan = made(epsilon=1e4)  # little noise
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    plan = fulcrum.read_plan(tmp_path / "plan.json")
    task = load_task(stays, person="patient", ranges="0,10")
    single = dataclasses.replace(task, persons=tuple(map(str, range(len(task.labels_train)))))
    save_run(fulcrum.train(plan, single, seeds=[0, 1]), tmp_path / "run")
    code, probes, _ = audited(capsys, tmp_path / "plan.json", "--run", tmp_path / "run", *data_of(stays))
    assert code == 1
    assert {probe["verdict"] for probe in probes.values()} == {VIOLATED}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--person-column", "patient"], "data.unit-fitted"),
        (["--ranges", "0,10"], "data.persons-unnamed"),
    ],
)
def test_data_without_persons_or_with_a_fitted_scale_is_refused_in_one_line(options, expected, stays, tmp_path, capsys):
    plan, folder = recorded(made(), stays, tmp_path)
    table = stays
    if expected == "data.persons-unnamed":
        lines = [row[:1] + row[2:] for row in csv.reader(stays.read_text().splitlines())]
        table = tmp_path / "unnamed.csv"
        table.write_text("".join(",".join(row) + "\n" for row in lines))
    code, probes, err = audited(capsys, plan, "--run", folder, "--data", table, *options)
    assert (code, probes, error_shown(err)["code"]) == (2, {}, expected)


def test_an_engine_that_cannot_run_a_plan_for_persons_is_refused_in_one_line(tmp_path, capsys):
    fulcrum.save_plan(made(aggregation="trusted"), tmp_path / "plan.json")
    code, probes, err = audited(capsys, tmp_path / "plan.json", "--engine", "flower")
    assert (code, probes, error_shown(err)["code"]) == (2, {}, "engine.plan-refused")


@pytest.mark.parametrize("purpose", ["research", "deployment"])
def test_the_auditors_expected_sum_is_the_silos_sum_of_canary_persons(purpose):
    plan = verified_plan(made(purpose=purpose, parameters=50))
    for place, silo in enumerate(plan.federation.silo_names):
        task = Assignment(silo=silo, round_number=2, plan=plan, seed=0, options={"directions": 7})
        rows = -np.concatenate(list(gradient_rows({"audit": np.zeros(50)}, task)))
        assert np.linalg.norm(rows, axis=1) == pytest.approx(OVERSIZE * plan.clip_norm)
        mechanism = dataclasses.replace(seeded_mechanism(plan, place, None, 2), draw=np.zeros)
        total = apply_by_person(mechanism, rows, 50)
        assert total == pytest.approx(expected_signal(plan, place, 7, 2, 50))


# ------------------------------------------------------------------------------------------------ engines

ERRORS = Errors.share(10, 12, 0.99999)


@pytest.mark.engines
@pytest.mark.parametrize("purpose", ["research", "deployment"])
def test_canary_persons_through_nvflare_leave_the_noise_of_the_plan(purpose):
    pytest.importorskip("nvflare", reason="needs the extra nvflare")
    plan = made(purpose=purpose, rounds=2, parameters=3_000)
    probes = engine_run_probes(plan, ERRORS, engine="nvflare", seed=1, seconds=0.0)
    assert {probe.node: probe.verdict for probe in probes} == dict.fromkeys(SIZES, CONSISTENT)
    assert all(probe.noise_ratio == pytest.approx(1, abs=0.05) for probe in probes)


@pytest.mark.engines
def test_canary_persons_through_flower_leave_the_noise_of_the_plan(tmp_path):
    for package in ("ray", "flwr"):
        pytest.importorskip(package, reason="needs the extra flower")
    plan = made(purpose="deployment", aggregation="masked", rounds=2, parameters=3_000)
    fulcrum.save_plan(plan, tmp_path / "plan.json")
    # Ray keeps its processes for as long as the process that began them.
    command = [sys.executable, "-m", "fulcrum.cli", "audit", "plan.json", "--engine", "flower", *OPTIONS]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    probes = [probe for probe in json.loads(done.stdout)["probes"] if probe["of"] == "Flower"]
    assert {probe["node"]: probe["verdict"] for probe in probes} == dict.fromkeys(SIZES, CONSISTENT)
    assert all(probe["noise_ratio"] == pytest.approx(1, abs=0.05) for probe in probes)
