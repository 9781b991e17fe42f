"""Epsilons of plans for persons, against enumeration of all placements of a person and all coalitions, and mpmath.

No function of the package but the planner, the verification and the Rényi curve is used: observers, coalitions,
placements and the exact curve are written down anew in `persons`.
"""

import itertools
import math

import numpy as np
import pytest
from persons import is_epsilon_of, kappa_of, worst_shift

import fulcrum
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.errors import FulcrumError
from fulcrum.readers.federation import Federation

PLANS, PARTS = 500, 10
"""The number of random plans, and the number of tests that they are divided into."""


def random_federation(rng):
    """Returns up to 11 silos in up to four regions, under one to three tiers, with sizes or without."""
    tiers, regions = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    rows = []
    for region in range(regions):
        country, continent = f"c{region // 2}", f"w{region // 2 % 2}"
        for silo in range(int(rng.integers(1, 4 if regions > 2 else 6))):
            row = {"silo": f"s{region}-{silo}", "records": int(rng.integers(1, 80))}
            row |= dict(zip(("region", "country", "continent"), (f"r{region}", country, continent), strict=True))
            if rng.random() < 0.2:
                row["epsilon"] = float(rng.choice([0.5, 2.0]))
            rows.append(row)
    has_sizes, has_preferences = rng.random() < 0.8, rng.random() < 0.3
    names = ["silo", *(["records"] if has_sizes else []), *("region", "country", "continent")[:tiers]]
    if has_preferences and any("epsilon" in row for row in rows):
        names.append("epsilon")
    records = [{name: row.get(name, "") for name in names} for row in rows]
    text = "\n".join([",".join(names), *(",".join(str(row[name]) for name in names) for row in records)])
    return text, has_sizes


def random_plan(seed, folder):
    """Returns a plan of random settings; None where the settings contradict each other."""
    rng = np.random.default_rng(seed)
    text, has_sizes = random_federation(rng)
    path = folder / f"{seed}.csv"
    path.write_text(text + "\n")
    federation = fulcrum.read_federation(path)
    masked = rng.random() < 0.35
    observers = [*federation.tier_names[1:]]
    targets = {federation.innermost.name: float(rng.choice([0.3, 1.0, 4.0]))}
    if rng.random() < 0.4:
        targets[str(rng.choice(observers))] = float(rng.choice([0.2, 0.7]))
    if rng.random() < 0.15:
        targets = {"federation": 1.0}
    if rng.random() < 0.3:
        targets["server+silo" if masked else "aggregator"] = float(rng.choice([2.0, 8.0]))
    weights = [None, "sizes", "equal", "least-noise", 0.5]
    chosen = weights[int(rng.integers(len(weights)))]
    if rng.random() < 0.15:
        chosen = dict(zip(federation.silo_names.tolist(), rng.uniform(1, 9, len(federation)).tolist(), strict=True))
    settings = {
        "rounds": int(rng.choice([1, 10, 50])),
        "epsilon": targets,
        "delta": float(rng.choice([1e-5, 1e-7])),
        "accountant": str(rng.choice(["exact", "exact", "renyi"])),
        "weights": chosen,
        "server": "random-effects" if rng.random() < 0.15 else None,
        "colluders": int(rng.choice([0, 0, 1, 2])),
        "dropouts": int(rng.choice([0, 0, 0, 1])),
        "aggregation": "masked" if masked else "trusted",
        "unit": str(rng.choice(["person", "record"])),
        "neighbours": str(rng.choice(["replace", "add-remove"])),
        "silos_per_person": int(rng.choice([1, 1, 2, 3])),
        "persons_per_silo": None if has_sizes else float(rng.choice([1, 25, 100])),
        "silo_clip": float(rng.choice([1, 10])) if rng.random() < 0.3 else None,
        "silo_epsilon": float(rng.choice([2.0, 20.0])) if rng.random() < 0.3 else None,
    }
    if rng.random() < 0.2:
        settings |= {"purpose": "deployment", "parameters": 20, "accountant": "renyi"}
    try:
        return fulcrum.plan(federation, **settings)
    except FulcrumError:
        return None


def check_plan(made):
    federation, kappa = made.federation, kappa_of(made)
    silos, most = range(len(federation)), made.unit.silos_per_person
    inner = federation.innermost.name
    assert math.fsum(federation.shares) == pytest.approx(1, rel=1e-12)
    assert [check for check in fulcrum.verify(made) if not check.holds] == []
    for tier in federation.tier_names:
        stated, worst = made.epsilon(tier), made.worst_epsilon(tier)
        if most == 1:
            for silo in silos:
                assert is_epsilon_of(made, stated[silo], worst_shift(made, tier, [silo], kappa)), (tier, silo)
        placements = [held for size in range(1, most + 1) for held in itertools.combinations(silos, size)]
        shifts = {held: worst_shift(made, tier, held, kappa) for held in placements}
        assert is_epsilon_of(made, worst, max(shifts.values()), is_tight=most == 1), tier
        for held, shift in shifts.items():
            assert is_epsilon_of(made, max(stated[silo] for silo in held), shift, is_tight=False), (tier, held)
            if federation.preferences is not None and tier == inner:
                declared = np.nanmin([math.inf, *federation.preferences[list(held)]])
                assert not math.isfinite(declared) or is_epsilon_of(made, declared, shift, is_tight=False), held
        if tier in made.epsilon_target:
            assert worst <= made.epsilon_target[tier] * (1 + 1e-9), tier
    check_further(made)


def check_further(made):
    """Checks the second convention, two silos and a silo as a whole."""
    federation, further = made.federation, made.person_epsilons
    silos, most, inner = range(len(federation)), made.unit.silos_per_person, made.federation.innermost.name
    other = {"replace": "add-remove", "add-remove": "replace"}[made.unit.neighbours]
    placements = [held for size in range(1, most + 1) for held in itertools.combinations(silos, size)]
    for field, tier in (("other_neighbours_above", inner), ("other_neighbours_inside", "silo")):
        worst = max(worst_shift(made, tier, held, kappa_of(made, other)) for held in placements)
        assert is_epsilon_of(made, further[field], worst, is_tight=most == 1), field
    largest = np.minimum(federation.persons, made.silo_clip or math.inf)
    whole = [2 * largest[silo] * worst_shift(made, inner, [silo], 1.0) for silo in silos]
    assert is_epsilon_of(made, further["whole_silo_above"], max(whole))
    if made.silo_epsilon is not None:
        assert further["whole_silo_above"] <= made.silo_epsilon * (1 + 1e-9)
    assert ("two_silos_above" in further) == (most == 1 and len(federation) > 1)
    if "two_silos_above" in further:
        worst = max(worst_shift(made, inner, held, kappa_of(made)) for held in itertools.combinations(silos, 2))
        no_coalition = made.colluders + made.dropouts == 0
        assert is_epsilon_of(made, further["two_silos_above"], worst, is_tight=no_coalition)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_epsilon_is_that_of_the_worst_placement_and_coalition(part, tmp_path):
    checked, seed = 0, part * 1_000
    while checked < PLANS // PARTS:
        made = random_plan(seed, tmp_path)
        if made is not None:
            try:
                check_plan(made)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
            checked += 1
        seed += 1
    assert seed - part * 1_000 < 4 * PLANS // PARTS  # most settings make a plan


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("silos", [(3, 4), (5,), (3, 3, 3)])
@pytest.mark.parametrize("neighbours", ["replace", "add-remove"])
def test_the_provision_for_several_silos_is_exact_for_equal_weights(most, silos, neighbours):
    """Every region has at least h silos and every person the same weight: the worst placement has just epsilon 1."""
    sizes = {f"r{place}": [7 * (place + 1)] * count for place, count in enumerate(silos)}
    federation = Federation.from_sizes(sizes)
    made = fulcrum.plan(federation, rounds=10, epsilon=1.0, unit="person", neighbours=neighbours, silos_per_person=most)
    held = [held for size in range(1, most + 1) for held in itertools.combinations(range(len(federation)), size)]
    worst = max(worst_shift(made, "region", placement, kappa_of(made)) for placement in held)
    alone = max(worst_shift(made, "region", [silo], kappa_of(made)) for silo in range(len(federation)))
    assert worst == pytest.approx(most * alone, rel=1e-12)  # all h silos of one region
    assert float(epsilon_of_shift(worst, delta=made.delta)) == pytest.approx(1.0, rel=1e-9)
    assert made.worst_epsilon() == pytest.approx(1.0, rel=1e-9)
