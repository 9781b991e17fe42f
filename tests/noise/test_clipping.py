import math

import numpy as np
import pytest
from error_codes import coded
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fulcrum.core.noise.mechanism import clip, clip_factor
from fulcrum.errors import DivergedUpdateError, ParameterError

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
    with pytest.raises(DivergedUpdateError, check=coded("clip.update-not-finite")):
        clip(np.array([1.0, value]), 1.0)


@pytest.mark.parametrize("norm", [math.nan, -1.0, -math.inf])
def test_a_norm_that_bounds_nothing_is_refused(norm):
    with pytest.raises(ParameterError, check=coded("clip.norm-range")):
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


@given(
    updates=st.tuples(*[hnp.arrays(np.float64, 7, elements=st.floats(-1e6, 1e6))] * 2),
    norm=st.floats(1e-3, 1e3),
    share=st.floats(5e-324, 1.0),
)
def test_two_updates_differ_by_at_most_twice_the_norm_whatever_the_share(updates, norm, share):
    one, other = (clip(update, norm, share) for update in updates)
    for clipped in (one, other):
        assert np.linalg.norm(clipped) <= norm * (1 + 1e-15)
    assert np.linalg.norm(one - other) <= 2 * norm * (1 + 1e-15)


@pytest.mark.parametrize(
    ("update", "norm", "share", "expected"),
    [
        ([0.3, 0.4], 1.0, 1.0, [0.3, 0.4]),
        ([0.3, 0.4], 1.0, 0.5, [0.6, 0.8]),  # at the share itself: the whole norm
        ([0.15, 0.2], 1.0, 0.5, [0.3, 0.4]),  # within it: scaled up by 1 / share
        ([3.0, 4.0], 1.0, 0.5, [0.6, 0.8]),  # beyond it: the norm, in the same direction
        ([3.0, 4.0], 20.0, 0.5, [6.0, 8.0]),
        ([0.0, 0.0], 1.0, 0.5, [0.0, 0.0]),
        ([1e-200, 0.0], 1.0, 0.5, [2e-200, 0.0]),
        ([1e300, 0.0], 1.0, 1e-9, [1.0, 0.0]),
        ([1e-323, 0.0], 0.8, 1e-323, [0.8, 0.0]),  # where the share of the norm is rounded up
    ],
)
def test_a_clip_at_a_share_of_the_norm_is_scaled_up(update, norm, share, expected):
    assert clip(np.array(update), norm, share) == pytest.approx(expected, rel=1e-15, abs=0)
    size = np.array([math.hypot(*update)])
    if size > 1e-300:
        assert clip_factor(size, norm, share)[0] * size == pytest.approx(math.hypot(*expected), rel=1e-15, abs=0)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, math.nan])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ParameterError, check=coded("clip.share-range")):
        clip(np.array([3.0, 4.0]), 1.0, share)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("norm", [1e300, math.inf])
def test_what_is_scaled_up_stays_within_its_dtype(dtype, norm):
    """Infinity would be no bounded update, though the silo's own is one."""
    largest = np.finfo(dtype).max
    for share in (0.5, 1e-300):
        clipped = clip(np.array([0.75 * float(largest), -0.25 * float(largest)], dtype=dtype), norm, share)
        assert clipped.dtype == dtype
        assert np.isfinite(clipped).all()
        assert np.abs(clipped).max() == pytest.approx(min(float(largest), norm * 0.9487), rel=1e-3)
        assert clipped[0] / clipped[1] == pytest.approx(-3, rel=1e-3)
