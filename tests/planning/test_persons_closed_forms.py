"""The closed forms of a plan for persons: noise of regions, least noise, persons in several silos, the observer inside."""

import math

import msgspec
import numpy as np
import pytest

import fulcrum
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.planning.theory.calibration import noise_for
from fulcrum.readers.federation import Federation
from fulcrum.readers.profiles import profile

EXACT = 1e-12
SIZES = {"north": [12, 8, 5, 30], "south": [7, 3], "west": [40]}
KAPPA = {"replace": 2.0, "add-remove": 1.0}


def shift_quotient(epsilon, *, rounds=10, delta=1e-5):
    """Returns q = sqrt(T) / mu of a target, from the accountant's multiplier for the silo unit, 2 sqrt(T) / mu."""
    return noise_for(epsilon, rounds=rounds, delta=delta) / 2


def made(federation=None, **settings):
    federation = Federation.from_sizes(SIZES) if federation is None else federation
    return fulcrum.plan(federation, **({"rounds": 10, "epsilon": 1.0, "unit": "person"} | settings))


@pytest.mark.parametrize("neighbours", ["replace", "add-remove"])
@pytest.mark.parametrize("clip", [1.0, 0.25])
def test_every_region_needs_the_same_noise_whatever_its_size(neighbours, clip):
    plan = made(neighbours=neighbours, clip_norm=clip)
    persons, q = 105, shift_quotient(1.0)
    assert plan.federation.weights == pytest.approx(np.full(7, 1 / persons), rel=EXACT)
    one = (KAPPA[neighbours] * clip * q / persons) ** 2
    assert plan.node_noise("region") * clip**2 == pytest.approx(np.full(3, one), rel=EXACT)
    assert plan.model_noise * clip**2 == pytest.approx(3 * one, rel=EXACT)
    alone = made(neighbours=neighbours, clip_norm=clip, epsilon={"aggregator": 1.0})
    assert alone.model_noise * clip**2 == pytest.approx(7 * one, rel=EXACT)


@pytest.mark.parametrize(("name", "regions", "silos", "ratio"), [("severe", 5, 96, 0.052), ("consortium", 6, 50, 0.12)])
def test_regional_sums_need_a_share_of_the_noise_of_silos_for_themselves(name, regions, silos, ratio):
    together = made(profile(name))
    alone = made(profile(name), epsilon={"aggregator": 1.0})
    assert len(together.federation) == silos
    assert together.model_noise / alone.model_noise == pytest.approx(regions / silos, rel=EXACT)
    assert together.model_noise / alone.model_noise == pytest.approx(ratio, abs=5e-4)


def test_regional_sums_of_tcga_brca_need_a_sixth_of_the_noise():
    name = next(name for name in ("tcga-brca", "tcga-brca-flamby") if name in fulcrum.PROFILES)
    federation = profile(name)
    ratio = made(federation).model_noise / made(federation, epsilon={"aggregator": 1.0}).model_noise
    assert ratio == pytest.approx(len(federation.innermost.nodes) / len(federation), rel=EXACT)
    assert ratio == pytest.approx(0.162, abs=5e-4)


def test_one_masked_sum_needs_the_noise_of_one_region():
    plan = made(epsilon={"federation": 1.0}, aggregation="masked")
    assert plan.model_noise == pytest.approx((2 * shift_quotient(1.0) / 105) ** 2, rel=EXACT)


@pytest.mark.parametrize("neighbours", ["replace", "add-remove"])
def test_least_noise_weighs_persons_by_the_persons_of_their_region(neighbours):
    plan = made(neighbours=neighbours, weights="least-noise")
    by_region = np.array([55.0, 10.0, 40.0])
    expected = (by_region / (by_region**2).sum())[plan.federation.innermost.parent_of]
    assert plan.federation.weights == pytest.approx(expected, rel=1e-9)
    noise = (KAPPA[neighbours] * shift_quotient(1.0)) ** 2 / (by_region**2).sum()
    assert plan.model_noise == pytest.approx(noise, rel=1e-9)


@pytest.mark.parametrize("neighbours", ["replace", "add-remove"])
@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_persons_in_several_silos_need_h_times_the_smaller_of_h_and_the_silos_of_the_region(most, neighbours):
    plan = made(silos_per_person=most, neighbours=neighbours)
    one = (KAPPA[neighbours] * shift_quotient(1.0) / 105) ** 2
    expected = [most * min(most, silos) * one for silos in (4, 2, 1)]
    assert plan.node_noise("region") == pytest.approx(expected, rel=EXACT)


def test_a_person_in_two_silos_without_provision_has_a_larger_epsilon():
    """Epsilon 1 becomes 2.155 for two silos of one region, and 1.465 for silos of two regions."""
    assert made().person_epsilons["two_silos_above"] == pytest.approx(2.155, abs=5e-4)
    apart = made(Federation.from_sizes({"north": [9], "south": [4], "west": [4]}))
    assert apart.person_epsilons["two_silos_above"] == pytest.approx(1.465, abs=5e-4)
    # In one masked group all silos are in one sum.
    masked = made(epsilon={"federation": 1.0}, aggregation="masked")
    assert masked.person_epsilons["two_silos_above"] == pytest.approx(2.155, abs=5e-4)


def test_the_second_convention_halves_or_doubles_the_shift():
    replaced, added = made(), made(neighbours="add-remove")
    half, double = (float(epsilon_of_shift(replaced.worst_shift() * k, delta=1e-5)) for k in (0.5, 2))
    assert replaced.person_epsilons["other_neighbours_above"] == pytest.approx(half, rel=1e-9)
    assert added.person_epsilons["other_neighbours_above"] == pytest.approx(double, rel=1e-9)


@pytest.mark.parametrize("silo_clip", [None, 6.0, 1.0])
@pytest.mark.parametrize("neighbours", ["replace", "add-remove"])
def test_a_silo_as_a_whole_moves_by_twice_its_persons_or_its_clip(silo_clip, neighbours):
    plan = made(silo_clip=silo_clip, neighbours=neighbours)
    persons = np.array([12, 8, 5, 30, 7, 3, 40]) if silo_clip is None else np.full(7, silo_clip)
    persons = np.minimum(persons, [12, 8, 5, 30, 7, 3, 40])
    noise = plan.node_noise("region")[plan.federation.innermost.parent_of]
    shift = math.sqrt(10) * 2 * persons / 105 / np.sqrt(noise)
    expected = float(epsilon_of_shift(float(shift.max()), delta=1e-5))
    assert plan.person_epsilons["whole_silo_above"] == pytest.approx(expected, rel=1e-9)
    if silo_clip == 1.0 and neighbours == "replace":
        assert plan.person_epsilons["whole_silo_above"] == pytest.approx(1.0, rel=1e-9)


def test_a_target_for_whole_silos_is_met_beside_the_target_for_persons():
    plan = made(silo_epsilon=5.0, silo_clip=6.0)
    assert plan.person_epsilons["whole_silo_above"] == pytest.approx(5.0, rel=1e-9)
    assert plan.worst_epsilon() < 1
    assert made(silo_epsilon=5.0, silo_clip=1.0).worst_epsilon() == pytest.approx(1.0, rel=1e-9)


def test_a_large_region_lets_its_aggregator_learn_much_and_masks_prevent_that():
    """A region of 62 silos at epsilon 1 has 10.7 inside, and 1.009 where sums are masked and one silo helps."""
    federation = Federation.from_sizes({"large": [10] * 62, "small": [10] * 5})
    inside = made(federation).epsilon(SILO := "silo")[:62].max()
    assert inside == pytest.approx(10.7, abs=0.05)
    masked = made(federation, aggregation="masked")
    assert masked.epsilon(SILO)[:62].max() == pytest.approx(1.009, abs=1e-3)
    planned = made(federation, aggregation="masked", colluders=1)
    assert planned.epsilon(SILO).max() == pytest.approx(1.0, rel=1e-9)


def test_a_clip_share_is_on_the_persons_clip_and_changes_no_bound():
    plan = made(clip_norm="auto", parameters=1_000)
    assert 0 < plan.clip_share < 1
    assert plan.node_noise("region") == pytest.approx(made().node_noise("region"), rel=EXACT)


def test_lattice_noise_is_paid_for_at_every_epsilon_that_is_stated_as_a_guarantee():
    """A distance t between noises costs (1 + e^epsilon) t of delta: at a large epsilon more than any reserve."""
    federation = Federation.from_sizes({"large": [10] * 40, "small": [10] * 3})
    plan = made(federation, purpose="deployment", parameters=20, neighbours="add-remove", epsilon=4.0, delta=1e-4)
    raw, stated = plan.gaussian_person_epsilons, plan.person_epsilons
    assert raw["other_neighbours_inside"] > 100
    assert stated["other_neighbours_inside"] == math.inf
    assert stated["other_neighbours_above"] == raw["other_neighbours_above"] < 20
    assert stated["whole_silo_above"] == raw["whole_silo_above"] > 10
    assert "no guarantee against the second" in fulcrum.guarantee_of(plan).statement
    assert [check for check in fulcrum.verify(plan) if not check.holds] == []
    cost = 10 * 43 * (20 * 2.0**-108 + 2.0**-79) * (1 + math.exp(raw["other_neighbours_above"]))
    assert plan.reserve >= cost
    content = plan.content()
    claimed = msgspec.structs.replace(
        content,
        summary=msgspec.structs.replace(content.summary, other_neighbours_inside=raw["other_neighbours_inside"]),
    )
    failing = {check.name for check in fulcrum.verify(msgspec.structs.replace(claimed, digest="")) if not check.holds}
    assert "persons" in failing
