"""Canaries through NVIDIA FLARE: sites as processes of their own, and what the sums that the server took then hold."""

import os
from pathlib import Path

import pytest
from error_codes import coded
from faults import made

import fulcrum
from fulcrum.audit.evidence.findings import CONSISTENT, VIOLATED
from fulcrum.audit.evidence.judging import Errors
from fulcrum.audit.integration.engine_runs import engine_run_probes
from fulcrum.errors import EngineError

pytest.importorskip("nvflare", reason="needs the extra nvflare")
pytestmark = pytest.mark.engines

SITE_CODE = Path(__file__).parent / "site"
ERRORS = Errors.share(10, 12, 0.99999)
SIZES = {"north": [200, 180, 150], "south": [100, 220]}


def conduct(monkeypatch, name):
    """Has every site that is started from now on misbehave; this process has begun already, and does not."""
    path = os.pathsep.join([str(SITE_CODE), *filter(None, [os.environ.get("PYTHONPATH")])])
    for variable, value in {"PYTHONPATH": path, "FULCRUM_TEST_CONDUCT": name, "FULCRUM_TEST_SILENT": "north-2"}.items():
        monkeypatch.setenv(variable, value)


@pytest.mark.parametrize(("purpose", "parameters"), [("research", None), ("deployment", 3_000)])
def test_sums_of_canaries_hold_the_noise_of_the_plan(purpose, parameters):
    told = []
    plan = made(purpose, sizes=SIZES, rounds=3, parameters=parameters)
    found = engine_run_probes(plan, ERRORS, engine="nvflare", seed=1, on_round=lambda *at: told.append(at))
    assert [(probe.of, probe.node, probe.verdict) for probe in found] == [
        ("NVIDIA FLARE", "north", CONSISTENT),
        ("NVIDIA FLARE", "south", CONSISTENT),
    ]
    assert all(probe.values >= 8_192 and probe.noise_ratio == pytest.approx(1, abs=0.05) for probe in found)
    assert told == [("NVIDIA FLARE, run 1", number, 3) for number in range(4)]


@pytest.mark.parametrize(("epsilon", "groups"), [(1.0, ["north", "south"]), ({"federation": 1.0}, ["federation"])])
def test_masked_sums_of_canaries_hold_the_noise_of_the_plan(epsilon, groups):
    plan = made("deployment", sizes=SIZES, rounds=3, parameters=3_000, aggregation="masked", epsilon=epsilon)
    found = engine_run_probes(plan, ERRORS, engine="nvflare", seed=1)
    assert [(probe.node, probe.verdict) for probe in found] == [(group, CONSISTENT) for group in groups]
    assert all(probe.noise_ratio == pytest.approx(1, abs=0.05) for probe in found)


@pytest.mark.parametrize("aggregation", ["trusted", "masked"])
def test_a_silo_whose_noise_is_missing_is_found_in_its_region(aggregation, monkeypatch):
    conduct(monkeypatch, "silent")
    plan = made("deployment", sizes=SIZES, rounds=3, parameters=3_000, aggregation=aggregation)
    north, south = engine_run_probes(plan, ERRORS, engine="nvflare", seed=1)
    assert (north.verdict, south.verdict) == (VIOLATED, CONSISTENT)
    assert "as wide as the plan says" in north.reasons[0]
    assert north.noise_ratio < 0.95


def test_noise_used_again_is_found(monkeypatch):
    conduct(monkeypatch, "again")
    found = engine_run_probes(made(sizes=SIZES, rounds=3, parameters=None), ERRORS, engine="nvflare", seed=1)
    assert {probe.verdict for probe in found} == {VIOLATED}
    assert all("not fresh: between rounds" in probe.reasons[0] for probe in found)


def tiers(**options):
    sizes = {region: [200, 180] for region in ("ra", "rb", "rc", "rd")}
    outer = {"country": {"east": ["ra", "rb"], "west": ["rc", "rd"]}}
    given = {"rounds": 8, "epsilon": {"region": 8.0, "country": 5.0}, "purpose": "deployment"}
    return fulcrum.plan(fulcrum.Federation.from_sizes(sizes, outer=outer), **given | options)


@pytest.mark.parametrize("aggregation", ["trusted", "masked"])
def test_a_country_that_sends_one_regions_sum_as_its_own_is_found(aggregation, monkeypatch):
    """With 200 parameters no norm of a round shows that the noise of the other region is missing."""
    conduct(monkeypatch, "forward")
    monkeypatch.setenv("FULCRUM_TEST_FORWARD", "east")
    plan = tiers(parameters=200, aggregation=aggregation)
    east, west = engine_run_probes(plan, ERRORS, engine="nvflare", seed=1, seconds=1.0)
    assert (east.node, east.verdict, west.node, west.verdict) == ("east", VIOLATED, "west", CONSISTENT)
    assert "as wide as the plan says" in " ".join(east.reasons)
    assert east.noise_ratio == pytest.approx(0.5**0.5, abs=0.06)


def test_with_many_parameters_the_server_refuses_such_a_sum_at_once(monkeypatch):
    conduct(monkeypatch, "forward")
    monkeypatch.setenv("FULCRUM_TEST_FORWARD", "east")
    with pytest.raises(EngineError, check=coded("audit.sum-missing", sender="east", round_number=1)):
        engine_run_probes(tiers(rounds=1, parameters=8_000), ERRORS, engine="nvflare", seed=1, seconds=1.0)


def test_noise_that_is_missing_below_one_country_is_found_in_its_sum(monkeypatch):
    """One of the four silos below the country draws no noise, in a masked group whose sum nobody outside reads."""
    conduct(monkeypatch, "silent")
    monkeypatch.setenv("FULCRUM_TEST_SILENT", "ra-1")
    plan = tiers(parameters=400, aggregation="masked")
    east, west = engine_run_probes(plan, ERRORS, engine="nvflare", seed=1, seconds=1.0)
    assert (east.node, east.verdict, west.node, west.verdict) == ("east", VIOLATED, "west", CONSISTENT)
    assert east.noise_ratio < 0.95
