"""Noise that real parts draw: releases through scratch ledgers, a region's sums, the embedded engine, a recorded run."""

import dataclasses
import math
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from error_codes import coded
from faults import SIZES, made

import fulcrum
from fulcrum.audit.evidence.findings import CONSISTENT, LOOSER, VIOLATED
from fulcrum.audit.evidence.judging import Errors
from fulcrum.audit.integration import release_noise as releases
from fulcrum.audit.integration.recorded_noise import engine_probes, made_up_task, read_recorded_run, run_probes
from fulcrum.audit.integration.release_noise import probed_silos, region_probes, release_probes
from fulcrum.core.noise import mechanism
from fulcrum.core.noise.noise_sources import SecureNoise
from fulcrum.errors import DataError
from fulcrum.simulation.embedded import batched_engine as engine
from fulcrum.simulation.embedded.federation_jobs import Variants
from fulcrum.simulation.embedded.models import Model
from fulcrum.simulation.training_runs import save_run, train

ERRORS = Errors.share(10, 12, 0.99999)
PLANS = {purpose: made(purpose) for purpose in ("research", "deployment")}


def verdicts(probes):
    assert probes
    return {probe.verdict for probe in probes}


@pytest.mark.parametrize("purpose", PLANS)
def test_releases_and_a_regions_sum_hold_the_noise_of_the_plan(purpose):
    plan = PLANS[purpose]
    found = release_probes(plan, ERRORS, silos=probed_silos(plan), seed=1)
    assert [probe.node for probe in found] == ["north-1", "south-1", "west-1"]
    assert verdicts(found) == {CONSISTENT}
    assert verdicts(region_probes(plan, ERRORS, seed=1)) == {CONSISTENT}


OUTER = {"country": {"upper": ["north", "south"], "lower": ["west"]}}


@pytest.mark.parametrize("purpose", PLANS)
def test_below_countries_releases_and_a_regions_sum_hold_the_noise_of_the_plan(purpose, monkeypatch):
    """The region of the test seals nothing to a parent: an audit needs the region's sum, and no country."""
    federation = fulcrum.Federation.from_sizes(SIZES, outer=OUTER)
    epsilon = {"region": 4.0, "country": 2.0}
    plan = fulcrum.plan(federation, rounds=4, epsilon=epsilon, purpose=purpose, parameters=400)
    assert verdicts(release_probes(plan, ERRORS, silos=["north-1"], seed=1)) == {CONSISTENT}
    [found] = region_probes(plan, ERRORS, seed=1)
    assert (found.node, found.verdict, found.values) == ("south", CONSISTENT, 800)
    assert found.noise_ratio == pytest.approx(1, abs=0.12)
    quiet = {silo for silo in range(len(federation)) if federation.silo_name(silo).startswith("south")}
    whole = releases._release_canaries

    def without_noise(plan, silo, *given):
        made = whole(plan, silo, *given)
        if plan.index[silo] not in quiet:
            return made
        step = made[0][0].step or 1.0
        kind = made[0][0].values.dtype
        return [(dataclasses.replace(sent, values=(update / step).astype(kind)), update) for sent, update in made]

    monkeypatch.setattr(releases, "_release_canaries", without_noise)
    monkeypatch.setattr("fulcrum.aggregation.contributions.norm_bounds", lambda *given: (0.0, np.inf))
    [found] = region_probes(plan, ERRORS, seed=1)
    assert (found.node, found.verdict) == ("south", VIOLATED)


def test_a_plan_with_two_nodes_of_one_name_is_audited_without_a_region():
    outer = {"country": {"upper": ["north", "south"], "west": ["west"]}}
    plan = fulcrum.plan(fulcrum.Federation.from_sizes(SIZES, outer=outer), rounds=2, epsilon=4.0, parameters=40)
    assert region_probes(plan, ERRORS, seed=1) == []
    assert verdicts(release_probes(plan, ERRORS, silos=["west-1"], seed=1)) == {CONSISTENT}


def test_releases_with_narrow_noise_are_found(monkeypatch):
    drawn = SecureNoise.integers
    monkeypatch.setattr(
        SecureNoise, "integers", lambda self, *, width, count: drawn(self, width=0.7 * width, count=count)
    )
    plan = PLANS["deployment"]
    assert verdicts(release_probes(plan, ERRORS, silos=["north-1"], seed=1)) == {VIOLATED}


def test_releases_that_are_not_clipped_are_found(monkeypatch):
    monkeypatch.setattr(mechanism, "clip", lambda update, norm, share=1.0: update)
    found = release_probes(PLANS["research"], ERRORS, silos=["west-1"], seed=1)
    assert verdicts(found) == {VIOLATED}
    assert found[0].reasons[0] == "Canaries arrive 1e+03 times as large as the clip admits."


def test_a_policy_refuses_in_an_audit_what_it_refuses_in_earnest():
    strict = fulcrum.Policy(largest_epsilon_above=0.1, largest_epsilon_inside=0.1)
    with pytest.raises(fulcrum.PolicyError, match=r"allows epsilon 0\.1 above"):
        release_probes(PLANS["deployment"], ERRORS, silos=["north-1"], seed=1, policy=strict)


def test_no_ledger_outlives_the_audit(monkeypatch):
    opened = []
    real = releases.Ledger.open.__func__

    def noticed(cls, path, **options):
        opened.append(Path(path))
        return real(cls, path, **options)

    monkeypatch.setattr(releases.Ledger, "open", classmethod(noticed))
    release_probes(PLANS["deployment"], ERRORS, silos=["north-1"], seed=1)
    assert opened
    assert not any(path.exists() or path.parent.exists() for path in opened)


@pytest.mark.parametrize("options", [{}, {"recipe": "joint"}, {"injection": "aggregator"}])
def test_the_embedded_engines_sums_hold_the_noise_of_the_plan(options):
    assert verdicts(engine_probes(made(**options), ERRORS, seed=3)) == {CONSISTENT}


def faulty(monkeypatch, change):
    drawn = engine.block_noise
    monkeypatch.setattr(
        engine, "block_noise", lambda job, block, number, parameters: change(drawn, job, block, number, parameters)
    )


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda drawn, *given: 0.7 * drawn(*given), VIOLATED),
        (lambda drawn, *given: 1.4 * drawn(*given), LOOSER),
        (lambda drawn, job, block, number, parameters: drawn(job, block, 1, parameters), VIOLATED),
    ],
)
def test_a_fault_in_the_engines_noise_is_found_in_every_region(monkeypatch, change, verdict):
    faulty(monkeypatch, change)
    assert verdicts(engine_probes(made(), ERRORS, seed=3)) == {verdict}


def test_an_engine_that_does_not_clip_is_found(monkeypatch):
    plan = made()
    open_ended = dataclasses.replace(Variants.from_plans([plan]), clip_norm=np.array([plan.clip_norm]))
    clipped = mechanism.clip_factor
    used = []

    def once(size, norm, share=1.0):
        used.append(1)  # the run comes first, then the replay that an auditor makes
        return np.ones_like(size) if len(used) <= plan.rounds else clipped(size, norm, share)

    monkeypatch.setattr(mechanism, "clip_factor", once)
    assert open_ended.clip_norm.tolist() == [1.0]
    assert CONSISTENT not in verdicts(engine_probes(plan, ERRORS, seed=3, seeds=1))


def recorded(folder, plan, task, **options):
    run = train(plan, task, seeds=2, **options)
    save_run(run, folder)
    return run


def test_a_recorded_run_is_replayed_and_its_noise_tested(tmp_path):
    plan = made()
    task = made_up_task(plan, seed=4, features=30)
    recorded(tmp_path, plan, task)
    run = read_recorded_run(tmp_path, plan)
    found = run_probes(run, plan, task, ERRORS)
    assert verdicts(found) == {CONSISTENT}
    assert all(probe.values == 2 * plan.rounds * 62 for probe in found)
    # Whoever halves the noise in the file is found out, and so is noise that was drawn once.
    quiet = dataclasses.replace(run, regional_sums=run.regional_sums / 2)
    assert CONSISTENT not in verdicts(run_probes(quiet, plan, task, ERRORS))
    with pytest.raises(DataError, check=coded("audit.run-of-other-data", features=30)):
        run_probes(run, plan, made_up_task(plan, seed=4, features=8), ERRORS)


def test_runs_that_cannot_be_audited_are_refused_in_one_line(tmp_path):
    plan, other = made(), made(rounds=3)
    with pytest.raises(DataError, check=coded("audit.run-unreadable")):
        read_recorded_run(tmp_path / "nowhere", plan)
    task = made_up_task(plan, seed=4, features=5)
    recorded(tmp_path, plan, task, keep_regional_sums=False)
    with pytest.raises(DataError, check=coded("audit.sums-missing")):
        read_recorded_run(tmp_path, plan)
    with pytest.raises(DataError, check=coded("run.other-plan")):
        read_recorded_run(tmp_path, other)
    still = Model(
        parameters=plan.parameters,
        init=lambda flat: flat,
        step=lambda state, *_: state,
        final=lambda state: state,
        scores=lambda _, features: features[:, :2],
    )
    recorded(tmp_path, plan, task, model=still)
    with pytest.raises(DataError, check=coded("audit.run-own-model")):
        read_recorded_run(tmp_path, plan)
    shape = (1, plan.rounds, 3, 33_125_000, 5)
    header = repr({"descr": "<f8", "fortran_order": False, "shape": shape}) + "\n"
    with zipfile.ZipFile(tmp_path / "observed.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "regional_sums.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
        )
        archive.infolist()[0].file_size += 8 * math.prod(shape)
    tracemalloc.start()
    with pytest.raises(DataError, check=coded("archive.inflation")):
        read_recorded_run(tmp_path, plan)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    (tmp_path / "observed.npz").write_bytes(b"no archive")
    with pytest.raises(DataError, check=coded("archive.malformed")):
        read_recorded_run(tmp_path, plan)
