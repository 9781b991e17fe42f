import numpy as np
import pytest
from scipy import stats

from fulcrum.noise import SeededNoise


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
