import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulcrum.federation.structure import Federation
from fulcrum.planning.advice import best_merge, signal_to_noise
from fulcrum.planning.making import plan


def advice_kinds(made):
    return {advice.kind for advice in made.advice}


def test_advice_warns_of_the_curious_aggregator_until_a_target_covers_it():
    assert "curious-aggregator" in advice_kinds(plan("severe", epsilon=0.99, rounds=10))
    assert "curious-aggregator" not in advice_kinds(plan("severe", rounds=10, epsilon={"region": 1.0, "silo": 8.0}))
    assert plan("severe", rounds=1, epsilon=1.0, injection="aggregator").advice[0].warning


def test_advice_says_when_uniform_is_already_optimal():
    assert "balanced" in advice_kinds(plan("balanced", rounds=10, epsilon=1.0))
    assert "balanced" not in advice_kinds(plan("mild", rounds=10, epsilon=1.0))


@settings(max_examples=40)
@given(
    sizes=st.lists(st.lists(st.floats(1, 100), min_size=1, max_size=4), min_size=2, max_size=5),
    inside=st.one_of(st.none(), st.floats(1, 20)),
    colluders=st.integers(0, 2),
)
def test_the_advised_merge_is_the_best_of_all_pairs(sizes, inside, colluders):
    def made(regions):
        federation = Federation.from_sizes({f"r{k}": silos for k, silos in enumerate(regions)})
        target = {"region": 1.0} if inside is None else {"region": 1.0, "silo": inside}
        return plan(federation, rounds=10, epsilon=target, colluders=colluders)

    now = made(sizes)
    merged = [
        made([*(silos for k, silos in enumerate(sizes) if k not in (i, j)), sizes[i] + sizes[j]]).noise_budget
        for i in range(len(sizes))
        for j in range(i)
    ]
    best = 1 - min(merged) / now.noise_budget
    found = best_merge(now)
    assert (0.0 if found is None else found.saving) == pytest.approx(max(best, 0.0), abs=2e-9)


def test_merges_stay_within_one_parent():
    federation = Federation.from_sizes(
        {"a": [1.0], "b": [1.0], "c": [0.5]}, outer={"country": {"x": ["a", "c"], "y": ["b"]}}
    )
    assert best_merge(plan(federation, rounds=1, epsilon=1.0)).regions == ("a", "c")


def test_signal_to_noise_warns_when_the_model_will_not_train():
    head = plan("severe", rounds=10, epsilon=0.99, parameters=66)
    network = plan("severe", rounds=10, epsilon=0.99, parameters=500_000)
    # equal weights: sqrt(n T / d) / sigma for a uniform multiplier
    uniform = plan("severe", rounds=10, epsilon=0.99, allocation="uniform")
    expected = math.sqrt(96 * 10 / 66) / uniform.noise_multiplier[0]
    assert signal_to_noise(uniform, 66) == pytest.approx(expected, rel=1e-12)
    assert [a.warning for a in head.advice if a.kind == "signal"] == [False]
    assert [a.warning for a in network.advice if a.kind == "signal"] == [True]


def test_a_bound_that_says_nothing_is_called_so():
    informative = plan("severe", rounds=10, information=0.88, floor=0.85)
    vacuous = plan("severe", rounds=10, information=3.5, floor=0.85)
    assert [a.warning for a in informative.advice if a.kind == "information"] == [False]
    assert [a.warning for a in vacuous.advice if a.kind == "information"] == [True]


def test_delta_above_one_over_the_silos_is_a_warning():
    assert "delta" in advice_kinds(plan("severe", rounds=1, epsilon=1.0, delta=0.05))


def test_what_undoes_the_promise_is_said_first():
    warned = plan(
        "consortium", rounds=10, epsilon=1.0, delta=0.5, parameters=10, purpose="deployment", accountant="exact"
    ).advice
    assert [advice.kind for advice in warned if advice.warning][:3] == ["accountant", "delta", "curious-aggregator"]
    proven = plan("consortium", rounds=10, epsilon=1.0, parameters=10, purpose="deployment")
    assert "accountant" not in {advice.kind for advice in proven.advice}


@pytest.mark.parametrize("silos", [1, 2, 6, 7, 9, 10, 11, 60, 96, 100, 999, 1000, 1001])
def test_the_delta_that_is_advised_is_below_one_over_the_silos(silos):
    made = plan(Federation.from_sizes({"r": [1.0] * silos}), rounds=1, epsilon=1.0, delta=0.999999)
    text = [advice.text for advice in made.advice if advice.kind == "delta"]
    assert bool(text) == (silos > 1)
    for line in text:
        most = float(line.removesuffix(".").split("at most ")[1])
        assert 0.5 / silos < most <= 1 / silos


def test_an_information_bound_is_rounded_up():
    made = plan("severe", rounds=10, information=0.88049, floor=0.85)
    text = next(advice.text for advice in made.advice if advice.kind == "information")
    assert text.startswith("The information bound 0.881 nats")
