"""Masked groups of rosters that change: members and numbers by round, from the plan alone, and rounds end to end."""

import msgspec
import numpy as np
import pytest
from error_codes import coded
from forging import sealed

import fulcrum
from fulcrum.aggregation.masked_group import largest_answer, longest_answer_of, session_of
from fulcrum.aggregation.presence import aggregation_of, lacking_in_round
from fulcrum.core.masking.masking_group import check_sheltered, group_of
from fulcrum.core.masking.masking_thresholds import largest_minimum
from fulcrum.core.plan.verification import verify
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.policy import Policy
from fulcrum.errors import ExchangeError, PlanError, PolicyError, ReleaseError, UnreachableTargetError
from fulcrum.planning.files.plan_issue import new_key

pytest.importorskip("cryptography", reason="needs the extra secure")

NORTH = ["arras", "brest", "caen", "dole", "evian", "foix"]
SIZES = {"north": {silo: 100 + 20 * k for k, silo in enumerate(NORTH)}, "south": dict.fromkeys(("lyon", "nice"), 90)}
ROUNDS = {"arras": "1-", "brest": "1-3", "caen": "4-", "dole": "1-", "evian": "1-", "foix": "3-"}
SCHEDULE = ROUNDS | {"lyon": "1-", "nice": "1-"}
ROSTERS = {1: "abde", 2: "abde", 3: "abdef", 4: "acdef", 5: "acdef"}
LIMITS = {"largest_epsilon_above": 2.0, "largest_epsilon_inside": 90.0}


def made(folder, schedule=SCHEDULE, sizes=SIZES, **options):
    federation = fulcrum.with_schedule(fulcrum.Federation.from_sizes(sizes), schedule)
    keys = {silo: new_key(folder / silo) for names in sizes.values() for silo in names if not (folder / silo).exists()}
    settings = {"rounds": 5, "epsilon": 1.0, "parameters": 40, "purpose": "deployment", "aggregation": "masked"}
    return verified_plan(fulcrum.plan(federation, keys=keys, **settings | options))


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return made(tmp_path_factory.mktemp("keys"))


@pytest.mark.parametrize("number", ROSTERS)
def test_members_keys_and_numbers_of_a_group_are_those_of_the_rounds_roster(plan, number):
    group = group_of(plan, "north", number)
    roster = [silo for silo in NORTH if silo[0] in ROSTERS[number]]
    assert list(group.regions) == list(group.keys) == list(group.largest) == roster
    assert group.neighbours == len(roster) - 1
    assert group.quorum == group.threshold == 2 * len(roster) // 3 + 1
    assert group.lacking(roster) is None
    assert "are missing" in group.lacking(roster[1:])
    for other in ROSTERS:
        session = session_of(group_of(plan, "north", other), other, "00")
        if other == number:
            group.check_session(session)
        else:
            with pytest.raises(ExchangeError, check=coded("mask.round-of-other-roster", round_number=other)):
                group.check_session(session)


@pytest.mark.parametrize("number", [None, 0, -1, 6, 2**62])
def test_a_group_without_a_round_of_the_plan_is_refused(plan, number):
    code = "release.round-missing" if number is None else "release.round-outside-plan"
    with pytest.raises(ReleaseError, check=coded(code)):
        group_of(plan, "north", number)


def test_a_sum_holds_the_roster_and_no_other_silo(plan):
    aggregation = aggregation_of(plan)
    for number, letters in ROSTERS.items():
        roster = {silo for silo in NORTH if silo[0] in letters}
        assert lacking_in_round(aggregation, "north", roster, number) is None
        assert "are missing" in lacking_in_round(aggregation, "north", roster - {"arras"}, number)
        for stranger in set(NORTH) - roster:
            assert f"'{stranger}' takes no part" in lacking_in_round(aggregation, "north", roster | {stranger}, number)
            assert "takes no part" in lacking_in_round(aggregation, "north", roster - {"dole"} | {stranger}, number)


def test_dropouts_count_in_the_roster_of_the_round(tmp_path):
    plan = made(tmp_path, sizes={"north": SIZES["north"]}, schedule=ROUNDS, dropouts=1)
    aggregation = aggregation_of(plan)
    for number, letters in ROSTERS.items():
        group, roster = group_of(plan, "north", number), {silo for silo in NORTH if silo[0] in letters}
        assert group.threshold <= len(roster) - 1
        assert lacking_in_round(aggregation, "north", roster - {"arras"}, number) is None
        assert "are missing" in lacking_in_round(aggregation, "north", roster - {"arras", "dole"}, number)
        for stranger in set(NORTH) - roster:  # a silo of another round stands for none of the roster
            assert "takes no part" in lacking_in_round(aggregation, "north", roster - {"arras"} | {stranger}, number)


def test_a_roster_too_small_for_its_dropouts_is_refused_in_plan_and_file(tmp_path):
    schedule = ROUNDS | {"foix": "4-", "evian": "1-2 4-"}  # three silos in round 3
    with pytest.raises(UnreachableTargetError, check=coded("plan.group-too-small", group="north", silos=3)):
        made(tmp_path, sizes={"north": SIZES["north"]}, schedule=schedule, dropouts=1)
    sound = made(tmp_path, sizes={"north": SIZES["north"]}, schedule=schedule)
    content = msgspec.to_builtins(sound.content())
    content["settings"]["dropouts"] = 1
    checks = {check.name: check for check in verify(msgspec.json.decode(sealed(content), type=fulcrum.PlanFile))}
    assert not checks["masking"].holds
    assert "of 3 silos" in checks["masking"].detail


def test_a_policy_can_insist_on_as_many_silos_as_every_roster_of_the_silo_has(plan):
    assert {silo: largest_minimum(plan, silo) for silo in ("arras", "brest", "caen", "foix")} == {
        "arras": 4,
        "brest": 4,
        "caen": 5,
        "foix": 5,
    }
    Policy(**LIMITS, smallest_region=5).check(plan, "caen")
    with pytest.raises(PolicyError, check=coded("policy.region-small", members=4)):
        Policy(**LIMITS, smallest_region=5).check(plan, "arras")


def test_a_silo_that_is_alone_in_a_round_is_concealed_by_its_own_noise(tmp_path):
    plan = made(tmp_path, sizes={"north": dict.fromkeys(("a", "b"), 100)}, schedule={"a": "1-", "b": "1-3"})
    check_sheltered(plan, "a")
    group = group_of(plan, "north", 5)
    assert (list(group.regions), group.threshold, group.quorum) == (["a"], 1, 1)
    assumptions = " ".join(plan.content().guarantee.assumptions)
    assert "the sum of a region of one silo is that silo's own update" in assumptions
    shift = sum(plan.release_cost("a", number)["region"] for number in range(1, 6))
    alone = sum(plan.release_cost_alone("a", number) for number in (4, 5))
    assert plan.release_cost("a", 4)["region"] == pytest.approx(plan.release_cost_alone("a", 4), rel=1e-12)
    assert alone < shift


def test_no_answer_is_longer_than_the_carrier_of_messages_allows(plan):
    most = largest_answer(plan)
    for region in SIZES:
        assert max(longest_answer_of(group_of(plan, region, number)) for number in ROSTERS) <= most


def test_every_altered_number_of_a_masked_plan_with_rosters_is_found(tmp_path):
    """Left out are prices, which the certificate checks, the seed, and a larger reserve or model than is needed."""
    options = {"epsilon": {"region": 1.0, "server+silo": 1.2}, "colluders": 1}
    content = msgspec.json.decode(msgspec.json.encode(made(tmp_path, **options).content()))
    free = {"price", "inside_price", "seed", "reserve", "parameters"}
    altered = [(path, value) for path, value in numbers_in(content) if path[-1] not in free]
    assert len(altered) > 90
    for path, value in altered:
        for other in {value * 1.001, value * 0.999} if isinstance(value, float) else {value + 1, max(value - 1, 0)}:
            if other != value:
                set_at(content, path, other)
                assert not verifies(content), (path, other)
        set_at(content, path, value)
    assert verifies(content)


def numbers_in(content, path=()):
    """Yields every number of a content with its path."""
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in entries:
        yield from numbers_in(value, (*path, key))
    if isinstance(content, int | float) and not isinstance(content, bool):
        yield path, content


def set_at(content, path, value):
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


def verifies(content):
    try:
        return all(check.holds for check in verify(msgspec.json.decode(sealed(content), type=fulcrum.PlanFile)))
    except (PlanError, msgspec.ValidationError):
        return False


def test_the_noise_of_each_phase_is_charged_without_the_worst_silo_beside_the_server(plan):
    weights, multiplier, rosters = plan.weights, plan.phase_multiplier, plan.federation.rosters
    for number, letters in ROSTERS.items():
        roster = [silo for silo in NORTH if silo[0] in letters]
        drawn = {silo: (weights[plan.index[silo]] * multiplier[rosters.phase(number), 0]) ** 2 for silo in roster}
        for silo in roster:
            left = sum(drawn.values()) - max(value for other, value in drawn.items() if other != silo)
            inside = 4 * weights[plan.index[silo]] ** 2 / left
            assert plan.release_cost(silo, number)["silo"] == pytest.approx(inside, rel=1e-12)
    assert np.isinf(plan.release_cost("caen", 1)["silo"])
