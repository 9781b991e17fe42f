"""Kits, apps and programs that were written before some modules moved still find the names in them, with a warning."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import fulcrum
from fulcrum.moved_names import FOLDERS, MODULES, NAMES

SOURCE = Path(fulcrum.__file__).parent

USED = {
    ("engines.flower.app", "client_app"): "engines.flower.client_app",
    ("engines.flower.app", "train"): "engines.flower.virtual_app",
    ("engines.flower.app", "server_app"): "engines.flower.server_app",
    ("engines.flower.app", "run_plan"): "engines.flower.server_app",
    ("engines.flower.silo", "fulcrum_mod"): "engines.flower.client_mod",
    ("engines.flower.silo", "FulcrumMod"): "engines.flower.client_mod",
    ("engines.flower.server", "FulcrumStrategy"): "engines.flower.strategy",
    ("engines.nvflare.processes", "SiteLauncher"): "engines.nvflare.site_launcher",
    ("engines.nvflare.processes", "KitStorage"): "engines.nvflare.server_files",
    ("engines.nvflare.processes", "KitJobs"): "engines.nvflare.server_files",
    ("engines.nvflare.recipe", "PlanRecipe"): "engines.nvflare.plan_job.PlanSubmission",
    ("engines.nvflare.recipe", "LoopbackEnv"): "engines.nvflare.plan_job",
    ("engines.nvflare.job_recipe", "PlanRecipe"): "engines.nvflare.plan_job.PlanSubmission",
    ("engines.nvflare.job_recipe", "LoopbackEnv"): "engines.nvflare.plan_job",
    ("engines.nvflare.silo", "SiloExecutor"): "engines.nvflare.flare_silo",
    ("engines.nvflare.region", "RegionGatherer"): "engines.nvflare.flare_region",
    ("engines.nvflare.server", "PlanAssessor"): "engines.nvflare.flare_server",
    ("engines.nvflare.server", "FederationController"): "engines.nvflare.flare_server",
    ("planning.advice", "signal_to_noise"): "planning.content.learning_signal",
    ("planning.variants", "other_weights"): "planning.comparisons.variants",
    ("planning.settings", "Settings"): "planning.inputs.settings",
    ("simulation.data.feature_ranges", "FeatureRanges"): "simulation.data.sources.feature_ranges",
}
"""The names that kits, documented examples and apps of users import from old modules."""


@pytest.mark.parametrize(("old", "name"), USED)
def test_a_name_that_moved_is_found_where_it_was(old, name):
    for engine, package in (("engines.flower", "flwr"), ("engines.nvflare", "nvflare")):
        if old.startswith(engine):
            pytest.importorskip(package)
    now = USED[old, name]
    module, new_name = (now, name) if now.rpartition(".")[2].islower() else now.rsplit(".", 1)
    with pytest.deprecated_call(match=rf"goes with version 0.3. Use fulcrum.{module}.{new_name}$"):
        value = getattr(importlib.import_module(f"fulcrum.{old}"), name)
    assert value is getattr(importlib.import_module(f"fulcrum.{module}"), new_name)


def test_every_old_place_is_free_and_every_new_place_is_a_module():
    places = {*MODULES.values(), *(place.partition(":")[0] for names in NAMES.values() for place in names.values())}
    assert [place for place in places if not (SOURCE / f"{place.replace('.', '/')}.py").is_file()] == []
    for old in (*MODULES, *NAMES):
        path = SOURCE / old.replace(".", "/")
        assert not path.with_suffix(".py").exists(), old
        assert not path.is_dir(), old


def test_every_name_that_has_an_old_place_is_in_the_new_module():
    for names in NAMES.values():
        for name, place in names.items():
            module, _, new_name = place.partition(":")
            tree = ast.parse((SOURCE / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
            defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
            defined |= {
                node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
            defined |= {
                alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
            }
            assert (new_name or name) in defined, (name, place)


def test_every_module_of_a_divided_folder_is_found_at_its_old_place():
    for folder, modules in FOLDERS.items():
        there = {path.stem for path in (SOURCE / folder.replace(".", "/")).glob("*.py")} - {"__init__"}
        assert set(modules) <= there, folder


def test_a_name_that_never_was_is_none():
    for old in ("engines.flower.app", "planning.advice"):
        with pytest.raises(AttributeError, match=f"module 'fulcrum.{old}' has no attribute 'anything'"):
            importlib.import_module(f"fulcrum.{old}").anything  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"fulcrum\.planning\.anything"):
        importlib.import_module("fulcrum.planning.anything")


def test_a_process_that_names_present_modules_loads_no_old_place():
    script = (
        "import sys, fulcrum; fulcrum.release, fulcrum.plan; "
        "print([name for name in sys.modules if name == 'fulcrum.moved_names'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
