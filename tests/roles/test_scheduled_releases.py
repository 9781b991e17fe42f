"""Releases under rosters that change: the noise and the charge of each round, and what is refused outside of them."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from error_codes import coded
from regional import refusal

import fulcrum
from fulcrum.aggregation.norm_tests import least_sum, norm_bounds
from fulcrum.aggregation.presence import aggregation_of, lacking_in_round
from fulcrum.aggregation.regional_aggregator import Region
from fulcrum.core.messages.layout import Layout
from fulcrum.core.messages.regional_reply import RegionalSum, Withheld
from fulcrum.core.messages.sealing import Sealer
from fulcrum.core.noise.noise_sources import SeededNoise
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.policy import Policy
from fulcrum.core.silo.release_parameters import assumptions_of, release_parameters_of
from fulcrum.core.silo.releasing import release
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import (
    ExchangeError,
    ParameterError,
    PolicyError,
    RefusedReleaseError,
    ReleaseError,
    UnreachableTargetError,
)
from fulcrum.planning.engine_limits import refusals, refusals_on_flower
from fulcrum.planning.files.plan_issue import new_key
from fulcrum.planning.replanning import replan
from fulcrum.server.coordinator import Coordinator

PARAMETERS = 4_000
UPDATE = {"weight": np.full(PARAMETERS, 0.5)}
LAYOUT = Layout(names=("weight",), shapes=((PARAMETERS,),))
SIZES = {"north": {"lille": 120, "metz": 200, "caen": 300}, "south": {"nice": 300}}
ROUNDS = {"lille": "1-", "metz": "1-2 5-6", "caen": "3-", "nice": "1-"}
OWN = {"lille": [1, 2, 3, 4, 5, 6], "metz": [1, 2, 5, 6], "caen": [3, 4, 5, 6], "nice": [1, 2, 3, 4, 5, 6]}


def made(rounds=ROUNDS, *, parameters=PARAMETERS, purpose="deployment", epsilon=1.0, **options):
    federation = fulcrum.with_schedule(fulcrum.Federation.from_sizes(SIZES), rounds)
    return fulcrum.plan(federation, rounds=6, epsilon=epsilon, parameters=parameters, purpose=purpose, **options)


@pytest.fixture(scope="module")
def plan():
    return verified_plan(made())


def ledger_of(folder, silo):
    return Ledger.open(folder / f"{silo}.ledger", silo=silo)


def test_a_silo_draws_the_noise_of_the_phase_and_no_other(plan, tmp_path):
    """Mean squares of 4,000 draws tell the noise of one phase from that of another at 8 and more standard errors."""
    widths = {number: release_parameters_of(plan, "lille", number).width for number in (1, 3, 5)}
    assert len(set(widths.values())) == 3
    weight, steps = plan.weights[plan.index["lille"]], plan.lattice_steps
    with ledger_of(tmp_path, "lille") as ledger:
        for number, width in widths.items():
            sent = release(UPDATE, plan, "lille", number, ledger=ledger)
            signal = weight * plan.clip_norm / np.sqrt(PARAMETERS) / steps[0]
            size = np.sqrt(np.mean((sent.values - signal) ** 2))
            phase = plan.federation.rosters.phase(number)
            expected = plan.phase_multiplier[phase, 0] * weight * plan.clip_norm / steps[0]
            assert width >= expected
            assert size == pytest.approx(expected, rel=0.06)
            others = [other for key, other in widths.items() if key != number]
            assert all(abs(size / other - 1) > 0.09 for other in others)
            low, high = norm_bounds(plan, plan.index["lille"], PARAMETERS, number)
            assert low < np.linalg.norm(sent.values) < high


def test_the_least_norm_of_a_sum_is_that_of_the_noise_of_the_round(plan):
    """The bound of a round with little noise lies below honest sums of the round, and that of the most noise above."""
    places = [plan.index["lille"], plan.index["nice"]]
    least = {number: least_sum(plan, places, PARAMETERS, number) for number in (1, 3, 5)}
    for number, bound in least.items():
        widths = [release_parameters_of(plan, silo, number).width for silo in ("lille", "nice")]
        assert bound == pytest.approx(np.hypot(*widths) * np.sqrt(PARAMETERS), rel=0.15)
        assert bound < np.hypot(*widths) * np.sqrt(PARAMETERS)
    assert len(set(least.values())) == 3
    assert max(least.values()) <= least_sum(plan, places, PARAMETERS) * (1 + 1e-9)


@pytest.mark.parametrize("silo", OWN)
def test_a_silo_releases_in_its_rounds_alone_and_its_ledger_holds_what_the_plan_allows(plan, tmp_path, silo):
    place, sent = plan.index[silo], []
    for number in range(1, 7):
        with ledger_of(tmp_path, silo) as ledger:  # a restart between all rounds
            before = ledger.head
            if number not in OWN[silo]:
                with pytest.raises(ReleaseError, check=coded("release.round-without-silo", round_number=number)):
                    release(UPDATE, plan, silo, number, ledger=ledger)
                assert ledger.head == before
                continue
            sent.append(release(UPDATE, plan, silo, number, ledger=ledger))
            cost = plan.release_cost(silo, number)
            assert ledger.entries()[-1].cost.shifts == cost
    with ledger_of(tmp_path, silo) as ledger:
        spent = ledger.total_cost.shifts
        for tier in plan.federation.tier_names:
            shift = 4 * 6 / fulcrum.Plan.effective_multiplier(made(), tier)[place] ** 2
            assert spent[tier] == pytest.approx(shift, rel=1e-12)
        again = release(UPDATE, plan, silo, OWN[silo][0], ledger=ledger)
        assert (again.values == sent[0].values).all()
        assert len(ledger.entries()) == len(OWN[silo])


def test_parameters_without_a_round_are_refused(plan):
    with pytest.raises(ReleaseError, check=coded("release.round-missing")):
        release_parameters_of(plan, "lille")
    assert set(plan.release_cost("lille").values()) == {float("inf")}
    assert set(plan.release_cost("metz", 3).values()) == {float("inf")}
    assert plan.release_cost_alone("metz", 3) == plan.release_cost_alone("metz") == float("inf")


def test_research_releases_keep_to_the_rounds_too():
    plan = made(purpose="research", parameters=None)
    first = release(UPDATE, plan, "lille", 1, noise=SeededNoise(seed=3))
    assert first.step is None
    with pytest.raises(ReleaseError, check=coded("release.round-without-silo")):
        release(UPDATE, plan, "metz", 3, noise=SeededNoise(seed=3))


def test_a_plan_with_a_changed_schedule_does_not_forget_what_was_spent(plan, tmp_path):
    """An issuer who moves a silo's rounds by a new plan, in place of a replan, finds the ledger in the way."""
    with ledger_of(tmp_path, "metz") as ledger:
        for number in OWN["metz"]:
            release(UPDATE, plan, "metz", number, ledger=ledger)
        moved = made(ROUNDS | {"metz": "3-4"})
        for number in (3, 4):
            with pytest.raises(RefusedReleaseError):
                release(UPDATE, moved, "metz", number, ledger=ledger)
        assert len(ledger.entries()) == 4


def test_a_schedule_changed_in_memory_or_in_the_file_is_refused(plan, tmp_path):
    forged = made()
    object.__setattr__(forged, "phase_multiplier", forged.phase_multiplier / 2)
    content = forged.content()
    halved = [
        msgspec.structs.replace(node, phase_multipliers=[value / 2 for value in node.phase_multipliers])
        for node in content.tiers["region"]
    ]
    with ledger_of(tmp_path, "lille") as ledger, pytest.raises(ReleaseError, check=coded("plan.check-failed")):
        release(UPDATE, msgspec.structs.replace(content, tiers={"region": halved}), "lille", 1, ledger=ledger)


def test_a_replan_counts_what_each_phase_has_cost(plan, tmp_path):
    old = made()
    for silo in ("lille", "metz", "nice"):
        with ledger_of(tmp_path, silo) as ledger:
            for number in (1, 2):
                release(UPDATE, plan, silo, number, ledger=ledger)
    with ledger_of(tmp_path, "caen"):
        pass
    later = fulcrum.with_schedule(fulcrum.Federation.from_sizes(SIZES), ROUNDS | {"metz": "3-", "caen": "1-"})
    new = replan(old, later, tmp_path)
    assert new.rounds == 4
    place = new.federation.silo_names.tolist().index("lille")
    assert new.spent["region"][place] == pytest.approx(2 * plan.release_cost("lille", 1)["region"], rel=1e-12)
    assert new.epsilon_above.max() <= 1.0 * (1 + 1e-9)
    assert len(new.phase_multiplier) == 2
    fulcrum.verified_plan(new)
    with ledger_of(tmp_path, "metz") as ledger:
        with pytest.raises(ReleaseError, check=coded("release.round-without-silo")):
            release(UPDATE, new, "metz", 1, ledger=ledger)
        for number in (3, 4):
            release(UPDATE, new, "metz", number, ledger=ledger)
        counted = replace(assumptions_of(old), federation=new.federation.digest, continuing=True)
        spent = ledger.spent_at(new.federation.tier_names, counted).shifts["region"]
        assert plan.release_cost("metz", 1)["region"] * 2 < spent
        assert spent <= 4 * 6 / float(old.required_multiplier["region"]) ** 2 * (1 + 1e-9)


def test_a_silo_that_spent_all_in_its_rounds_has_nothing_left_after_rounds_of_absence(plan, tmp_path):
    for silo in ("lille", "nice"):
        with ledger_of(tmp_path, silo) as ledger:
            for number in (1, 2, 3, 4, 5):
                release(UPDATE, plan, silo, number, ledger=ledger)
    with ledger_of(tmp_path, "metz") as ledger:
        for number in OWN["metz"]:
            release(UPDATE, plan, "metz", number, ledger=ledger)
    with ledger_of(tmp_path, "caen") as ledger:
        for number in (3, 4, 5):
            release(UPDATE, plan, "caen", number, ledger=ledger)
    with pytest.raises(UnreachableTargetError, match="all 6 rounds"):
        replan(made(), fulcrum.Federation.from_sizes(SIZES), tmp_path)


POLICY = {"largest_epsilon_above": 2.0, "largest_epsilon_inside": 90.0}


def test_a_policys_least_region_and_peers_hold_in_every_round_of_the_silo(plan):
    Policy(**POLICY, smallest_region=2).check(plan, "lille")
    with pytest.raises(PolicyError, check=coded("policy.region-small", members=2)):
        Policy(**POLICY, smallest_region=3).check(plan, "lille")  # three silos, but never more than two in round 1
    Policy(**POLICY, peers={"lille": ""}).check(plan, "metz")
    with pytest.raises(PolicyError, check=coded("policy.peer-missing")):
        Policy(**POLICY, peers={"metz": ""}).check(plan, "lille")
    Policy(**POLICY, largest_rounds=4).check(plan, "metz")
    with pytest.raises(PolicyError, check=coded("policy.rounds-exceeded", rounds=6)):
        Policy(**POLICY, largest_rounds=5).check(plan, "lille")


@pytest.fixture
def region(tmp_path):
    """The region north under a small plan, open, with the sealers of its silos."""
    keys = {name: new_key(tmp_path / name) for members in SIZES.values() for name in members}
    keys |= {name: new_key(tmp_path / name, "sealing") for name in SIZES}
    plan = verified_plan(made(keys=keys))
    sealers = {silo: Sealer(plan, silo, tmp_path / silo) for silo in SIZES["north"]}
    with Region.open(tmp_path / "north.region", plan, "north", tmp_path / "north") as opened:
        opened.expect_layout(LAYOUT)
        yield opened, plan, sealers


def sealed(plan, sealers, silo, number, folder):
    with ledger_of(folder, silo) as ledger:
        return sealers[silo].seal(release(UPDATE, plan, silo, number, ledger=ledger))


def test_a_region_sums_the_roster_of_the_round_and_nothing_less(region, tmp_path):
    north, plan, sealers = region
    assert north.missing(1) == {"lille", "metz"}
    assert north.missing(3) == {"lille", "caen"}
    assert north.missing(5) == {"lille", "metz", "caen"}
    north.accept(sealed(plan, sealers, "lille", 1, tmp_path), 1)
    answer = north.close_round(1)
    assert isinstance(answer, Withheld)
    assert answer.missing == ("metz",)
    north.accept(sealed(plan, sealers, "metz", 1, tmp_path), 1)
    total = north.close_round(1)
    assert isinstance(total, RegionalSum)
    assert total.members == ("lille", "metz")


def test_a_region_refuses_a_silo_that_is_not_of_the_round(region, tmp_path):
    """A silo that rejoins early, or whose code ignores the rosters, puts nothing into a sum."""
    north, plan, sealers = region
    own = sealed(plan, sealers, "caen", 3, tmp_path)
    with pytest.raises(ExchangeError, check=coded("region.release-other-round")):
        north.accept(own, 1)
    with ledger_of(tmp_path, "caen") as ledger:
        early = replace(release(UPDATE, plan, "caen", 3, ledger=ledger), round_number=1)
    with pytest.raises(ExchangeError, check=coded("region.release-off-roster", silo="caen", round_number=1)):
        north.accept(sealers["caen"].seal(early), 1)
    assert north.present(1) == set()


def test_a_sum_with_a_silo_off_the_roster_is_refused_by_the_name_of_the_silo(region):
    _, plan, _ = region
    reason = lacking_in_round(aggregation_of(plan), "north", {"lille", "metz", "caen"}, 1)
    assert reason == "silo 'caen' takes no part in round 1, by the rosters of the plan"


def test_a_region_refuses_the_noise_of_a_quieter_phase(region, tmp_path):
    north, plan, sealers = region
    widths = {number: release_parameters_of(plan, "lille", number).width for number in (1, 3, 5)}
    least, most = min(widths, key=widths.get), max(widths, key=widths.get)
    assert widths[least] < 0.8 * widths[most]
    with ledger_of(tmp_path, "lille") as ledger:
        quiet = replace(release(UPDATE, plan, "lille", least, ledger=ledger), round_number=most)
    with pytest.raises(ExchangeError, check=coded("region.release-norm", side="below")):
        north.accept(sealers["lille"].seal(quiet), most)


def test_a_region_does_without_as_many_silos_of_the_roster_as_the_plan_says(tmp_path):
    rounds = {"lille": "1-", "metz": "1-", "caen": "3-", "nice": "1-"}
    keys = {name: new_key(tmp_path / name) for members in SIZES.values() for name in members}
    keys |= {name: new_key(tmp_path / name, "sealing") for name in SIZES}
    plan = verified_plan(made(rounds, keys=keys, dropouts=1, colluders=1))
    sealers = {silo: Sealer(plan, silo, tmp_path / silo) for silo in SIZES["north"]}
    aggregation = aggregation_of(plan)
    for number, roster in ((1, {"lille", "metz"}), (3, {"lille", "metz", "caen"})):
        for missing in roster:
            assert lacking_in_round(aggregation, "north", roster - {missing}, number) is None
        assert "2 of" in lacking_in_round(aggregation, "north", set(sorted(roster)[2:]), number)
    assert "takes no part" in lacking_in_round(aggregation, "north", {"lille", "caen"}, 1)
    server = Coordinator.open(tmp_path / "server", plan, {"weight": np.zeros(PARAMETERS)})
    with Region.open(tmp_path / "north.region", plan, "north", tmp_path / "north") as north:
        north.expect_layout(LAYOUT)
        north.accept(sealed(plan, sealers, "lille", 1, tmp_path), 1)
        total = north.close_round(1)
    assert isinstance(total, RegionalSum)
    assert total.members == ("lille",)
    server.receive(total.to_bytes(), "north")
    assert server.finish_round()["members"] == {"north": ["lille"]}


def test_the_server_takes_the_sum_of_the_roster_alone(region, tmp_path):
    north, plan, sealers = region
    server = Coordinator.open(tmp_path / "server", plan, {"weight": np.zeros(PARAMETERS)})
    for silo in ("lille", "metz"):
        north.accept(sealed(plan, sealers, silo, 1, tmp_path), 1)
    total = north.close_round(1)
    lone = replace(total, members=("lille",))
    assert "are missing" in refusal(server.receive, lone.to_bytes(), "north")
    more = replace(total, members=("caen", "lille", "metz"))
    assert "silo 'caen' takes no part in round 1" in refusal(server.receive, more.to_bytes(), "north")
    server.receive(total.to_bytes(), "north")
    assert server.finish_round()["members"] == {"north": ["lille", "metz"]}


def test_both_engines_run_rosters_and_flower_with_masked_sums_alone():
    assert refusals(made(parameters=34)) == ()
    assert "sums must be masked" in refusals_on_flower(made(parameters=34))[0]
    masked = made(parameters=34, aggregation="masked")
    assert refusals(masked) == refusals_on_flower(masked) == ()
    with pytest.raises(ParameterError, check=coded("schedule.unsupported", setting="targets")):
        made(aggregation="masked", epsilon={"federation": 1.0})  # all silos as one group
