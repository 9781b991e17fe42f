"""A server's rounds: who is heard, with what, and models of any size."""

import dataclasses

import numpy as np
import pytest

from fulcrum.core.choices import EVEN_HEADS, EVEN_SCALE, HEADS, ONE_SCALE
from fulcrum.rules import random_effects
from fulcrum.rules.random_effects import pool_sums
from fulcrum.rules.random_effects_rule import RandomEffectsRule, first_step, pace_of
from fulcrum.rules.server_rule import RoundSums

REGIONS = 5


def rule_of(regions=REGIONS, seed=0, **options):
    rng = np.random.default_rng(seed)
    given = {
        "shares": rng.dirichlet(np.ones(regions)),
        "weight": rng.dirichlet(np.ones(regions)),
        "variance": rng.uniform(1, 3, regions) * 1e-5,
        "least_noise": 2e-3,
        "scale": 0.7,
        "rounds": 20,
    }
    return RandomEffectsRule(**(given | options))


def rounds_of(rule, shape, rounds=3, seed=1):
    """What regions say in some rounds."""
    rng = np.random.default_rng(seed)
    effect = 0.2 * rng.normal(size=shape) + 0.05 * rng.normal(size=(len(rule.weight), *shape))
    for _ in range(rounds):
        drawn = rng.normal(size=effect.shape) * np.sqrt(rule.variance).reshape(-1, *(1,) * len(shape))
        yield rule.weight.reshape(-1, *(1,) * len(shape)) * effect + drawn


def advanced(rule, state, sums, *, heard=None, **options):
    present = np.ones(len(sums), dtype=bool) if heard is None else heard
    return rule.step(state, RoundSums(values=sums, present=present, **options))


def run(rule, shape, rounds, **options):
    state, told = rule.begin(np.zeros(shape)), []
    for sums in rounds:
        state, one = advanced(rule, state, sums, **options)
        told.append(one)
    return state, told


def by_definition(values, variance, shares, classes):
    """Section by section, with nothing saved."""
    rows = values.reshape(len(values), -1, classes)
    values = (rows - rows.mean(axis=2, keepdims=True)).reshape(len(values), -1)
    free, weight = values.shape[1] // classes * (classes - 1), 1 / variance
    mean = weight @ values / weight.sum()
    spread = (weight[:, None] * (values - mean) ** 2).sum()
    t2 = max(0, (spread - free * (len(values) - 1)) / (free * (weight.sum() - (weight**2).sum() / weight.sum())))
    weight, kept = 1 / (variance + t2), t2 / (t2 + variance)
    mean = weight @ values / weight.sum()
    return shares @ (mean + kept[:, None] * (values - mean)), t2


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("at_once", [1, 100, 1 << 20])
def test_an_estimate_in_pieces_is_the_one_by_definition(monkeypatch, classes, at_once):
    monkeypatch.setattr(random_effects, "_AT_ONCE", at_once)
    rng = np.random.default_rng(classes)
    values = rng.normal(size=42) + rng.normal(size=(REGIONS, 42)) * 0.4
    variance, shares = rng.uniform(0.05, 0.2, REGIONS), rng.dirichlet(np.ones(REGIONS))
    expected, t2 = by_definition(values, variance, shares, classes)
    assert t2 > 0
    scale = rng.uniform(0.5, 2, REGIONS)
    for given, times in ((values, None), (list(values / scale[:, None]), scale)):
        found = pool_sums(given, variance=variance, shares=shares, scale=times, classes=classes)
        assert found.estimate == pytest.approx(expected, rel=1e-12, abs=1e-14)
        assert found.heterogeneity == pytest.approx(t2, rel=1e-12)


def test_pieces_do_not_change_a_model_of_a_million_parameters_and_integers_are_their_sums():
    rule, shape = rule_of(3, variance=np.full(3, 1e-4)), (500_000, 2)
    unit = 2.0**-30
    whole = [np.rint(sums / unit).astype(np.int64) for sums in rounds_of(rule, shape, rounds=2)]
    state, told = run(rule, shape, whole, unit=unit, classes=2)
    other, also = run(rule, shape, [sums * unit for sums in whole], classes=2)
    assert (np.abs(state.model - other.model) <= np.maximum(1e-9 * np.abs(other.model), 1e-12)).all()
    assert [one.heard for one in told] == [3, 3]
    assert told[1].heterogeneity == pytest.approx(also[1].heterogeneity, rel=1e-9)
    flat = (
        state.arrays["said"].reshape(3, -1) * (state.numbers["steps"] / state.arrays["heard"])[:, None],
        state.arrays["noise"] * (state.numbers["steps"] / state.arrays["heard"]) ** 2,
    )
    expected, t2 = by_definition(*flat, rule.shares / rule.shares.sum(), 2)
    assert told[1].heterogeneity == pytest.approx(t2, rel=1e-9)
    assert np.abs(state.model.ravel()).sum() <= np.abs(expected).sum()


def test_a_state_is_not_written_to_and_room_changes_nothing():
    rule, shape = rule_of(), (4, 3)
    sums = list(rounds_of(rule, shape))
    states = [rule.begin(np.zeros(shape))]
    for one in sums:
        states.append(advanced(rule, states[-1], one, classes=3)[0])
    for before, one, after in zip(states, sums, states[1:], strict=False):
        again, _ = advanced(rule, before, one, classes=3, spare={"said": np.full((REGIONS, *shape), np.nan)})
        assert np.array_equal(again.model, after.model)
        assert again.numbers == after.numbers
        for name, array in again.arrays.items():
            assert np.array_equal(array, after.arrays[name]), name


def test_a_round_in_which_nobody_is_heard_moves_nothing():
    rule, shape = rule_of(), (4, 3)
    first, second = rounds_of(rule, shape, rounds=2)
    nobody = np.zeros(REGIONS, dtype=bool)
    plain, _ = run(rule, shape, [first, second], classes=3)
    state = rule.begin(np.zeros(shape))
    for sums, heard in ((first * 0, nobody), (first, None), (first * 0, nobody), (second, None)):
        before = state.model
        state, told = advanced(rule, state, sums, heard=heard, classes=3)
        assert np.array_equal(state.model, before) == (told.heard == 0)
    assert np.array_equal(state.model, plain.model)


def test_a_region_heard_in_some_rounds_counts_for_all_of_them_with_its_noise():
    """Theory: it enters as t / n times its sum, with variance t² / n times v. All steps are 1 at scale 1."""
    rule, shape = rule_of(scale=1.0), (8, 3)
    sums = list(rounds_of(rule, shape, rounds=4))
    heard = np.ones((4, REGIONS), dtype=bool)
    heard[1:3, 2] = heard[0, 4] = False
    state = rule.begin(np.zeros(shape))
    for one, there in zip(sums, heard, strict=True):
        state, told = advanced(rule, state, one * there[:, None, None], heard=there, classes=3)
    times = heard.sum(axis=0)
    total = sum(one * there[:, None, None] for one, there in zip(sums, heard, strict=True)).reshape(REGIONS, -1)
    values = total / rule.weight[:, None] * (4 / times)[:, None]
    variance = 16 / times * rule.variance / rule.weight**2
    _, t2 = by_definition(values, variance, rule.shares, 3)
    assert t2 > 0
    assert told.heterogeneity == pytest.approx(t2, rel=1e-12)
    bare = dataclasses.replace(rule, shrinks=False)
    state, _ = run(bare, shape, [])
    for one, there in zip(sums, heard, strict=True):
        state, _ = advanced(bare, state, one * there[:, None, None], heard=there, classes=3)
    assert state.model.ravel() == pytest.approx(
        by_definition(values, variance, rule.shares, 3)[0], rel=1e-12, abs=1e-15
    )


def test_a_sum_of_fewer_silos_is_one_of_less_weight_and_less_noise():
    rule, shape = rule_of(scale=1.0, shrinks=False), (8, 3)
    (sums,) = rounds_of(rule, shape, rounds=1)
    part = np.array([1, 1, 0.5, 1, 1.0])
    state, _ = advanced(
        rule,
        rule.begin(np.zeros(shape)),
        sums * part[:, None, None],
        weight=rule.weight * part,
        variance=rule.variance * part,
        classes=3,
    )
    values = (sums / rule.weight[:, None, None]).reshape(REGIONS, -1)
    expected, _ = by_definition(values, rule.variance / rule.weight**2 / part, rule.shares, 3)
    assert state.model.ravel() == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(
    ("shrinks", "classes", "shrunk"),
    [
        (HEADS, 3, True),
        (HEADS, None, False),
        (EVEN_HEADS, 3, True),
        (EVEN_HEADS, None, False),
        (True, 3, True),
        (True, None, True),
        (False, 3, False),
        (False, None, False),
    ],
)
def test_heads_are_shrunk_and_other_models_where_that_is_asked_for(shrinks, classes, shrunk):
    rule, shape = rule_of(shrinks=shrinks), (8, 3)
    _, told = run(rule, shape, rounds_of(rule, shape), classes=classes)
    assert (told[-1].shrunk > 0) == shrunk
    assert len({rule_of(shrinks=one).key for one in (True, False, HEADS, EVEN_HEADS)}) == 4


@pytest.mark.parametrize(
    ("classes", "known", "power"),
    [(2, True, 1), (4, True, 1), (5, True, 0.8), (10, True, 0.5), (2, False, 1), (5, False, 0.8), (10, False, 0.5)],
)
def test_the_recipe_evens_factors_out_with_many_classes(classes, known, power):
    rows = np.random.default_rng(3).standard_normal((8, classes)) * np.geomspace(0.2, 5, 8)[:, None]
    spectrum = np.geomspace(4, 0.01, 7) if known else None
    evened, plain = (
        rule_of(shrinks=shrinks, spectrum=spectrum).shrink(rows, variance=3.0, free=classes - 1)
        for shrinks in ((EVEN_SCALE, ONE_SCALE) if known else (EVEN_HEADS, HEADS))
    )
    assert evened / rows == pytest.approx((plain / rows) ** power, rel=1e-9)
    assert (plain / rows).min() < 0.8


def test_what_regions_said_and_its_noise_follow_the_steps_of_the_rounds():
    rule, shape = rule_of(), (8, 3)
    sums = list(rounds_of(rule, shape, rounds=3))
    state, told = run(rule, shape, sums, classes=3)
    steps = np.array([one.step for one in told])
    assert len(set(steps.tolist())) == 3
    assert steps[0] == pytest.approx(0.7 + 0.3 * 0.25 * np.sqrt(2), rel=1e-15)
    means = np.stack(sums) / rule.weight[:, None, None]
    assert state.arrays["said"] == pytest.approx(np.einsum("t,trij->rij", steps, means), rel=1e-12)
    assert state.arrays["noise"] == pytest.approx((steps**2).sum() * rule.variance / rule.weight**2, rel=1e-12)
    assert state.arrays["heard"] == pytest.approx(np.full(REGIONS, steps.sum()), rel=1e-12)


def test_a_head_counts_the_noise_of_all_its_coordinates_whatever_their_number_and_the_rounds():
    rule = rule_of(scale=0.2)
    for rounds, coordinates, classes in [(1, 6, 2), (5, 2000, 2), (20, 2000, 10), (50, 100_000, 10)]:
        some = dataclasses.replace(rule, rounds=rounds)
        model = {"coordinates": coordinates, "classes": classes}
        assert first_step(some, **model) == 0.2 + (1 - 0.2) * 0.25 * np.sqrt(classes - 1)
        assert pace_of(some, **model) == (1 - 0.2) * 0.02 / (0.02 + 2e-3)


@pytest.mark.parametrize(
    ("rounds", "coordinates", "counted"),
    [(20, 1000, 1000), (20, 1001, 1000), (20, 100_000, 1000), (100, 100_000, 1000), (5, 50, 50), (5, 4810, 62.5)],
)
def test_another_model_counts_the_noise_of_a_thousand_coordinates_at_most_and_of_fewer_in_few_rounds(
    rounds, coordinates, counted
):
    """The clip share that a plan gives has all of them: 1 / (1 + d v)."""
    noise = 0.003
    rule = rule_of(scale=1 / (1 + coordinates * noise), least_noise=noise, rounds=rounds)
    model, trust = {"coordinates": coordinates, "classes": None}, 1 / (1 + counted * noise)
    assert first_step(rule, **model) == pytest.approx(trust + (1 - trust) * 0.25, rel=1e-12)
    assert pace_of(rule, **model) == pytest.approx((1 - trust) * 0.02 / 0.023, rel=1e-12)
    plain = dataclasses.replace(rule, scale=1.0)  # a plain clip at a norm that somebody chose
    assert (first_step(plain, **model), pace_of(plain, **model)) == (1, 0)
