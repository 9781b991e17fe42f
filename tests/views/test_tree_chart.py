import re

import numpy as np
import pytest

import fulcrum
from fulcrum.views.charts.chart_style import svg
from fulcrum.views.charts.region_charts import region_rows
from fulcrum.views.charts.tree_chart import stacked_tree_chart, tree_chart
from fulcrum.words.numbers import percent

JOINT = fulcrum.plan("tcga-brca", rounds=10, epsilon=8.0, recipe="joint", parameters=258, least_influence=0)
SEVERE = fulcrum.plan("severe", rounds=10, epsilon=1.0)
NESTED = fulcrum.Federation.from_sizes(
    {"north": [800, 700], "east": [1500], "south": [1200, 900]},
    outer={"country": {"france": ["north", "south"], "germany": ["east"]}},
)


def texts(chart, width):
    return re.findall(r">([^<]+)</text>", svg(chart, width=width))


@pytest.mark.parametrize("chart", [tree_chart, stacked_tree_chart])
def test_every_region_stands_with_its_noise_and_its_influence(chart):
    pytest.importorskip("vl_convert", reason="pictures need vl-convert-python")
    rows = region_rows(JOINT)
    drawn = " ".join(texts(chart(rows, name="tcga-brca"), 900)).replace("\u2007", "")
    for name, share in zip(JOINT.federation.innermost.nodes, JOINT.node_influence("region"), strict=True):
        assert name in drawn
        assert percent(share) in drawn
    for row in rows:
        assert row["noise_shown"] in drawn
        assert percent(row["by_size"]) in drawn


def test_influence_and_shares_by_size_each_add_up_to_1():
    for plan in (JOINT, SEVERE, fulcrum.plan("cellular", rounds=10, epsilon=1.0)):
        rows = region_rows(plan)
        for field in ("influence", "by_size"):
            assert sum(row[field] for row in rows) == pytest.approx(1)
    assert [row["influence"] for row in region_rows(JOINT)] == pytest.approx(JOINT.node_influence("region"))


def test_shares_by_size_are_shown_where_influence_is_another():
    same, other = tree_chart(region_rows(SEVERE), name="severe"), tree_chart(region_rows(JOINT), name="tcga-brca")
    assert "by_size" not in str(same["layer"])
    assert "| by size" in str(other["layer"])
    assert same["description"].endswith("Every region has its influence by size.")
    assert other["description"].endswith(
        "South has 34.6% of the model, and by size would have 18.0%; Europe has 1.4% in place of 14.9%."
    )


def test_more_room_gives_more_dots_and_less_room_fewer():
    pytest.importorskip("vl_convert", reason="pictures need vl-convert-python")
    chart = tree_chart(region_rows(SEVERE), name="severe")
    assert chart["width"] == "container"
    assert "silos, a dot for each" in texts(chart, 1300)
    assert "silos, a dot for 5" in texts(chart, chart["usermeta"]["least_width"])


def test_in_the_stacked_tree_every_region_is_below_the_one_before_it_and_under_its_country():
    rows = region_rows(fulcrum.plan(NESTED, rounds=3, epsilon=1.0))
    chart = stacked_tree_chart(rows, name="nested")
    placed = {
        row.get("label", row.get("short")): row["y"]
        for layer in chart["layer"]
        if layer["mark"]["type"] == "text"
        for row in layer["data"]["values"]
        if "label" in row or "short" in row
    }
    assert sorted(placed, key=placed.get) == ["france", "north", "south", "germany", "east"]
    assert (np.diff(sorted(placed.values())) >= 20).all()
    assert "usermeta" not in chart
