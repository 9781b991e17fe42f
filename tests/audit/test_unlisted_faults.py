"""Faults that keep the noise's width, or spare most of it: shape, sharing between silos, single rounds and coordinates."""

import numpy as np
import pytest
from faults import SIZES, AuditedPath, made, perturbed, silo_release

from fulcrum.audit.evidence.findings import CONSISTENT, VIOLATED
from fulcrum.audit.evidence.judging import Errors, probe
from fulcrum.audit.replays.canary_game import audit
from fulcrum.audit.replays.played_observers import stages_of
from fulcrum.audit.replays.replaying import replay_stage
from fulcrum.core.noise.mechanism import clip
from fulcrum.core.noise.noise_sources import SeededNoise

PLAN = made()
ERRORS = Errors.share(views=8, probes=8, confidence=0.95)


def noise_of(seed, number, silo, shape):
    return SeededNoise(seed=seed).standard_normal(round_number=number, block=silo, shape=shape)


def with_noise(drawn, clipped=1.0):
    """The plan's path, with noise of another kind: `drawn` takes the seed, the round, the silo and the shape."""

    def released(path, silo, number, signs, seed):
        update = clip(clipped * signs * path.clip_canary(), np.inf)
        return perturbed(update, PLAN, silo, drawn(seed, number, silo, signs.shape))

    return AuditedPath(plan=PLAN, released=released)


def two_points(seed, number, silo, shape):
    return np.sign(noise_of(seed, number, silo, shape))


def uniform(seed, number, silo, shape):
    return np.random.default_rng([seed, number, silo]).uniform(-np.sqrt(3), np.sqrt(3), shape)


def heavy_tails(seed, number, silo, shape):
    return np.random.default_rng([seed, number, silo]).laplace(0, np.sqrt(0.5), shape)


def shared_by_two(seed, number, silo, shape):
    return noise_of(seed, number, 2 if silo == 3 else silo, shape)


def none_in_the_last_round(seed, number, silo, shape):
    return noise_of(seed, number, silo, shape) * (number < PLAN.rounds)


def at_ninety_percent(seed, number, silo, shape):
    return 0.9 * noise_of(seed, number, silo, shape)


def reasons_of(found):
    return " ".join(reason for finding in found.findings for reason in finding.reasons)


@pytest.mark.parametrize(
    ("mechanism", "why"),
    [
        (with_noise(two_points), "is not Gaussian"),
        (with_noise(uniform), "is not Gaussian"),
        (with_noise(heavy_tails), "is not Gaussian"),
        (with_noise(shared_by_two), "'north-3' and 'north-4' do not draw noise of their own: its correlation is 1.000"),
        (with_noise(none_in_the_last_round), "In round 10 the noise that it meets is 0.0% as wide"),
        (with_noise(at_ninety_percent), "as wide as the plan says"),
        (with_noise(noise_of, clipped=1.5), "times as large as the clip admits"),
    ],
)
def test_a_fault_that_keeps_the_width_is_found_in_every_audit(mechanism, why):
    for seed in range(20):
        found = audit(PLAN, trials=3_000, seed=seed, mechanism=mechanism)
        assert found.verdict == VIOLATED
        assert why in reasons_of(found)


def test_one_silo_with_the_wrong_shape_is_found_among_many():
    def drawn(seed, number, silo, shape):
        return (two_points if silo == 5 else noise_of)(seed, number, silo, shape)

    for seed in range(5):
        found = audit(PLAN, trials=3_000, seed=seed, mechanism=with_noise(drawn))
        assert "The noise of silo 'north-6' is not Gaussian" in reasons_of(found)


def test_a_weight_swapped_between_two_silos_is_found():
    def released(path, silo, number, signs, seed):
        return silo_release(path, {8: 11, 11: 8}.get(silo, silo), number, signs, seed)

    assert SIZES["south"][0] != SIZES["south"][3]
    for seed in range(5):
        assert (
            audit(PLAN, trials=3_000, seed=seed, mechanism=AuditedPath(plan=PLAN, released=released)).verdict
            == VIOLATED
        )


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (lambda noise: noise * (np.arange(40) != 6), "In coordinate 7 the noise of release is 0.0% as wide"),
        (lambda noise: np.repeat(noise[:, ::2], 2, axis=1), "between those 1 apart its correlation is 0."),
        (lambda noise: np.tile(noise[:, :10], 4), "between those 10 apart its correlation is 1.000"),
    ],
)
def test_noise_that_spares_a_coordinate_or_repeats_over_coordinates_is_found(fault, why):
    for seed in range(20):
        noise = fault(np.random.default_rng(seed).standard_normal((200, 40))).reshape(4, 50 * 40)
        found = probe("release", "lille", noise, ERRORS, parameters=40)
        assert found.verdict == VIOLATED
        assert why in " ".join(found.reasons)


def test_probes_of_sound_noise_are_refused_as_seldom_as_stated():
    loose = Errors(bound=0.01, noise=0.01, tests=1)
    alarms = [
        probe("release", "lille", np.random.default_rng(seed).standard_normal((4, 2_000)), loose, parameters=40).verdict
        != CONSISTENT
        for seed in range(400)
    ]
    assert np.mean(alarms) <= 0.08 + 3 * np.sqrt(0.08 / 400)


def test_noise_of_few_replays_and_many_rounds_is_not_taken_for_narrower_than_it_is():
    """What the canary's part takes of the noise when it is estimated is allowed for."""
    plan = made(sizes={"north": [10]}, rounds=1_000)
    inside = stages_of(plan)[1]
    found = [
        replay_stage(AuditedPath(plan=plan), inside, trials=1_000, seed=seed, error=0.05).silos[0] for seed in range(24)
    ]
    off = [(width.squares - width.count) / np.sqrt(2 * width.count) for width in found]  # standard normal
    assert abs(np.mean(off)) < 3.5 / np.sqrt(24)
