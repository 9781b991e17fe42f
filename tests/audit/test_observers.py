"""Whom the audit plays, and what is claimed against each; what colluders and absence change."""

import numpy as np
import pytest
from error_codes import coded
from faults import made, narrow_noise

import fulcrum
from fulcrum.audit.evidence.findings import CONSISTENT, VIOLATED
from fulcrum.audit.replays import audited_path
from fulcrum.audit.replays import canary_game as auditing
from fulcrum.audit.replays.audited_path import AuditedPath, silo_release
from fulcrum.audit.replays.canary_game import audit
from fulcrum.audit.replays.played_observers import MOST_REGIONS, MOST_RELEASES, stages_of
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.planning.content.plan_figures import with_noise


def finding(found, node, observer):
    [one] = [each for each in found.findings if (each.node, each.observer) == (node, observer)]
    return one


def test_every_region_tier_and_observer_is_played():
    plan = fulcrum.plan(
        fulcrum.Federation.from_columns(
            silo=["a", "b", "c", "d", "e"],
            records=np.array([10.0, 20.0, 30.0, 40.0, 50.0]),
            tiers={"region": ["n", "n", "s", "s", "t"], "country": ["x", "x", "x", "x", "y"]},
        ),
        rounds=3,
        epsilon=1.0,
        dropouts=1,
    )
    played = {(stage.tier, stage.node, view.observer) for stage in stages_of(plan) for view in stage.views}
    assert played == {
        *(("region", node, "above") for node in "nst"),
        *(("region", node, how) for node in "ns" for how in ("colluding", "dropouts")),
        *(("silo", node, "inside") for node in "nst"),
        *(("country", "x", how) for how in ("above", "colluding", "dropouts")),
        *(("federation", "federation", how) for how in ("above", "colluding", "dropouts")),
    }


def test_claims_are_those_of_the_plan():
    plan = made(dropouts=1, colluders=1)
    names = plan.federation.silo_names.tolist()
    found = audit(plan, trials=1_000, seed=1)
    for one in found.findings:
        silo = names.index(one.silo)
        counts = {"colluders": one.colluders, "dropouts": one.missing}
        assert one.stated == pytest.approx(plan.epsilon(one.tier, **counts)[silo], rel=1e-9)
        assert one.renyi > one.exact
    promised = finding(found, "south", "dropouts")
    assert (promised.colluders, promised.missing) == (1, 1)
    assert promised.stated == pytest.approx(plan.epsilon_above.max(), rel=1e-6)


def test_the_silo_attacked_is_the_one_with_the_highest_epsilon_there():
    plan = made()
    for stage in stages_of(plan):
        shown = plan.epsilon(stage.tier)
        there = [silo for members in stage.members.values() for silo in members]
        if stage.tier == "silo":
            region = plan.federation.innermost.parent_of
            there = np.flatnonzero(region == region[stage.silo])
        assert shown[stage.silo] == shown[there].max()


def test_measured_epsilon_rises_with_colluders_as_the_formula_says():
    sizes, claimed, measured = {"north": [100] * 4}, [], []
    for colluders in (1, 2, 3):
        # The noise is that of a plan without colluders: what they take is not made up for.
        plan = made(sizes=sizes, colluders=0)
        told = fulcrum.plan(plan.federation, rounds=10, epsilon=1.0, colluders=colluders)
        plan = with_noise(told, "optimal", plan.noise_multiplier)
        one = finding(audit(plan, trials=60_000, seed=colluders, confidence=0.999), "north", "colluding")
        assert one.colluders == colluders
        assert one.verdict == CONSISTENT
        claimed.append(one.exact)
        measured.append(one.gaussian)
    assert claimed[2] == pytest.approx(2.1547, rel=1e-3)  # three of four gone: the silo's own noise alone is left
    assert measured[0] < measured[1] < measured[2]
    assert all(0.8 * claim < found <= claim for claim, found in zip(claimed, measured, strict=True))


@pytest.mark.parametrize("aggregation", ["trusted", "masked"])
def test_measured_epsilon_rises_with_colluders_and_missing_silos_as_the_formula_says(aggregation):
    """Eight equal silos: c hand over their noise, d are missing, and 8 - c - d multiples of one noise are left."""
    sizes, found = {"north": [100] * 8}, {}
    plain = made(sizes=sizes, parameters=None)
    for colluders, dropouts in [(0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (1, 2), (2, 2)]:
        told = made(sizes=sizes, parameters=None, colluders=colluders, dropouts=dropouts, aggregation=aggregation)
        plan = with_noise(told, "optimal", plain.noise_multiplier)
        audited = audit(plan, trials=60_000, seed=7, confidence=0.999)
        one = finding(audited, "north", "dropouts" if dropouts else "above")
        if colluders and not dropouts:
            one = finding(audited, "north", "inside" if aggregation == "masked" else "colluding")
        assert (one.colluders, one.missing) == (colluders, dropouts)
        assert one.verdict == CONSISTENT
        assert one.noise_ratio == pytest.approx(1, abs=0.02)
        # mu of one silo among so many, from the noise of one sum: sqrt(8 / left) times that of all eight.
        left = 8 - colluders - dropouts
        whole = 2 * np.sqrt(plan.rounds) / (plain.noise_multiplier[0] * np.sqrt(8))
        assert one.exact == pytest.approx(
            float(epsilon_of_shift(whole * np.sqrt(8 / left), delta=plan.delta)), rel=1e-6
        )
        assert 0.8 * one.exact < one.gaussian <= one.exact
        found[colluders + dropouts] = [*found.get(colluders + dropouts, []), one.exact]
    for few, more in zip(sorted(found), sorted(found)[1:], strict=False):
        assert max(found[few]) < min(found[more])
        assert max(found[few]) == pytest.approx(min(found[few]), rel=1e-9)  # who is missing counts as who tells


def test_a_plan_that_forgets_its_colluders_is_found_out():
    class Forgetful(fulcrum.Plan):
        def epsilon(self, tier=None, *, colluders=None, dropouts=None):
            return super().epsilon(tier, colluders=0, dropouts=0)

    plan = made(sizes={"north": [100] * 4}, colluders=2)
    fields = {name: getattr(plan, name) for name, field in Forgetful.__dataclass_fields__.items() if field.init}
    one = finding(audit(Forgetful(**fields), trials=60_000, seed=1), "north", "colluding")
    assert one.verdict == VIOLATED


@pytest.mark.parametrize(
    ("share", "said"), [(0.95, "; 9 is stated, and the plan's noise should give "), (0.8, "; 9 is stated.")]
)
def test_a_broken_claim_is_named_for_what_it_is_the_epsilon_stated_or_that_of_the_noise(share, said):
    plan = made(sizes={"north": [100]}, epsilon=9.0, accountant="renyi")
    found = audit(plan, trials=100_000, seed=1, mechanism=narrow_noise(plan, share))
    [reason] = [one for one in finding(found, "north", "above").reasons if "on a Gaussian trade-off" in one]
    assert said in reason


def test_noise_that_aggregators_inject_conceals_above_and_not_inside():
    plan = made(injection="aggregator")
    found = audit(plan, trials=4_000, seed=2, confidence=0.9999)
    assert found.verdict == CONSISTENT
    inside = finding(found, "north", "inside")
    assert (inside.stated, inside.exact) == (None, None)
    assert inside.assumption_free > 5
    assert {one.observer for one in found.findings} == {"above", "inside"}
    assert any("nothing is claimed" in note for note in found.notes)


def test_of_many_regions_the_most_exposed_smallest_and_largest_are_audited_and_the_rest_is_owned_up_to():
    plan = made(sizes={f"r{number}": [100] * (1 + number % 5) for number in range(40)}, rounds=2)
    found = audit(plan, trials=1_000, seed=3)
    nodes = {one.node for one in found.findings}
    assert len(nodes) == MOST_REGIONS
    assert any("24 of 40 regions were audited" in note for note in found.notes)


def test_of_100_000_silos_no_more_are_replayed_than_time_and_memory_allow():
    plan = made(sizes={f"r{number}": [100] * (500 * number) for number in range(1, 20)} | {"rest": [1] * 5_000})
    assert len(plan.federation) == 100_000
    sums = [stage for stage in stages_of(plan) if stage.tier == "region"]
    assert 0 < plan.rounds * sum(stage.silos for stage in sums) <= MOST_RELEASES
    assert not [stage for stage in stages_of(plan) if stage.tier == "federation"]
    assert {"r1", "rest"} <= {stage.node for stage in sums}, "small and exposed ones first, as far as they fit"


def test_sums_that_are_too_large_to_replay_are_left_out_and_owned_up_to():
    plan = made(sizes={"north": [100] * 100_000})
    found = audit(plan, trials=1_000, seed=3)
    assert {one.observer for one in found.findings} == {"inside"}
    assert any(note.startswith("No sum was replayed") for note in found.notes)
    assert audit(plan, trials=1_000, seed=3, silo="north-7").findings[0].silo == "north-7"
    for epsilon in (1.0, {"federation": 1.0}):
        masked = made(sizes={"north": [100] * 20_000}, aggregation="masked", epsilon=epsilon, parameters=None)
        with pytest.raises(fulcrum.ParameterError, check=coded("audit.masked-sum-too-large", rounds=10)):
            audit(masked, trials=1_000, seed=3)


def test_large_deployments_verify_the_plan_for_as_few_silos_as_take_minutes():
    plan = made("deployment", sizes={f"r{number}": [100] * 10 for number in range(2_000)}, rounds=2)
    sums = [stage for stage in stages_of(plan) if stage.tier == "region" and len(stage.views) > 1]
    assert sum(stage.silos for stage in sums) == 200


def test_no_more_numbers_are_held_at_once_than_memory_allows(monkeypatch):
    held = []

    def released(path, silo, number, signs, seed):
        held.append(len(signs))
        return silo_release(path, silo, number, signs, seed)

    monkeypatch.setattr("fulcrum.audit.replays.replaying._AT_ONCE", 2_000)
    plan = made(sizes={"north": [100] * 20}, rounds=2)
    found = audit(plan, trials=1_000, seed=3, mechanism=AuditedPath(plan=plan, released=released), confidence=0.9999)
    assert held.count(100) == 2 * 20 * 10  # of each of 20 silos, in two rounds: ten times a hundred replays
    assert set(held) == {100, 200, 800}  # the observer inside sees one silo: the pilot, then the rest
    assert {one.trials for one in found.findings} == {800}
    assert found.verdict == CONSISTENT


def test_one_silo_alone_is_audited_in_its_region():
    plan = made()
    found = audit(plan, trials=1_000, seed=3, silo="south-2")
    assert "Silo 'south-2' alone was audited, and no other." in found.notes
    assert {one.silo for one in found.findings} == {"south-2"}
    assert {one.observer for one in found.findings} == {"above", "colluding", "inside"}
    with pytest.raises(fulcrum.ReleaseError, check=coded("plan.silo-unknown", silo="south-9")):
        audit(plan, trials=1_000, silo="south-9")


def test_a_pooling_server_shows_no_more_than_the_sums_it_was_given():
    plan = made(recipe="joint", epsilon=3.0, least_influence=0.0)
    found = audit(plan, trials=3_000, seed=5, confidence=0.999)
    [model] = [one for one in found.findings if one.observer == "model"]
    above = max(one.exact for one in found.findings if one.observer == "above")
    assert model.exact == pytest.approx(above, rel=1e-6)
    assert model.verdict != VIOLATED
    assert 0 < model.gaussian <= above
    assert not [one for one in found.findings if one.tier == "federation" and one.observer == "above"]


def test_models_that_are_attacked_less_or_not_at_all_are_owned_up_to(monkeypatch):
    plan = made(sizes={"north": [100] * 3, "south": [100] * 2}, rounds=2, recipe="joint", epsilon=3.0)
    monkeypatch.setattr(auditing, "MOST_MODELS", 1_000)
    assert "The server's models were replayed 1,000 times." in audit(plan, trials=1_500, seed=5).notes
    monkeypatch.setattr(auditing, "MOST_POOLED", 4)
    found = audit(plan, trials=1_000, seed=5)
    assert "The server's models were not attacked: the plan has more than 4 silos." in found.notes
    assert "model" not in {one.observer for one in found.findings}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"trials": 10}, "trials must be from 1,000"),
        ({"confidence": 1.0}, "confidence must be at least 0.5 and below 1"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_one_line(wrong, said):
    with pytest.raises(fulcrum.ParameterError, match=said):
        audit(made(), **{"trials": 1_000, "seed": 1} | wrong)


def test_the_same_seed_finds_the_same_in_research():
    one, other = (audit(made(), trials=2_000, seed=9) for _ in range(2))
    assert one.findings == other.findings


def test_the_earlier_name_of_the_path_warns():
    with pytest.warns(DeprecationWarning, match="Use AuditedPath"):
        assert audited_path.Mechanism is AuditedPath
    with pytest.raises(AttributeError, match="no attribute 'Path'"):
        audited_path.Path  # noqa: B018


def test_a_finding_answers_to_the_earlier_name_of_its_bound():
    [first, *_] = audit(made(), trials=1_000, seed=1).findings
    with pytest.warns(DeprecationWarning, match="Use lower_bound"):
        assert first.measured == first.lower_bound == max(first.assumption_free, first.gaussian)
    assert not hasattr(first, "unmeasured")
