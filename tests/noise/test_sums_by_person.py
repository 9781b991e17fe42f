"""One person moves the sum of a silo by at most kappa times weight times C, whatever the person's row holds."""

import dataclasses
import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from error_codes import coded
from hypothesis import given, settings
from hypothesis import strategies as st

import fulcrum
from fulcrum.core.noise.mechanism import GaussianMechanism, LatticeMechanism, apply_by_person, sum_by_person
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.errors import ParameterError

SILENT = SimpleNamespace(integers=lambda *, width, count: np.zeros(count, dtype=np.int64))
NO_DRAW = {"clip_share": 1.0, "noise_multiplier": 0.0, "draw": np.zeros}


def lattice(**changes):
    made = {"parameters": 8, "clip_norm": 1.0, "clip_share": 1.0, "weight": 0.01, "step": 2.0**-16, "width": 20.0}
    return LatticeMechanism(**(made | {"noise": SILENT, "largest_sum": 4.0} | changes))


def distance(first, second):
    """The exact distance of two rows of integers, squared."""
    return sum((int(a) - int(b)) ** 2 for a, b in zip(first, second, strict=True))


def most_between(mechanism, kappa):
    """The largest distance that the sensitivity of the unit covers, squared and in steps."""
    reach = Fraction(kappa) * Fraction(mechanism.weight) * Fraction(mechanism.clip_norm) / Fraction(mechanism.step)
    root = Fraction(math.isqrt(mechanism.parameters * 10**24) + 1, 10**12)
    return (reach + root) ** 2


ROWS = st.lists(
    st.lists(st.floats(-10, 10) | st.sampled_from([0.0, 1e-300, 1e300, np.inf, np.nan]), min_size=8, max_size=8),
    max_size=12,
)


@settings(deadline=None)
@given(
    others=ROWS,
    person=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=8, max_size=8),
    other=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=8, max_size=8),
    largest=st.sampled_from([0.5, 1.0, 4.0, 1e6]),
    share=st.sampled_from([1.0, 0.3]),
)
def test_neighbours_are_as_near_as_the_sensitivity_says_for_any_rows(others, person, other, largest, share):
    mechanism = lattice(largest_sum=largest, clip_share=share)
    rows = [np.array(row) for row in others]

    def released(*more):
        return apply_by_person(mechanism, [*rows, *(np.array(row) for row in more)], 8)

    without, with_person, with_other = released(), released(person), released(other)
    assert distance(with_person, without) <= most_between(mechanism, 1)
    assert distance(with_person, with_other) <= most_between(mechanism, 2)
    bound = Fraction(largest) * Fraction(mechanism.weight) / Fraction(mechanism.step)
    assert distance(with_person, np.zeros(8)) <= bound**2


@pytest.fixture(scope="module", params=["replace", "add-remove"])
def plan(request):
    sizes = {"north": {"caen": 40.0, "lille": 60.0}, "south": {"nice": 50.0}}
    return fulcrum.plan(
        fulcrum.Federation.from_sizes(sizes),
        rounds=2,
        epsilon=1.0,
        parameters=34,
        purpose="deployment",
        unit="person",
        neighbours=request.param,
    )


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6, 1e300])
def test_a_person_with_a_million_large_rows_moves_the_integers_by_kappa_b_c_alone(plan, size):
    rng = np.random.default_rng(2)
    terms = dataclasses.replace(release_parameters_of(plan, "lille"), noise=SILENT)
    kappa = {"replace": 2, "add-remove": 1}[plan.unit.neighbours]
    for persons in (0, 3, 60, 200):  # within the declared number, and beyond it, where the sum is scaled down
        rows = rng.normal(size=(persons, 34))
        million = 1e6 * size * rng.normal(size=34)  # the rows of one person add up before the clip
        here = apply_by_person(terms, [rows, million], 34)
        for neighbour in ([rows], [rows, -million], [-million, rows], [rows, np.full(34, np.nan)]):
            if (
                kappa == 1
                and len(neighbour) > 1
                and np.isfinite(neighbour[0]).all()
                and np.isfinite(neighbour[-1]).all()
            ):
                continue  # another person in the place of the first is no neighbour where persons come or go
            moved = math.sqrt(distance(here, apply_by_person(terms, neighbour, 34))) * terms.step
            assert moved <= plan.unit.sensitivity * terms.weight * terms.clip_norm
            if size > 1 and persons == 3 and neighbour[-1] is not rows and kappa == 2:
                assert moved > 0.9 * terms.weight * terms.clip_norm


def test_sums_of_far_more_rows_than_declared_neither_wrap_nor_move_further():
    mechanism = lattice(weight=2.0**20, step=2.0**-30, largest_sum=2.0)  # one row is 2^50 steps
    row, total = np.full(8, 8**-0.5), np.zeros(8, dtype=np.int64)
    for _ in range(40_000):
        mechanism.add(total, row)
    assert total.tolist() == [2**62] * 8
    other = total.copy()
    mechanism.add(other, -row)
    mechanism.add(total, row)
    assert distance(total, other) <= most_between(mechanism, 2)
    far = [mechanism.perturb_sum(values) for values in (total, other)]
    assert distance(*far) <= most_between(mechanism, 2)
    assert (far[0] > 0).all()


@pytest.mark.parametrize("mechanism", [lattice(), GaussianMechanism(clip_norm=1.0, weight=1.0, **NO_DRAW)], ids=type)
def test_rows_of_another_length_are_refused_and_not_repeated(mechanism):
    for rows in (np.ones((2, 7)), np.ones((2, 1)), np.ones(1), np.ones(()), np.ones((1, 1, 8)), np.ones(9)):
        with pytest.raises(ParameterError, check=coded("clip.row-shape", parameters=8)):
            sum_by_person(mechanism, [rows], 8)


def test_a_silo_without_persons_and_persons_without_a_finite_row_add_nothing():
    diverged = []
    rows = [np.full((2, 8), np.nan), np.zeros((0, 8)), np.full(8, -np.inf)]
    assert not sum_by_person(lattice(), rows, 8, on_diverged=lambda: diverged.append(1)).any()
    assert len(diverged) == 3
    assert not apply_by_person(lattice(), [], 8).any()
