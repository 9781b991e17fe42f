import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fulcrum.errors import DivergedUpdateError, ParameterError
from fulcrum.noise.clipping import clip, clip_factor

UPDATES = hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0), elements=st.floats(-1e6, 1e6))


@given(update=UPDATES, norm=st.floats(1e-3, 1e3))
def test_the_norm_is_never_above_the_bound(update, norm):
    before = update.copy()
    clipped = clip(update, norm)
    assert np.linalg.norm(clipped.ravel()) <= norm * (1 + 1e-15)
    assert np.array_equal(update, before)
    assert np.shape(clipped) == np.shape(update)


@given(update=UPDATES)
def test_an_update_within_the_norm_comes_back_bit_for_bit(update):
    within = math.hypot(*update.ravel().tolist()) * (1 + 1e-12) + 5e-324
    assert np.array_equal(clip(update, within), update)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_is_refused(value):
    with pytest.raises(DivergedUpdateError, match="not finite"):
        clip(np.array([1.0, value]), 1.0)


@pytest.mark.parametrize("norm", [math.nan, -1.0, -math.inf])
def test_a_norm_that_bounds_nothing_is_refused(norm):
    with pytest.raises(ParameterError, match="the clip norm must be a number of at least 0"):
        clip(np.array([3.0, 4.0]), norm)


@pytest.mark.parametrize("size", [1e200, 1e308, 1e-200])
def test_every_finite_update_is_clipped_however_large_or_small(size):
    clipped = clip(np.array([size, -size]), 1e-300)
    assert clipped == pytest.approx([1e-300 / 2**0.5, -1e-300 / 2**0.5], rel=1e-12, abs=0)
    assert clip(np.array([size, size]), math.inf).tolist() == [size, size]
    assert clip(np.array([size, size]), 0.0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_dtype_is_kept(dtype):
    for norm in (1.0, 10.0):
        assert clip(np.array([3, 4], dtype=dtype), norm).dtype == dtype


def test_an_infinite_bound_clips_nothing():
    assert clip(np.array([3.0, 4.0]), math.inf).tolist() == [3.0, 4.0]
    assert clip_factor(np.array([0.0, 1e9]), np.inf).tolist() == [1.0, 1.0]


def test_the_direction_is_kept():
    assert clip(np.array([3.0, 4.0]), 1.0) == pytest.approx([0.6, 0.8])
