"""Verification of lateral floors against the coupling that a plan names. Forged ones fail."""

import itertools
import math

import msgspec
import pytest

from fulcrum.core.plan.verification import verify
from fulcrum.core.plan.verify_floors import _SLACK, _floor
from fulcrum.planning.planner import plan
from fulcrum.planning.theory.prior import Coupling, lateral_floor
from fulcrum.readers.federation import Federation

FEDERATION = Federation.from_sizes({"a": [5] * 12, "b": [4] * 4, "c": [7], "d": [2] * 4})


def made(strength=20.0):
    floor = Coupling(strength)
    return plan(FEDERATION, rounds=5, information=lateral_floor(12, coupling=strength) + 0.1, floor=floor).content()


def failed(content, **settings):
    changed = msgspec.structs.replace(content, settings=msgspec.structs.replace(content.settings, **settings))
    return {check.name for check in verify(changed) if not check.holds}


@pytest.mark.parametrize("strength", [1e-4, 1e-3, 0.1, 1.0, 5.0, 20.0, 100.0, 1e3, 1e4, 1e5, 1e6])
def test_floors_of_a_coupling_hold_whatever_it_is(strength):
    assert failed(made(strength)) == set()
    for size in (1, 2, 3, 4, 30, 10_000):
        assert _floor(size, strength) == pytest.approx(lateral_floor(size, coupling=strength), abs=0.8 * _SLACK)


def test_floors_are_near_what_the_paper_prints():
    for size, printed in ((4, 0.777), (12, 0.875), (24, 0.895), (30, 0.899), (60, 0.908)):
        assert _floor(size, 20.0) == pytest.approx(printed, abs=0.007)


def test_weak_and_strong_couplings_have_the_floors_that_are_known_in_closed_form():
    # Without coupling p is 0 or 1, and a group's mean says of it log 2 less the mean entropy of a coin of that mean.
    assert _floor(10**9, 1e-4) == pytest.approx(math.log(2) - (1 / 3 + 1 / 4), abs=1e-3)
    # With all coupling p is the group's mean, which one other tells: its entropy in 400 levels of Beta(2, 2).
    below = [x * x * (3 - 2 * x) for x in (level / 400 for level in range(401))]
    masses = [high - low for low, high in itertools.pairwise(below)]
    assert _floor(2, 1e12) == pytest.approx(-sum(mass * math.log(mass) for mass in masses), abs=1e-3)


@pytest.mark.parametrize("strength", [5.0, 19.9, 20.1, 21.58, 100.0])
def test_floors_of_another_coupling_fail(strength):
    """A floor below the truth leaves room for a mechanism that reveals more than was promised."""
    assert "floor" in failed(made(), coupling=strength)


@pytest.mark.parametrize("strength", [1e-5, 1e-3, 0.5, 20.0, 1e3, 1e5])
@pytest.mark.parametrize("change", [-0.03, -0.002, 0.002])
def test_floors_that_are_off_by_a_little_fail_whatever_the_coupling(strength, change):
    content = made(strength)
    moved = [floor + change if floor else floor for floor in content.settings.floor]
    assert "floor" in failed(content, floor=moved)


def test_floors_that_do_not_follow_from_the_sizes_of_groups_fail():
    content = made()
    floor = content.settings.floor
    assert math.isclose(floor[0], 0.875, abs_tol=0.006)
    assert "floor" in failed(content, floor=0.0)
    assert "floor" in failed(content, floor=None)
    assert "floor" in failed(content, floor=[each / 2 for each in floor])
    assert "floor" in failed(content, floor=[*floor[:-1], floor[-1] * 0.999])  # unlike others in groups as large
    assert "floor" in failed(content, floor=[0.01 if each == 0 else each for each in floor])  # of a silo alone
    swapped = {floor[0]: floor[12] + 0.02, floor[12]: floor[12] + 0.03, 0.0: 0.0}
    assert "floor" in failed(content, floor=[swapped[each] for each in floor])  # a larger group has a smaller one


def test_a_floor_that_no_coupling_is_named_for_is_taken_as_declared():
    content = plan(FEDERATION, rounds=5, information=2.0, floor=0.5).content()
    assert failed(content) == set()
    assert "floor" not in {check.name for check in verify(content)}
