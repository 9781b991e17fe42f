import copy
import dataclasses

import numpy as np
import pytest
from scipy import stats

from fulcrum.noise.keystream import Keystream
from fulcrum.noise.sources import SecureNoise, SeededNoise


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


class Zeros:
    """A source of words that conceals nothing."""

    def words(self, count):
        return np.zeros(count, dtype=np.uint64)


@pytest.mark.parametrize(
    "stream", [Zeros(), Keystream._for_test(bytes(32)), Keystream()], ids=["zeros", "known", "own"]
)
def test_secure_noise_takes_its_words_from_nowhere_else(stream):
    for give in (
        lambda: SecureNoise(stream),
        lambda: SecureNoise(stream=stream),
        lambda: SecureNoise(_stream=stream),
        lambda: dataclasses.replace(SecureNoise(), _stream=stream),
        lambda: setattr(SecureNoise(), "_stream", stream),
    ):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            give()


def test_secure_noise_is_never_drawn_twice():
    noise = SecureNoise()
    drawn = [source.integers(width=1e6, count=50) for source in (noise, noise, copy.copy(noise), SecureNoise())]
    assert len({draws.tobytes() for draws in drawn}) == 4
    assert not np.isin(drawn[0], np.concatenate(drawn[1:])).any()
    assert repr(noise) == "SecureNoise()"


def test_noise_for_tests_can_be_drawn_again_and_is_of_another_type():
    first, second = (SecureNoise._for_test(bytes(32)) for _ in range(2))
    assert (first.integers(width=50.0, count=9) == second.integers(width=50.0, count=9)).all()
    assert type(first) is not SecureNoise
