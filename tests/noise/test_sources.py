import copy
import dataclasses
import pickle

import numpy as np
import pytest
from repeated_noise import RepeatedNoise
from scipy import stats

from fulcrum.core.noise.discrete_gaussian import DiscreteGaussian
from fulcrum.core.noise.keystream import random_bytes, repeated_bytes
from fulcrum.core.noise.noise_sources import SecureNoise, SeededNoise


def draws(scale=1.0):
    return scale * SeededNoise(seed=1).standard_normal(round_number=1, block=0, shape=(200, 100)).ravel()


def test_seeded_noise_is_standard_normal_and_no_other_scale():
    assert stats.kstest(draws(), "norm").pvalue > 0.01
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(draws(wrong), "norm").pvalue < 1e-12


def test_the_same_seed_round_and_block_give_the_same_bits():
    first = SeededNoise(seed=3).standard_normal(round_number=2, block=5, shape=(4, 6))
    assert (first == SeededNoise(seed=3).standard_normal(round_number=2, block=5, shape=(4, 6))).all()


@pytest.mark.parametrize("change", [{"seed": 4}, {"round_number": 3}, {"block": 6}])
def test_nothing_is_drawn_twice(change):
    place = {"seed": 3, "round_number": 2, "block": 5}
    other = place | change

    def at(where):
        return SeededNoise(seed=where["seed"]).standard_normal(
            round_number=where["round_number"], block=where["block"], shape=(50, 50)
        )

    one, two = at(place), at(other)
    assert not np.isin(one, two).any()
    assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.1


def zeros(count):
    """A source of bytes that conceals nothing."""
    return np.zeros(count, dtype=np.uint8)


@pytest.mark.parametrize("source", ["zeros", "known", "own"])
def test_secure_noise_takes_its_bytes_from_nowhere_else(source):
    draw = {"zeros": zeros, "known": repeated_bytes(bytes(32)), "own": random_bytes}[source]
    for give in (
        lambda: SecureNoise(draw),
        lambda: SecureNoise(draw=draw),
        lambda: SecureNoise(_draw=draw),
        lambda: dataclasses.replace(SecureNoise(), _draw=draw),
        lambda: setattr(SecureNoise(), "_draw", draw),
    ):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            give()


def test_secure_noise_draws_what_random_bytes_give(monkeypatch):
    """Exactly, so that no other scale or source can take its place."""
    monkeypatch.setattr("fulcrum.core.noise.noise_sources.random_bytes", repeated_bytes(b"k" * 32))
    expected = DiscreteGaussian(width=1234.5).sample(1000, repeated_bytes(b"k" * 32))
    assert (SecureNoise().integers(width=1234.5, count=1000) == expected).all()


def test_secure_noise_is_never_drawn_twice():
    noise = SecureNoise()
    copies = (copy.copy(noise), copy.deepcopy(noise), pickle.loads(pickle.dumps(noise)))
    drawn = [source.integers(width=1e12, count=50) for source in (noise, noise, *copies, SecureNoise())]
    assert len({draws.tobytes() for draws in drawn}) == 6
    assert not np.isin(drawn[0], np.concatenate(drawn[1:])).any()
    assert repr(noise) == "SecureNoise()"


def test_noise_for_tests_can_be_drawn_again_and_is_of_another_type():
    first, second = (RepeatedNoise(bytes(32)) for _ in range(2))
    assert (first.integers(width=50.0, count=9) == second.integers(width=50.0, count=9)).all()
    assert type(first) is not SecureNoise
