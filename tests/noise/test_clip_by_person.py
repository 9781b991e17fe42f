"""The clip by person: neighbouring silos through the real mechanism without noise, and exact enumeration on lattices."""

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

import fulcrum
from fulcrum.core.lattice import lattice_step
from fulcrum.core.noise import mechanism as mechanisms
from fulcrum.core.noise.mechanism import GaussianMechanism, LatticeMechanism, apply_by_person
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.readers.federation import Federation


@dataclass(frozen=True)
class Silence:
    """A source of noise that draws zeros."""

    def integers(self, *, width, count):
        assert width > 0
        return np.zeros(count, dtype=np.int64)


def gaussian(weight, clip, largest_sum, share=1.0):
    return GaussianMechanism(
        clip_norm=clip, clip_share=share, weight=weight, noise_multiplier=1.0, draw=np.zeros, largest_sum=largest_sum
    )


def lattice(weight, clip, largest_sum, parameters, step, share=1.0):
    return LatticeMechanism(
        parameters=parameters,
        clip_norm=clip,
        clip_share=share,
        weight=weight,
        step=step,
        width=20.0,
        noise=Silence(),
        largest_sum=largest_sum,
    )


def random_person(rng, parameters, clip):
    """Returns a gradient of any size, small or far outside the ball, sometimes not finite, in few directions."""
    row = rng.normal(size=parameters) * clip * 10.0 ** rng.uniform(-3, 3)
    if rng.random() < 0.3:
        row = np.zeros(parameters)
        row[int(rng.integers(parameters))] = clip * float(rng.choice([-2, 1, 7]))
    if rng.random() < 0.1:
        row[int(rng.integers(parameters))] = float(rng.choice([np.nan, np.inf, 1e308]))
    return row


@pytest.mark.parametrize("on_lattice", [False, True])
@pytest.mark.parametrize("seed", range(150))
def test_neighbouring_silos_are_no_further_apart_than_the_plan_says(seed, on_lattice):
    """One person replaced: 2 b C. One person added or removed: b C. The whole silo replaced: 2 b C largest sums."""
    rng = np.random.default_rng(seed)
    parameters, count = int(rng.integers(1, 12)), int(rng.integers(1, 30))
    weight, clip, share = float(rng.uniform(1e-4, 1)), float(10.0 ** rng.uniform(-2, 2)), float(rng.choice([1.0, 0.3]))
    declared = max(1.0, count * float(rng.choice([0.1, 0.5, 1.0, 2.0])))  # fewer than declared, or more
    step = lattice_step(least_weight=weight, clip_norm=clip, parameters=parameters)
    mechanism = gaussian(weight, clip, declared, share)
    if on_lattice:
        mechanism = lattice(weight, clip, declared, parameters, step, share)
    unit = step if on_lattice else 1.0

    def release(rows):
        return np.asarray(apply_by_person(mechanism, rows, parameters), dtype=np.float64) * unit

    rows = [random_person(rng, parameters, clip) for _ in range(count)]
    others = [random_person(rng, parameters, clip) for _ in range(int(rng.integers(0, 40)))]
    whose = int(rng.integers(count))
    replaced = [*rows[:whose], random_person(rng, parameters, clip), *rows[whose + 1 :]]
    opposite = [*rows[:whose], -rows[whose], *rows[whose + 1 :]]
    removed = [*rows[:whose], *rows[whose + 1 :]]
    cut, rounding = (0.01 if on_lattice else 0.0), 1 + 1e-12
    for neighbour, kappa in ((replaced, 2), (opposite, 2), (removed, 1)):
        apart = float(np.linalg.norm(release(rows) - release(neighbour)))
        assert apart <= (kappa + cut) * weight * clip * rounding + 1e-12 * declared * weight * clip
    whole = float(np.linalg.norm(release(rows) - release(others)))
    assert whole <= 2 * declared * weight * clip * rounding
    assert float(np.linalg.norm(release([]))) == 0


def test_two_persons_under_one_identifier_are_each_bounded_as_a_replaced_person():
    """A record given to both would let each of the two change both gradients."""
    own, shared = np.array([-3.0, 0.0]), np.array([9.0, 0.0])
    mechanism = gaussian(1.0, 1.0, 9.0)

    def apart(rows, neighbour):
        return float(np.linalg.norm(apply_by_person(mechanism, rows, 2) - apply_by_person(mechanism, neighbour, 2)))

    assert apart([own + shared], [own - shared]) == 2  # one of the two is replaced
    assert apart([own + shared], [own]) == 2  # one of the two comes or goes
    assert apart([shared, own + shared], [-shared, own - shared]) == 4
    assert apart([shared, own + shared], [own]) == 3


def test_one_person_who_diverged_takes_no_other_person_along():
    rows, bad = [np.ones(3), np.full(3, np.nan), -2 * np.ones(3)], []
    mechanism = gaussian(1.0, 1.0, 3.0)
    released = apply_by_person(mechanism, rows, 3, on_diverged=lambda: bad.append(1))
    assert bad == [1]
    assert (released == apply_by_person(mechanism, [rows[0], rows[2]], 3)).all()


def test_both_units_at_once_over_random_plans():
    """Random neighbours of a whole federation, through the parameters of verified plans without their noise."""
    rng = np.random.default_rng(3)
    for neighbours, silo_clip, silo_epsilon in itertools.product(("replace", "add-remove"), (None, 4.0), (None, 30.0)):
        federation = Federation.from_sizes({"north": [9, 3, 5], "south": [7, 2]})
        made = fulcrum.plan(
            federation,
            rounds=10,
            epsilon=2.0,
            unit="person",
            neighbours=neighbours,
            silo_clip=silo_clip,
            silo_epsilon=silo_epsilon,
            clip_norm=0.5,
        )
        sound, kappa = verified_plan(made), made.unit.sensitivity
        noise = dict(enumerate(made.node_noise("region") * 0.25))
        for silo, persons in enumerate((9, 3, 5, 7, 2)):
            mechanism = gaussian(float(sound.weights[silo]), 0.5, float(sound.largest_sums[silo]))
            deviation = math.sqrt(noise[int(federation.innermost.parent_of[silo])])
            for _ in range(30):
                rows = [random_person(rng, 4, 0.5) for _ in range(persons)]
                other = [random_person(rng, 4, 0.5), *rows[1:]] if neighbours == "replace" else rows[1:]
                new = [random_person(rng, 4, 0.5) for _ in range(2 * persons)]
                here, there, anew = (apply_by_person(mechanism, data, 4) for data in (rows, other, new))
                one, whole = (float(np.linalg.norm(here - data)) for data in (there, anew))
                assert one <= kappa * sound.weights[silo] * 0.5 * (1 + 1e-12)
                assert whole <= 2 * sound.largest_sums[silo] * sound.weights[silo] * 0.5 * (1 + 1e-12)
                # The shift of all rounds stays below the shift of the stated epsilon, for the person and for the silo.
                assert math.sqrt(10) * one / deviation <= made.worst_shift("region") * (1 + 1e-12)
                if silo_epsilon is not None:
                    shift = math.sqrt(10) * whole / deviation
                    assert fulcrum.epsilon_of(2 * math.sqrt(10) / shift, rounds=10, delta=1e-5) <= 30 * (1 + 1e-9)


@pytest.mark.parametrize(("parameters", "radius", "persons"), [(1, 6, 3), (1, 100, 2), (2, 3, 2), (3, 1, 2), (2, 2, 3)])
@pytest.mark.parametrize("declared", [1.0, 1.5, 2.0])
def test_the_bound_on_a_lattice_by_exact_enumeration(parameters, radius, persons, declared):
    """All persons of small integers within the ball: the projected and cut sums of all neighbours, compared exactly.

    With a ball of few steps the cut costs up to sqrt(d) steps, which is what the bound charges: the 0.01 of a plan's
    sensitivity is sqrt(d) steps of the finest lattice that a plan may have.
    """
    mechanism = lattice(1.0, float(radius), declared, parameters, 1.0)
    points = [
        point
        for point in itertools.product(range(-radius, radius + 1), repeat=parameters)
        if sum(value * value for value in point) <= radius * radius
    ]
    released = {}
    for size in (persons - 1, persons):
        for total in {tuple(map(sum, zip(*rows, strict=True))) for rows in itertools.product(points, repeat=size)}:
            values = mechanism.perturb_sum(np.array(total, dtype=np.int64))
            released[total] = tuple(values.tolist())
            # The release is in the ball, up to no rounding at all, and a sum within the ball is left as it is.
            assert sum(value * value for value in released[total]) <= Fraction(declared * radius) ** 2
            if sum(value * value for value in total) <= Fraction(declared * radius) ** 2 * Fraction(99, 100):
                assert released[total] == total
    rest = {tuple(map(sum, zip(*rows, strict=True))) for rows in itertools.product(points, repeat=persons - 1)}
    slack = math.sqrt(parameters)  # a hundredth of the radius, where the radius is that of a plan's finest lattice
    worst = {"replace": 0.0, "add-remove": 0.0}
    for base in rest:
        sums = {released[tuple(x + y for x, y in zip(base, point, strict=True))] for point in points}
        apart = max(math.dist(first, second) for first, second in itertools.product(sums, repeat=2))
        worst["replace"] = max(worst["replace"], apart)
        worst["add-remove"] = max(worst["add-remove"], *(math.dist(released[base], other) for other in sums))
    assert worst["replace"] <= 2 * radius + slack
    assert worst["add-remove"] <= radius + slack


def test_the_second_cut_is_within_a_hundredth_of_the_finest_lattice_of_a_plan():
    for parameters, weight, clip in itertools.product((1, 2, 3, 1_000), (1e-6, 0.3, 1.0), (0.01, 1.0, 50.0)):
        step = lattice_step(least_weight=weight, clip_norm=clip, parameters=parameters)
        assert math.sqrt(parameters) * step <= 0.01 * weight * clip * (1 + 1e-9)


def test_a_row_that_changes_after_it_was_measured_is_added_as_it_was_measured(monkeypatch):
    row, clip = np.array([0.5, 0.5]), mechanisms.clip

    def clip_and_change(update, norm, share=1.0):
        clipped = clip(update, norm, share)
        row[:] = 1e6  # as a copy from a device that has not ended, or another thread
        return clipped

    monkeypatch.setattr(mechanisms, "clip", clip_and_change)
    total = mechanisms.sum_by_person(gaussian(1.0, 1.0, 9.0), [row], 2)
    assert total.tolist() == [0.5, 0.5]
