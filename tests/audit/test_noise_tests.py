import numpy as np
import pytest

from fulcrum.audit.evidence.noise_tests import (
    Width,
    bare_bits,
    bin_counts,
    lag_correlation,
    moduli,
    narrowest,
    phases,
    repetition,
    shape_p_value,
)
from fulcrum.core.noise.noise_sources import SecureNoise

DRAWN = np.random.default_rng(5)


def share_below(values, level):
    return np.mean(np.array(values) < level)


def width_of(values):
    return Width(squares=float(values @ values), count=len(values))


def test_widths_are_refused_as_often_as_their_p_values_say():
    found = [width_of(DRAWN.standard_normal(500)) for _ in range(2_000)]
    for level in (0.01, 0.1, 0.5):
        assert share_below([width.too_little for width in found], level) == pytest.approx(level, abs=0.03)
        assert share_below([width.too_much for width in found], level) == pytest.approx(level, abs=0.03)


@pytest.mark.parametrize("scale", [2 / 3, 0.9, 1.1, 3 / 2])
def test_another_width_is_refused(scale):
    found = width_of(scale * DRAWN.standard_normal(10_000))
    assert (found.too_little if scale < 1 else found.too_much) < 1e-9
    assert found.ratio == pytest.approx(scale, rel=0.03)


def test_fresh_noise_is_refused_as_often_as_its_p_value_says():
    found = []
    for _ in range(1_000):
        noise = DRAWN.standard_normal((5, 200))
        found.append(repetition(noise @ noise.T, 200).p_value)
    assert share_below(found, 0.05) <= 0.075


def test_noise_that_comes_back_is_named_by_its_rounds():
    noise = DRAWN.standard_normal((6, 400))
    noise[4] = 0.6 * noise[1] + 0.8 * noise[4]
    found = repetition(noise @ noise.T, 400)
    assert found.two == (2, 5)
    assert found.p_value < 1e-9
    assert repetition(noise[:1] @ noise[:1].T, 400) is None


def turns_of(values, tried):
    return {modulus: complex(np.exp(1j * phases(values, modulus)).sum()) for modulus in tried}


def test_lattice_noise_leaves_every_low_bit_uniform():
    found = []
    for _ in range(300):
        drawn = SecureNoise().integers(width=100.0, count=1_000)
        tried = moduli(100.0)
        assert tried == [2, 4, 8, 16, 32, 64]
        found.append(bare_bits(turns_of(drawn, tried), 1_000).p_value)
    assert share_below(found, 0.05) <= 0.1


def test_low_bits_that_noise_does_not_reach_are_found_at_their_modulus():
    coarse = 64 * SecureNoise().integers(width=50.0, count=1_000)
    fine = SecureNoise().integers(width=16.0, count=1_000)
    found = bare_bits(turns_of(coarse + fine, moduli(3_200.0)), 1_000)
    assert found.modulus == 64
    assert found.p_value < 1e-9
    assert bare_bits({}, 0) is None


def test_shapes_places_and_chains_are_refused_as_often_as_their_p_values_say():
    noise = [DRAWN.standard_normal((40, 30)) for _ in range(1_000)]
    found = {
        "shape": [shape_p_value(bin_counts(values)) for values in noise],
        "place": [narrowest((values**2).sum(axis=0), 40).p_value for values in noise],
        "chain": [lag_correlation(values).p_value for values in noise],
    }
    for p_values in found.values():
        assert share_below(p_values, 0.05) <= 0.075
        assert share_below(p_values, 0.3) >= 0.15


def test_too_few_values_say_nothing_of_a_shape():
    assert shape_p_value(bin_counts(np.zeros(100))) == 1.0


def test_noise_of_two_coordinates_has_no_chain():
    assert lag_correlation(DRAWN.standard_normal((10, 2))) is None
    assert lag_correlation(np.zeros((3, 10))) is None
