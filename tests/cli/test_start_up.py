"""A command brings what it needs and no more: nobody waits for SciPy to read a list of commands."""

import inspect
import json
import subprocess
import sys

import pytest

from fulcrum.cli.app import app

PROBE = """
import json, sys
from fulcrum.cli.app import run
code = run(sys.argv[1:])
sys.stderr.write(json.dumps([code, sorted(sys.modules)]))
"""
OF_SCIPY = {"scipy.special", "scipy.optimize"}
OF_COMMANDS = {"exposure", "floor", "plans", "training", "report", "page", "silos", "engines"}


def loaded_by(*arguments):
    """The modules that are loaded once a command has run in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    return set(modules)


def commands_of(parent):
    """Every command below an application, groups of commands left out."""
    for name, command in parent.resolved_commands().items():
        if not name.startswith("-"):
            yield from [command] if command.default_command else commands_of(command)


@pytest.mark.parametrize("arguments", [["--help"], ["ledger", "--help"]], ids=" ".join)
def test_a_list_of_commands_loads_none_of_them_nor_what_they_compute_with(arguments):
    loaded = loaded_by(*arguments)
    assert not loaded & {"numpy", "scipy", "msgspec", "narwhals", "jinja2", "importlib.metadata"}
    ours = {name.removeprefix("fulcrum.") for name in loaded if name.startswith("fulcrum.")}
    assert ours == {"cli", "cli.app", "errors", "version"}


def test_exposure_is_computed_without_scipy_and_without_plans():
    loaded = loaded_by("exposure", "severe")
    assert "numpy" in loaded
    assert not loaded & {*OF_SCIPY, "jinja2", "sqlite3"}
    floors = {name.split(".")[1] for name in loaded if name.startswith("fulcrum.")}
    assert not floors & {"planning", "noise", "ledger", "exchange", "roles", "simulation", "engines"}
    assert {name for name in OF_COMMANDS if f"fulcrum.cli.{name}" in loaded} == {"exposure"}


def test_the_list_of_commands_says_of_each_what_its_docstring_says():
    found = list(commands_of(app))
    assert len(found) == 25
    for command in found:
        assert command.help == inspect.getdoc(command.default_command).splitlines()[0], command.name
