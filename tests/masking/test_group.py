"""Who is masked together, by which numbers, and which of them may be missing."""

import dataclasses
import itertools
from fractions import Fraction

import numpy as np
import pytest
from error_codes import coded
from groups import Round, inputs_of, names, plan_of, refusal, region

import fulcrum
from fulcrum.aggregation.masked_group import ATTESTATION, INPUT, STAGES, largest_answer, longest_answer_of, session_of
from fulcrum.core.masking.masking_group import RESEARCH_STEP, check_sheltered, group_of
from fulcrum.core.masking.masking_thresholds import largest_minimum
from fulcrum.core.messages.membership import group_name_of, senders_of
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.core.remaining_noise import remaining_noise
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.errors import ExchangeError, ParameterError, ReleaseError

UNEQUAL = {"north": dict(zip(names(7), (10, 500, 40, 90, 300, 20, 150), strict=True))}


@pytest.mark.parametrize(("colluders", "dropouts"), [(0, 0), (0, 2), (1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("allocation", ["optimal", "least-under-collusion"])
def test_whoever_is_missing_within_the_plans_number_the_noise_left_is_what_the_plan_counts_on(
    colluders, dropouts, allocation
):
    """Exactly, over all sets of missing silos and all coalitions of the others."""
    made = plan_of(UNEQUAL, colluders=colluders, dropouts=dropouts, allocation=allocation)
    group, variance = group_of(made, "north"), made.noise_variance
    counted = remaining_noise(made.federation, variance, tier="region", excluded_silos=colluders + dropouts)
    order = made.federation.silo_names.tolist()
    for missing in itertools.chain.from_iterable(itertools.combinations(order, size) for size in range(dropouts + 1)):
        present = [silo for silo in order if silo not in missing]
        assert group.lacking(present) is None
        for silo in present:
            others = [other for other in present if other != silo]
            for coalition in itertools.combinations(others, colluders):
                left = sum(Fraction(variance[order.index(one)]) for one in present if one not in coalition)
                assert left >= Fraction(counted[order.index(silo)]) * (1 - Fraction(1, 10**9))
    for missing in itertools.combinations(order, dropouts + 1):
        assert f"{dropouts + 1} of 7 silos" in group.lacking(set(order) - set(missing))
    assert "is there" in group.lacking(set())


@pytest.mark.parametrize("sizes", [UNEQUAL, {"north": dict.fromkeys(names(5), 100), "south": {"nice": 7}}])
def test_no_release_is_larger_than_the_group_reckons_with_and_no_sum_wraps(sizes):
    made = plan_of(sizes)
    for name in senders_of(made):
        group = group_of(made, name)
        for silo, most in group.largest.items():
            terms = release_parameters_of(made, silo)
            signal = Fraction(terms.weight) * Fraction(terms.clip_norm) / Fraction(terms.step)
            assert Fraction(most) >= signal + 32 * Fraction(terms.width)
        assert sum(map(int, group.largest.values())) < 2 ** (group.bits - 1)
        assert group.bits == 32 or sum(map(int, group.largest.values())) >= 2**31
        assert group.step == terms.step


def test_research_is_masked_on_a_lattice_of_its_own():
    made = plan_of(UNEQUAL, purpose="research", clip_norm=0.5)
    group = group_of(made, "north")
    assert (group.step, group.deployed, group.bits) == (RESEARCH_STEP / 2, False, 64)
    wide = dataclasses.replace(made, noise_multiplier=np.full(7, 1e9))
    with pytest.raises(ReleaseError, check=coded("mask.sum-too-large", bits=64)):
        group_of(wide, "north")


def test_a_group_is_a_region_or_the_federation_where_it_alone_has_a_target():
    sizes = {"north": dict.fromkeys(names(5), 100), "south": {"nice": 70, "lyon": 70}}
    by_region, as_one = plan_of(sizes), plan_of(sizes, epsilon={"federation": 1.0})
    assert (senders_of(by_region), senders_of(as_one)) == (("north", "south"), ("federation",))
    assert group_name_of(by_region, "nice") == "south"
    assert group_name_of(as_one, "nice") == "federation"
    assert set(group_of(as_one, "federation").regions) == {*names(5), "nice", "lyon"}
    with pytest.raises(ExchangeError, check=coded("mask.group-unknown", group="south")):
        group_of(as_one, "south")
    both = plan_of(sizes, epsilon={"federation": 1.0, "region": 2.0})
    assert senders_of(both) == ("north", "south"), "a promise about regions needs their sums to be seen"


def test_a_region_may_be_called_federation():
    sizes = {"federation": dict.fromkeys(names(4), 100), "south": {"nice": 70}}
    made = plan_of(sizes)
    assert set(group_of(made, "federation").regions) == set(names(4))
    assert set(group_of(made, "south").regions) == {"nice"}
    assert check_sheltered(made, "nice") is None
    thin = dataclasses.replace(made, noise_multiplier=made.noise_multiplier * 0.9)
    assert check_sheltered(thin, "silo-000") is None
    with pytest.raises(ReleaseError, check=coded("mask.silo-exposed", size=1)):
        check_sheltered(thin, "nice")


def test_a_silo_alone_in_its_region_takes_part_under_a_target_inside_alone():
    """The silo's own noise meets the target, yet the silo refused a plan that verifies."""
    made = plan_of({"north": dict.fromkeys(names(4), 100), "south": {"nice": 70}}, epsilon={"server+silo": 8.0})
    assert check_sheltered(made, "nice") is None
    thin = dataclasses.replace(made, noise_multiplier=made.noise_multiplier * 0.9)
    with pytest.raises(ReleaseError, check=coded("mask.silo-exposed", size=1)):
        check_sheltered(thin, "nice")


def test_in_a_federation_that_is_one_group_silos_may_be_missing_from_every_region():
    sizes = {"north": dict.fromkeys(names(5), 100), "south": {"nice": 70, "lyon": 70}, "west": {"brest": 50}}
    tight = plan_of(sizes, epsilon={"federation": 1.0})
    loose = dataclasses.replace(tight, dropouts=1)
    told = refusal(group_of, loose, "federation", kind=ParameterError)
    assert "'federation': a group of 8 silos cannot be masked with 3 missing and 3 colluding" in told
    larger = sizes | {"east": dict.fromkeys([f"east-{number}" for number in range(6)], 100)}
    group = group_of(plan_of(larger, epsilon={"federation": 1.0}, dropouts=1), "federation")
    everybody = set(group.regions)
    assert group.lacking(everybody - {"silo-000", "nice", "brest", "east-0"}) is None
    assert "2 of 2 silos of region 'south'" in group.lacking(everybody - {"nice", "lyon"})
    assert (group.threshold, group.quorum) == (10, 10)


@pytest.mark.parametrize("colluders", [0, 1, 2])
def test_masks_hold_against_as_many_colluders_as_the_observer_inside_has(colluders):
    """Of a federation masked as one group: one silo of each region at least, each of whom may be anyone's neighbour."""
    sizes = {f"region-{place}": {f"{place}-{silo}": 100 for silo in range(3)} for place in range(140)}
    made = plan_of(sizes, epsilon={"federation": 1.0}, colluders=colluders, purpose="research")
    group, inside = group_of(made, "federation"), 140 * max(1, colluders)
    assert f"together with {max(1, colluders)} silo" in fulcrum.guarantee_of(made).statement
    assert group.colluders == inside
    assert group.neighbours > inside, "with fewer, all neighbours of a member could be against it"
    assert 2 * group.threshold > group.neighbours + 1 + inside
    assert 2 * group.quorum > 420 + inside


def test_a_key_that_two_members_have_is_refused():
    """Whoever holds it would be two members, and the plan's colluders one: four of four shares from two silos."""
    made = plan_of(UNEQUAL)
    made.keys["silo-003"] = made.keys["silo-001"]
    told = refusal(group_of, made, "north")
    assert told.startswith(
        "the plan has the same key for silos 'silo-001' and 'silo-003'. The holder of the key would count as two silos"
    )


@pytest.mark.parametrize(
    ("count", "colluders", "sheltered"), [(1, 0, False), (2, 0, True), (2, 1, False), (3, 1, True), (3, 2, False)]
)
def test_c_plus_one_silos_are_no_shelter(count, colluders, sheltered):
    """Noise that is enough for the sum alone: who is hidden by it takes part, who is not does not."""
    sizes = {"north": dict.fromkeys(names(count), 100)}
    made = plan_of(sizes, colluders=colluders)
    assert check_sheltered(made, "silo-000") is None, "as planned, its own noise is enough where it must be"
    thin = dataclasses.replace(made, noise_multiplier=made.noise_multiplier * 0.999)
    if sheltered:
        assert check_sheltered(thin, "silo-000") is None
    else:
        told = refusal(check_sheltered, thin, "silo-000", kind=ReleaseError)
        assert f"in a masked group of {count}, masks do not hide silo 'silo-000'" in told
        assert f"the server with {colluders} colluding silos in each region" in told


@pytest.mark.parametrize(("count", "dropouts", "largest"), [(4, 0, 4), (4, 1, 4), (5, 1, 5), (10, 1, 9), (10, 3, 8)])
def test_what_a_silo_can_insist_on_is_the_smallest_sum_that_others_unmask_without_it(count, dropouts, largest):
    """The silo sends its input and attests nothing after it; so many others as the plan allows are missing."""
    made = plan_of({"north": dict.fromkeys(names(count), 100)}, dropouts=dropouts)
    assert largest_minimum(made, "silo-000") == largest
    group = group_of(made, "north")
    for missing in range(dropouts + 1):
        gone = dict.fromkeys(names(count)[count - missing :], STAGES.index(INPUT))
        outcome = Round(group, inputs_of(group, 1)).run({**gone, "silo-000": STAGES.index(ATTESTATION)})
        if count - missing < largest:
            assert not isinstance(outcome, RegionalSum)
        elif largest < count:
            assert isinstance(outcome, RegionalSum)
            assert "silo-000" in outcome.members


def test_sessions_outside_the_plan_are_none():
    group = group_of(plan_of(UNEQUAL), "north")
    for number, basis, attempt in ((0, "m", 1), (7, "m", 1), (1, "", 1), (1, "m", 0), (-1, "m", 1)):
        with pytest.raises(ExchangeError, check=coded("mask.session-range", rounds=6)):
            session_of(group, number, basis, attempt)
    assert session_of(group, 6, "m", 99).round_number == 6


def test_a_group_needs_the_keys_of_all_its_members():
    made = plan_of(UNEQUAL)
    del made.keys["silo-003"]
    with pytest.raises(ExchangeError, check=coded("plan.key-missing", name="silo-003")):
        group_of(made, "north")
    bare = fulcrum.plan("severe", rounds=1, epsilon=1.0, injection="aggregator")
    with pytest.raises(ExchangeError, check=coded("mask.noise-not-of-silos")):
        group_of(bare, "region-1")
    trusted = plan_of(UNEQUAL, aggregation="trusted")
    with pytest.raises(ExchangeError, check=coded("mask.group-unknown", group="north")):
        group_of(trusted, "north")


@pytest.mark.parametrize("parameters", [1, 40, 5_000])
@pytest.mark.parametrize("count", [1, 3, 20, 90])
def test_no_answer_of_a_round_is_longer_than_the_plan_says(count, parameters):
    group = region(count, dropouts=(count - 1) // 4, parameters=parameters)
    masked = Round(group, inputs_of(group, seed=1))
    gone = {f"silo-{number:03d}": number % 5 for number in range(group.dropouts)}
    masked.run(gone)
    longest = max(len(answer) for _, answer in masked.seen)
    assert longest <= longest_answer_of(group) <= 1.3 * longest + 1_000


def test_the_longest_answer_of_a_plan_is_that_of_its_largest_group():
    sizes = {"north": dict.fromkeys(names(9)[:5], 100), "south": dict.fromkeys(names(9)[5:], 200)}
    made = plan_of(sizes, parameters=7)
    groups = [group_of(made, name) for name in ("north", "south")]
    assert largest_answer(made) == max(longest_answer_of(group) for group in groups)
    assert largest_answer(plan_of(sizes, parameters=None, purpose="research")) is None
