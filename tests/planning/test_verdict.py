import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum.planning.inputs.execution import Execution
from fulcrum.planning.inputs.past_releases import Past
from fulcrum.planning.planner import make_plan, plan
from fulcrum.readers.federation import Federation
from fulcrum.words.verdict import CALM_UP_TO, CAUTION_UP_TO, LEVELS, verdict

EPSILONS = (0.1, 0.99, 3.0, 8.0, 30.0, 100.0, 1000.0)


def at(above, inside=None, **settings):
    epsilon = {"region": above} if inside is None else {"region": above, "aggregator": inside}
    return verdict(plan("severe", rounds=10, epsilon=epsilon, **settings))


def guesses_right(multiplier, rounds, draws=400_000):
    """How often the best test of all rounds is right, by trial: it takes the likelier of two Gaussian means."""
    seen = np.random.default_rng(3).normal(2 / multiplier, 1, (draws, rounds)).sum(axis=1)
    return float((seen > rounds / multiplier).mean())


def test_the_rate_is_that_of_the_best_test_over_all_rounds():
    made = plan("severe", rounds=10, epsilon={"region": 8.0, "aggregator": 12.0})
    found = verdict(made)
    above, inside = float(made.effective_multiplier("region").min()), float(made.noise_multiplier.min())
    assert found.above.right == pytest.approx(guesses_right(above, 10), abs=0.003)
    assert found.inside.right == pytest.approx(guesses_right(inside, 10), abs=0.003)
    assert found.above.right != pytest.approx(guesses_right(above, 5), abs=0.02)  # half of the rounds


@pytest.mark.parametrize("above", EPSILONS)
def test_every_epsilon_has_a_verdict_on_both_observers_in_words(above):
    found = at(above)
    for observer in found.observers:
        assert observer.epsilon > 0
        assert observer.level in LEVELS
        assert f"right {observer.times}" in observer.sentence
    assert found.headline.startswith("above: right up to ")
    assert "; inside: right up to " in found.headline
    assert found.above.times in found.sentence
    assert found.inside.times in found.sentence


@pytest.mark.parametrize(("inside", "proven"), [(1.5, True), (30.0, False)])
def test_rates_after_a_replan_are_proven_where_the_epsilon_is_its_target(inside, proven):
    """A filter stops at the target that was fixed beforehand, and proves no smaller figure."""
    federation = Federation.from_sizes({"north": [100, 100, 100], "south": [100]})
    target = plan(federation, rounds=3, epsilon={"region": 1.0, "aggregator": inside}).target
    past = Past(spent={tier: np.full(4, 1e-3) for tier in federation.tier_names})
    basis = verdict(make_plan(federation, target, Execution(), past)).basis
    assert basis.endswith("if outputs had no influence on this plan") is not proven


def test_the_larger_epsilon_never_has_the_calmer_verdict():
    found = [at(epsilon, epsilon) for epsilon in EPSILONS]
    levels = [LEVELS.index(one.level) for one in found]
    assert levels == sorted(levels)
    assert (levels[0], levels[-1]) == (0, 2)
    assert [one.inside.right for one in found] == sorted(one.inside.right for one in found)


def test_no_plan_is_calm_where_an_observer_is_nearly_always_right():
    for above, inside in ((30.0, 40.0), (100.0, 100.0)):
        found = at(above, inside)
        assert found.level == found.inside.level == "warning"
        assert "hardly any protection" in found.inside.sentence
    loose = verdict(plan("consortium", rounds=10, epsilon={"region": 30.0, "aggregator": 40.0}))
    assert loose.inside.right > 0.987
    assert loose.level == "warning"


def test_the_worse_observer_decides_the_level():
    found = at(0.99)
    assert (found.above.level, found.inside.level, found.level) == ("calm", "caution", "caution")


@settings(max_examples=30, deadline=None)
@given(epsilon=st.floats(0.05, 60))
def test_the_rate_in_words_is_never_below_the_rate(epsilon):
    for observer in at(epsilon, epsilon).observers:
        hundredths = int(observer.times.removeprefix("up to ").removesuffix(" of 100 times"))
        assert hundredths >= 100 * observer.right - 1e-7
        assert hundredths - 1 < 100 * observer.right
        assert (observer.level == "calm") == (observer.right <= CALM_UP_TO)
        assert (observer.level == "warning") == (observer.right > CAUTION_UP_TO)


def test_a_deployment_plan_never_uses_the_curve_of_continuous_noise():
    settings = {"accountant": "exact", "parameters": 258}
    research = at(0.99, **settings)
    deployed = at(0.99, purpose="deployment", **settings)
    shift = 2 * math.sqrt(10) / 23.8115  # the tight multiplier of 0.99; the lattice's share of delta asks for more
    assert research.above.right == pytest.approx(0.5 + 0.5 * math.erf(shift / 2 / math.sqrt(2)), abs=1e-4)
    assert deployed.above.right == pytest.approx(0.5 + shift / 4, abs=1e-4)  # Pinsker
    assert deployed.above.right > research.above.right + 0.01
    assert "continuous" in research.basis
    assert "continuous" not in deployed.basis
    assert "lattice" in deployed.basis


def test_an_aggregator_that_sees_bare_updates_may_always_be_right():
    found = verdict(plan("severe", rounds=10, epsilon=1.0, injection="aggregator"))
    assert (found.inside.right, found.inside.epsilon, found.inside.level) == (1.0, math.inf, "warning")
    assert found.inside.times == "up to 100 of 100 times"
