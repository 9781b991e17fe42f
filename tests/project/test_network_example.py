import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fulcrum

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "network_at_scale.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("network_at_scale", EXAMPLE)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def a_task(records):
    labels = np.arange(records) % 10
    features = np.random.default_rng(0).normal(0, 0.1, (records, 64)) + np.eye(64)[labels]
    return fulcrum.Task(
        name="blobs",
        features_train=features,
        labels_train=labels,
        features_test=features,
        labels_test=labels,
        classes=tuple(map(str, range(10))),
        sensitive=(5, 6, 7, 8, 9),
    )


def test_silos_stand_in_regions_of_lognormal_size(example):
    federation = example.lognormal_regions(1000)
    members = np.bincount(federation.innermost.parent_of, minlength=example.REGIONS)
    assert (members.sum(), members.min() >= 1) == (1000, True)
    assert members.max() > 4 * np.median(members)


def test_records_are_shared_evenly_where_silos_ask_for_more_than_there_are(example):
    task, federation = a_task(1000), example.lognormal_regions(400, records=10.0)
    dealt = example.shared_partition(task, federation, seed=0)
    held_by = np.bincount(dealt.records, minlength=1000)
    assert (dealt.counts >= 9).all()
    assert held_by.max() <= 4
    few = example.shared_partition(task, example.lognormal_regions(80, records=10.0), seed=0)
    assert len(set(few.records.tolist())) == len(few.records)


def test_a_study_tells_every_model_way_and_epsilon_and_writes_them_down(example, tmp_path, capsys):
    parser = argparse.ArgumentParser()
    example.add_study_options(parser, ("network", "head"))
    told = [
        "--silos",
        "60",
        "70",
        "--epsilon",
        "50",
        "5000",
        "--records",
        "10",
        "--rounds",
        "2",
        "--format",
        "markdown",
    ]
    options = parser.parse_args([*told, "-o", str(tmp_path / "found.json")])
    rows = example.study(a_task(500), {"network": lambda: example.Network(2), "head": example.linear_head}, options)
    assert json.loads((tmp_path / "found.json").read_text()) == rows
    assert len(rows) == 2 * 2 * 4
    first, weak = rows[0], next(row for row in rows if row["epsilon"] == 5000)
    assert (first["network parameters"], first["head parameters"]) == (160, 650)
    assert first["head noise"] == pytest.approx(first["network noise"] * (650 / 160) ** 0.5)
    assert weak["head"] > first["head"]
    written = capsys.readouterr()
    assert f"| 60 | uniform noise | {first['network']:.3f} / {first['head']:.3f} | " in written.out
    assert "70 silos: every record is held by 1.4 silos on average" in written.err


def test_what_cannot_be_is_told_in_one_line(tmp_path):
    command = [sys.executable, str(EXAMPLE), "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "cifar10.npz does not exist" in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--silos", "59"], "argument --silos: must be a whole number of at least 60, got '59'"),
        (["--seeds", "0"], "argument --seeds: must be a whole number of at least 1, got '0'"),
        (["--hidden", "-3"], "argument --hidden: must be a whole number of at least 1, got '-3'"),
        (["--ways", "best"], "argument --ways: invalid choice: 'best'"),
    ],
)
def test_a_mistake_in_the_command_line_is_one_line(example, monkeypatch, capsys, options, told):
    monkeypatch.setattr(sys, "argv", ["network_at_scale.py", *options])
    with pytest.raises(SystemExit) as ended:
        example.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith(f"error: {told}")
    assert said.count("\n") == 1


def test_a_file_that_cannot_be_written_is_told_before_training(example, tmp_path):
    options = argparse.Namespace(output=tmp_path / "none" / "found.json")
    with pytest.raises(fulcrum.FulcrumError, match=r"found\.json cannot be written: No such file or directory"):
        example.study(None, {}, options)


@pytest.mark.skipif(not os.environ.get("FULCRUM_DATA"), reason="the feature files are not here")
def test_the_example_tells_network_and_head_for_every_way():
    command = [sys.executable, str(EXAMPLE), "--silos", "100", "--epsilon", "50", "--hidden", "4", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    assert [row["way"] for row in rows] == ["uniform", "optimal", "least-noise", "joint"]
    assert rows[3]["head"] > rows[0]["head"]
    assert rows[0]["head without privacy"] > 0.7
    assert "round 20 of 20" in done.stderr
