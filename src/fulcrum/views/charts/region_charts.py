"""A federation by region: the figures of every region, and the chart of epsilon for both observers.

>>> from fulcrum.planning.planner import plan
>>> chart = epsilon_chart(region_rows(plan("severe", rounds=10, epsilon=1.0)))
>>> chart["description"]
'Worst epsilon by region: up to 1 above it and up to 10.48 inside it; with uniform noise 1 and 2.155.'

Every chart has a `description`, its alternative in words. This module computes positions alone.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.remaining_noise import largest_by
from fulcrum.core.topology import Topology
from fulcrum.planning.content.plan_figures import with_uniform_noise
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.scheduling import least_multiplier
from fulcrum.views.charts.chart_style import (
    OBSERVERS,
    ChartRow,
    Spec,
    plain_word,
    short_names,
    spread_axis,
    tooltip,
)
from fulcrum.words.numbers import epsilon_text, span

MOST_ROWS = 24
"""The most rows of a drawing by region; more regions are drawn by an outer tier, the smallest nodes in a single row."""


def region_rows(plan: Plan, *, most: int = MOST_ROWS) -> list[ChartRow]:
    """Returns a row of numbers for every region in the order of the tree: silos, noise, influence, worst epsilons.

    - Influence stands beside the share by size, or by number of silos where sizes are unknown.
    - Worst epsilons are the largest of all silos of the region, above the region and inside. The plan's epsilons stand
      beside the epsilons of a single multiplier for all silos at the same promise. None is no guarantee.
    - A federation of more than `most` regions is drawn by its innermost tier of at most `most` nodes. If every declared
      tier has more nodes, the rows are the largest nodes of the outermost declared tier, and all smaller nodes together
      are the last row.
    """
    federation = plan.federation
    tier = next((tier for tier in federation.tiers if len(tier.nodes) <= most), federation.tiers[-1])
    node_of, count = federation.membership(tier.name), len(tier.nodes)
    uniform = with_uniform_noise(plan)
    node_of_region = np.zeros(len(federation.innermost.nodes), dtype=np.intp)
    node_of_region[federation.innermost.parent_of] = node_of
    if plan.aggregator_noise_multiplier is None:
        noise = plan.noise_multiplier
    else:
        noise = plan.aggregator_noise_multiplier[federation.innermost.parent_of]
    silos = np.bincount(node_of, minlength=count)
    largest = np.sort(np.argsort(-silos, kind="stable")[: count if count <= most else most - 1])
    place = np.full(count, len(largest))  # all smaller nodes are drawn together, in the last row
    place[largest] = np.arange(len(largest))
    where, rows = place[node_of], len(largest) + (count > most)
    least = np.full(rows, np.inf)
    by_phase = plan.phase_multiplier
    np.minimum.at(least, where, noise if by_phase is None else least_multiplier(federation, by_phase))
    figures = {
        "above": plan.epsilon_above,
        "inside": plan.epsilon_inside,
        "uniform_above": uniform.epsilon_above,
        "uniform_inside": uniform.epsilon_inside,
    }
    worst = {name: _epsilons(largest_by(where, values, rows)) for name, values in figures.items()}
    greatest = largest_by(where, noise, rows)
    influence = np.bincount(where, weights=plan.influence, minlength=rows)
    by_size = np.bincount(where, weights=federation.sizes / federation.sizes.sum(), minlength=rows)
    silos_of, regions_of = np.bincount(where, minlength=rows), np.bincount(place[node_of_region], minlength=rows)
    figures_of_nodes = []
    for index in _tree_order(federation, tier.name, largest, rows):
        other = index == len(largest)
        low, high = float(least[index]), float(greatest[index])
        figures_of_nodes.append(
            {
                "name": f"{count - len(largest):,} smaller" if other else tier.nodes[largest[index]],
                "together": other,
                "tier": tier.name,
                "inner": federation.innermost.name,
                "path": [] if other else _path(federation, tier.name, int(largest[index])),
                "silos": int(silos_of[index]),
                "regions": int(regions_of[index]),
                "noise_low": low,
                "noise": high,
                "noise_shown": span(low, high),
                "influence": float(influence[index]),
                "by_size": float(by_size[index]),
                "sizes_known": federation.sizes_known,
                **{name: values[index] for name, values in worst.items()},
            }
        )
    return figures_of_nodes


def epsilon_chart(
    rows: Sequence[ChartRow], *, allocation: str = "optimal", injected: bool = False, one_group: bool = False
) -> Spec:
    """Returns the chart of the worst epsilon by region for both observers, with the plan's and with uniform noise.

    Args:
        rows: The rows of `region_rows`.
        allocation: The plan's allocation.
        injected: True where aggregators draw the plan's noise; uniform noise is always the silos' own.
        one_group: True where all silos are masked as a single group, so that the observer above is outside the
            federation.
    """
    points: list[ChartRow] = []
    bars, none = [], []
    for row, short in zip(rows, short_names(row["name"] for row in rows), strict=True):
        for observer in OBSERVERS:
            common = {"name": row["name"], "short": short, "observer": observer}
            mine, uniform = row[observer], row[f"uniform_{observer}"]
            for whose, epsilon in {"uniform": uniform, allocation: mine}.items():
                if epsilon is not None:
                    label = {"epsilon": epsilon, "allocation": whose, "shown": epsilon_text(epsilon)}
                    points.append(common | label)
            if mine is None:
                none.append(common | {"label": "no guarantee"})
            elif uniform is not None:
                bars.append(common | {"epsilon": uniform, "to": mine})
    names = list(dict.fromkeys([allocation, "uniform"]))
    tier = rows[0]["tier"]
    x = {
        "field": "epsilon",
        "type": "quantitative",
        **spread_axis("worst epsilon", (point["epsilon"] for point in points)),
    }
    place = {
        "y": {"field": "short", "type": "nominal", "sort": None, "title": None, "axis": {"labelExpr": _IN_TWO_LINES}},
        "yOffset": {"field": "observer", "type": "nominal", "sort": None, "scale": {"domain": OBSERVERS}},
        "color": {
            "field": "observer",
            "type": "nominal",
            "title": None,
            "scale": {"domain": OBSERVERS},
            "legend": {"labelExpr": _whose(tier, one_group)},
        },
    }
    shape = {
        "field": "allocation",
        "type": "nominal",
        "legend": None,  # filled points are the plan's
        "sort": None,
        "scale": {"domain": names, "range": ["circle", "diamond"][: len(names)]},
    }
    baseline = "uniform silo noise" if injected else "uniform noise"
    tips = tooltip(name=tier, observer="observer", allocation="allocation", shown="worst epsilon")
    worst = {key: _most(row[key] for row in rows) for key in ("above", "inside", "uniform_above", "uniform_inside")}
    layers: list[Spec] = [
        {
            "data": {"values": bars},
            "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.45},
            "encoding": {**place, "x": x, "x2": {"field": "to"}},
        },
        *(
            {
                "data": {"values": [point for point in points if (point["allocation"] == allocation) is filled]},
                "mark": {"type": "point", "filled": filled, "size": 70, "opacity": 1, "strokeWidth": 1.8},
                "encoding": {**place, "x": x, "shape": shape, "tooltip": tips},
            }
            for filled in (False, True)
        ),
        {
            "data": {"values": none},
            "mark": {"type": "text", "align": "left", "x": 4, "fontSize": 11},
            "encoding": {**place, "text": {"field": "label"}},
        },
    ]
    return {
        "description": (
            f"Worst epsilon by {tier}: up to {worst['above']} {'outside the federation' if one_group else 'above it'} "
            f"and up to {worst['inside']} inside it; "
            f"with {baseline} {worst['uniform_above']} and {worst['uniform_inside']}."
        ),
        "width": "container",
        "height": (36 if len(rows) <= 14 else 24) * len(rows),
        "layer": [layer for layer in layers if layer["data"]["values"]],  # a layer without rows has no extent
    }


_IN_TWO_LINES = (
    "width < 420 && length(datum.label) > 14 "
    "? split(replace(datum.label, regexp('^(.{4,16}[ -])(?=.{3})'), '$1\\n'), '\\n') : datum.label"
)
"""The Vega expression for the name of a region: on a phone a long name stands in two lines, so that none is cut."""


def _whose(tier: str, one_group: bool) -> str:
    """Returns the Vega expression for the names of both observers in a legend."""
    if one_group:
        return "(datum.label == 'above' ? 'outside' : datum.label) + ' the federation'"
    return f"datum.label + ' the {plain_word(tier)}'"


def _tree_order(federation: Topology, tier: str, nodes: Any, rows: int) -> list[int]:
    """Returns the order of nodes below their parents; the nodes that are drawn together come last."""
    paths = [tuple(_path(federation, tier, int(node))) for node in nodes]
    first: dict[tuple[str, ...], int] = {}
    for index, path in enumerate(paths):
        for level in range(len(path)):
            first.setdefault(path[: level + 1], index)
    order = sorted(
        range(len(paths)),
        key=lambda index: [*(first[paths[index][: level + 1]] for level in range(len(paths[index]))), index],
    )
    return [*order, *range(len(paths), rows)]


def _path(federation: Topology, tier: str, node: int) -> list[str]:
    """Returns the names from the outermost tier down to the parent of a node."""
    path = []
    inner = [level.name for level in federation.tiers].index(tier)
    for level in federation.tiers[inner + 1 :]:
        node = int(level.parent_of[node])
        path.append(level.nodes[node])
    return path[::-1]


def _epsilons(values: FloatArray) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _most(epsilons: Iterable[float | None]) -> str:
    """Returns the worst of several epsilons in words."""
    values = list(epsilons)
    finite = [value for value in values if value is not None]
    return epsilon_text(max(finite) if len(finite) == len(values) else None)
