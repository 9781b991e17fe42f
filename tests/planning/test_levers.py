"""The levers that need less noise: savings, costs, order and words."""

import re

import pytest

import fulcrum
from fulcrum.planning.comparisons.comparison import compare
from fulcrum.planning.comparisons.variants import other_weights
from fulcrum.planning.content.levers import LEAST_SAVING, levers_of, masked_variant
from fulcrum.planning.planner import plan
from fulcrum.readers.editing import merge_regions
from fulcrum.readers.federation import Federation
from fulcrum.rounding import display_epsilon
from fulcrum.words.noise_words import levers_by_promise

BRCA = {"rounds": 10, "epsilon": 1.0}
NOISE = {"sizes": 0.042767, "equal": 8.7674e-3, "least-noise": 3.4602e-3}
"""The noise of TCGA-BRCA in q² C² by rule of weights, computed independently of this project."""


def by_name(made):
    return {lever.name: lever for lever in levers_of(made)}


def test_the_levers_of_unequal_hospitals_save_what_was_computed_elsewhere():
    made = plan("tcga-brca", **BRCA)
    levers = by_name(made)
    for name in ("equal", "least-noise"):
        assert levers[name].saving == pytest.approx(1 - NOISE[name] / NOISE["sizes"], abs=2e-5)
    # T releases of a Gaussian compose in T / s²: half the rounds need half the noise
    assert levers["rounds"].saving == pytest.approx(0.5, rel=1e-9)
    # one sum of all silos hides the heaviest by all noise: (150 / 1088)² in place of the sum over regions
    sizes = made.federation.sizes
    assert levers["one-group"].saving == pytest.approx(1 - (sizes.max() / sizes.sum()) ** 2 / NOISE["sizes"], abs=2e-5)
    # every region of persons with equal weights needs (2 q / N)²; q is the multiplier of sensitivity 2
    q = float(made.required_multiplier["region"])
    assert levers["person"].plan.model_noise == pytest.approx(6 * (q / sizes.sum()) ** 2, rel=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"epsilon": {"region": 1.0, "aggregator": 1.5}},
        {"colluders": 1},
        {"aggregation": "masked"},
        {"epsilon": {"region": 1.0, "server+silo": 1.2}, "aggregation": "masked", "weights": "sizes"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["tcga-brca", "severe"])
def test_every_lever_saves_what_a_plan_with_its_settings_saves(name, settings):
    """`compare` plans each row anew, by the planner and not by the lever's own path."""
    target = {**BRCA, "parameters": 66, **settings}
    rows = {row.allocation: row for row in compare(name, **target)}
    names = {"masked": "masked sums", "rounds": "half the rounds", "one-group": "one masked group"}
    names["person"] = "unit person"
    for lever in levers_of(plan(name, **target)):
        row = rows[names.get(lever.name, lever.name)]
        exact = 1e-6 if " or " not in lever.option else 1e-3  # of two options the figures are those of the worse
        assert lever.plan.model_noise == pytest.approx(row.noise_budget, rel=exact)
        assert lever.plan.worst_epsilon("silo") == pytest.approx(row.epsilon_inside_worst, rel=exact)
        if lever.name != "person":
            assert lever.saving == pytest.approx(1 - row.noise_budget / rows["optimal"].noise_budget, rel=exact)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weights": "equal"},
        {"weights": "least-noise"},
        {"weights": 0.5},
        {"weights": "least-noise", "epsilon": {"region": 1.0, "aggregator": 1.5}},
        {"recipe": "joint"},
        {"purpose": "deployment"},
    ],
    ids=str,
)
def test_a_plan_with_the_option_of_a_lever_has_the_figures_of_the_lever(settings):
    """The options are added to the settings of the plan, as a reader adds them to the command."""
    target = {**BRCA, "parameters": 66, **settings}
    for lever in levers_of(plan("tcga-brca", **target)):
        for option in lever.option.split(" or "):
            words = option.split()
            changes = dict(zip((word[2:].replace("-", "_") for word in words[::2]), words[1::2], strict=True))
            changes |= {name: float(changes[name]) for name in ("rounds", "least_influence") if name in changes}
            changes |= {"rounds": int(changes.get("rounds", target["rounds"]))}
            wanted = target["epsilon"]
            inside = {"server+silo": wanted["aggregator"]} if isinstance(wanted, dict) else {}
            if "aggregation" in changes:
                above = {"federation": 1.0} if "epsilon" in changes else {"region": 1.0}
                changes |= {"epsilon": {**above, **inside}}
            after = plan("tcga-brca", **{**target, **changes})
            assert after.model_noise == pytest.approx(lever.plan.model_noise, rel=1e-5), option
            assert after.worst_epsilon("silo") == pytest.approx(lever.plan.worst_epsilon("silo"), rel=1e-5), option
            assert after.influence == pytest.approx(lever.plan.influence, rel=1e-5), option


def test_equal_weights_are_tried_under_the_allocation_of_the_plan():
    levers = by_name(plan("tcga-brca", **BRCA, allocation="uniform"))
    again = plan("tcga-brca", **BRCA, allocation="uniform", weights="equal")
    assert levers["equal"].plan.model_noise == pytest.approx(again.model_noise, rel=1e-9)


def test_levers_come_by_saving_then_the_merge_then_other_promises():
    advice = [piece for piece in fulcrum.advice_on(plan("tcga-brca", **BRCA)) if not piece.warning]
    kinds = [piece.kind for piece in advice if piece.saving is not None or piece.changes_promise]
    assert kinds == ["least-noise", "equal", "rounds", "merge", "one-group", "person"]
    savings = [piece.saving for piece in advice if piece.kind in ("least-noise", "equal", "rounds")]
    assert savings == sorted(savings, reverse=True)
    assert [piece.kind for piece in advice if piece.changes_promise] == ["one-group", "person"]
    same, other = levers_by_promise(advice).values()
    assert (len(same), len(other)) == (4, 2)


def test_every_lever_names_its_cost_and_a_command_that_follows_it(capsys):
    from fulcrum.cli.command_line import run

    for piece in fulcrum.advice_on(plan("tcga-brca", **BRCA)):
        if piece.kind in ("least-noise", "equal", "rounds", "one-group", "person"):
            options = re.search(r"Plan with (--.*)\.$", piece.remedy)[1].split(" or ")
            for option in options:
                words = ["plan", "tcga-brca", "--parameters", "66", *option.split()]
                given = " ".join(words)
                words += [] if "--rounds" in given else ["--rounds", "10"]
                words += [] if "--epsilon" in given else ["--epsilon", "1"]
                assert run(words) == 0, option
    capsys.readouterr()
    texts = {piece.kind: piece.text for piece in fulcrum.advice_on(plan("tcga-brca", **BRCA))}
    assert "silo 'Northeast-1' would have 3.2% of the model in place of 14%" in texts["equal"]  # 409/9 of 1088, 150
    assert "the worst epsilon against a curious region aggregator would be 3.619 in place of 1.598" in texts["equal"]
    assert "signal to noise of the whole training stays the same" in texts["rounds"]


def test_masks_are_a_lever_where_a_target_inside_costs_noise_and_a_remedy_elsewhere():
    inside = plan("severe", rounds=10, epsilon={"region": 1.0, "aggregator": 2.0})
    assert by_name(inside)["masked"].saving > 0.5
    without = plan("severe", **BRCA)
    assert "masked" not in by_name(without)
    [warning] = [piece for piece in fulcrum.advice_on(without) if piece.kind == "curious-aggregator"]
    masked = plan("severe", **BRCA, aggregation="masked").worst_epsilon("silo")
    assert f"--aggregation masked: then {display_epsilon(masked):g}" in warning.remedy


@pytest.mark.parametrize(
    "settings",
    [{"weights": "least-noise"}, {"recipe": "joint", "parameters": 66}, {"weights": "least-noise", "colluders": 1}],
    ids=str,
)
def test_weights_that_save_nothing_are_no_lever(settings):
    assert not {"equal", "least-noise"} & set(by_name(plan("severe", **BRCA, **settings)))
    assert 0 < LEAST_SAVING < 0.05


def test_a_budget_has_no_lever_and_secret_sizes_have_no_lever_by_size():
    assert levers_of(plan("severe", rounds=10, budget=1.0)) == ()
    secret = Federation.from_columns(silo=["a", "b", "c"], records=None, tiers={"region": ["n", "n", "s"]})
    levers = by_name(plan(secret, **BRCA, weights="equal"))
    assert "person" not in levers
    assert "rounds" in levers


@pytest.mark.parametrize("name", ["severe", "consortium", "tcga-brca"])
def test_the_lever_of_least_noise_is_the_effect_of_other_weights(name):
    made = plan(name, **BRCA)
    second = other_weights(made)
    lever = by_name(made)["least-noise"]
    assert lever.saving == pytest.approx(second.saving, rel=1e-9)
    assert lever.option == " or ".join(second.options)
    assert lever.plan.worst_epsilon("silo") == pytest.approx(second.inside_after, rel=1e-9)


def test_deployment_changes_no_lever():
    research = by_name(plan("severe", **BRCA, accountant="renyi", parameters=66))
    deployed = by_name(plan("severe", **BRCA, purpose="deployment", parameters=66))
    assert list(research) == list(deployed)
    for name, lever in research.items():
        assert deployed[name].saving == pytest.approx(lever.saving, rel=1e-6)


def test_another_promise_names_its_observers_the_person_in_one_silo_and_who_loses_influence():
    texts = {piece.kind: piece.text for piece in fulcrum.advice_on(plan("tcga-brca", **BRCA))}
    assert "all records of one person in one silo" in texts["person"]  # in two silos a person has a larger epsilon
    inside = display_epsilon(plan("tcga-brca", **BRCA, unit="person").worst_epsilon("silo"))
    assert f"Against a curious region aggregator the epsilon of a person would be {inside:g}." in texts["person"]
    # with equal weights Northeast-1 has 409/9 of 1088 records in place of 150
    assert "87.0%, and silo 'Northeast-1' would have 3.2% of the model in place of 14%" in texts["one-group"]
    one_sum = plan("tcga-brca", rounds=10, epsilon={"federation": 1.0}, aggregation="masked")
    [person] = [piece.text for piece in fulcrum.advice_on(one_sum) if piece.kind == "person"]
    assert "against an observer of the global sum" in person
    assert "an observer of the sums of a region" not in person


@pytest.mark.parametrize(("name", "rises"), [("severe", True), ("consortium", True), ("tcga-brca", False)])
def test_a_merge_names_the_epsilon_inside_of_the_merged_federation_where_it_rises(name, rises):
    [piece] = [piece for piece in fulcrum.advice_on(plan(name, **BRCA)) if piece.kind == "merge"]
    [(_, regions)] = piece.offers
    merged = plan(merge_regions(plan(name, **BRCA).federation, list(regions)), **BRCA)
    inside = display_epsilon(merged.worst_epsilon("silo"))
    assert (f"against a curious region aggregator would be {inside:g} in place of" in piece.text) is rises


def test_a_lever_masks_sums_under_a_target_on_a_country_too():
    """Silos seal their answers to their region, so the server of masked sums reads no sum of a region."""
    outer = {"country": {"x": ["a", "b"], "y": ["c"]}}
    federation = fulcrum.Federation.from_sizes({name: [100] * 4 for name in "abc"}, outer=outer)
    of_region, of_country = (
        fulcrum.plan(federation, rounds=2, epsilon={"region": 2.0} | further) for further in ({}, {"country": 1.0})
    )
    assert masked_variant(of_region) is not None
    assert masked_variant(of_country).required_multiplier.keys() >= {"region", "country"}
