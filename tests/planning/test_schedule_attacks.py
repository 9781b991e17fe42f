"""Plan files with a schedule that were made to lie, or to cost much."""

import sys
import tracemalloc
from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from error_codes import coded
from forging import sealed

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.core.masking.masking_thresholds import largest_minimum
from fulcrum.core.plan.plan_reader import content_in
from fulcrum.core.plan.recomputed_phases import RecomputedPhases
from fulcrum.core.plan.verification import verify
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.rosters import MOST_SCHEDULED_ROUNDS, Rosters
from fulcrum.core.silo.policy import Policy, _Figures
from fulcrum.core.silo.releasing import release
from fulcrum.core.store.ledger import Ledger
from fulcrum.errors import FederationError, PlanError, PolicyError, ReleaseError
from fulcrum.planning.planner import draft_plan
from fulcrum.readers.schedule_file import with_schedule
from fulcrum.words.schedule_words import _runs, phase_words

SIZES = {"north": {"a": 100, "b": 100, "c": 100}}
PLAIN = fulcrum.Federation.from_sizes(SIZES)
ROUNDS = {"a": "1", "b": "1", "c": "1-"}


def made(rounds=4, schedule=ROUNDS, **options):
    return fulcrum.plan(with_schedule(PLAIN, schedule), rounds=rounds, epsilon=1.0, **options)


def with_stays(plan, stays, digest_of=None, *, rounds=None, phases=None):
    """Returns the content of a plan with other stays, as a forger would seal the content.

    The federation has the digest of the stays `digest_of`.
    """
    content = plan.content()
    rounds = rounds or plan.rounds
    silos = [msgspec.structs.replace(entry, rounds=stays.get(entry.silo, entry.rounds)) for entry in content.silos]
    meant = [(digest_of or stays).get(entry.silo, entry.rounds) for entry in content.silos]
    digest = "0"
    if rounds <= MOST_SCHEDULED_ROUNDS:
        digest = replace(plan.federation, rosters=Rosters.of_stays(meant, rounds)).digest
    [tier] = content.tiers
    nodes = [
        msgspec.structs.replace(node, phase_multipliers=phases or node.phase_multipliers)
        for node in content.tiers[tier]
    ]
    forged = msgspec.structs.replace(
        content,
        silos=silos,
        tiers={tier: nodes},
        settings=msgspec.structs.replace(content.settings, rounds=rounds),
        federation=msgspec.structs.replace(content.federation, digest=digest),
    )
    return msgspec.structs.replace(msgspec.json.decode(sealed(msgspec.to_builtins(forged)), type=fulcrum.PlanFile))


def many_phases(digits, more=0, **options):
    """Returns a plan in which every round has a roster of its own: silo k takes part if bit k of the round is set.

    Further silos, as many as `more`, take part in most rounds, each in other rounds than all others.
    """
    rounds = 2**digits - 1
    schedule = {
        f"s{k}": " ".join(str(number) for number in range(1, rounds + 1) if number >> k & 1) for k in range(digits)
    }
    schedule |= {f"t{k}": f"{1 + k % 10}-{rounds - k // 10}" for k in range(more)}
    federation = fulcrum.Federation.from_sizes({"north": dict.fromkeys([*schedule, "c"], 100)})
    return draft_plan(with_schedule(federation, schedule | {"c": "1-"}), rounds=rounds, epsilon=1.0, **options)


def calls_in(work):
    """Returns by name the number of calls of functions during `work`, those of C included."""
    names = Counter()

    def count(frame, event, function):
        if event in ("call", "c_call"):
            names[frame.f_code.co_name if event == "call" else function.__name__] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return names


def test_a_stay_without_an_end_is_refused_by_verify_policy_and_release(tmp_path):
    """The digest counted a last round of 0 as the end of the plan, and the epsilons as no rounds at all."""
    plan = made(100, purpose="deployment", parameters=66, allocation="uniform")
    attack = with_stays(plan, {"a": [(1, 1, 1), (2, 0, 1)]}, {"a": [(1, 1, 1), (2, 100, 1)]})
    path = tmp_path / "plan.json"
    path.write_bytes(sealed(msgspec.to_builtins(attack)))
    assert 0 < attack.silos[0].epsilon["region"] < 0.2  # a hundredth of the rounds
    for plan_file in (path, attack):
        with pytest.raises(PlanError, match="rounds 2 to 0"):
            verify(plan_file)
    limits = Policy(largest_epsilon_above=9.0, largest_epsilon_inside=9.0)
    with pytest.raises(PolicyError, match="rounds 2 to 0"):
        limits.check(attack, "a")
    with Ledger.open(tmp_path / "a.ledger", silo="a") as ledger:
        with pytest.raises(ReleaseError, match="rounds 2 to 0"):
            release({"weight": np.ones(66)}, attack, "a", 2, ledger=ledger, policy=limits)
        assert ledger.entries() == ()
    assert run(["verify", str(path)]) == 2


def test_rosters_know_a_single_meaning_of_a_stay():
    with pytest.raises(FederationError, check=coded("schedule.stay-invalid", number=1, last=0)):
        Rosters.of_stays([[(1, 1, 1), (2, 0, 1)], [(1, 4, 1)]], 4)
    for last in ("1-", "1-4"):
        assert made(schedule={"a": last, "b": "1", "c": "2-"}).content().silos[0].rounds == [(1, 4, 1)]


def test_no_scan_of_all_rounds_is_made_for_each_phase():
    scans = {}
    for digits in (3, 6):
        plan = many_phases(digits)
        content, sound = plan.content(), verified_plan(plan)
        assert len(plan.federation.rosters.lengths) == 2**digits - 1
        squared, path = (plan.weights**2).tolist(), {"region": ["north"] * (digits + 1)}
        recomputed = calls_in(
            lambda content=content, squared=squared, path=path: RecomputedPhases(content, squared, path)
        )
        cost = calls_in(lambda sound=sound: sound.whole_cost("c"))
        scans[digits] = recomputed["count"], cost["argmax"]
        assert RecomputedPhases(content, squared, path).lengths == plan.federation.rosters.lengths.tolist()
    assert scans[3] == scans[6]


@pytest.mark.parametrize("options", [{}, {"aggregation": "masked", "colluders": 2}])
def test_verification_takes_no_step_and_no_room_for_each_silo_and_phase(options):
    """A plan file of 350 KB with 500 silos in 20,000 phases took a minute of a silo's time and 600 MB."""
    calls, peaks = {}, {}
    for more in (0, 120):
        content = many_phases(8, more, **options).content()
        verify(content)  # what is computed once in a process is no part of the count
        calls[more] = sum(calls_in(lambda content=content: verify(content)).values())
        weights = [1 / len(content.silos)] * len(content.silos)
        path = {"region": ["north"] * len(weights)}
        tracemalloc.start()
        phases = RecomputedPhases(content, weights, path)
        assert max(phases.concealing("region", 2)) > 0
        peaks[more] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    cells = 120 * 255
    assert calls[120] - calls[0] < cells
    assert peaks[120] - peaks[0] < 8 * cells


def test_a_policy_asks_no_silo_about_each_phase():
    sound = verified_plan(many_phases(7))
    figures, limits = _Figures.of(sound), Policy(largest_epsilon_above=9.0, largest_epsilon_inside=9.0)
    limits._check(figures, "c", 0)
    assert sum(calls_in(lambda: limits._check(figures, "c", 0)).values()) < 127  # phases; 8 silos in each
    strict = Policy(largest_epsilon_above=9.0, largest_epsilon_inside=9.0, smallest_region=2)
    strict.check(sound, "c")  # no round of silo c is without another silo
    with pytest.raises(PolicyError, check=coded("policy.region-small", members=2)):
        Policy(largest_epsilon_above=9.0, largest_epsilon_inside=9.0, smallest_region=3).check(sound, "c")
    Policy(largest_epsilon_above=9.0, largest_epsilon_inside=9.0, peers={"c": ""}).check(sound, "s0")
    with pytest.raises(PolicyError, check=coded("policy.peer-missing", peer="s0")):
        Policy(largest_epsilon_above=9.0, largest_epsilon_inside=9.0, peers={"s0": ""}).check(sound, "c")


def test_the_largest_minimum_of_a_policy_looks_once_at_rosters_of_one_size():
    sound = verified_plan(many_phases(8, aggregation="masked"))
    assert largest_minimum(sound, "c") == 2
    calls = calls_in(lambda: largest_minimum(sound, "c"))
    assert calls["_largest_minimum_of"] == 8  # of 255 phases


def test_a_schedule_of_too_many_rounds_is_refused_in_plan_and_file():
    rounds = 2_000_000
    stays = {"a": [(1, rounds, 2)], "b": [(1, rounds, 2)], "c": [(1, rounds, 1)]}
    attack = with_stays(made(), stays, rounds=rounds)
    assert len(msgspec.json.encode(attack)) < 4_096
    tracemalloc.start()
    with pytest.raises(PlanError, match="at most 100,000"):
        verify(attack)
    with pytest.raises(FederationError, check=coded("schedule.rounds-many", rounds=MOST_SCHEDULED_ROUNDS + 1)):
        made(MOST_SCHEDULED_ROUNDS + 1, {"a": "1-/2", "b": "1-/2", "c": "1-"})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000  # less than a byte for each round
    draft_plan(PLAIN, rounds=rounds, epsilon=1.0)  # a plan of one roster lists no rounds


def test_the_reader_makes_the_rosters_of_a_file_once(monkeypatch):
    content, made_rosters = made().content(), []
    of_stays = Rosters.of_stays
    monkeypatch.setattr(Rosters, "of_stays", lambda *arguments: made_rosters.append(1) or of_stays(*arguments))
    content_in(content)
    assert len(made_rosters) == 1


def test_rosters_need_no_memory_for_silos_times_rounds():
    silos, rounds = 2_000, 20_000
    stays = [[(1, rounds // 2, 1)], *([[(1, rounds, 1)]] * (silos - 1))]
    tracemalloc.start()
    rosters = Rosters.of_stays(stays, rounds)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < silos * rounds / 4
    assert rosters.present.shape == (2, silos)
    assert rosters.present.flags.c_contiguous


class Unsearched(list):
    """A list in which no value is searched."""

    def __contains__(self, value):
        raise AssertionError("a search in a list for each round is quadratic")


def test_runs_of_rounds_are_found_without_searches_and_printed_up_to_a_dozen():
    assert _runs(Unsearched([1, 2, 3, 7])) == "1-3, 7"
    assert _runs(Unsearched(range(1, 99, 2))) == "1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23 and 37 more"
    words = phase_words(made(200, {"a": "1-/2", "b": "2-/2", "c": "1-"}))
    assert words == (
        "rounds 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23 and 88 more: 2 silos; "
        "rounds 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24 and 88 more: 2 silos"
    )


def test_a_file_with_a_least_influence_is_refused_as_by_the_planner():
    content = made().content()
    settings = msgspec.structs.replace(content.settings, least_influence=0.5)
    with pytest.raises(PlanError, match="setting of weights"):
        verify(msgspec.structs.replace(content, settings=settings))


def with_tiny(plan, weight, multiplier):
    """Returns the content of a plan in which all silos have one weight, and one multiplier in all phases."""
    content = msgspec.to_builtins(plan.content())
    for entry in content["silos"]:
        entry |= {"weight": weight, "noise_multiplier": multiplier}
    for node in content["tiers"]["region"]:
        if "phase_multipliers" in node:
            node["phase_multipliers"] = [multiplier for _ in node["phase_multipliers"]]
    return msgspec.json.decode(sealed(content))


@pytest.mark.parametrize("schedule", [None, ROUNDS])
@pytest.mark.parametrize("weight", [1e-101, 1e-162, 5e-324])
def test_a_weight_whose_square_is_lost_to_rounding_is_refused(schedule, weight, tmp_path):
    """Shares of such a sum were divisions by zero."""
    federation = PLAIN if schedule is None else with_schedule(PLAIN, schedule)
    plan = draft_plan(federation, rounds=4, epsilon=1.0, weights="equal")
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(with_tiny(plan, weight, 9.0)))
    with pytest.raises(PlanError, check=coded("plan.field-invalid")):
        verify(tmp_path / "plan.json")


def test_noise_so_small_that_shifts_leave_double_precision_states_no_epsilon():
    """Quotients of 1.8e308 and 2e307 had a sum that was an error, in place of infinity."""
    content = msgspec.convert(with_tiny(made(weights="equal"), 1e-100, 1.3e-54), fulcrum.PlanFile)
    failed = {check.name for check in verify(content) if not check.holds}
    assert {"epsilon at region", "requirement at region"} <= failed
