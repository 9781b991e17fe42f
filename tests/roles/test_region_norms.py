"""The norms that releases may have."""

import math

import numpy as np
import pytest
from error_codes import coded
from scipy import stats

from fulcrum.aggregation.norm_tests import norm_bounds
from fulcrum.core.messages.layout import Layout
from fulcrum.core.noise.noise_sources import SeededNoise
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.core.silo.releasing import _lattice_release, release
from fulcrum.errors import ExchangeError


@pytest.mark.parametrize("purpose", ["research", "deployment"])
def test_norms_that_noise_of_this_scale_does_not_have_are_refused(world, path, purpose):
    plan = world.made(purpose=purpose)
    with world.open(path, plan) as region:
        honest = world.release("lille", plan=plan)
        sealed = world.sealed("lille", plan=plan, values=honest.values * 10)
        with pytest.raises(ExchangeError, check=coded("region.release-norm", silo="lille")):
            region.accept(sealed, 1)
        for small in (honest.values * 0, honest.values / 10):
            sealed = world.sealed("lille", plan=plan, values=small.astype(honest.values.dtype))
            with pytest.raises(ExchangeError, check=coded("region.release-norm", silo="lille")):
                region.accept(sealed, 1)
        region.accept(world.seal(honest, plan), 1)


@pytest.mark.parametrize("recipe", ["paper", "joint"])
@pytest.mark.parametrize("purpose", ["research", "deployment"])
@pytest.mark.parametrize("parameters", [1, 3, 100, 5_000])
def test_honest_releases_are_never_refused(world, purpose, parameters, recipe):
    plan = world.made(parameters=parameters, purpose=purpose, recipe=recipe)
    layout = Layout(names=("a",), shapes=((parameters,),))
    for index in (0, 1, 3):
        low, high = norm_bounds(plan, index, parameters)
        for draw in range(200):
            flat = np.zeros(parameters)
            flat[0] = (draw % 3) / 2 * plan.clip_norm  # no update, half of one, and one that fills the clip norm
            if purpose == "deployment":
                terms = release_parameters_of(plan, plan.federation.silo_name(index))
                values = _lattice_release(flat, layout, terms, 1).values
            else:
                silo = plan.federation.silo_name(index)
                values = release(flat, plan, silo, 1, noise=SeededNoise(seed=draw)).values
            assert low <= np.linalg.norm(values.astype(float)) <= high


def test_the_bounds_are_those_of_chi_and_tell_scales_apart(world):
    plan = world.made(parameters=1_000)
    width = plan.lattice_width(0)
    low, high = norm_bounds(plan, 0, 1_000)
    signal = plan.federation.weights[0] * plan.clip_norm / plan.lattice_steps[0]
    assert low == pytest.approx(width * math.sqrt(stats.chi2.ppf(2.0**-80, 1_000)) - math.sqrt(1_000), rel=1e-6)
    assert high == pytest.approx(
        signal + width * math.sqrt(stats.chi2.isf(2.0**-80, 1_000)) + math.sqrt(1_000), rel=1e-6
    )
    draws = np.random.default_rng(0).normal(size=(200, 1_000)) * width
    sizes = np.linalg.norm(draws, axis=1)
    assert ((low <= sizes) & (sizes <= high)).all()
    assert (sizes * 2 / 3 < low).all()
    assert (sizes * 3 / 2 > high).all()
