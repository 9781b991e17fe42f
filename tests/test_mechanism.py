import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fulcrum.errors import DivergedUpdateError
from fulcrum.mechanism import clip, clip_factor

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
    assert np.array_equal(clip(update, float(np.linalg.norm(update.ravel()))), update)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_is_refused(value):
    with pytest.raises(DivergedUpdateError, match="not finite"):
        clip(np.array([1.0, value]), 1.0)


def test_an_infinite_bound_clips_nothing():
    assert clip_factor(np.array([0.0, 1e9]), np.inf).tolist() == [1.0, 1.0]


def test_the_direction_is_kept():
    assert clip(np.array([3.0, 4.0]), 1.0) == pytest.approx([0.6, 0.8])
