"""The gradients of a user's training module, checked by person: faults named, sound modules left alone."""

import json
from pathlib import Path

import numpy as np
import pytest
from error_codes import coded
from person_faults import CLASSES, FEATURES, gradient, made, persons

from fulcrum.audit.audit_run import AuditedModule, whole_audit
from fulcrum.audit.evidence.findings import CONSISTENT, VIOLATED
from fulcrum.audit.integration import person_checks
from fulcrum.audit.integration.real_person_sums import head_sum, module_probes
from fulcrum.cli.command_line import run
from fulcrum.core.privacy_unit import PrivacyUnit
from fulcrum.core.training.training_module import TrainingModule
from fulcrum.errors import FulcrumError
from fulcrum.planning.plan import save_plan

PLAN = made(unit_name="patient")


def start(options):
    return {"head": np.zeros((FEATURES, CLASSES))}


def sound(model, records):
    return {"head": -gradient(model["head"], records).reshape(FEATURES, CLASSES)}


def probes_of(gradients, plan=PLAN, records=None, **functions):
    people = persons() if records is None else records
    module = TrainingModule(start=start, persons=lambda _: iter(people), gradients=gradients, **functions)
    return module_probes(plan, module, name="mymodule", silo="north-1", options={}, seed=3)


def with_momentum():
    kept = {"head": 0.0}

    def gradients(model, records):
        kept["head"] = sound(model, records)["head"] + 0.9 * kept["head"]
        return dict(kept)

    return gradients


def with_running_mean():
    """Features are centred by the mean of all features so far, as batch normalisation does."""
    seen = []

    def gradients(model, records):
        seen.append(records[0])
        return sound(model, (records[0] - np.concatenate(seen).mean(axis=0), records[1]))

    return gradients


def with_own_generator():
    drawn = np.random.default_rng(1)
    return lambda model, records: sound(model, (records[0] + drawn.normal(size=records[0].shape), records[1]))


@pytest.mark.parametrize("fault", [with_momentum, with_running_mean, with_own_generator])
def test_a_module_that_remembers_earlier_calls_is_named(fault):
    [probe] = probes_of(fault())
    assert (probe.verdict, probe.fault) == (VIOLATED, person_checks.REMEMBERS)
    assert probe.of == "gradients of mymodule"
    assert "records of one patient" in probe.reasons[0]


def changes_its_model(model, records):
    model["head"] += 1.0
    return sound({"head": model["head"] - 1.0}, records)


@pytest.mark.parametrize("gradients", [sound, changes_its_model])
@pytest.mark.parametrize("purpose", ["research", "deployment"])
def test_a_sound_module_has_no_fault(gradients, purpose):
    [probe] = probes_of(gradients, made(purpose))
    assert (probe.verdict, probe.reasons) == (CONSISTENT, [])


def test_rows_that_differ_between_two_calls_are_named():
    calls = []

    def rows(model, assignment):
        calls.append(1)
        yield np.ones((3, FEATURES * CLASSES)) * len(calls)

    [probe] = probes_of(None, gradient_rows=rows)
    assert probe.fault == person_checks.REMEMBERS
    [probe] = probes_of(None, gradient_rows=lambda model, _: iter([np.ones((3, FEATURES * CLASSES))]))
    assert probe.verdict == CONSISTENT


def test_a_module_without_persons_or_gradients_is_refused():
    with pytest.raises(FulcrumError, check=coded("audit.persons-too-few", persons=1)):
        probes_of(sound, records=persons()[:1])
    with pytest.raises(FulcrumError, check=coded("audit.gradients-zero")):
        probes_of(lambda model, records: {"head": np.zeros_like(model["head"])})


def test_the_embedded_engine_has_no_fault():
    for neighbours in ("replace", "add-remove"):
        unit = PrivacyUnit(name="person", neighbours=neighbours)
        [probe] = person_checks.person_probes(head_sum(seed=1, node="lille"), unit, lattice=False)
        assert (probe.verdict, probe.reasons) == (CONSISTENT, [])


MODULE = """
import numpy as np

KEPT = [0.0]

def start(options):
    return {"head": np.zeros(4)}

def persons(assignment):
    for person in range(5):
        yield np.random.default_rng(person).normal(size=(2, 4))

def gradients(model, records):
    KEPT[0] = (records * (records @ model["head"] - 1)[:, None]).sum(axis=0) + KEEP * KEPT[0]
    return {"head": KEPT[0]}
"""


@pytest.mark.parametrize(("keep", "code"), [("0.0", 0), ("0.5", 1)])
def test_the_command_checks_a_module(keep, code, tmp_path: Path, monkeypatch, capsys):
    name = f"audited_gradients_{code}"
    (tmp_path / f"{name}.py").write_text(f"KEEP = {keep}\n{MODULE}")
    monkeypatch.syspath_prepend(tmp_path)
    save_plan(made(sizes={"north": [100] * 2}, rounds=2), tmp_path / "plan.json")
    arguments = ["audit", str(tmp_path / "plan.json"), "--trials", "1000", "--seed", "1", "--train", name]
    assert run([*arguments, "--format", "json"]) == code
    audited = json.loads(capsys.readouterr().out)
    assert audited["unit"] == "person"
    [probe] = [probe for probe in audited["probes"] if probe["of"] == f"gradients of {name}"]
    assert probe["fault"] == (person_checks.REMEMBERS if code else "")


def test_options_of_persons_are_refused_for_a_plan_of_silos():
    plan = made(unit="silo")
    with pytest.raises(FulcrumError, check=coded("audit.module-without-persons")):
        whole_audit(plan, trials=1_000, seed=1, module=AuditedModule(name="mymodule"))
    with pytest.raises(FulcrumError, check=coded("audit.canary-silos-of-silos")):
        whole_audit(plan, trials=1_000, seed=1, canary_silos=2)
    with pytest.raises(FulcrumError, check=coded("audit.canary-silos-range", canary_silos=10)):
        whole_audit(made(), trials=1_000, seed=1, canary_silos=10)
