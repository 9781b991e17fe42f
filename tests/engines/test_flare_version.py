"""Untested versions of NVIDIA FLARE are refused with one line, before anything is written or started."""

import tomllib
from pathlib import Path

import pytest
from error_codes import coded

import fulcrum
from fulcrum.engines.nvflare.kits import flare_version
from fulcrum.engines.site_folders import BUILT_IN, Deployment
from fulcrum.errors import EngineError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("installed", ["2.9.0", "2.9.7", "2.9.0rc1"])
def test_every_patch_of_a_tested_version_is_accepted(monkeypatch, installed):
    monkeypatch.setattr(flare_version, "version", lambda _: installed)
    flare_version.check_version()


@pytest.mark.parametrize("installed", ["2.8.3", "2.10.0", "3.0", "2", "1.2.9"])
def test_another_version_is_refused_before_a_kit_is_written(monkeypatch, installed, tmp_path):
    pytest.importorskip("nvflare")
    from fulcrum.engines.nvflare.flare_engine import FLARE

    monkeypatch.setattr(flare_version, "version", lambda _: installed)
    plan = fulcrum.plan("severe", rounds=2, epsilon=2.0, parameters=34, purpose="deployment")
    refused = coded("flare.version", installed=installed, newest="2.9.0")
    with pytest.raises(EngineError, check=refused):
        FLARE.write_kits(Deployment(plan=plan, train=BUILT_IN), tmp_path / "kits")
    assert not (tmp_path / "kits").exists()


def test_a_site_with_another_version_does_not_start(monkeypatch):
    pytest.importorskip("nvflare")
    from fulcrum.engines.nvflare.site_launcher import SiteLauncher

    monkeypatch.setattr(flare_version, "version", lambda _: "2.10.0")
    with pytest.raises(EngineError, check=coded("flare.version", installed="2.10.0", newest="2.9.0")):
        SiteLauncher()


def test_the_tests_pin_one_version_and_users_get_the_tested_ones():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert f"nvflare=={flare_version.NEWEST}" in project["dependency-groups"]["test"]
    assert "nvflare>=2.9,<2.10" in project["project"]["optional-dependencies"]["nvflare"]
