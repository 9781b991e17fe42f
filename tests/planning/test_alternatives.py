import pytest
from error_codes import coded

from fulcrum.errors import ParameterError
from fulcrum.planning.comparisons.comparison import compare
from fulcrum.planning.comparisons.variants import LEAST_SAVING, other_weights, plan_with_recipe
from fulcrum.planning.inputs.execution import Execution
from fulcrum.planning.inputs.past_releases import Past
from fulcrum.planning.inputs.recipes import RECIPES, Recipe
from fulcrum.planning.planner import make_plan, plan
from fulcrum.readers.federation import Federation

SEVERE = {"rounds": 10, "epsilon": 0.99}


def test_what_other_weights_save_is_what_the_comparison_shows():
    rows = {row.allocation: row for row in compare("severe", **SEVERE, parameters=66)}
    found = other_weights(plan("severe", **SEVERE))
    least = rows["least-noise"]
    assert found.saving == pytest.approx(1 - least.noise_budget / rows["optimal"].noise_budget, rel=1e-9)
    assert found.after / found.before == pytest.approx(least.least_influence, rel=1e-9)
    assert least.noise_budget < rows["joint"].noise_budget < rows["optimal"].noise_budget
    assert rows["joint"].least_influence == pytest.approx(0.5)
    # 96 silos in regions of 60, 20, 8, 4 and 4: shares by number of silos, and by its square
    assert found.before == pytest.approx(4 / 96)
    assert found.after == pytest.approx(4**2 / (60**2 + 20**2 + 8**2 + 2 * 4**2))
    assert found.node == "region-4"


def test_the_sentence_names_the_saving_and_who_loses_most_of_its_voice():
    federation = Federation.from_sizes({"north": [100.0] * 2, "south": [25.0] * 8, "east": [450.0 / 8] * 8})
    said = other_weights(plan(federation, rounds=10, epsilon=1.0)).sentence
    # by size 200 of 850, by least noise 2² of 2² + 8² + 8²
    assert "region 'north' would have 3.0% of the model in place of 24%." in said
    assert "(--weights least-noise or --recipe joint --least-influence 0)" in said


def test_a_larger_epsilon_inside_is_named_and_one_that_stays_is_not():
    uneven = Federation.from_sizes({"north": [1200.0, 800.0, 900.0, 700.0], "south": [1500.0]})
    rows = {row.allocation: row for row in compare(uneven, rounds=10, epsilon=1.0, parameters=66)}
    said = other_weights(plan(uneven, rounds=10, epsilon=1.0)).sentence
    assert rows["optimal"].epsilon_inside_worst < 1.602 < 2.154 < rows["least-noise"].epsilon_inside_worst < 2.155
    assert said.endswith(", and the worst epsilon inside would be 2.155 in place of 1.602.")
    for same in (plan("severe", **SEVERE), plan(uneven, rounds=10, epsilon={"region": 1.0, "aggregator": 1.2})):
        assert "inside" not in other_weights(same).sentence


@pytest.mark.parametrize(
    "settings",
    [
        {"weights": "least-noise"},
        {"recipe": "joint", "parameters": 66},
        {"weights": "sizes", "server": "random-effects"},
        {"weights": "least-noise", "least_influence": 0.5},
    ],
    ids=str,
)
def test_nothing_is_said_where_nothing_is_to_be_gained(settings):
    assert other_weights(plan("severe", **SEVERE, **settings)) is None


def test_equal_regions_have_nothing_to_gain():
    assert other_weights(plan("balanced", **SEVERE)) is None
    nearly = Federation.from_sizes({"a": [100.0, 101.0], "b": [100.0, 100.0]})
    assert other_weights(plan(nearly, **SEVERE)) is None
    assert 0 < LEAST_SAVING < 0.05


def test_where_no_region_would_have_less_the_silo_is_named_that_would():
    alone = plan(Federation.from_sizes({"north": [100.0, 100.0, 900.0]}, name="one"), **SEVERE)
    found = other_weights(alone)
    assert (found.tier, found.node) == ("silo", "north-3")
    assert found.before == pytest.approx(900 / 1100)
    assert found.after == pytest.approx(1 / 3)
    ending = ", and the worst epsilon inside would be 1.817 in place of 1.004."
    assert found.sentence.endswith("silo 'north-3' would have 33% of the model in place of 82%" + ending)


def test_a_budget_is_spent_whatever_the_weights():
    assert other_weights(plan("severe", rounds=10, budget=1.0)) is None


def test_a_server_that_cannot_keep_the_promise_is_not_offered():
    outer = Federation.from_sizes(
        {"a": [1.0] * 9, "b": [1.0], "c": [1.0]}, outer={"country": {"x": ["a", "b"], "y": ["c"]}}
    )
    assert other_weights(plan(outer, rounds=10, epsilon={"region": 1.0, "country": 0.9})).options == (
        "--weights least-noise",
    )
    injected = other_weights(plan("severe", **SEVERE, injection="aggregator"))
    assert injected.options == ("--weights least-noise",)


def test_a_deployment_plan_is_told_the_same():
    research = other_weights(plan("severe", **SEVERE, accountant="renyi"))
    deployed = other_weights(plan("severe", **SEVERE, purpose="deployment", parameters=66))
    assert deployed.saving == pytest.approx(research.saving, rel=1e-9)
    assert deployed.node == research.node


def test_the_same_promise_is_kept_with_all_that_was_spent_before():
    first = plan("severe", **SEVERE)
    spent = {tier: 1e-3 * (first._shift(tier) ** 2) for tier in ("region", "silo")}
    after = make_plan(first.federation, first.target, Execution(allocation=first.allocation), Past(spent=spent))
    kept = plan_with_recipe(after, RECIPES["paper"])
    assert kept.noise_multiplier.tolist() == after.noise_multiplier.tolist()
    assert kept.digest == after.digest


def test_a_recipe_that_needs_parameters_says_so():
    with pytest.raises(ParameterError, check=coded("plan.parameters-missing")):
        plan_with_recipe(plan("severe", **SEVERE), RECIPES["joint"])
    made = plan_with_recipe(plan("severe", **SEVERE), RECIPES["joint"], rounds=5, parameters=66)
    assert (made.rounds, made.parameters, made.server) == (5, 66, "random-effects")
    assert float(made.epsilon_above.max()) <= 0.99
    assert plan_with_recipe(plan("severe", **SEVERE, clip_norm=2.0), Recipe()).clip_norm == 2.0
