"""Charts of a plan and its training: curves between the observers, information by round, accuracy.

>>> learning_chart([{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.75}])["description"]
'Test accuracy by round: 0.750 after round 2.'

Every chart has a `description`, its alternative in words.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fulcrum.core.topology import SILO
from fulcrum.planning.comparisons.comparison import Trade
from fulcrum.planning.content.plan_facts import LEVELS, information_ceiling
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.leakage import information_bound, shown_nats
from fulcrum.views.charts.chart_style import OBSERVERS, ChartRow, Spec, curve_layers, name_layer, spread_axis, tooltip
from fulcrum.words.numbers import epsilon_text, figure, with_error

_AT_THE_EDGE = 0.015
"""Share of the ceiling: a line nearer to 0 looks like the axis."""


def trade_chart(trades: Sequence[Trade], *, above: float, inside: float) -> Spec:
    """Returns epsilon above against epsilon inside at a fixed noise budget: less inside costs more above.

    Args:
        trades: The divisions of `observer_trade`.
        above: The plan's own worst epsilon above.
        inside: The plan's own worst epsilon inside.
    """
    points = [{"inside": trade.inside_at_budget, "above": trade.above_at_budget} for trade in trades]
    first, last = points[0], points[-1]
    return _curve(
        points,
        x=("inside", "worst epsilon inside"),
        y=("above", "worst epsilon above"),
        here={"inside": inside, "above": above},
        description=(
            f"At this plan's noise budget, the worst epsilon above a region grows from "
            f"{epsilon_text(first['above'])} to {epsilon_text(last['above'])} as the worst epsilon inside "
            f"falls from {epsilon_text(first['inside'])} to {epsilon_text(last['inside'])}. This plan has "
            f"{epsilon_text(above)} above and {epsilon_text(inside)} inside."
        ),
    )


def price_chart(trades: Sequence[Trade], *, inside: float, budget: float) -> Spec:
    """Returns the noise for a target inside at the same promise above, as a share of the noise of uniform.

    Args:
        trades: The divisions of `observer_trade`.
        inside: The plan's own worst epsilon inside.
        budget: The plan's own noise budget.
    """
    uniform = trades[-1].noise_budget
    points = [{"inside": trade.epsilon_inside, "share": trade.noise_budget / uniform} for trade in trades]
    title = "noise, share of uniform's"
    chart = _curve(
        points,
        x=("inside", "worst epsilon inside"),
        y=("share", title),
        here={"inside": inside, "share": budget / uniform},
        description=(
            f"At the same promise above, noise grows from {points[0]['share']:.0%} of what uniform noise needs to all "
            f"of it as the worst epsilon inside falls from {epsilon_text(points[0]['inside'])} to "
            f"{epsilon_text(points[-1]['inside'])}. This plan needs {budget / uniform:.0%}."
        ),
    )
    for layer in chart["layer"]:
        layer["encoding"]["y"] |= {"title": title, "axis": {"format": ".0%"}, "scale": {"zero": True}}
    return chart


def information_rows(plan: Plan, *, points: int = 40) -> list[ChartRow]:
    """Returns, by round and observer, a bound in nats on information about the class concentration of the worst silo.

    - With a declared floor the bound is the information floor plus the information of the releases.
    - Without a declared floor the bound counts the releases alone, not all information of the observer.
    - The bound is at most the ceiling. A silo without noise against the observer is at the ceiling at once.
    - Round 0 has the information before the plan: the floor, and the releases of earlier plans.
    """
    lateral, ceiling = np.zeros(len(plan.federation)) if plan.floor is None else plan.floor, information_ceiling(plan)
    rows: list[ChartRow] = []
    rounds = np.unique(np.linspace(1, plan.rounds, min(points, plan.rounds)).round().astype(int)).tolist()
    for observer, tier in zip(OBSERVERS, (plan.federation.innermost.name, SILO), strict=True):
        floor = lateral + plan.information_before(tier)
        rows.append({"round": 0, "observer": observer, "nats": min(float(floor.max()), ceiling)})
        noise, levels = plan.effective_multiplier(tier), np.unique(floor)
        least = [float(noise[floor == level].min()) for level in levels] if len(levels) < 100 else None
        pairs = (noise, floor) if least is None else (np.array(least), levels)
        for number in rounds:
            nats = information_bound(
                pairs[0],
                floor=pairs[1],
                entropy=ceiling,
                rounds=number,
                bound=plan.target.bound,
                parameters=plan.parameters,
            )
            rows.append({"round": number, "observer": observer, "nats": float(np.max(nats))})
    return rows


def information_words(rows: Sequence[ChartRow], *, ceiling: float, floor_declared: bool = True) -> list[str]:
    """Returns remarks on lines that a reader cannot see: lines at 0, at the ceiling, or on each other.

    Args:
        rows: The rows of `information_rows`.
        ceiling: The entropy of the class concentration, in nats.
        floor_declared: True for rows with a floor; otherwise the rows count the releases alone.

    >>> points = [{"round": number, "observer": "above", "nats": 0.001 * number} for number in range(3)]
    >>> information_words(points, ceiling=3.0)
    ['The line of the observer above looks like 0 here: the observer learns at most 0.002 of 3 nats.']
    """
    remarks = []
    by_observer = {name: [row for row in rows if row["observer"] == name] for name in OBSERVERS}
    for observer, line in by_observer.items():
        if not line:
            continue
        last, least = float(line[-1]["nats"]), float(line[0]["nats"])
        full = next((row["round"] for row in line if row["nats"] >= ceiling * (1 - 1e-9)), None)
        whose = f"The line of the observer {observer}"
        if full is not None:
            when = f"from round {full} on" if full else "from the start"
            remarks.append(f"{whose} lies at the ceiling {when}: there the bound says nothing.")
        elif last <= _AT_THE_EDGE * ceiling:
            learns = "the observer learns at most" if floor_declared else "the releases add up to"
            remarks.append(f"{whose} looks like 0 here: {learns} {shown_nats(last, digits=3)} of {ceiling:.3g} nats.")
        elif least >= (1 - _AT_THE_EDGE) * ceiling:
            remarks.append(f"{whose} looks like the ceiling here: the bound says hardly anything.")
    above, inside = ([row["nats"] for row in line] for line in by_observer.values())
    if above and inside and not remarks and max(map(abs, np.subtract(above, inside))) <= _AT_THE_EDGE * ceiling:
        remarks.append("The lines of both observers lie on each other.")
    return remarks


def information_heading(floor_declared: bool) -> str:
    """Returns the heading of a column or an axis of `information_rows`."""
    return "nats at most" if floor_declared else "nats that the releases add"


def information_chart(
    rows: Sequence[ChartRow],
    *,
    ceiling: float,
    target: float | None = None,
    floor_declared: bool = True,
    follows: bool = False,
    above: str = "above its region",
) -> Spec:
    """Returns the information bound by round for both observers, and its ceiling.

    Args:
        rows: The rows of `information_rows`.
        ceiling: The entropy of the class concentration, in nats.
        target: K, the target of the plan.
        floor_declared: True for rows with a floor; otherwise the rows count the releases alone.
        follows: True for rows that count the releases of silos before the plan.
        above: The place of the observer above, in words.
    """
    last = max(row["round"] for row in rows)
    over = f"over these {last} rounds and all released before" if follows else f"over {last} rounds"
    learned = f"Information about a silo's class concentration {over}, at most:"
    if not floor_declared:
        learned = f"Information that the releases add about a silo's class concentration {over}: up to"
    end = {row["observer"]: shown_nats(row["nats"], digits=3) for row in rows}
    guides = [{"nats": ceiling, "label": f"ceiling: all information at {LEVELS} levels, {ceiling:.3g} nats"}]
    if target is not None:
        guides.append({"nats": target, "label": f"the target, {target:.3g} nats"})
    top = 1.12 * max(ceiling, target or 0.0)  # room for the ceiling's name
    y = {
        "field": "nats",
        "type": "quantitative",
        "title": information_heading(floor_declared),
        "scale": {"domain": [0, top], "nice": False},
    }
    return {
        "description": (
            f"{learned} {end['above']} nats {above} and {end['inside']} inside it, under a ceiling of {ceiling:.3g} "
            "nats."
            + "".join(
                f" {remark}" for remark in information_words(rows, ceiling=ceiling, floor_declared=floor_declared)
            )
        ),
        "width": "container",
        "height": 240,
        "layer": [
            _guide(guides, {"y": y}, align="left", dy=-8, x=4),
            {
                "data": {"values": list(rows)},
                "mark": {"type": "line", "strokeWidth": 2.5, "point": {"size": 30, "filled": True}},
                "encoding": {
                    "x": {
                        "field": "round",
                        "type": "quantitative",
                        "title": "rounds",
                        "axis": {"grid": False, "tickMinStep": 1},
                    },
                    "y": y,
                    "color": {"field": "observer", "type": "nominal", "title": None, "scale": {"domain": OBSERVERS}},
                    "tooltip": tooltip(
                        round="round", observer="observer", nats=(information_heading(floor_declared), ".4f")
                    ),
                },
            },
        ],
    }


def accuracy_chart(
    rows: Iterable[Mapping[str, Any]], *, reference: float | None = None, metric: str = "accuracy"
) -> Spec:
    """Returns accuracy, or a different metric, by allocation, with its standard error to both sides if known.

    Args:
        rows: With `allocation`, `accuracy`, and `accuracy_se` or None.
        reference: The accuracy without clip and noise.
        metric: The name of the metric in the field `accuracy`.
    """
    points = [{"allocation": row["allocation"], **_accuracy(row)} for row in rows]
    best = max(points, key=lambda point: float(point["accuracy"]))
    x = {
        "field": "accuracy",
        "type": "quantitative",
        "title": f"test {metric}",
        "scale": {"zero": False, "padding": 16},
    }
    y = {"field": "allocation", "type": "nominal", "sort": None, "title": None}
    guide = [] if reference is None else [{"accuracy": reference, "label": "without noise"}]
    return {
        "description": (
            f"Test {metric} of {len(points)} allocations; the best is {best['allocation']} at {best['shown']}."
        ),
        "width": "container",
        "height": 34 * len(points),
        "layer": [
            *([_guide(guide, {"x": x}, align="center", y=-8)] if guide else []),
            {
                "data": {"values": points},
                "encoding": {"y": y, "tooltip": tooltip(allocation="allocation", shown=metric)},
                "layer": [
                    {
                        "mark": {"type": "rule", "strokeWidth": 2, "style": "plain"},
                        "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}},
                    },
                    {
                        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1, "style": "plain"},
                        "encoding": {"x": x},
                    },
                ],
            },
        ],
    }


def budget_chart(rows: Iterable[Mapping[str, Any]]) -> Spec:
    """Returns the noise budget by allocation; `rows` have `allocation` and `noise_budget`."""
    points = [
        {"allocation": row["allocation"], "budget": row["noise_budget"], "shown": figure(row["noise_budget"])}
        for row in rows
    ]
    least = min(points, key=lambda point: float(point["budget"]))
    axis = spread_axis("noise budget, C²", [point["budget"] for point in points])
    return {
        "description": (
            f"Noise budget of {len(points)} allocations; {least['allocation']} needs least, {least['shown']} C²."
        ),
        "width": "container",
        "height": 30 * len(points),
        "data": {"values": points},
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1, "style": "plain"},
        "encoding": {
            "x": {"field": "budget", "type": "quantitative", **axis},
            "y": {"field": "allocation", "type": "nominal", "sort": None, "title": None},
            "tooltip": tooltip(allocation="allocation", shown="noise budget, C²"),
        },
    }


def learning_chart(
    rows: Iterable[Mapping[str, Any]], *, reference: float | None = None, metric: str = "test accuracy"
) -> Spec:
    """Returns accuracy, or a different metric, by round with a band of a standard error.

    Args:
        rows: With `round`, `accuracy`, and `accuracy_se` or None.
        reference: The accuracy without clip and noise.
        metric: The name of the metric in the field `accuracy`.
    """
    points = [{"round": row["round"], **_accuracy(row)} for row in rows]
    y = {"field": "accuracy", "type": "quantitative", "title": metric, "scale": {"zero": False}}
    x = {"field": "round", "type": "quantitative", "title": "round", "axis": {"grid": False, "tickMinStep": 1}}
    guide = [] if reference is None else [{"accuracy": reference, "label": "without noise"}]
    return {
        "description": f"{metric.capitalize()} by round: {points[-1]['shown']} after round {points[-1]['round']}.",
        "width": "container",
        "height": 220,
        "layer": [
            *([_guide(guide, {"y": y}, align="left", x=4, dy=12)] if guide else []),  # an empty one has no extent
            {
                "data": {"values": points},
                "encoding": {"x": x, "tooltip": tooltip(round="round", shown=metric)},
                "layer": [
                    {
                        "mark": {"type": "rule", "strokeWidth": 2, "style": "plain", "opacity": 0.5},
                        "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}},
                    },
                    {"mark": {"type": "line", "style": "plain", "strokeWidth": 2.5}, "encoding": {"y": y}},
                    {
                        "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1, "style": "plain"},
                        "encoding": {"y": y},
                    },
                ],
            },
        ],
    }


_ROOM_FOR_NAME = 24
"""Pixels below the lowest point of a curve, for the name of its right end."""


def _curve(points: list[ChartRow], *, x: tuple[str, str], y: tuple[str, str], here: ChartRow, description: str) -> Spec:
    """Returns a curve of alternatives, with names at its ends and at the plan."""
    across = {
        "field": x[0],
        "type": "quantitative",
        **spread_axis(x[1], (point[x[0]] for point in [*points, here]), zero=False),
    }
    up = {
        "field": y[0],
        "type": "quantitative",
        **spread_axis(y[1], (point[y[0]] for point in [*points, here]), zero=False),
    }
    if "padding" in up["scale"]:
        up["scale"]["padding"] = _ROOM_FOR_NAME
    middle = math.sqrt(points[0][x[0]] * points[-1][x[0]])
    ends = [{**points[-1], "label": "uniform"}]
    if not math.isclose(here[x[0]], points[0][x[0]], rel_tol=0.02):
        ends.append({**points[0], "label": "no target inside"})
    # Both curves fall from the upper left to the lower right: names on the right stand below, all others above.
    names = [("muted", end, {"dy": 14} if end[x[0]] > middle else {"dy": -11}) for end in ends]
    at_the_ring = {"dx": -13, "dy": 8} if here[x[0]] > middle else {"dy": -16}
    names.append(("strong", {**here, "label": "this plan"}, at_the_ring))
    encoding = {"x": across, "y": up}
    tips = [{"field": name, "title": title, "format": ".4~g"} for name, title in (x, y)]
    return {
        "description": description,
        "width": "container",
        "height": 240,
        "padding": {"left": 5, "right": 14, "top": 5, "bottom": 5},  # half of the last label may stand outside
        "layer": [
            *curve_layers(points, here, encoding, tips=tips),
            *(
                name_layer(named, drawn, encoding, right=named[x[0]] > middle, **place)
                for style, named, place in names
                for drawn in ("halo", style)  # the ground around a name hides the line beneath it
            ),
        ],
    }


def _guide(values: list[ChartRow], encoding: Spec, **text: Any) -> Spec:
    """Returns lines across a chart with their labels; `text` places the labels."""
    return {
        "data": {"values": values},
        "encoding": encoding,
        "layer": [
            {"mark": {"type": "rule", "style": "guide-line"}},
            {"mark": {"type": "text", **text, "style": "muted"}, "encoding": {"text": {"field": "label"}}},
        ],
    }


def _accuracy(row: Mapping[str, Any]) -> ChartRow:
    """Returns an accuracy with a standard error to both sides, and in words."""
    accuracy, error = float(row["accuracy"]), row.get("accuracy_se")
    margin = 0.0 if error is None or math.isnan(error) else error
    return {
        "accuracy": row["accuracy"],
        "low": accuracy - margin,
        "high": accuracy + margin,
        "shown": with_error(accuracy, error),
    }
