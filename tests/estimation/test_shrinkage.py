"""The server's estimate at work: its risk beside the raw sum's, missing regions, extremes of the signal."""

import numpy as np
import pytest

from fulcrum.rules.random_effects import pool_sums
from fulcrum.rules.random_effects_rule import RandomEffectsRule
from fulcrum.rules.server_rule import RoundSums
from fulcrum.rules.shrinkage import even_out, shrink_rows

ROWS, TRIALS = 60, 120


def shapes():
    """50 signals: how many rows carry any, how strong against noise of variance 1 they are, how regions differ."""
    for k in range(50):
        draw = np.random.default_rng([12, k])
        kind = ("sparse", "dense", "decaying", "two-level", "nothing")[k % 5]
        strength = (0.3, 1.0, 3.0, 10.0, 30.0)[k // 5 % 5]
        apart = (0.0, 1.0)[k // 25]  # how much regions differ, in units of the noise of the best of them
        signal = np.zeros(ROWS)
        if kind == "sparse":
            signal[draw.choice(ROWS, 4, replace=False)] = strength * draw.choice([-1, 1], 4)
        elif kind == "dense":
            signal = strength * draw.standard_normal(ROWS)
        elif kind == "decaying":
            signal = strength * draw.choice([-1, 1], ROWS) / np.arange(1, ROWS + 1)
        elif kind == "two-level":
            signal = np.where(np.arange(ROWS) < ROWS // 3, strength, strength / 10) * draw.choice([-1, 1], ROWS)
        yield pytest.param(kind, signal, apart, k, id=f"{kind}-{strength:g}-{'apart' if apart else 'alike'}-{k}")


@pytest.mark.parametrize(("kind", "signal", "apart", "seed"), list(shapes()))
def test_pooled_and_shrunk_never_has_more_risk_than_the_raw_sum(kind, signal, apart, seed):
    shares = np.array([0.6, 0.2, 0.1, 0.06, 0.04])
    variance = np.array([0.2, 0.6, 2.0, 4.0, 4.0])
    draw = np.random.default_rng([13, seed])
    raw, mine = np.empty(TRIALS), np.empty(TRIALS)
    for trial in range(TRIALS):
        effects = signal + apart * np.sqrt(variance[0]) * draw.standard_normal((5, ROWS))
        truth = shares @ effects
        said = effects + np.sqrt(variance)[:, None] * draw.standard_normal((5, ROWS))
        found = pool_sums(said, variance=variance, shares=shares)
        estimate = shrink_rows(found.estimate[:, None], variance=float(found.variance), free=1).ravel()
        raw[trial] = ((shares @ said - truth) ** 2).sum()
        mine[trial] = ((estimate - truth) ** 2).sum()
    gain = raw - mine
    # Monte-Carlo slack: three standard errors of the paired difference.
    assert gain.mean() > -3 * gain.std() / np.sqrt(TRIALS)


def test_the_risk_test_would_notice_an_estimate_that_shrinks_blindly():
    signal = 10 * np.random.default_rng(0).standard_normal(ROWS)
    noise = np.random.default_rng(1).standard_normal((TRIALS, ROWS))
    gain = (noise**2).sum(axis=1) - ((0.5 * (signal + noise) - signal) ** 2).sum(axis=1)
    assert gain.mean() < -3 * gain.std() / np.sqrt(TRIALS)


@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_evened_rows_have_the_expected_length_of_the_signal_and_posterior_means_are_shorter(scale):
    stream, free, count = np.random.default_rng(7), 3, 20_000
    signal = np.sqrt(scale) * stream.standard_normal((count, free))
    rows = signal + stream.standard_normal((count, free))
    shrunk_rows = shrink_rows(rows, variance=1.0, free=free)
    evened_rows = even_out(rows, shrunk_rows, power=0.5)
    assert (evened_rows**2).sum() / count == pytest.approx(free * scale, rel=0.05)
    assert (shrunk_rows**2).sum() / count < 0.9 * free * scale


def test_evened_rows_keep_their_directions_and_lie_between_the_rows_and_the_posterior_means():
    rows = np.random.default_rng(8).standard_normal((30, 4)) * np.geomspace(0.1, 20, 30)[:, None]
    shrunk_rows = shrink_rows(rows, variance=1.0, free=3)
    for power in (0.25, 0.5, 0.9):
        evened_rows = even_out(rows, shrunk_rows, power=power)
        factor = evened_rows / rows
        assert factor == pytest.approx(np.repeat(factor[:, :1], 4, axis=1), rel=1e-12)
        assert (np.abs(evened_rows) <= np.abs(rows) * (1 + 1e-12)).all()
        assert (np.abs(evened_rows) >= np.abs(shrunk_rows) * (1 - 1e-12)).all()
    assert even_out(rows, shrunk_rows, power=1) is shrunk_rows
    assert even_out(rows, shrunk_rows, power=0) == pytest.approx(rows, rel=1e-12)


@pytest.mark.parametrize("variance", [0.0, 1.0])
def test_rows_of_zeros_stay_zeros(variance):
    rows = np.zeros((5, 3))
    assert not even_out(rows, shrink_rows(rows, variance=variance, free=2), power=0.5).any()


@pytest.mark.parametrize("free", [1, 3])
def test_nothing_but_noise_is_shrunk_to_next_to_nothing(free):
    rows = np.random.default_rng(2).standard_normal((400, free + 1))
    rows -= rows.mean(axis=1, keepdims=True)
    assert np.linalg.norm(shrink_rows(rows, variance=1.0, free=free)) < 0.25 * np.linalg.norm(rows)


def test_a_huge_signal_is_left_alone_and_none_stays_none():
    rows = 1e6 * np.random.default_rng(3).standard_normal((50, 2))
    assert shrink_rows(rows, variance=1.0, free=1) == pytest.approx(rows, rel=1e-3)
    assert not shrink_rows(np.zeros((50, 2)), variance=1.0, free=1).any()
    assert np.array_equal(shrink_rows(rows, variance=0.0, free=1), rows)


def test_shrinking_never_turns_a_row_round_nor_makes_it_longer():
    rows = np.random.default_rng(4).standard_normal((500, 3)) * np.geomspace(0.01, 100, 500)[:, None]
    kept = shrink_rows(rows, variance=1.0, free=2) / rows
    assert (kept >= 0).all()
    assert (kept <= 1).all()
    assert kept == pytest.approx(np.repeat(kept[:, :1], 3, axis=1))


# -------------------------------------------------------------------------------------------------------- over rounds


def rule_of(**settings):
    defaults = {
        "shares": np.array([0.5, 0.3, 0.2]),
        "weight": np.array([0.5, 0.3, 0.2]),
        "variance": np.array([1e-4, 2e-4, 3e-4]),
        "least_noise": 2e-4,
        "scale": 0.8,
        "rounds": 10,
    }
    return RandomEffectsRule(**(defaults | settings))


def advanced(rule, state, sums, *, heard=None, classes=2):
    present = np.ones(3, dtype=bool) if heard is None else heard
    return rule.step(state, RoundSums(values=sums, present=present, classes=classes))


def rounds_of(rule, *, heard=None, seed=0, rounds=6, classes=2, signal=0.3):
    draw = np.random.default_rng(seed)
    state, told = rule.begin(np.zeros((8, 2))), None
    direction = signal * np.outer(draw.standard_normal(8), [1, -1])
    for number in range(rounds):
        noise = np.sqrt(rule.variance)[:, None, None] * draw.standard_normal((3, 8, 2))
        present = np.ones(3, dtype=bool) if heard is None else heard[number]
        sums = (rule.weight[:, None, None] * direction + noise) * present[:, None, None]
        state, told = advanced(rule, state, sums, heard=present, classes=classes)
    return state, told, direction


def test_a_region_missing_from_some_rounds_speaks_for_them_with_more_noise():
    missing = [np.array([True, True, number % 2 == 0]) for number in range(6)]
    whole, _, direction = rounds_of(rule_of())
    partly, told, _ = rounds_of(rule_of(), heard=missing)
    assert partly.arrays["heard"][2] < partly.arrays["heard"][0]
    assert told.heard == 2
    for state in (whole, partly):
        expected = state.numbers["steps"] * direction
        assert np.linalg.norm(state.model - expected) < 0.1 * np.linalg.norm(expected)


def test_a_region_that_was_never_heard_leaves_the_others_to_speak():
    never = [np.array([True, True, False])] * 6
    state, told, direction = rounds_of(rule_of(), heard=never)
    assert state.arrays["heard"][2] == 0
    assert np.isfinite(state.model).all()
    assert np.linalg.norm(state.model - state.numbers["steps"] * direction) < 0.1 * np.linalg.norm(
        state.numbers["steps"] * direction
    )
    nobody = [np.zeros(3, dtype=bool)] * 6
    silent, told, _ = rounds_of(rule_of(), heard=nobody)
    assert not silent.model.any()
    assert (told.heard, told.signal) == (0, 0.0)


def test_the_same_answers_give_the_same_bits():
    first, second = (rounds_of(rule_of())[0] for _ in range(2))
    assert first.model.tobytes() == second.model.tobytes()


def test_what_all_classes_have_in_common_is_projected_out():
    rule = rule_of()
    state = rule.begin(np.zeros((8, 2)))
    sums = np.random.default_rng(5).standard_normal((3, 8, 2))
    moved = advanced(rule, state, sums, classes=2)[0].model
    shifted = advanced(rule, state, sums + np.arange(8)[None, :, None], classes=2)[0].model
    assert moved.sum(axis=1) == pytest.approx(np.zeros(8), abs=1e-12)
    assert shifted == pytest.approx(moved, abs=1e-10)


def test_diagnostics_tell_signal_noise_and_what_was_taken_off():
    _, loud, _ = rounds_of(rule_of())
    _, quiet, _ = rounds_of(rule_of(), signal=0.0)
    assert loud.signal > 10 * loud.noise
    assert quiet.signal < 2 * quiet.noise
    assert loud.shrunk < 0.05 < 0.3 < quiet.shrunk <= 1
    assert loud.heterogeneity < 1e-3


def test_least_influence_is_kept_by_the_server_that_pools():
    lopsided = {"shares": np.array([0.1, 0.1, 0.8]), "variance": np.array([1e-6, 1.0, 1.0]), "shrinks": False}
    # Regions that disagree wildly are told apart by the noise of the last two alone: precision would hear the first.
    sums = np.zeros((3, 8, 2))
    sums[2] = np.array([1, -1]) * lopsided["shares"][2]
    weight = lopsided["shares"]
    moved = {}
    for least in (0.0, 0.5):
        rule = rule_of(**lopsided, weight=weight, least_influence=least)
        moved[least] = np.abs(advanced(rule, rule.begin(np.zeros((8, 2))), sums, classes=2)[0].model).mean()
    assert moved[0.0] < 0.5 * moved[0.5]
    step = 0.8 + 0.2 * 0.25
    assert moved[0.5] >= 0.5 * 0.8 * step * (1 - 1e-12)
