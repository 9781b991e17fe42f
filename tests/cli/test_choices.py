"""Closed choices of options are types: help lists them, and a wrong word is refused with the words that there are."""

from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from fulcrum.audit.integration.engine_runs import ENGINES
from fulcrum.cli.command_line import app, run
from fulcrum.cli.plan_commands.compare import compare_command
from fulcrum.cli.plan_commands.plans import export
from fulcrum.cli.plan_commands.silos import keygen
from fulcrum.cli.run_commands.audit import audit_command
from fulcrum.cli.shared_options.target_options import TargetOptions
from fulcrum.cli.shared_options.training_options import Targets
from fulcrum.core.plan.keys import KINDS
from fulcrum.errors import listing
from fulcrum.planning.files.exports import EXPORTS
from fulcrum.planning.inputs.recipes import RECIPES
from fulcrum.planning.inputs.settings import RecipeName, declared_settings
from fulcrum.planning.theory.allocation import ALLOCATIONS
from fulcrum.simulation.data.tasks import TARGETS
from fulcrum.simulation.trials import SIZE_LAWS

GROUPS = ["Input", "Target", "Unit of privacy", "Noise", "Weights and server", "Observers", "Training", "Deployment"]
GROUPS += ["Output"]


def words_of(command, option):
    """The words that an option of a command takes, None left out."""
    found = []
    for part in (get_type_hints(command)[option], *get_args(get_type_hints(command)[option])):
        found += [word for word in get_args(part) if isinstance(word, str)]
    return list(dict.fromkeys(found))


def commands_of(parent):
    for name, command in parent.resolved_commands().items():
        if not name.startswith("-"):
            yield from [command] if command.default_command else commands_of(command)


def test_the_choices_of_options_are_those_that_the_package_knows():
    assert get_args(RecipeName) == tuple(RECIPES)
    assert get_args(Targets) == TARGETS
    assert words_of(export, "to") == list(EXPORTS)
    assert words_of(keygen, "kind") == list(KINDS)
    assert words_of(audit_command, "engine") == list(ENGINES)
    assert words_of(compare_command, "size_law") == list(SIZE_LAWS)
    assert listing(ALLOCATIONS) in declared_settings()["allocation"].help


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["plan", "mild", "--accountant", "exat"],
            "unknown accountant 'exat'. Known: exact, renyi. Did you mean 'exact'?",
        ),
        (["plan", "mild", "--bound", "papr"], "unknown bound 'papr'. Known: paper, capacity. Did you mean 'paper'?"),
        (["plan", "mild", "--injection", "-silo"], "Known: silo, aggregator. Did you mean 'silo'?"),
        (["plan", "mild", "--aggregation", "mask"], "Known: trusted, masked. Did you mean 'masked'?"),
        (["plan", "mild", "--purpose", "deploy"], "Known: research, deployment. Did you mean 'deployment'?"),
        (
            ["exposure", "mild", "--recipe", "joined"],
            "unknown recipe 'joined'. Known: paper, joint. Did you mean 'joint'?",
        ),
        (["export", "plan.json", "--to", "flour"], "unknown export 'flour'. Known: csv, flower, nvflare."),
        (["keygen", "-o", "key", "--kind", "seal"], "unknown kind of key 'seal'. Known: signing, sealing."),
        (["audit", "plan.json", "--engine", "flowr"], "unknown engine 'flowr'. Known: nvflare, flower."),
        (["ledger", "show", "a.ledger", "--accountant", "reny"], "Did you mean 'renyi'?"),
        (["train", "plan.json", "--targets", "class"], "unknown targets 'class'. Known: classes, numbers, labels."),
        (["sign", "plan.json", "--key", "k", "--format", "xml"], "unknown format 'xml'. Known: table, json, csv."),
    ],
)
def test_a_word_that_is_no_choice_is_one_line_with_the_choices(words, said, capsys):
    assert run([*words, *(["--rounds", "1", "--epsilon", "1"] if words[0] == "plan" else [])]) == 2
    out, line = capsys.readouterr()
    assert out == ""
    assert line.count("\n") == 1
    assert said in line


def test_the_help_of_plan_has_groups_in_order_and_lists_choices(capsys):
    assert run(["plan", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    headings = [line.strip("╭╮─ ") for line in lines if line.startswith("╭")]
    assert headings == GROUPS
    said = " ".join(" ".join(lines).replace("│", " ").split())
    words = ("exact, renyi", "paper, capacity", "silo, aggregator", "trusted, masked", "table, json, csv")
    for choices in (*words, "silo, person, record", "replace, add-remove"):
        assert f"[choices: {choices}]" in said


def test_the_help_of_every_option_is_a_sentence_with_its_default():
    for command in commands_of(app):
        for argument in command.assemble_argument_collection():
            if argument.parameter.parse is False or not argument.show:
                continue
            text = argument.parameter.help
            assert text, (command.name, argument.name)
            assert text.endswith("."), (command.name, argument.name, text)
            assert text[0].isupper() or text[0] == ".", (command.name, argument.name, text)
            unsaid = argument.field_info.default is None and "efault: " not in text
            assert not unsaid, (command.name, argument.name, text)


def test_every_setting_of_a_target_has_a_group():
    hints = get_type_hints(TargetOptions, include_extras=True)
    assert all(hints[field.name].__metadata__[0].group for field in fields(TargetOptions))
