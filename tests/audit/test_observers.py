"""Whom the audit plays, and what is claimed against each; what colluders and absence change."""

import numpy as np
import pytest
from faults import made

import fulcrum
from fulcrum.audit.auditing import audit
from fulcrum.audit.findings import CONSISTENT, VIOLATED
from fulcrum.audit.observers import MOST_REGIONS, stages_of
from fulcrum.privacy.accounting import epsilon_of_shift


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
        plan = told.with_noise("optimal", plan.noise_multiplier)
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
        plan = told.with_noise("optimal", plain.noise_multiplier)
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
    fields = {
        name: getattr(plan, name)
        for name in Forgetful.__dataclass_fields__
        if name not in ("file_digest", "issuer", "as_read")
    }
    one = finding(audit(Forgetful(**fields), trials=60_000, seed=1), "north", "colluding")
    assert one.verdict == VIOLATED


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


def test_one_silo_alone_is_audited_in_its_region():
    plan = made()
    found = audit(plan, trials=1_000, seed=3, silo="south-2")
    assert {one.silo for one in found.findings} == {"south-2"}
    assert {one.observer for one in found.findings} == {"above", "colluding", "inside"}
    with pytest.raises(fulcrum.ReleaseError, match="knows no silo 'south-9'"):
        audit(plan, trials=1_000, silo="south-9")


def test_a_pooling_server_shows_no_more_than_the_sums_it_was_given():
    plan = made(recipe="joint", epsilon=3.0)
    found = audit(plan, trials=3_000, seed=5, confidence=0.999)
    [model] = [one for one in found.findings if one.observer == "model"]
    above = max(one.exact for one in found.findings if one.observer == "above")
    assert model.exact == pytest.approx(above, rel=1e-6)
    assert model.verdict != VIOLATED
    assert 0 < model.gaussian <= above
    assert not [one for one in found.findings if one.tier == "federation" and one.observer == "above"]


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
