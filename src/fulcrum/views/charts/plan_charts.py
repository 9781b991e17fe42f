"""Charts of what a plan trades, reveals and learns: curves between the observers, information by round, accuracy.

>>> learning_chart([{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.75}])["description"]
'Test accuracy by round: 0.750 after round 2.'

Each chart carries a `description`, its alternative in words.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fulcrum.core.topology import SILO
from fulcrum.planning.advice import LEVELS, information_ceiling
from fulcrum.planning.comparison import Trade
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.leakage import information_bound, shown_nats
from fulcrum.views.charts.chart_style import OBSERVERS, ChartRow, Spec, curve_layers, name_layer, spread_axis, tooltip
from fulcrum.words.numbers import shown_epsilon, with_error

_AT_THE_EDGE = 0.015
"""Of the ceiling: a line that is nearer to 0 cannot be told from the axis."""


def trade_chart(trades: Sequence[Trade], *, above: float, inside: float) -> Spec:
    """Returns epsilon above against epsilon inside at one noise budget: the smaller the one, the larger the other.

    Args:
        trades: As `observer_trade` gives them.
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
            f"At this plan's noise budget, the worst epsilon above a region grows from {shown_epsilon(first['above'])} "
            f"to {shown_epsilon(last['above'])} as the worst epsilon inside falls from "
            f"{shown_epsilon(first['inside'])} to {shown_epsilon(last['inside'])}. This plan stands at "
            f"{shown_epsilon(above)} above and {shown_epsilon(inside)} inside."
        ),
    )


def price_chart(trades: Sequence[Trade], *, inside: float, budget: float) -> Spec:
    """Returns the noise that a target inside needs while the promise above is kept, as a share of what uniform needs.

    Args:
        trades: As `observer_trade` gives them.
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
            f"of it as the worst epsilon inside falls from {shown_epsilon(points[0]['inside'])} to "
            f"{shown_epsilon(points[-1]['inside'])}. This plan needs {budget / uniform:.0%}."
        ),
    )
    for layer in chart["layer"]:
        layer["encoding"]["y"] |= {"title": title, "axis": {"format": ".0%"}, "scale": {"zero": True}}
    return chart


def information_rows(plan: Plan, *, points: int = 40) -> list[ChartRow]:
    """Returns a bound on what is learned of a silo's class concentration after each round: the worst silo, in nats.

    The bound is the lateral floor and what the releases add; never above the ceiling, which it reaches at once where a
    silo has no noise against that observer. Without a declared floor it bounds what the releases add, and not all that
    is learned. At round 0 stands what is known before: the floor, and what earlier plans released.
    """
    lateral, ceiling = np.zeros(len(plan.federation)) if plan.floor is None else plan.floor, information_ceiling(plan)
    found: list[ChartRow] = []
    rounds = np.unique(np.linspace(1, plan.rounds, min(points, plan.rounds)).round().astype(int)).tolist()
    for observer, tier in zip(OBSERVERS, (plan.federation.innermost.name, SILO), strict=True):
        floor = lateral + plan.information_before(tier)
        found.append({"round": 0, "observer": observer, "nats": min(float(floor.max()), ceiling)})
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
            found.append({"round": number, "observer": observer, "nats": float(np.max(nats))})
    return found


def information_words(rows: Sequence[ChartRow], *, ceiling: float, floor_declared: bool = True) -> list[str]:
    """Returns in words what cannot be seen: lines that lie at 0, at the ceiling, or on each other.

    Args:
        rows: As `information_rows` gives them.
        ceiling: The entropy of what is to be learned, in nats.
        floor_declared: True where the rows count a floor; without one they count what the releases add.

    >>> points = [{"round": number, "observer": "above", "nats": 0.001 * number} for number in range(3)]
    >>> information_words(points, ceiling=3.0)
    ['The line of the observer above cannot be told from 0 here: it learns at most 0.002 of 3 nats.']
    """
    found = []
    by_observer = {name: [row for row in rows if row["observer"] == name] for name in OBSERVERS}
    for observer, line in by_observer.items():
        if not line:
            continue
        last, least = float(line[-1]["nats"]), float(line[0]["nats"])
        full = next((row["round"] for row in line if row["nats"] >= ceiling * (1 - 1e-9)), None)
        whose = f"The line of the observer {observer}"
        if full is not None:
            when = f"from round {full} on" if full else "from the start"
            found.append(f"{whose} lies at the ceiling {when}: there the bound says nothing.")
        elif last <= _AT_THE_EDGE * ceiling:
            learns = "it learns at most" if floor_declared else "the releases add up to"
            found.append(
                f"{whose} cannot be told from 0 here: {learns} {shown_nats(last, digits=3)} of {ceiling:.3g} nats."
            )
        elif least >= (1 - _AT_THE_EDGE) * ceiling:
            found.append(f"{whose} cannot be told from the ceiling here: the bound hardly says anything.")
    above, inside = ([row["nats"] for row in line] for line in by_observer.values())
    if above and inside and not found and max(map(abs, np.subtract(above, inside))) <= _AT_THE_EDGE * ceiling:
        found.append("The lines of both observers lie on each other.")
    return found


def information_heading(floor_declared: bool) -> str:
    """Returns what a column or an axis of `information_rows` holds."""
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
    """Returns the information bound by round for both observers, under its ceiling.

    Args:
        rows: As `information_rows` gives them.
        ceiling: The entropy of what is to be learned, in nats.
        target: K, the bound asked for.
        floor_declared: True where the rows count a floor; without one they count what the releases add.
        follows: True where the rows count what silos released before the plan.
        above: The place of the observer above, in words.
    """
    last = max(row["round"] for row in rows)
    over = f"over these {last} rounds and all released before" if follows else f"over {last} rounds"
    learned = "What is learned of a silo's class concentration" if floor_declared else "What the releases add to what"
    learned += f" {over}, at most:" if floor_declared else f" is known of a silo's class concentration {over}: up to"
    end = {row["observer"]: shown_nats(row["nats"], digits=3) for row in rows}
    guides = [{"nats": ceiling, "label": f"ceiling: all there is to learn at {LEVELS} levels, {ceiling:.3g} nats"}]
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
            + "".join(f" {said}" for said in information_words(rows, ceiling=ceiling, floor_declared=floor_declared))
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


def accuracy_chart(rows: Iterable[Mapping[str, Any]], *, reference: float | None = None) -> Spec:
    """Returns accuracy by allocation with a standard error to both sides, where there is one.

    Args:
        rows: With `allocation`, `accuracy`, and `accuracy_se` or None.
        reference: The accuracy without clip and noise.
    """
    points = [{"allocation": row["allocation"], **_accuracy(row)} for row in rows]
    best = max(points, key=lambda point: float(point["accuracy"]))
    x = {"field": "accuracy", "type": "quantitative", "title": "test accuracy", "scale": {"zero": False, "padding": 16}}
    y = {"field": "allocation", "type": "nominal", "sort": None, "title": None}
    guide = [] if reference is None else [{"accuracy": reference, "label": "without noise"}]
    return {
        "description": (
            f"Test accuracy of {len(points)} allocations; the best is {best['allocation']} at {best['shown']}."
        ),
        "width": "container",
        "height": 34 * len(points),
        "layer": [
            *([_guide(guide, {"x": x}, align="center", y=-8)] if guide else []),
            {
                "data": {"values": points},
                "encoding": {"y": y, "tooltip": tooltip(allocation="allocation", shown="accuracy")},
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


def learning_chart(
    rows: Iterable[Mapping[str, Any]], *, reference: float | None = None, metric: str = "test accuracy"
) -> Spec:
    """Returns accuracy, or another metric, by round with a band of one standard error.

    Args:
        rows: With `round`, `accuracy`, and `accuracy_se` or None.
        reference: The accuracy without clip and noise.
        metric: What `accuracy` is, where it is something else.
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


def _curve(points: list[ChartRow], *, x: tuple[str, str], y: tuple[str, str], here: ChartRow, description: str) -> Spec:
    """Returns a curve of alternatives with its ends and this plan marked by name."""
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
    """Returns lines across a chart, each with its label; `text` is where that stands."""
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
