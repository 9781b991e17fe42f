"""Regions that oppose each other: found in sums where sums can show it, and heard by the rule that pools."""

from dataclasses import replace

import numpy as np
import pytest

from fulcrum.rules.random_effects_rule import SLOPE_NOISE, SLOPES, STEP_TOTALS, RandomEffectsRule
from fulcrum.rules.regional_dispute import regions_dispute
from fulcrum.rules.server_rule import RoundSums

SHARES = np.array([0.6, 0.25, 0.15])
NOISE = np.array([0.002, 0.02, 0.05])  # of the mean of a region, in a coordinate
ROWS, ROUNDS = 20, 8


def rule(**changes):
    made = RandomEffectsRule(
        shares=SHARES,
        weight=SHARES,
        variance=NOISE * SHARES**2,
        least_noise=0.002,
        scale=0.5,
        rounds=ROUNDS,
        least_influence=0.5,
        disputed_influence=1.0,
    )
    return replace(made, **changes)


def run(chosen, seed, *, opposed, rounds=ROUNDS, noise=1.0, classes=2):
    """Returns the last state; the silos of a region push toward their own target, which may be the opposite."""
    stream = np.random.default_rng(seed)
    target = np.outer(stream.normal(size=ROWS), [1, -1])
    target /= np.linalg.norm(target)
    signs = np.array([1.0, -1.0, -1.0]) if opposed else np.ones(3)
    state = chosen.begin(np.zeros((ROWS, 2)))
    for _ in range(rounds):
        pushes = signs[:, None, None] * target * 3 - state.model
        pushes /= np.linalg.norm(pushes.reshape(3, -1), axis=1)[:, None, None]
        values = pushes + np.sqrt(noise * NOISE)[:, None, None] * stream.normal(size=(3, ROWS, 2))
        sums = RoundSums(values=values * SHARES[:, None, None], present=np.ones(3, dtype=bool), classes=classes)
        state, _ = chosen.step(state, sums)
    return state


def disputed(state):
    return regions_dispute(state.arrays[SLOPES], state.arrays[SLOPE_NOISE], state.arrays[STEP_TOTALS])


def test_opposed_regions_are_found_and_agreeing_regions_hardly_ever():
    found = [sum(disputed(run(rule(), seed, opposed=opposed)) for seed in range(60)) for opposed in (False, True)]
    assert found[0] <= 3
    assert found[1] >= 54


def test_where_noise_hides_every_slope_opposed_regions_are_found_as_rarely_as_others():
    found = [disputed(run(rule(), seed, opposed=True, noise=1e4)) for seed in range(60)]
    assert sum(found) < 20


def test_a_dispute_gives_every_region_the_influence_of_a_rule_with_this_least_influence():
    heeding, last = rule(), rule(least_influence=1.0, disputed_influence=0.0)
    state = run(heeding, 3, opposed=True)
    assert disputed(state)
    stays = replace(state, arrays={name: a for name, a in state.arrays.items() if name not in (SLOPES, SLOPE_NOISE)})
    silent = RoundSums(values=np.zeros((3, ROWS, 2)), present=np.array([True, False, False]), classes=2)
    # Without a push the models differ by the pooling alone.
    assert heeding.step(state, silent)[0].model == pytest.approx(last.step(stays, silent)[0].model)
    unheeding = rule(disputed_influence=0.0)
    assert np.abs(heeding.step(state, silent)[0].model - unheeding.step(stays, silent)[0].model).max() > 1e-3


@pytest.mark.parametrize("changes", [{"disputed_influence": 0.0}, {"disputed_influence": 0.5}])
def test_a_rule_that_heeds_no_dispute_keeps_the_state_of_earlier_checkpoints(changes):
    state = run(rule(**changes), 1, opposed=True)
    assert not {SLOPES, SLOPE_NOISE} & set(state.arrays)
    earlier = run(rule(disputed_influence=0.0), 1, opposed=True)
    assert np.array_equal(state.model, earlier.model)


def test_a_model_that_is_no_head_moves_as_without_disputes():
    heeding, unheeding = (run(rule(disputed_influence=d), 1, opposed=True, classes=None) for d in (1.0, 0.0))
    assert np.array_equal(heeding.model, unheeding.model)
    assert not heeding.arrays[SLOPES].any()


def test_slopes_that_no_run_can_reach_are_refused():
    chosen = rule()
    state = run(chosen, 1, opposed=False)
    assert chosen.can_be(state)
    for name, value in ((SLOPE_NOISE, -1.0), (SLOPE_NOISE, 1e9), (SLOPES, np.nan)):
        changed = state.arrays[name].copy()
        changed[0] = value
        assert not chosen.can_be(replace(state, arrays={**state.arrays, name: changed}))
    begun = chosen.begin(np.zeros((ROWS, 2)))
    assert chosen.can_be(begun)
    assert not chosen.can_be(replace(begun, arrays={**begun.arrays, SLOPES: np.ones(3)}))


def test_regions_without_a_slope_count_for_nothing():
    slopes, noise = np.array([2.0, 0.0, -1.0]), np.array([0.1, 0.0, 1.0])
    heard = np.array([1.0, 0.0, 1.0])
    assert (
        regions_dispute(slopes, noise, heard) == regions_dispute(slopes[[0, 2]], noise[[0, 2]], heard[[0, 2]]) is True
    )
    assert not regions_dispute(slopes[:1], noise[:1], heard[:1])
    assert not regions_dispute(slopes, np.zeros(3), heard)


def test_a_region_that_missed_rounds_has_its_slope_by_the_rounds_that_it_was_heard_in():
    full = regions_dispute(np.array([1.0, -0.2]), np.array([0.5, 1.0]), np.array([1.0, 1.0]))
    half = regions_dispute(np.array([0.5, -0.2]), np.array([0.25, 1.0]), np.array([0.5, 1.0]))
    assert full == half
