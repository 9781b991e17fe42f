"""The chart of noise and influence at other weights: noise saved, and share of the model moved between regions.

>>> from fulcrum.planning.planner import plan
>>> from fulcrum.planning.comparisons.weight_tradeoff import own_choice, weight_choices
>>> made = plan("consortium", rounds=10, epsilon=1.0)
>>> print(weights_chart(weight_choices(made), own=own_choice(made))["description"].split(". ")[0])
Weights of least noise need 40% of the noise that weights by size need, and move 27% of the model between regions
"""

from collections.abc import Sequence

from fulcrum.planning.comparisons.weight_tradeoff import WeightChoice
from fulcrum.views.charts.chart_style import NAME_WIDTH, ChartRow, Spec, curve_layers, name_layer, short_names, tooltip
from fulcrum.views.charts.name_places import HEIGHT, LINE, PADDING, NamedPoint, NamePlace, free_places

_NEAR = 0.02
"""Distance, as a share of an axis, below which two points look like a single point."""

_NARROWEST = 0.01
"""The least share of the model on the axis: a chart without any move still needs an axis."""

_NOTHING = 5e-4
"""A share of the model that prints as zero."""

_HEADROOM = 1.18
"""Most noise of the axis, over the most noise of the chart: names stand above the curve."""

_CLEARLY_LESS = 0.95
"""Share of its influence by size: a region that keeps less is named in the chart."""

_ROOM_ABOVE = 1.1
"""Most noise of equal weights in the chart, over the most noise of the line: with more they are left out."""


def weights_chart(
    choices: Sequence[WeightChoice], *, own: WeightChoice, equal: WeightChoice | None = None, tier: str = "region"
) -> Spec:
    """Returns the noise against the share of the model that moves between regions, from sizes to least noise.

    Args:
        choices: The choices of `weight_choices`.
        own: The plan's own choice, of `own_choice`.
        equal: The choice of weights that are equal within a region.
        tier: The word for a region.
    """
    base = choices[0].noise
    points = [_point(choice, base) for choice in choices]
    here = _point(own, base)
    ends = [{**points[0], "label": "sizes"}, {**points[-1], "label": "least noise"}]
    widest, highest = (max(float(point[axis]) for point in (*points, here)) for axis in ("moved", "noise"))
    # For persons equal weights may need many times the noise: a point outside the axes would stretch the page.
    if equal is not None and _point(equal, base)["noise"] <= _ROOM_ABOVE * highest:
        ends.append({**_point(equal, base), "label": "equal"})

    def near(point: ChartRow, neighbour: ChartRow) -> bool:
        across, up = abs(point["moved"] - neighbour["moved"]), abs(point["noise"] - neighbour["noise"])
        return bool(across <= _NEAR * widest and up <= _NEAR * highest)

    separate = [ends[0]]
    for end in ends[1:]:  # of two points at the same place the first is named
        if not any(near(end, other) for other in separate):
            separate.append(end)
    label = "this plan" + "".join(f": {end['label']}" for end in separate if near(here, end))
    # A single region is named, so that names do not overlap: of the plan if one loses influence, else of least noise.
    pays = here if float(here["influence"]) < _CLEARLY_LESS else points[-1]
    names = [("muted", end) for end in separate if not near(here, end)]
    names.append(("strong", {**here, "label": label}))
    texts = [_name_lines(point, pays=point["moved"] == pays["moved"]) for _, point in names]

    def place_on_chart(point: ChartRow) -> tuple[float, float]:
        return point["moved"] / max(widest, _NARROWEST), 1 - point["noise"] / (_HEADROOM * highest)

    wished = [
        NamedPoint(
            at=place_on_chart(point),
            lines=tuple(lines),
            right=point["moved"] > widest / 2,
            # The line falls from the left: a point under the line, or at its end, is named below.
            below=point["moved"] > widest / 2 or "equal" in point["label"],
        )
        for (_, point), lines in zip(names, texts, strict=True)
    ]
    places = free_places(wished, curve=[place_on_chart(point) for point in points])
    encoding: Spec = {
        "x": {
            "field": "moved",
            "type": "quantitative",
            "title": f"share of the model moved between {tier}s",
            "scale": {"domain": [0, max(widest, _NARROWEST)], "padding": PADDING, "nice": False},
            "axis": {"format": "~%", "grid": False, "labelFlush": True},
        },
        "y": {
            "field": "noise",
            "type": "quantitative",
            "title": "noise, share of sizes'",
            "scale": {"zero": True, "domainMax": _HEADROOM * highest, "nice": False},
            "axis": {"format": "~%"},
        },
    }
    hover = tooltip(
        weights="weights",
        noise=("noise", ".1%"),
        moved=("moved", ".1%"),
        least="loses most influence",
        influence="of its share by size",
    )
    return {
        "description": _description(choices, own, tier),
        "width": "container",
        "height": HEIGHT,
        "padding": {"left": 5, "right": 16, "top": 5, "bottom": 5},  # half of the last label may stand outside
        "layer": [
            *curve_layers(points, here, encoding, tips=hover, marked=separate),
            *(
                layer
                for (style, point), lines, place in zip(names, texts, places, strict=True)
                for layer in _name_layers(point, lines, style, encoding, place)
            ),
        ],
    }


def choice_rows(choices: Sequence[WeightChoice], *, own: WeightChoice) -> list[tuple[str, ...]]:
    """Returns choices as the rows of a table, the plan's own last; noise is relative to the first row."""
    points = [_point(choice, choices[0].noise) for choice in (*choices, own)]
    points[-1]["weights"] = "this plan"
    return [
        (point["weights"], f"{point['noise']:.1%}", f"{point['moved']:.1%}", point["least"], point["influence"])
        for point in points
    ]


CHOICE_HEADINGS = ("weights", "noise, of sizes'", "of the model moved", "loses most influence", "of its share by size")
"""The headings of `choice_rows`."""


def _point(choice: WeightChoice, base: float) -> ChartRow:
    return {
        "weights": choice.weights if isinstance(choice.weights, str) else f"{choice.weights:.3g}",
        "noise": choice.noise / base,
        "moved": round(choice.moved, 9),
        "least": choice.least_represented,
        "influence": f"{choice.influence_ratio:.2f}",
    }


def _name_lines(point: ChartRow, *, pays: bool) -> list[str]:
    """Returns the name of a point and, with `pays`, the region that loses clearly most influence."""
    lines = [point["label"]]
    if pays and float(point["influence"]) < _CLEARLY_LESS:
        lines.append(f"{short_names([point['least']])[0]} × {point['influence']}")
    return lines


def _name_layers(point: ChartRow, lines: Sequence[str], style: str, encoding: Spec, place: NamePlace) -> list[Spec]:
    """Returns the lines of a name at a place; the first line alone has the style, the others are muted."""
    return [
        name_layer(
            {**point, "label": text},
            drawn,
            encoding,
            right=place.align == "right",
            dx=place.dx,
            dy=place.dy + LINE * number,
            limit=NAME_WIDTH,
        )
        for number, text in enumerate(lines)
        for drawn in ("halo", "muted" if number else style)  # the ground around a name hides the line beneath it
    ]


def _description(choices: Sequence[WeightChoice], own: WeightChoice, tier: str) -> str:
    first, last = choices[0], choices[-1]
    sentences = (
        f"Weights of least noise need {last.noise / first.noise:.0%} of the noise that weights by size need, and move "
        f"{last.moved:.0%} of the model between {tier}s. "
    )
    if last.moved < _NOTHING:
        return sentences + f"Every {tier} keeps its influence. This plan needs {own.noise / first.noise:.0%}."
    if own.moved < _NOTHING:
        return sentences + (
            f"In this plan the influence of every {tier} is by size, at {own.noise / first.noise:.0%} of that noise; "
            f"with least noise {last.least_represented} would lose most influence and keep "
            f"{last.influence_ratio:.2f} of its share."
        )
    return sentences + (
        f"This plan needs {own.noise / first.noise:.0%} and moves {own.moved:.0%}: {own.least_represented} loses "
        f"most influence and keeps {own.influence_ratio:.2f} of its share by size."
    )
