import json

import pytest

import fulcrum
from fulcrum.planning.comparisons.weight_tradeoff import equal_weights, own_choice, weight_choices
from fulcrum.views.charts.drawings import weights_drawing
from fulcrum.views.charts.weights_chart import CHOICE_HEADINGS, weights_chart


def drawn(federation="tcga-brca", **settings):
    made = fulcrum.plan(federation, rounds=10, epsilon=1.0, **settings)
    return weights_chart(weight_choices(made), own=own_choice(made), equal=equal_weights(made))


def labels(chart):
    return [
        row["label"]
        for layer in chart["layer"]
        if layer["mark"]["type"] == "text" and layer["mark"]["style"] != "halo"
        for row in layer["data"]["values"]
        if "label" in row
    ]


def test_the_region_that_loses_most_voice_is_named_in_words_and_in_the_chart():
    chart = drawn(recipe="joint", parameters=66, least_influence=0)
    assert chart["description"].endswith(
        "This plan needs 8% and moves 24%: Europe loses most influence and keeps 0.09 of its share by size."
    )
    assert "Europe × 0.09" in labels(chart)


def test_a_plan_by_size_says_what_another_would_save_and_who_would_pay():
    chart = drawn()
    assert "least noise Europe would lose most influence and keep 0.09 of its share" in chart["description"]
    assert labels(chart) == [
        "least noise",
        "Europe × 0.09",
        "equal",
        "this plan: sizes",
    ]


def test_one_region_is_named_so_that_names_do_not_overlap():
    named = labels(drawn(weights=0.5))
    assert [label for label in named if "×" in label] == ["Europe × 0.74"]
    assert named.index("this plan") + 1 == named.index("Europe × 0.74")
    assert "least noise" in named


def test_noise_is_relative_to_sizes_and_the_plan_is_marked_where_it_stands():
    for settings in ({}, {"weights": 0.8}, {"allocation": "uniform"}, {"weights": "least-noise"}):
        made = fulcrum.plan("severe", rounds=10, epsilon=1.0, **settings)
        chart = weights_chart(weight_choices(made), own=own_choice(made))
        path, _, mark = (layer["data"]["values"] for layer in chart["layer"][:3])
        assert path[0]["noise"] == 1
        sizes = fulcrum.plan("severe", rounds=10, epsilon=1.0)
        assert mark[0]["noise"] == pytest.approx(made.noise_budget / sizes.noise_budget)
        assert mark[0]["moved"] == pytest.approx(own_choice(made).moved)
        assert json.loads(json.dumps(chart, allow_nan=False)) == chart


def test_the_table_beside_the_chart_ends_with_equal_weights_and_the_plan():
    made = fulcrum.plan("severe", rounds=10, epsilon=1.0, weights="least-noise")
    rows = list(weights_drawing(made).rows)
    assert all(len(row) == len(CHOICE_HEADINGS) for row in rows)
    assert rows[0] == ("0", "100.0%", "0.0%", rows[0][3], "1.00")
    assert rows[-2][0] == "equal"
    assert rows[-1] == ("this plan", "45.0%", "25.4%", "region-4", "0.09")


def test_nothing_is_drawn_where_there_is_nothing_to_choose():
    assert weights_drawing(fulcrum.plan("balanced", rounds=10, epsilon=1.0)) is None


def test_where_no_region_loses_voice_the_chart_says_so_and_still_has_an_axis():
    federation = fulcrum.Federation.from_sizes({"north": [100, 70, 9], "south": [100, 70, 9]})
    chart = drawn(federation)
    assert chart["description"].endswith("Every region keeps its influence. This plan needs 100%.")
    assert chart["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0, 0.01]
    assert {row["moved"] for row in chart["layer"][0]["data"]["values"]} == {0}


def test_equal_weights_that_need_many_times_the_noise_are_left_out_of_the_chart():
    unequal = fulcrum.Federation.from_sizes({"north": [4000, 40, 900], "south": [3000, 60, 1500]})
    made = fulcrum.plan(unequal, rounds=10, epsilon=1.0, unit="person")
    choices = weight_choices(made)
    assert equal_weights(made).noise > 5 * choices[0].noise  # outside the axes: it would stretch the page
    chart = weights_chart(choices, own=own_choice(made), equal=equal_weights(made))
    assert not any("equal" in label for label in labels(chart))
    top = chart["layer"][0]["encoding"]["y"]["scale"]["domainMax"]
    points = [row["noise"] for layer in chart["layer"] for row in layer["data"]["values"] if "noise" in row]
    assert max(points) <= top
