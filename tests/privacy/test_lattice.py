import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from error_codes import coded
from hypothesis import given
from hypothesis import strategies as st

import fulcrum
from fulcrum.core.lattice import (
    FARTHEST_DRAW,
    LEAST_WIDTH,
    NOISE_DISTANCE,
    check_fits,
    convolution_term,
    delta_reserve,
    lattice_step,
)
from fulcrum.core.noise.discrete_gaussian import DiscreteGaussian, convolution_for
from fulcrum.core.noise.keystream import random_bytes
from fulcrum.errors import ParameterError, UnreachableTargetError


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
    for width in (3.0, 12.0, 15.99):
        with pytest.raises(UnreachableTargetError, check=coded("lattice.noise-too-narrow", silo="lyon")):
            check_fits(signal=1.0, width=width, members=5, silo="lyon")
    check_fits(signal=1.0, width=16.0, members=5, silo="lyon")


@pytest.mark.parametrize(("signal", "width", "members"), [(2.0**52, 16.0, 2), (1.0, 2.0**47, 2), (1.0, 2.0**42, 2**17)])
def test_what_integers_may_not_hold_is_refused_before_there_is_an_update(signal, width, members):
    with pytest.raises(UnreachableTargetError, check=coded("lattice.release-too-large", silo="lyon")):
        check_fits(signal=signal, width=width, members=members, silo="lyon")
    check_fits(signal=min(signal, 1e9), width=min(width, 1e9), members=members, silo="lyon")


def test_no_draw_is_as_far_out_as_a_plan_makes_room_for():
    """The farthest draw: every base sample at the last line of its table that has any weight."""
    for width in np.geomspace(16, 2.0**46, 400):
        plan = convolution_for(float(width))
        base = math.sqrt(plan.base_variance)
        last = min(8191, math.sqrt(2 * 160 * math.log(2)) * base)
        assert last * sum(plan.coefficients) < FARTHEST_DRAW * width


def test_an_update_of_any_shape_is_released_under_a_plan_that_is_accepted(tmp_path):
    """Weights 10^7 apart: concentrated on one coordinate or spread over all, no update is refused."""
    pytest.importorskip("cryptography", reason="draws secure noise (extra `secure`)")
    sizes = {"north": {"lille": 10**7, "metz": 1}, "south": {"nice": 10**7}}
    target = {"epsilon": {"region": 1.0, "aggregator": 6.0}, "parameters": 10_000, "purpose": "deployment"}
    made = fulcrum.plan(fulcrum.Federation.from_sizes(sizes), rounds=2, **target)
    with fulcrum.Ledger.open(tmp_path / "lille.ledger", silo="lille") as ledger:
        fulcrum.release(np.full(10_000, 1e3), made, "lille", 1, ledger=ledger)
        fulcrum.release(np.eye(1, 10_000)[0] * 1e300, made, "lille", 2, ledger=ledger)
    sizes["south"]["nice"] = 10**15
    with pytest.raises(UnreachableTargetError, check=coded("lattice.release-too-large", silo="nice")):
        fulcrum.plan(fulcrum.Federation.from_sizes(sizes), rounds=2, **target)


def guessing_rate(plan, steps, draws=20_000):
    """How often whoever reads the global sum modulo the coarsest step tells +C from -C of the last, lightest silo."""
    finest = steps.min()
    total = np.zeros(draws, dtype=np.int64)
    for silo in range(len(plan.federation)):
        step = steps[plan.federation.innermost.parent_of[silo]]
        width = plan.noise_multiplier[silo] * plan.federation.weights[silo] * plan.clip_norm / step
        noise = DiscreteGaussian(width=float(width)).sample(draws, random_bytes)
        total += noise * round(step / finest)
    sent = np.random.default_rng(0).choice([-1, 1], size=draws)
    total += sent * int(plan.federation.weights[-1] * plan.clip_norm / finest)
    coarse = round(steps.max() / finest)
    low = (total + coarse // 2) % coarse - coarse // 2 if coarse > 1 else total
    return float((np.sign(low) == sent).mean())


def test_the_global_sum_keeps_no_bit_of_a_light_region_bare():
    """Two regions of weights 10^4 apart: with a step for each, the heavy one's noise left the low bits as they were."""
    pytest.importorskip("cryptography", reason="draws secure noise (extra `secure`)")
    federation = fulcrum.Federation.from_sizes({"heavy": [10_000] * 20, "light": [1] * 4})
    made = fulcrum.plan(federation, rounds=1, epsilon={"federation": 1.0}, purpose="deployment", parameters=1)
    assert len(set(made.lattice_steps.tolist())) == 1
    assert made.lattice_steps[0] == lattice_step(
        least_weight=float(federation.weights.min()), clip_norm=1.0, parameters=1
    )
    own = np.array([
        lattice_step(least_weight=float(weight), clip_norm=1.0, parameters=1) for weight in federation.weights[[0, -1]]
    ])  # fmt: skip
    assert guessing_rate(made, own) > 0.57
    assert abs(guessing_rate(made, made.lattice_steps) - 0.5) < 0.02


def test_the_reserve_counts_the_silos_of_the_sum_that_is_seen():
    made = fulcrum.plan("severe", rounds=10, epsilon=1.0, purpose="deployment", parameters=66)
    terms = {
        tier: delta_reserve(
            rounds=10, parameters=66, members=members, epsilon=made.worst_epsilon(tier), single=tier == "silo"
        )
        for tier, members in (("silo", 1), ("region", 60), ("federation", 96))
    }
    assert made.target.reserve == pytest.approx(2 * max(terms.values()), rel=1e-2)
    alone = fulcrum.plan("severe", rounds=10, epsilon={"aggregator": 0.1}, purpose="deployment", parameters=66)
    by_root = delta_reserve(rounds=10, parameters=66, members=96, epsilon=alone.worst_epsilon("federation"))
    assert alone.target.reserve == pytest.approx(2 * by_root, rel=1e-6)


def test_the_cost_of_a_distance_is_that_of_both_hypotheses():
    assert delta_reserve(rounds=2, parameters=3, members=5, epsilon=0.0, single=True) == 2 * 30 * NOISE_DISTANCE
    assert delta_reserve(rounds=1, parameters=1, members=1, epsilon=1.0, single=True) == (1 + math.e) * NOISE_DISTANCE
    above = delta_reserve(rounds=2, parameters=3, members=5, epsilon=0.0)
    assert above == 2 * 10 * (3 * NOISE_DISTANCE + 2 * 2.0**-80)  # and honest releases that are refused


def test_the_samplers_distance_is_charged_to_delta():
    made = fulcrum.plan("severe", rounds=10, epsilon=1.0, purpose="deployment", parameters=66)
    worst = float(made.epsilon_inside.max())
    assert made.target.reserve >= delta_reserve(rounds=10, parameters=66, members=1, epsilon=worst, single=True) > 0
    assert made.target.accounted_delta < made.delta
    with pytest.raises(ParameterError, check=coded("plan.lattice-delta-too-small", delta=1e-30)):
        fulcrum.plan("severe", rounds=10, epsilon=1.0, purpose="deployment", parameters=66, delta=1e-30)


def test_a_deployment_plan_is_calibrated_by_what_is_proven_for_lattice_noise():
    made = fulcrum.plan("severe", rounds=10, epsilon=1.0, purpose="deployment", parameters=66)
    assert made.accountant == "renyi"
    assert any("its distance is charged to delta" in line for line in fulcrum.guarantee_of(made).assumptions)
    exact = fulcrum.plan("severe", rounds=10, epsilon=1.0, purpose="deployment", parameters=66, accountant="exact")
    assert any(
        "exact accountant is proven for continuous noise" in line for line in fulcrum.guarantee_of(exact).assumptions
    )
    assert fulcrum.plan("severe", rounds=10, epsilon=1.0).accountant == "exact"
    assert all(check.holds for check in fulcrum.verify(made))


def narrowed(content, width):
    """Gives the first silo noise of another width, in steps."""
    weight = content.silos[0].records / sum(entry.records for entry in content.silos)
    multiplier = width * content.tiers["region"][0].lattice_step / weight
    content.silos[0] = msgspec.structs.replace(content.silos[0], noise_multiplier=multiplier)


@pytest.mark.parametrize(
    ("width", "shown"), [(12.0, "12 steps wide"), (15.9, "15.9 steps"), (2.0**50, "1.13e+15 steps")]
)
def test_verification_refuses_noise_that_is_too_narrow_or_too_wide(width, shown):
    content = fulcrum.plan("severe", rounds=10, epsilon=1.0, purpose="deployment", parameters=66).content()
    narrowed(content, width)
    found = next(check for check in fulcrum.verify(content) if check.name == "lattice")
    assert not found.holds
    assert shown in found.detail


def with_reserve(content, reserve):
    return msgspec.structs.replace(content, settings=msgspec.structs.replace(content.settings, reserve=reserve))


@pytest.mark.parametrize("target", [{"epsilon": {"aggregator": 0.1}}, {"epsilon": 1.0}])
def test_verification_knows_the_reserve_that_is_needed(target):
    made = fulcrum.plan("severe", rounds=10, purpose="deployment", parameters=66, **target)
    needed = max(
        delta_reserve(
            rounds=10, parameters=66, members=members, epsilon=made.worst_epsilon(tier), single=tier == "silo"
        )
        for tier, members in (("silo", 1), ("region", 60), ("federation", 96))
    )
    for share, holds in ((0.999, False), (1.001, True)):
        content = with_reserve(made.content(), needed * share)
        assert next(check.holds for check in fulcrum.verify(content) if check.name == "lattice") is holds


@pytest.mark.parametrize(
    "forge",
    [
        lambda c: c.tiers["region"].__setitem__(0, msgspec.structs.replace(c.tiers["region"][0], lattice_step=1.0)),
        lambda c: c.tiers["region"].__setitem__(0, msgspec.structs.replace(c.tiers["region"][0], lattice_step=None)),
        lambda c: c.tiers.update(
            region=[msgspec.structs.replace(n, lattice_step=n.lattice_step / 2) for n in c.tiers["region"]]
        ),
        lambda c: with_reserve(c, 0.0),
        lambda c: with_reserve(c, c.settings.reserve / 2.1),
        lambda c: c.silos.__setitem__(0, msgspec.structs.replace(c.silos[0], noise_multiplier=1e-9)),
    ],
)
def test_a_forged_lattice_fails_verification(forge):
    content = fulcrum.plan("severe", rounds=10, epsilon=1.0, purpose="deployment", parameters=66).content()
    forgery = forge(content) or content
    assert "lattice" in {check.name for check in fulcrum.verify(forgery) if not check.holds}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"parameters": None}, "a deployment plan needs the number of trainable parameters"),
        ({"injection": "aggregator"}, "in a deployment plan every silo draws its own noise"),
        ({"purpose": "deploy"}, "unknown purpose 'deploy'. Known: research, deployment. Did you mean 'deployment'?"),
    ],
)
def test_deployment_asks_for_what_it_needs(change, line):
    settings = {"rounds": 10, "epsilon": 1.0, "purpose": "deployment", "parameters": 66} | change
    with pytest.raises(ParameterError) as caught:
        fulcrum.plan("severe", **settings)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "parameters", "epsilon"),
    [
        ({"north": [1] * 60, "south": [1] * 4}, 1, {"region": 1.0}),
        ({"north": [5, 1, 30], "south": [7]}, 3, {"region": 3.0, "aggregator": 20.0}),
        ({"north": [200] * 12, "south": [200] * 3}, 12_345, {"region": 0.3, "aggregator": 2.0}),
    ],
)
def test_noise_is_as_many_steps_wide_as_the_page_on_deployment_says(sizes, parameters, epsilon):
    """The page once said 10^4 steps and more, and the first of these plans has 134."""
    plan = fulcrum.plan(
        fulcrum.Federation.from_sizes(sizes), rounds=1, epsilon=epsilon, parameters=parameters, purpose="deployment"
    )
    least = 100 * plan.noise_multiplier * math.sqrt(parameters) * plan.weights / plan.weights.min()
    widths = np.array([plan.lattice_width(silo) for silo in range(len(plan.federation))])
    assert (widths >= least * (1 - 1e-12)).all()
    assert (widths <= 2 * least * (1 + 1e-12)).all()
    assert (widths >= LEAST_WIDTH).all()
    page = " ".join((Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8").split())
    assert r"$100 \sigma_i \sqrt d\, w_i / w_{\min}$ steps wide and at most twice that" in page
    assert "10^4" not in page


def test_the_widths_that_the_page_on_deployment_names_are_those_of_its_plans():
    page = " ".join((Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8").split())
    widths = {}
    for parameters in (1, 66):
        plan = fulcrum.plan("severe", rounds=1, epsilon=1.0, parameters=parameters, purpose="deployment")
        widths[parameters] = [plan.lattice_width(silo) for silo in range(len(plan.federation))]
    assert f"from {math.ceil(min(widths[66])):,} to {math.ceil(max(widths[66])):,} steps" in page
    assert f"from {math.ceil(min(widths[1]))} with one parameter" in page
