import json
import math
import sys

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.errors import MissingExtraError
from fulcrum.planning.comparisons.comparison import observer_trade
from fulcrum.planning.theory.prior import prior_entropy
from fulcrum.views.charts.chart_style import PALETTE, javascript_bundle, png, svg, theme
from fulcrum.views.charts.plan_charts import (
    accuracy_chart,
    information_chart,
    information_rows,
    learning_chart,
    price_chart,
    trade_chart,
)
from fulcrum.views.charts.region_charts import epsilon_chart, region_rows
from fulcrum.views.charts.tree_chart import stacked_tree_chart, tree_chart

SEVERE = fulcrum.plan("severe", rounds=10, epsilon=1.0)
TREE = fulcrum.Federation.from_sizes(
    {"north": [800, 700], "east": [1500], "south": [1200, 900]},
    outer={"country": {"france": ["north", "south"], "germany": ["east"]}},
)


def charts_of(plan):
    rows, trades = region_rows(plan), observer_trade(plan)
    found = [
        tree_chart(rows, name=plan.federation.name, injected=plan.injection == "aggregator"),
        stacked_tree_chart(rows, name=plan.federation.name, injected=plan.injection == "aggregator"),
        epsilon_chart(rows, allocation=plan.allocation),
        information_chart(information_rows(plan), ceiling=3.0, target=1.5),
        accuracy_chart([{"allocation": "optimal", "accuracy": 0.7, "accuracy_se": 0.01}], reference=0.8),
        learning_chart([{"round": 1, "accuracy": 0.7, "accuracy_se": None}]),
    ]
    if trades:
        above, inside = plan.worst_epsilon(), plan.worst_epsilon("silo")
        found += [
            trade_chart(trades, above=above, inside=inside),
            price_chart(trades, inside=inside, budget=plan.noise_budget),
        ]
    return found


def values_of(spec):
    """Every row of data in a specification."""
    if isinstance(spec, dict):
        yield from spec.get("data", {}).get("values", [])
        for value in spec.values():
            yield from values_of(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from values_of(value)


def test_rows_by_region_are_the_figures_of_the_plan():
    rows = region_rows(SEVERE)
    regions = SEVERE.federation.innermost
    assert [row["name"] for row in rows] == list(regions.nodes)
    uniform = fulcrum.plan("severe", rounds=10, epsilon=1.0, allocation="uniform")
    for index, row in enumerate(rows):
        members = regions.parent_of == index
        assert row["silos"] == members.sum()
        assert row["noise"] == SEVERE.noise_multiplier[members].max()
        assert row["above"] == SEVERE.epsilon_above[members].max()
        assert row["inside"] == SEVERE.epsilon_inside[members].max()
        assert row["uniform_above"] == pytest.approx(uniform.epsilon_above[members].max())
        assert row["uniform_inside"] == pytest.approx(uniform.epsilon_inside[members].max())


def test_regions_stand_under_their_parents():
    rows = region_rows(fulcrum.plan(TREE, rounds=10, epsilon=1.0))
    assert [(row["name"], row["path"]) for row in rows] == [
        ("north", ["france"]),
        ("south", ["france"]),
        ("east", ["germany"]),
    ]


def test_many_regions_are_drawn_by_the_tier_around_them_or_the_smallest_together():
    plan = fulcrum.plan(TREE, rounds=10, epsilon=1.0)
    assert [(row["name"], row["regions"], row["silos"]) for row in region_rows(plan, most=2)] == [
        ("france", 2, 4),
        ("germany", 1, 1),
    ]
    rows = region_rows(fulcrum.plan("cellular", rounds=10, epsilon=1.0), most=10)
    assert len(rows) == 10
    assert rows[-1]["name"] == "51 smaller"
    assert sum(row["silos"] for row in rows) == 418
    assert sum(row["regions"] for row in rows) == 60


def test_no_guarantee_is_none_in_rows_and_words_in_charts():
    plan = fulcrum.plan("severe", rounds=10, epsilon=1.0, injection="aggregator")
    rows = region_rows(plan)
    assert all(row["inside"] is None and row["above"] <= 1 for row in rows)
    assert [row["noise"] for row in rows] == plan.aggregator_noise_multiplier.tolist()
    chart = epsilon_chart(rows)
    assert "no guarantee inside" in chart["description"].replace("up to ", "")
    assert sum(row.get("label") == "no guarantee" for row in values_of(chart)) == len(rows)
    assert observer_trade(plan) == ()


@pytest.mark.parametrize(
    "plan",
    [
        SEVERE,
        fulcrum.plan(TREE, rounds=3, epsilon={"region": 1.0, "aggregator": 2.0}, colluders=1),
        fulcrum.plan("severe", rounds=2, epsilon=1.0, injection="aggregator"),
        fulcrum.plan("severe", rounds=200, information=1.5, floor=fulcrum.Coupling(20.0)),
        fulcrum.plan(fulcrum.Federation.from_sizes({"alone": [7]}), rounds=1, epsilon=1e-6),
    ],
    ids=["severe", "tiers", "aggregator", "information", "alone"],
)
def test_every_chart_is_plain_described_ordered_and_free_of_colours(plan):
    for chart in charts_of(plan):
        text = json.dumps(chart, allow_nan=False)
        assert chart["description"].endswith(".")
        assert "#" not in text.replace("# ", "")
        assert '"type": "nominal"' not in text or '"sort": null' in text or '"domain"' in text
        assert json.loads(text) == chart


@pytest.mark.parametrize("dark", [False, True])
def test_charts_become_pictures_in_both_themes(dark):
    pytest.importorskip("vl_convert", reason="pictures need vl-convert-python")
    for chart in charts_of(SEVERE):
        drawn = svg(chart, dark=dark)
        assert drawn.startswith("<svg")
        assert PALETTE["muted"][dark] in drawn or PALETTE["ink"][dark] in drawn
        assert "style=" not in drawn  # a page's policy would refuse it
    assert png(epsilon_chart(region_rows(SEVERE)), dark=dark)[:4] == b"\x89PNG"


def test_pictures_without_vl_convert_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    for needed in (javascript_bundle, lambda: svg({}), lambda: png({})):
        with pytest.raises(MissingExtraError, check=coded("charts.extra-missing")):
            needed()


def luminance(colour):
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_the_contrast_that_wcag_asks_for_and_the_test_can_fail(dark):
    grounds = [PALETTE[name][dark] for name in ("paper", "surface", "caution")]
    for ground in grounds:
        for role in ("ink", "muted", "above", "inside", "third", "warning"):
            assert contrast(PALETTE[role][dark], ground) >= 4.5, (role, ground)
    for role in ("low", "high", "fourth"):  # marks
        assert contrast(PALETTE[role][dark], grounds[0]) >= 3, role
    assert contrast("#999999", "#ffffff") < 4.5


def test_the_theme_names_no_address_and_one_palette():
    light, dark = theme(), theme(dark=True)
    assert light.keys() == dark.keys()
    assert light["range"]["category"] != dark["range"]["category"]
    assert "//" not in json.dumps([light, dark])


def test_the_information_bound_by_round_ends_at_the_plans_own():
    plan = fulcrum.plan("severe", rounds=10, information=1.5, floor=fulcrum.Coupling(20.0))
    rows = information_rows(plan)
    above = [row for row in rows if row["observer"] == "above"]
    assert above[0]["nats"] == pytest.approx(plan.floor.max())
    assert above[-1] == {"round": 10, "observer": "above", "nats": pytest.approx(1.5)}
    assert (np.diff([row["nats"] for row in above]) > 0).all()
    assert max(row["nats"] for row in rows) <= prior_entropy(20.0, levels=20) * (1 + 1e-12)
    assert len(information_rows(fulcrum.plan("mild", rounds=10**6, epsilon=1.0))) <= 82


def test_error_bars_are_one_standard_error_and_none_without_one():
    chart = accuracy_chart(
        [
            {"allocation": "optimal", "accuracy": 0.75, "accuracy_se": 0.01},
            {"allocation": "uniform", "accuracy": 0.6, "accuracy_se": math.nan},
        ]
    )
    optimal, uniform = [row for row in values_of(chart) if "low" in row]
    assert (optimal["low"], optimal["high"]) == (pytest.approx(0.74), pytest.approx(0.76))
    assert (uniform["low"], uniform["high"]) == (0.6, 0.6)


def test_equal_noise_has_equal_colour_and_more_noise_a_darker_one():
    rows = region_rows(fulcrum.plan("consortium", rounds=10, epsilon=1.0))
    chart = tree_chart(rows, name="consortium")
    for first, last in ((5.0, 5.0000001), (7.25, 7.25)):
        shades = {
            row["shade"]
            for row in values_of(
                tree_chart(
                    [
                        row | {"noise": noise}
                        for row, noise in zip(rows, (first, last, first, last, first, last), strict=True)
                    ],
                    name="x",
                )
            )
            if "shade" in row
        }
        assert len(shades) == 1
    colours = [layer["encoding"]["color"] for layer in chart["layer"] if "color" in layer["encoding"]]
    assert colours
    assert all(colour["field"] == "shade" and colour["scale"] == {"domainMin": 0} for colour in colours)


def test_long_names_lose_their_middle_and_regions_stay_apart():
    names = [f"A region with a rather long administrative name, number {k}" for k in range(3)]
    alike = [f"{'x' * 30}{k}{'y' * 30}" for k in range(2)]
    federation = fulcrum.Federation.from_sizes({name: [100.0] for name in [*names, *alike]})
    rows = region_rows(fulcrum.plan(federation, rounds=3, epsilon=1.0))
    for chart in (tree_chart(rows, name="long"), epsilon_chart(rows)):
        short = {row["short"]: row["name"] for row in values_of(chart) if "short" in row}
        assert list(short.values()) == [*names, *alike]
        assert list(short)[2] == "A region with a r…ve name, number 2"
        assert list(short)[3:] == alike
    assert "…ve name, number 2" in svg(epsilon_chart(rows))


def test_no_layer_of_the_epsilons_is_empty():
    for options in ({}, {"allocation": "uniform"}, {"injection": "aggregator"}):
        plan = fulcrum.plan("severe", rounds=10, epsilon=1.0, **options)
        chart = epsilon_chart(region_rows(plan), allocation=plan.allocation, injected=plan.injection == "aggregator")
        assert all(layer["data"]["values"] for layer in chart["layer"])
        assert ("uniform silo noise" in chart["description"]) is (plan.injection == "aggregator")


@pytest.mark.parametrize(("plan", "wide"), [(SEVERE, True), (fulcrum.plan(TREE, rounds=10, epsilon=1.0), False)])
def test_an_axis_says_that_it_is_logarithmic_exactly_where_it_is(plan, wide):
    axes = [
        axis
        for chart in charts_of(plan)
        for part in (chart, *chart.get("layer", ()))
        for name, axis in part.get("encoding", {}).items()
        if name in "xy"
    ]
    for axis in axes:
        logarithmic = (axis.get("scale") or {}).get("type") == "log"
        assert (axis.get("title") or "").endswith(", log scale") is logarithmic
    assert any((axis.get("scale") or {}).get("type") == "log" for axis in axes) is wide
