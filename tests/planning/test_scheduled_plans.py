"""Plans whose membership changes, against every epsilon added up round by round, and against closed forms."""

import itertools
import math
import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from error_codes import coded
from scipy.special import log_ndtr, ndtr

import fulcrum
from fulcrum.audit.audit_run import whole_audit
from fulcrum.core.plan.figures import shift_of_round
from fulcrum.core.plan.plan_file import content_digest
from fulcrum.core.plan.recomputed import Recomputed
from fulcrum.core.plan.verification import verify
from fulcrum.errors import FederationError, ParameterError, PlanError, UnreachableTargetError
from fulcrum.planning.files.exports import export_plan
from fulcrum.planning.planner import draft_plan
from fulcrum.planning.theory.scheduling import (
    MOST_GAP,
    certificate_checks,
    constant_budget,
    mass_by_phase,
    sums_of,
)

DELTA = 1e-5


def random_federation(seed, **options):
    """Returns a federation of random sizes, regions and countries, the number of rounds, and the rounds by silo."""
    draw = random.Random(seed)
    rounds = draw.randint(2, 9)
    while True:
        tree, stays, regions = {}, [], [f"r{k}" for k in range(draw.randint(1, 3))]
        for region in regions:
            tree[region] = {f"{region}-{k}": float(draw.randint(1, 500)) for k in range(draw.randint(1, 4))}
            for _ in tree[region]:
                first = draw.choice([1, draw.randint(1, rounds)])
                last, every = draw.choice([0, draw.randint(first, rounds)]), draw.choice([1, 1, 1, 2, 3])
                listed = [(first, last, every)]
                if last and draw.random() < 0.4 and last + 2 <= rounds:
                    listed.append((last + 2, 0, 1))
                stays.append(tuple(listed))
        outer = (
            {"country": {"fr": regions[:1], "de": regions[1:]}} if len(regions) > 1 and draw.random() < 0.4 else None
        )
        federation = replace(fulcrum.Federation.from_sizes(tree, outer=outer), stays=tuple(stays))
        if draw.random() < 0.3:
            asked = [draw.choice([math.nan, 0.2, 0.5, 2.0]) for _ in stays]
            federation = replace(federation, preferences=np.array(asked))
        present = [
            {n for first, last, every in listed for n in range(first, (last or rounds) + 1, every)} for listed in stays
        ]
        try:
            made = draft_plan(federation, **{"rounds": rounds, "epsilon": draw.choice([0.3, 1, 8])} | options)
        except FederationError as error:
            if error.code != "schedule.region-empty":  # the only mistake that these draws can hold
                raise
        else:
            return federation, rounds, present, made


def delta_of(epsilon, shift):
    """Returns the delta of a Gaussian mechanism with mu = shift at an epsilon (Balle and Wang 2018)."""
    return ndtr(shift / 2 - epsilon / shift) - math.exp(epsilon + log_ndtr(-shift / 2 - epsilon / shift))


def drawn_noise(content, present, rounds):
    """Returns by round the noise variance that each silo draws, times its squared weight, from the file alone."""
    total = math.fsum(entry.records for entry in content.silos)
    multipliers = {node.name: node.phase_multipliers for node in content.tiers[content.federation.tiers[0]]}
    numbers, drawn = {}, []
    for number in range(1, rounds + 1):
        roster = tuple(number in own for own in present)
        phase = numbers.setdefault(roster, len(numbers))
        drawn.append(
            [
                (entry.records / total * multipliers[entry.node][phase]) ** 2 if there else 0.0
                for entry, there in zip(content.silos, roster, strict=True)
            ]
        )
    return drawn


@pytest.mark.parametrize("seed", range(300))
def test_every_epsilon_is_the_sum_over_all_rounds_of_what_each_observer_sees(seed):
    federation, rounds, present, made = random_federation(seed)
    content = made.content()
    if content.silos[0].rounds is None:
        assert all(len(own) == rounds for own in present)
        return
    drawn = drawn_noise(content, present, rounds)
    total = math.fsum(entry.records for entry in content.silos)
    for tier in federation.tier_names:
        node_of = federation.membership(tier).tolist()
        for silo, entry in enumerate(content.silos):
            beside = [other for other, node in enumerate(node_of) if node == node_of[silo]]
            weight = entry.records / total
            noise = [
                math.fsum(row[other] for other in beside)
                for row, n in zip(drawn, range(1, rounds + 1), strict=True)
                if n in present[silo]
            ]
            shift = 2 * weight * math.sqrt(math.fsum(1 / value for value in noise))
            assert delta_of(entry.epsilon[tier], shift) <= DELTA * (1 + 1e-7)
            assert delta_of(entry.epsilon[tier] * (1 - 1e-4), shift) > DELTA
    for entry in content.silos:
        asked = min(made.epsilon_target["region"], entry.preference or math.inf)
        assert entry.epsilon["region"] <= asked * (1 + 1e-9)
    assert [check for check in verify(content) if not check.holds] == []
    [certificate] = certificate_checks(made)
    assert certificate.holds
    spent = math.fsum(math.fsum(row) for row in drawn) / rounds
    assert spent == pytest.approx(made.noise_budget, rel=1e-12)
    assert spent <= constant_budget(made.federation, made.requirement) * (1 + 1e-12)
    assert spent <= made.uniform_noise_budget * (1 + 1e-12)
    assert made.noise_lower_bound <= spent * (1 + 1e-12) <= made.noise_lower_bound / (1 - MOST_GAP)


def random_settings(seed):
    """Returns settings of observers and coalitions: masked or trusted sums, colluders, dropouts, a target inside."""
    draw = random.Random(seed * 7 + 1)
    epsilon = {"region": draw.choice([0.3, 1.0, 8.0])}
    settings = {"aggregation": draw.choice(["masked", "masked", "trusted"]), "colluders": draw.choice([0, 0, 1, 2])}
    if draw.random() < 0.5:
        inside = "aggregator" if settings["aggregation"] == "trusted" else "server+silo"
        epsilon[inside] = epsilon["region"] * draw.choice([1.05, 1.5, 4.0])
        if draw.random() < 0.2:
            del epsilon["region"]
    return settings | {"epsilon": epsilon, "dropouts": draw.choice([0, 0, 0, 1])}


@pytest.mark.parametrize("seed", range(300))
def test_every_epsilon_is_that_of_the_worst_coalition_of_each_round(seed):
    settings = random_settings(seed)
    try:
        federation, rounds, present, made = random_federation(seed, **settings)
    except UnreachableTargetError as error:
        if error.code != "plan.group-too-small" or not settings["dropouts"]:
            raise
        return  # masks cannot lose a silo of so small a roster
    content = made.content()
    if content.silos[0].rounds is None:
        return
    masked, lost = settings["aggregation"] == "masked", settings["colluders"] + settings["dropouts"]
    inside = max(1, settings["colluders"]) + settings["dropouts"]
    drawn, total = drawn_noise(content, present, rounds), math.fsum(entry.records for entry in content.silos)
    region_of = federation.innermost.parent_of.tolist()
    assert [check for check in verify(content) if not check.holds] == []
    [certificate] = certificate_checks(made)
    assert certificate.holds
    if masked:
        sizes = [
            sum(row[silo] > 0 for silo in range(len(present)) if region_of[silo] == region)
            for row in drawn
            for region in set(region_of)
        ]
        assert made.smallest_group == min(sizes)
    loads = np.zeros((2, len(present)))
    for silo, entry in enumerate(content.silos):
        rows = [drawn[number - 1] for number in sorted(present[silo])]
        for tier in federation.tier_names:
            if tier == "silo" and not masked:
                noise = [row[silo] for row in rows]
            else:
                observed, gone = ("region", inside) if tier == "silo" else (tier, lost)
                noise = [worst_noise(row, silo, region_of, federation.membership(observed), gone) for row in rows]
            shift = 2 * entry.records / total * math.sqrt(math.fsum(1 / value for value in noise))
            assert delta_of(entry.epsilon[tier], shift) <= DELTA * (1 + 1e-7)
            assert delta_of(entry.epsilon[tier] * (1 - 1e-4), shift) > DELTA
            for target, observer in enumerate(("region", "silo")):
                if tier == observer and observer in made.required_multiplier:
                    required = np.broadcast_to(made.required_multiplier[observer], len(present))[silo]
                    loads[target, silo] = shift**2 * required**2 / (4 * rounds)
    assert loads.max() == pytest.approx(1, rel=1e-8)
    assert loads.max() <= 1 + 1e-11
    sums = sums_of(made.federation, made.requirement)
    noise = np.zeros(len(sums.schedule.rounds))
    np.maximum.at(noise, sums.number, made.phase_multiplier**2 * mass_by_phase(made.federation))
    assert sums.prices_of(sums.schedule.loads(noise)) == pytest.approx(loads, rel=1e-9)
    assert made.noise_budget <= constant_budget(made.federation, made.requirement) * (1 + 1e-12)
    assert made.noise_budget <= made.uniform_noise_budget * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(150))
def test_figures_recomputation_and_charges_are_of_the_worst_coalition_for_any_noise(seed):
    """The noise of a planner has a form, and of a forger none: here multipliers of phases differ by ten decades."""
    draw = random.Random(seed + 10**6)
    settings = random_settings(seed) | {"colluders": draw.choice([0, 1, 2, 9])}
    try:
        federation, rounds, present, made = random_federation(seed, **settings)
    except UnreachableTargetError:
        return  # masks cannot lose a silo of so small a roster
    content = made.content()
    if content.silos[0].rounds is None:
        return
    noise = 10 ** np.random.default_rng(seed).uniform(-6, 4, made.phase_multiplier.shape)
    plan = replace(made, phase_multiplier=noise)
    nodes = [
        msgspec.structs.replace(node, phase_multipliers=noise[:, place].tolist())
        for place, node in enumerate(content.tiers["region"])
    ]
    content = msgspec.structs.replace(content, tiers=content.tiers | {"region": nodes})
    drawn, recomputed = drawn_noise(content, present, rounds), Recomputed(content)
    masked, region_of = settings["aggregation"] == "masked", federation.innermost.parent_of.tolist()
    for tier in federation.tier_names:
        inside = tier == "silo" and masked
        gone = (max(1, settings["colluders"]) if inside else settings["colluders"]) + settings["dropouts"]
        node_of = federation.membership("region" if inside else tier)
        shifts = np.zeros(len(present))
        for silo, own in enumerate(present):
            for number, row in enumerate(drawn, start=1):
                charge = shift_of_round(plan, silo, number, tier)
                if number not in own:
                    assert charge == math.inf
                    continue
                left = row[silo] if tier == "silo" and not masked else worst_noise(row, silo, region_of, node_of, gone)
                shift = 4 * plan.weights[silo] ** 2 / left
                assert charge == pytest.approx(shift, rel=1e-9)
                shifts[silo] += shift
        assert np.square(recomputed.shifts(tier)) == pytest.approx(shifts, rel=1e-9)
        assert 4 * rounds / plan.effective_multiplier(tier) ** 2 == pytest.approx(shifts, rel=1e-9)


def worst_noise(row, silo, region_of, node_of, gone):
    """Returns the noise that conceals a silo at its node, without the worst coalitions, by trying all of them."""
    regions = {region_of[other] for other in range(len(row)) if node_of[other] == node_of[silo]}
    noise = 0.0
    for region in regions:
        others = [row[other] for other in range(len(row)) if region_of[other] == region and other != silo]
        size = min(gone, len(others))
        coalitions = itertools.combinations(range(len(others)), size)
        noise += min(math.fsum(v for k, v in enumerate(others) if k not in coalition) for coalition in coalitions)
    return noise + row[silo]


def four_rounds(sizes, *stays):
    federation = fulcrum.Federation.from_sizes(sizes)
    return draft_plan(replace(federation, stays=stays), rounds=4, epsilon=1.0)


ALL, LATE, EARLY = ((1, 0, 1),), ((3, 0, 1),), ((1, 2, 1),)


def test_the_worked_example_needs_a_tenth_less_than_constant_noise():
    made = four_rounds({"north": [4, 3, 6]}, ALL, ALL, LATE)
    weights = made.weights**2
    noise = made.phase_multiplier[:, 0] ** 2 * [weights[:2].sum(), weights.sum()]
    allowance = made.rounds / made.required_multiplier["region"] ** 2
    # In the example squared weights are .16, .09 and .36, where these are 16, 9 and 36 over 169.
    assert noise * allowance * 1.69 == pytest.approx([0.576, 0.72], rel=1e-4)
    assert made.noise_budget == pytest.approx(0.9 * constant_budget(made.federation, made.requirement), rel=1e-8)


def test_a_region_of_one_roster_has_the_noise_of_a_plan_without_rosters():
    made = four_rounds({"north": [4, 3], "south": [5, 2]}, ALL, ALL, ALL, LATE)
    plain = draft_plan(fulcrum.Federation.from_sizes({"north": [4, 3], "south": [5, 2]}), rounds=4, epsilon=1.0)
    assert made.phase_multiplier[:, 0] == pytest.approx([plain.noise_multiplier[0]] * 2, rel=1e-12)


def test_sums_without_a_common_silo_have_their_noise_in_closed_form():
    made = four_rounds({"north": [4, 3, 6]}, EARLY, EARLY, LATE)
    required, weights = made.required_multiplier["region"], made.weights
    # Two of four rounds allow the whole budget, so half of the variance of four rounds is enough.
    expected = [weights[0] ** 2 * required**2 / 2, weights[2] ** 2 * required**2 / 2]
    noise = made.phase_multiplier[:, 0] ** 2 * [weights[0] ** 2 + weights[1] ** 2, weights[2] ** 2]
    assert noise == pytest.approx(expected, rel=1e-12)


def test_rounds_of_absence_give_nothing_back():
    made = four_rounds({"north": [4, 3, 6]}, ALL, ALL, ((1, 1, 1), (4, 4, 1)))
    four = draft_plan(fulcrum.Federation.from_sizes({"north": [4, 3, 6]}), rounds=4, epsilon=1.0)
    two = made.effective_multiplier("region")[2]
    # The sums of two rounds cost as much as if the rounds were adjacent: the same mu, and no credit for rounds between.
    shift = 2 * made.weights[2] * math.sqrt(2 / float((made.phase_multiplier[0, 0] ** 2) * (made.weights**2).sum()))
    assert shift == pytest.approx(2 * math.sqrt(4) / two, rel=1e-12)
    assert made.epsilon_above.max() == pytest.approx(four.epsilon_above.max(), rel=1e-6)


def test_stays_that_change_nothing_leave_every_byte_of_the_plan():
    sizes = {"north": [120, 80], "south": [300]}
    plain = fulcrum.plan(fulcrum.Federation.from_sizes(sizes), rounds=4, epsilon=1.0)
    full = replace(fulcrum.Federation.from_sizes(sizes), stays=(((1, 2, 1), (3, 4, 1)), ALL, ALL))
    assert fulcrum.plan(full, rounds=4, epsilon=1.0).content() == plain.content()
    text = msgspec.json.encode(plain.content()).decode()
    assert not any(name in text for name in ('"rounds":[', "price", "phase_multipliers"))


def test_a_plan_file_with_rosters_is_read_back_with_the_same_noise(tmp_path):
    made = four_rounds({"north": [4, 3, 6]}, ALL, ALL, LATE)
    fulcrum.save_plan(made, tmp_path / "plan.json")
    copy = fulcrum.read_plan(tmp_path / "plan.json")
    assert copy.digest == made.digest
    assert (copy.phase_multiplier == made.phase_multiplier).all()
    assert (copy.prices == made.prices).all()
    assert copy.federation.digest == made.federation.digest
    assert [check.holds for check in certificate_checks(copy)] == [True]


ALTERED = {
    "a silo stays longer": lambda c: c.silos[2].rounds.__setitem__(0, (2, 4, 1)),
    "a silo leaves earlier": lambda c: c.silos[2].rounds.__setitem__(0, (3, 3, 1)),
    "a silo takes part every second round": lambda c: c.silos[0].rounds.__setitem__(0, (1, 3, 2)),
    "less noise in the first phase": lambda c: c.tiers["region"][0].phase_multipliers.__setitem__(0, 1.0),
    "less noise in the last phase": lambda c: c.tiers["region"][0].phase_multipliers.__setitem__(1, 1.0),
    "the noise of phases swapped": lambda c: c.tiers["region"][0].phase_multipliers.reverse(),
    "a phase too many": lambda c: c.tiers["region"][0].phase_multipliers.append(9.0),
    "a phase without noise": lambda c: c.tiers["region"][0].phase_multipliers.__setitem__(1, 0.0),
    "overlapping stays": lambda c: c.silos[0].rounds.append((4, 4, 1)),
    "a stay beyond the rounds": lambda c: c.silos[0].rounds.__setitem__(0, (1, 5, 1)),
    "a round 0": lambda c: c.silos[0].rounds.__setitem__(0, (0, 4, 1)),
    "a step of 0": lambda c: c.silos[0].rounds.__setitem__(0, (1, 4, 0)),
    "an open end": lambda c: c.silos[0].rounds.__setitem__(0, (1, 0, 1)),
    "a round beyond all numbers": lambda c: c.silos[0].rounds.__setitem__(0, (1, 10**30, 1)),
    "no stay": lambda c: c.silos[0].rounds.clear(),
}


@pytest.mark.parametrize("change", ALTERED)
@pytest.mark.parametrize("forged", [False, True])
def test_an_altered_schedule_or_noise_fails_also_with_the_federations_digest_made_anew(change, forged):
    content = msgspec.json.decode(
        msgspec.json.encode(four_rounds({"north": [4, 3, 6]}, ALL, ALL, LATE).content()), type=fulcrum.PlanFile
    )
    ALTERED[change](content)
    if forged:
        stays = [list(map(tuple, entry.rounds)) for entry in content.silos]
        federation = replace(fulcrum.Federation.from_sizes({"north": [4, 3, 6]}), stays=tuple(map(tuple, stays)))
        try:
            digest = draft_plan(federation, rounds=4, epsilon=1.0).federation.digest
        except FederationError:
            digest = "0"
        content = msgspec.structs.replace(
            content, federation=msgspec.structs.replace(content.federation, digest=digest)
        )
    content = msgspec.structs.replace(content, digest=content_digest(content))
    with pytest.raises(PlanError):
        fulcrum.verified_plan(content)


def test_prices_that_prove_too_little_fail_the_certificate_and_harm_no_silo():
    made = four_rounds({"north": [4, 3, 6]}, ALL, ALL, LATE)
    other = replace(made, prices=np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))
    [check] = certificate_checks(other)
    assert not check.holds
    fulcrum.verified_plan(other)  # a silo does not ask whether its noise is the least


def test_more_noise_than_the_least_fails_the_certificate():
    made = four_rounds({"north": [4, 3, 6]}, ALL, ALL, LATE)
    more = replace(made, phase_multiplier=made.phase_multiplier * 1.001, noise_multiplier=made.noise_multiplier * 1.001)
    assert [check.holds for check in certificate_checks(more)] == [False]
    less = replace(made, phase_multiplier=made.phase_multiplier * 0.999, noise_multiplier=made.noise_multiplier * 0.999)
    assert [check.holds for check in certificate_checks(less)] == [False]


def test_uniform_noise_keeps_the_target_with_one_multiplier():
    federation = replace(fulcrum.Federation.from_sizes({"north": [4, 3, 6]}), stays=(ALL, ALL, LATE))
    made = fulcrum.plan(federation, rounds=4, epsilon=1.0, allocation="uniform")
    assert np.ptp(made.phase_multiplier) == 0
    assert made.epsilon_above.max() == pytest.approx(1.0, rel=1e-6)
    assert made.saving == pytest.approx(0, abs=1e-9)


UNSUPPORTED = {
    "targets": {"epsilon": {"region": 1.0, "federation": 0.5}},
    "unit": {"unit": "person"},
    "injection": {"injection": "aggregator"},
    "colluders": {"colluders": 60, "dropouts": 41},
    "information": {"information": 1.0},
    "budget": {"epsilon": None, "budget": 1.0},
    "weights": {"weights": "least-noise"},
    "clip_norm": {"clip_norm": "auto", "parameters": 10},
    "server": {"server": "random-effects"},
    "allocation": {"allocation": "size"},
}


@pytest.mark.parametrize("setting", UNSUPPORTED)
def test_a_setting_without_a_proof_under_changing_membership_is_refused_by_name(setting):
    federation = replace(fulcrum.Federation.from_sizes({"north": [4, 3, 6]}), stays=(ALL, ALL, LATE))
    with pytest.raises(ParameterError, check=coded("schedule.unsupported", setting=setting)):
        fulcrum.plan(federation, **{"rounds": 4, "epsilon": 1.0} | UNSUPPORTED[setting])


@pytest.mark.parametrize("setting", ["budget", "server", "colluders"])
def test_a_file_with_such_a_setting_is_refused_too(setting):
    content = four_rounds({"north": [4, 3, 6]}, ALL, ALL, LATE).content()
    value = {"server": "momentum", "colluders": 101}.get(setting, 1.0)
    settings = msgspec.structs.replace(content.settings, **{setting: value})
    with pytest.raises(PlanError, match=setting):
        fulcrum.verified_plan(msgspec.structs.replace(content, settings=settings))


def test_a_region_without_a_silo_in_a_round_is_refused_with_region_and_round():
    with pytest.raises(FederationError, check=coded("schedule.region-empty", region="south", round=3)):
        four_rounds({"north": [4, 3], "south": [6]}, ALL, LATE, EARLY)


def test_stays_beyond_the_rounds_of_the_plan_name_the_silo():
    with pytest.raises(FederationError, match="north-2"):
        four_rounds({"north": [4, 3]}, ALL, ((1, 9, 1),))


def test_what_assumes_one_roster_refuses_rosters_by_name(tmp_path):
    federation = replace(fulcrum.Federation.from_sizes({"north": [4, 3, 6]}), stays=(ALL, ALL, LATE))
    made = fulcrum.plan(federation, rounds=4, epsilon=1.0)
    for work in (
        lambda: fulcrum.compare(federation, rounds=4, epsilon=1.0),
        lambda: fulcrum.design(federation, most=3, rounds=4, epsilon=1.0),
        lambda: whole_audit(made, trials=1000, seed=1),
        *(lambda to=to: export_plan(made, to) for to in ("csv", "flower", "nvflare")),
    ):
        with pytest.raises(ParameterError, check=coded("schedule.not-here")):
            work()


def test_a_deployment_plan_counts_lattice_noise_for_the_narrowest_round():
    federation = replace(fulcrum.Federation.from_sizes({"north": [4, 3, 6]}), stays=(ALL, ALL, LATE))
    made = fulcrum.plan(federation, rounds=4, epsilon=1.0, purpose="deployment", parameters=40)
    assert made.epsilon_above.max() <= 1.0
    assert 0 < made.reserve < made.delta / 2
    assert "no amplification" in " ".join(fulcrum.guarantee_of(made).assumptions)
    fulcrum.verified_plan(made)
