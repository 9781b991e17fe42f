"""A command brings what it needs and no more: nobody waits for SciPy to read a list of commands."""

import inspect
import json
import subprocess
import sys

import pytest

from fulcrum.cli.command_line import app
from fulcrum.planning.plan import save_plan
from fulcrum.planning.planner import plan
from fulcrum.readers.federation import Federation

PROBE = """
import json, sys
from fulcrum.cli.command_line import run
code = run(sys.argv[1:])
sys.stderr.write(json.dumps([code, sorted(sys.modules)]))
"""
OF_SCIPY = {"scipy.special", "scipy.optimize"}
OF_COMMANDS = {
    "exposure_command",
    "floor",
    "plans",
    "training",
    "report",
    "page",
    "silos",
    "deployments",
    "nvflare",
    "flower",
}


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
    assert ours == {"cli", "cli.command_line", "errors", "version"}


def test_exposure_is_computed_without_scipy_and_without_plans():
    loaded = loaded_by("exposure", "severe")
    assert "numpy" in loaded
    assert not loaded & {*OF_SCIPY, "jinja2", "sqlite3"}
    ours = {name.removeprefix("fulcrum.") for name in loaded if name.startswith("fulcrum.")}
    planning = {name for name in ours if name.startswith("planning.")}
    assert planning == {
        "planning.inputs",
        "planning.inputs.settings",
        "planning.theory",
        "planning.theory.exposure",
    }  # the settings are options alone
    assert not {
        name
        for name in ours
        if name.startswith(("core.plan", "core.silo", "core.noise", "core.masking", "core.training"))
    }
    assert not {name.split(".")[0] for name in ours} & {"aggregation", "server", "simulation", "engines"}
    assert {
        name for name in OF_COMMANDS if any(module.endswith(f".{name}") for module in ours if module.startswith("cli."))
    } == {"exposure_command"}


AS_A_SILO = """
import sys
import fulcrum.core.silo.masked_release
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.core.silo.release_parameters import release_parameters_of
release_parameters_of(read_plan(sys.argv[1]), "silo-1")
print(sorted({"scipy.optimize", "scipy.sparse"} & set(sys.modules)))
"""
SPECIAL_ALONE = "import sys, scipy.special; print(sorted({'scipy.optimize', 'scipy.sparse'} & set(sys.modules)))"


def test_a_silo_that_checks_its_plan_loads_no_solver(tmp_path):
    """On Flower every message starts a process, and a solver takes longer to load than such a message to answer."""
    sizes = {"north": {f"silo-{k}": 100 for k in range(1, 5)}}
    made = plan(Federation.from_sizes(sizes), rounds=2, epsilon=1.0, parameters=10, purpose="deployment")
    save_plan(made, tmp_path / "plan.json")
    as_a_silo, special_alone = (
        subprocess.run(
            [sys.executable, "-c", script, tmp_path / "plan.json"], capture_output=True, text=True, check=True
        ).stdout
        for script in (AS_A_SILO, SPECIAL_ALONE)
    )
    assert as_a_silo == special_alone  # old versions of scipy.special load matrices of their own
    assert "optimize" not in as_a_silo


def test_the_list_of_commands_says_of_each_what_its_docstring_says():
    found = list(commands_of(app))
    assert len(found) == 30
    for command in found:
        assert command.help == inspect.getdoc(command.default_command).splitlines()[0], command.name
