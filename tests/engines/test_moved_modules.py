"""Kits, apps and programs that were written before some modules moved still find the names in them, with a warning."""

import importlib

import pytest

NAMES = {
    ("flower.app", "client_app"): "flower.client_app",
    ("flower.app", "train"): "flower.client_app",
    ("flower.app", "server_app"): "flower.server_app",
    ("flower.app", "run_plan"): "flower.server_app",
    ("flower.silo", "fulcrum_mod"): "flower.client_mod",
    ("flower.silo", "FulcrumMod"): "flower.client_mod",
    ("flower.server", "FulcrumStrategy"): "flower.strategy",
    ("nvflare.processes", "SiteLauncher"): "nvflare.site_launcher",
    ("nvflare.processes", "KitStorage"): "nvflare.server_files",
    ("nvflare.processes", "KitJobs"): "nvflare.server_files",
    ("nvflare.recipe", "PlanRecipe"): "nvflare.plan_job.PlanSubmission",
    ("nvflare.recipe", "LoopbackEnv"): "nvflare.plan_job",
    ("nvflare.job_recipe", "PlanRecipe"): "nvflare.plan_job.PlanSubmission",
    ("nvflare.job_recipe", "LoopbackEnv"): "nvflare.plan_job",
    ("nvflare.silo", "SiloExecutor"): "nvflare.flare_silo",
    ("nvflare.region", "RegionGatherer"): "nvflare.flare_region",
    ("nvflare.server", "PlanAssessor"): "nvflare.flare_server",
    ("nvflare.server", "FederationController"): "nvflare.flare_server",
}


@pytest.mark.parametrize(("before", "name"), NAMES)
def test_a_name_that_moved_is_found_where_it_was(before, name):
    pytest.importorskip({"flower": "flwr", "nvflare": "nvflare"}[before.split(".")[0]])
    now = NAMES[before, name]
    module, new_name = (now, name) if now.count(".") == 1 else now.rsplit(".", 1)
    with pytest.deprecated_call(match=rf"goes with version 0.3. Use fulcrum.engines.{module}.{new_name}"):
        found = getattr(importlib.import_module(f"fulcrum.engines.{before}"), name)
    assert found is getattr(importlib.import_module(f"fulcrum.engines.{module}"), new_name)


def test_a_name_that_never_was_is_none():
    for before in {before for before, _ in NAMES}:
        with pytest.raises(AttributeError, match=f"module 'fulcrum.engines.{before}' has no attribute 'anything'"):
            importlib.import_module(f"fulcrum.engines.{before}").anything  # noqa: B018
