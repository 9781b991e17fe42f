import json
import re
import sys

import numpy as np
import pytest
from error_codes import error_shown

from fulcrum.cli.command_line import run
from fulcrum.planning.files.plan_from_file import read_plan

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

NETS = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(16, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, inputs):
        return self.head(torch.tanh(self.norm(self.hidden(inputs))))

class Branching(Net):
    def forward(self, inputs):
        return super().forward(inputs if inputs.sum() > 0 else -inputs)

class Dividing(Net):
    def forward(self, inputs):
        return super().forward(inputs) / 0

class Refusing(Net):
    def forward(self, inputs):
        if (inputs > 4).any():
            raise ValueError("too\\nlarge")
        return super().forward(inputs)

class Untested(Net):
    def forward(self, inputs):
        if not self.training:
            raise ValueError("not made for tests")
        return super().forward(inputs)

class Printing(Net):
    def __init__(self):
        super().__init__()
        print("made")

    def forward(self, inputs):
        print("called")
        return super().forward(inputs)

class Pixels(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(12, 1))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "cli_nets", raising=False)
    (tmp_path / "cli_nets.py").write_text(NETS)
    assert run(["plan", "isic-paper", "--rounds", "2", "--epsilon", "50", "-o", "plan.json"]) == 0
    return tmp_path


def test_a_plan_reads_d_from_the_model(here, capsys):
    options = ["plan", "isic-paper", "--rounds", "2", "--epsilon", "50", "--model", "cli_nets:Net"]
    assert run([*options, "--trained", "head.*,norm.*", "-o", "own.json"]) == 0
    assert read_plan(here / "own.json").parameters == 18 + 16
    assert run([*options, "--parameters", "3"]) == 2
    assert (
        "--parameters 3 differs from the 170 trained parameters of --model. Leave --parameters out"
    ) in capsys.readouterr().err


def test_a_model_is_trained_and_the_user_is_told_what_does_not_travel(here, capsys):
    assert run(["train", "plan.json", "--model", "cli_nets:Net", "-o", "run"]) == 0
    told = capsys.readouterr().out
    assert "such as norm.running_mean, do not travel" in told.replace("\n  ", " ")
    with np.load(here / "run" / "observed.npz") as arrays:
        assert arrays["models"].shape == (1, 170, 1)


def test_a_model_that_cannot_be_mapped_says_so_before_it_is_trained(here, capsys):
    assert run(["train", "plan.json", "--model", "cli_nets:Branching", "--format", "json"]) == 0
    caught = capsys.readouterr()
    assert caught.err.startswith(
        "Branching is trained silo by silo on the processor, which is slow: RuntimeError: vmap"
    )
    assert caught.err.splitlines()[0].endswith("We don't support that yet (cli_nets.py line 16).")
    assert "cli_nets.py line 16" in json.loads(caught.out)["notes"][-1]


def test_allocations_are_compared_with_a_model(here, capsys):
    options = ["compare", "isic-paper", "--rounds", "1", "--epsilon", "50", "--model", "cli_nets:Net"]
    assert run([*options, "--train", "--seeds", "1", "--steps", "2", "--format", "json"]) == 0
    assert {"uniform", "joint"} <= {row["allocation"] for row in json.loads(capsys.readouterr().out)}
    assert run(options) == 2
    assert "need --train" in capsys.readouterr().err


def test_what_a_model_prints_is_no_part_of_the_result(here, capsys):
    capsys.readouterr()
    for command in (
        ["train", "plan.json"],
        ["compare", "isic-paper", "--rounds=1", "--epsilon=50", "--train", "--seeds=1"],
    ):
        assert run([*command, "--model", "cli_nets:Printing", "--steps", "2", "--format", "json"]) == 0
        told = capsys.readouterr()
        assert json.loads(told.out)
        assert "called\n" in told.err
    assert run(["plan", "isic-paper", "--rounds=1", "--epsilon=50", "--model=cli_nets:Printing", "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_numbers_are_learnt_from_an_archive(here, capsys):
    inputs = np.random.default_rng(0).random((200, 3, 2, 2), dtype=np.float32)
    np.savez(here / "photos.npz", X=inputs, y=inputs.sum(axis=(1, 2, 3)))
    options = ["train", "plan.json", "--model", "cli_nets:Pixels", "--data", "photos.npz", "--targets", "numbers"]
    assert run([*options, "--learning-rate", "0.05", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["metric"] == "explained variance"
    assert run([*options, "--learning-rate", "0.05"]) == 0
    assert "explained variance" in capsys.readouterr().out
    compared = ["compare", "isic-paper", "--rounds=1", "--epsilon=50", "--train", "--seeds=1", *options[2:]]
    assert run([*compared, "--learning-rate", "0.05"]) == 0
    told = capsys.readouterr()
    assert "explained variance" in " ".join(told.out.split())
    assert "round 1 of 1, explained variance" in told.err


@pytest.mark.parametrize(
    ("options", "expected", "values"),
    [
        (["--model", "cli_nets"], "cli.model-form", {"model": "cli_nets"}),
        (["--model", "cli_nets:Nest"], "model.attribute-missing", {"attribute": "Nest"}),
        (["--model", "cli_nets:Pixels"], "model.records-unfit", {"model": "Pixels", "data": "digits"}),
        (["--model", "cli_nets:Net", "--trained", "hat"], "model.pattern-unknown", {"pattern": "hat"}),
        (
            ["--model", "cli_nets:Net", "--learning-rate", "1e38"],
            "training.update-diverged",
            {"silo": "region-1-1", "round": 1},
        ),
        (["--model", "cli_nets:Dividing"], "model.loss-not-finite", {"model": "Dividing", "data": "digits"}),
        (["--model", "cli_nets:Net", "--device", "abacus"], "training.device-missing", {"device": "abacus"}),
        (["--model", "cli_nets:Net", "--device", ""], "training.device-missing", {"device": ""}),
        (["--model", "cli_nets:Net", "--device", "meta"], "training.device-missing", {"device": "meta"}),
        (["--model", "cli_nets:Net", "--trained", ""], "model.pattern-unknown", {"pattern": ""}),
        (["--data", "photos/lyon"], "data.source-unknown", {"source": "photos/lyon"}),
        (["--trained", "head.*"], "cli.trained-without-model", {"trained": "head.*"}),
        (["--device", "cpu"], "model.device-unneeded", {}),
    ],
)
def test_bad_input_is_one_line(here, capsys, options, expected, values):
    capsys.readouterr()
    assert run(["train", "plan.json", *options, "--format", "json"]) == 2
    error = error_shown(capsys.readouterr().err)
    assert error["code"] == expected
    assert {name: error["details"][name] for name in values} == values


def test_a_module_that_fails_on_some_records_is_told_in_one_line_with_the_silo(here, capsys):
    capsys.readouterr()
    assert run(["train", "plan.json", "--model", "cli_nets:Refusing"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2  # the first says that training is slow
    assert re.fullmatch(
        r"fulcrum: silo 'region-\d+-\d+' in round 1: Refusing failed in training: ValueError: .*", said[1]
    )


def test_a_module_that_fails_on_test_records_is_told_in_one_line(here, capsys):
    capsys.readouterr()
    assert run(["train", "plan.json", "--model", "cli_nets:Untested"]) == 2
    assert (
        capsys.readouterr().err
        == "fulcrum: Untested failed in testing: ValueError: not made for tests. Mend the model there\n"
    )
