import numpy as np
import pytest

import fulcrum
from fulcrum.planning.comparisons.weight_tradeoff import MOST_SILOS_BETWEEN, equal_weights, own_choice, weight_choices

TREE = fulcrum.Federation.from_sizes(
    {"n1": [800, 700, 600], "n2": [1200, 900], "e1": [1500], "e2": [300, 200]},
    outer={"country": {"fr": ["n1", "n2"], "de": ["e1", "e2"]}},
)
TARGETS = {
    "one tier": {"epsilon": 1.0},
    "both observers": {"epsilon": {"region": 1.0, "aggregator": 2.0}},
    "an outer tier": {"epsilon": {"region": 1.0, "country": 0.8}},
    "colluders": {"epsilon": 1.0, "colluders": 1},
    "information": {"information": 1.5, "floor": 0.2},
}


@pytest.mark.parametrize("name", TARGETS)
def test_every_choice_is_the_plan_that_asks_for_it(name):
    federation = "tcga-brca" if name != "an outer tier" else TREE
    if name == "colluders":
        federation = "consortium"
    made = fulcrum.plan(federation, rounds=10, **TARGETS[name])
    for choice in (*weight_choices(made, points=5), equal_weights(made)):
        asked = fulcrum.plan(federation, rounds=10, weights=choice.weights, **TARGETS[name])
        inner = asked.federation.innermost
        sizes = np.bincount(inner.parent_of, weights=asked.federation.sizes) / asked.federation.sizes.sum()
        voice = dict(zip(inner.nodes, asked.node_influence(inner.name) / sizes, strict=True))
        assert choice.noise == pytest.approx(asked.noise_budget, rel=1e-9)
        assert choice.moved == pytest.approx(0.5 * np.abs(asked.node_influence(inner.name) - sizes).sum(), abs=1e-12)
        assert choice.influence_ratio == pytest.approx(min(voice.values()), rel=1e-9)
        assert voice[choice.least_represented] == choice.influence_ratio


def test_the_way_starts_at_sizes_ends_at_least_noise_and_trades_one_for_the_other():
    choices = weight_choices(fulcrum.plan("severe", rounds=10, epsilon=1.0))
    assert (choices[0].weights, choices[-1].weights) == (0.0, 1.0)
    assert (choices[0].moved, choices[0].influence_ratio) == (pytest.approx(0, abs=1e-12), pytest.approx(1))
    assert (np.diff([choice.noise for choice in choices]) < 0).all()
    assert (np.diff([choice.moved for choice in choices]) > 0).all()
    assert choices[-1].noise / choices[0].noise == pytest.approx(
        2.4414 / 5.425, rel=1e-4
    )  # 96 silos, sum of m² is 4096
    assert choices[-1].least_represented == "region-4"


def test_equal_weights_move_nothing_between_regions():
    equal = equal_weights(fulcrum.plan("tcga-brca", rounds=10, epsilon=1.0))
    assert equal.moved == pytest.approx(0, abs=1e-12)
    assert equal.influence_ratio == pytest.approx(1)


def test_a_plan_stands_where_its_own_influence_and_the_models_noise_are():
    joint = fulcrum.plan("tcga-brca", rounds=10, epsilon=1.0, recipe="joint", parameters=66, least_influence=0)
    own = own_choice(joint)
    assert own.noise == joint.model_noise < joint.noise_budget
    assert own.least_represented == "Europe"
    assert own.moved > 0.2


def test_there_is_no_choice_where_nothing_is_gained_or_sizes_are_secret():
    assert weight_choices(fulcrum.plan("balanced", rounds=10, epsilon=1.0)) == ()
    secret = fulcrum.Federation.from_columns(silo=["a", "b", "c"], records=None, tiers={"region": ["r", "r", "s"]})
    assert weight_choices(fulcrum.plan(secret, rounds=10, epsilon=1.0, weights="equal")) == ()


def test_large_federations_with_two_promises_have_the_ends_alone():
    sizes = {f"r{k}": [100 + k] * (101 + k) for k in range(MOST_SILOS_BETWEEN // 100)}
    federation = fulcrum.Federation.from_sizes(sizes)
    both = fulcrum.plan(federation, rounds=10, epsilon={"region": 1.0, "aggregator": 3.0})
    assert [choice.weights for choice in weight_choices(both)] == [0.0, 1.0]
    assert len(weight_choices(fulcrum.plan(federation, rounds=10, epsilon=1.0), points=5)) == 5
