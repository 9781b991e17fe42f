import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fulcrum
from fulcrum.errors import ParameterError, UnreachableTargetError
from fulcrum.lattice import check_width, convolution_term, delta_reserve, lattice_step


@given(weight=st.floats(1e-9, 1), clip_norm=st.floats(1e-3, 1e3), parameters=st.integers(1, 10**9))
def test_the_step_is_a_power_of_two_that_loses_at_most_one_percent(weight, clip_norm, parameters):
    step = lattice_step(least_weight=weight, clip_norm=clip_norm, parameters=parameters)
    finest = weight * clip_norm / (100 * math.sqrt(parameters))
    assert finest / 2 < step <= finest
    assert math.frexp(step)[0] == 0.5


@given(seed=st.integers(0, 999), parameters=st.sampled_from([1, 66, 1000]))
def test_cutting_loses_at_most_one_percent_and_the_norm_never_grows(seed, parameters):
    update = np.random.default_rng(seed).normal(size=parameters)
    update /= np.linalg.norm(update)
    step = lattice_step(least_weight=0.01, clip_norm=1.0, parameters=parameters)
    cut = np.trunc(0.01 * update / step) * step
    assert np.linalg.norm(cut) <= 0.01
    assert np.linalg.norm(0.01 * update - cut) <= 0.01 * 0.01


def test_the_norm_is_kept_at_a_hundred_thousand_parameters():
    update = np.random.default_rng(0).normal(size=100_000)
    update /= np.linalg.norm(update)
    step = lattice_step(least_weight=1 / 96, clip_norm=1.0, parameters=100_000)
    cut = np.trunc(update / 96 / step) * step * 96
    assert 0.99 <= np.linalg.norm(cut) <= 1


def test_a_step_tied_to_the_noise_would_destroy_the_update():
    update = np.random.default_rng(0).normal(size=1000)
    update /= np.linalg.norm(update)
    assert not np.trunc(update / (12.9 / 4)).any()


def test_sums_of_wide_noise_cost_nothing_and_narrow_noise_is_refused():
    assert convolution_term(16.0, 10**6) == 0.0
    assert convolution_term(0.5, 10) > 1
    with pytest.raises(UnreachableTargetError, match=r"silo 'lyon': its noise is 3 lattice steps wide, below 16"):
        check_width(3.0, 5, "lyon")


def test_the_samplers_distance_is_charged_to_delta():
    made = fulcrum.plan("severe", rounds=10, epsilon=1.0, purpose="deployment", parameters=66)
    worst = float(made.epsilon_inside.max())
    assert made.target.reserve >= delta_reserve(rounds=10, parameters=66, members=60, epsilon=worst) > 0
    assert made.target.accounted_delta < made.delta
    with pytest.raises(ParameterError, match=r"lattice noise would cost .* of delta=1e-30"):
        fulcrum.plan("severe", rounds=10, epsilon=1.0, purpose="deployment", parameters=66, delta=1e-30)


def test_a_deployment_plan_is_calibrated_by_what_is_proven_for_lattice_noise():
    made = fulcrum.plan("severe", rounds=10, epsilon=1.0, purpose="deployment", parameters=66)
    assert made.accountant == "renyi"
    assert any("its distance is charged to delta" in line for line in made.assumptions)
    exact = fulcrum.plan("severe", rounds=10, epsilon=1.0, purpose="deployment", parameters=66, accountant="exact")
    assert any("exact accountant is proven for continuous noise" in line for line in exact.assumptions)
    assert fulcrum.plan("severe", rounds=10, epsilon=1.0).accountant == "exact"
    assert all(check.holds for check in fulcrum.verify(made))


@pytest.mark.parametrize(
    "forge",
    [
        lambda c: c.tiers["region"].__setitem__(0, msgspec.structs.replace(c.tiers["region"][0], lattice_step=1.0)),
        lambda c: c.tiers["region"].__setitem__(0, msgspec.structs.replace(c.tiers["region"][0], lattice_step=None)),
        lambda c: setattr(c.settings, "reserve", 0.0),
        lambda c: c.silos.__setitem__(0, msgspec.structs.replace(c.silos[0], noise_multiplier=1e-9)),
    ],
)
def test_a_forged_lattice_fails_verification(forge):
    content = fulcrum.plan("severe", rounds=10, epsilon=1.0, purpose="deployment", parameters=66).content()
    forge(content)
    assert "lattice" in {check.name for check in fulcrum.verify(content) if not check.holds}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"parameters": None}, "a deployment plan needs the number of trainable parameters"),
        ({"injection": "aggregator"}, "in deployment every silo draws its own noise"),
        ({"purpose": "deploy"}, "unknown purpose 'deploy'. Known: research, deployment. Did you mean 'deployment'?"),
    ],
)
def test_deployment_asks_for_what_it_needs(change, line):
    settings = {"rounds": 10, "epsilon": 1.0, "purpose": "deployment", "parameters": 66} | change
    with pytest.raises(ParameterError) as caught:
        fulcrum.plan("severe", **settings)
    assert line in str(caught.value)
