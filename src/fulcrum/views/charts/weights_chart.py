"""The chart of what other weights would save, and of how far they move the model from shares by size.

>>> from fulcrum.planning.planner import plan
>>> from fulcrum.planning.weight_tradeoff import own_choice, weight_choices
>>> made = plan("consortium", rounds=10, epsilon=1.0)
>>> print(weights_chart(weight_choices(made), own=own_choice(made))["description"].split(". ")[0])
Weights of least noise need 40% of the noise that weights by size need, and move 27% of the model between regions
"""

from collections.abc import Sequence

from fulcrum.planning.weight_tradeoff import WeightChoice
from fulcrum.views.charts.chart_style import NAME_WIDTH, ChartRow, Spec, curve_layers, name_layer, short_names, tooltip

_NEAR = 0.02
"""Points that are nearer than this, as shares of an axis, are one point to the eye."""

_NARROWEST = 0.01
"""The share of the model that the axis spans at least: where nothing moves there is still an axis."""

_NOTHING = 5e-4
"""A share of the model that is as good as none."""

_LINE = 0.07
"""Of the height of the chart, what a line of text takes, about."""

_CLEARLY_LESS = 0.95
"""Of its share by size: a region that keeps less is named in the chart."""


def weights_chart(
    choices: Sequence[WeightChoice], *, own: WeightChoice, equal: WeightChoice | None = None, tier: str = "region"
) -> Spec:
    """Returns the noise of the model against the share of it that moves between regions, from sizes to least noise.

    Args:
        choices: As `weight_choices` gives them.
        own: Where the plan stands, as `own_choice` gives it.
        equal: What weights that are equal within a region need.
        tier: What a region is called.
    """
    base = choices[0].noise
    points = [_point(choice, base) for choice in choices]
    here = _point(own, base)
    ends = [{**points[0], "label": "sizes"}, {**points[-1], "label": "least noise"}]
    if equal is not None:
        ends.append({**_point(equal, base), "label": "equal"})
    widest, highest = (max(float(point[axis]) for point in (*points, here)) for axis in ("moved", "noise"))

    def near(one: ChartRow, other: ChartRow) -> bool:
        across, up = abs(one["moved"] - other["moved"]), abs(one["noise"] - other["noise"])
        return bool(across <= _NEAR * widest and up <= _NEAR * highest)

    known = [ends[0]]
    for end in ends[1:]:  # of two points in one place the first is named
        if not any(near(end, other) for other in known):
            known.append(end)
    label = "this plan" + "".join(f": {end['label']}" for end in known if near(here, end))
    # Of the plan, where it quietens anyone, else of least noise: one region is named, so that names do not overlap.
    pays = here if float(here["voice"]) < _CLEARLY_LESS else points[-1]
    names = [("muted", end) for end in known if not near(here, end)]
    names.append(("strong", {**here, "label": label}))
    encoding: Spec = {
        "x": {
            "field": "moved",
            "type": "quantitative",
            "title": f"share of the model moved between {tier}s",
            "scale": {"domain": [0, max(widest, _NARROWEST)], "padding": 14, "nice": False},
            "axis": {"format": "~%", "grid": False, "labelFlush": True},
        },
        "y": {
            "field": "noise",
            "type": "quantitative",
            "title": "noise, share of sizes'",
            "scale": {"zero": True, "domainMax": 1.18 * highest, "nice": False},
            "axis": {"format": "~%"},
        },
    }
    told = tooltip(
        weights="weights",
        noise=("noise", ".1%"),
        moved=("moved", ".1%"),
        quietest="has least voice",
        voice="of its share",
    )
    return {
        "description": _described(choices, own, tier),
        "width": "container",
        "height": 240,
        "padding": {"left": 5, "right": 16, "top": 5, "bottom": 5},  # half of the last label may stand outside
        "layer": [
            *curve_layers(points, here, encoding, tips=told, marked=known),
            *(
                layer
                for style, named in names
                for layer in _named(
                    named,
                    style,
                    encoding,
                    right=named["moved"] > widest / 2,
                    height=named["noise"] / highest,
                    pays=named["moved"] == pays["moved"],
                )
            ),
        ],
    }


def choice_rows(choices: Sequence[WeightChoice], *, own: WeightChoice) -> list[tuple[str, ...]]:
    """Returns choices as the rows of a table, the plan's own last; the first is what the others are held against."""
    points = [_point(choice, choices[0].noise) for choice in (*choices, own)]
    points[-1]["weights"] = "this plan"
    return [
        (point["weights"], f"{point['noise']:.1%}", f"{point['moved']:.1%}", point["quietest"], point["voice"])
        for point in points
    ]


CHOICE_HEADINGS = ("weights", "noise, of sizes'", "of the model moved", "has least voice", "of its share by size")
"""What stands above the columns of `choice_rows`."""


def _point(choice: WeightChoice, base: float) -> ChartRow:
    return {
        "weights": choice.weights if isinstance(choice.weights, str) else f"{choice.weights:.3g}",
        "noise": choice.noise / base,
        "moved": round(choice.moved, 9),
        "quietest": choice.least_represented,
        "voice": f"{choice.influence_ratio:.2f}",
    }


def _named(point: ChartRow, style: str, encoding: Spec, *, right: bool, height: float, pays: bool) -> list[Spec]:
    """Returns the name of a point and, if asked, which region has clearly less voice and how much is left to it."""
    said = [(style, point["label"])]
    if pays and float(point["voice"]) < _CLEARLY_LESS:
        said.append(("muted", f"{short_names([point['quietest']])[0]} keeps {point['voice']} of its share"))
    # The line falls from the left: what lies under it, or at its end, is named below where there is room.
    below = (right or "equal" in point["label"]) and height > _LINE * (1 + len(said))
    return [
        name_layer(
            {**point, "label": text},
            drawn,
            encoding,
            right=right,
            dy=18 + 16 * line if below else -16 * (len(said) - line) - 4 * right,
            limit=NAME_WIDTH,
        )
        for line, (own, text) in enumerate(said)
        for drawn in ("halo", own)  # the ground around a name hides the line beneath it
    ]


def _described(choices: Sequence[WeightChoice], own: WeightChoice, tier: str) -> str:
    first, last = choices[0], choices[-1]
    said = (
        f"Weights of least noise need {last.noise / first.noise:.0%} of the noise that weights by size need, and move "
        f"{last.moved:.0%} of the model between {tier}s. "
    )
    if last.moved < _NOTHING:
        return said + f"Every {tier} keeps its share. This plan needs {own.noise / first.noise:.0%}."
    if own.moved < _NOTHING:
        return said + (
            f"In this plan every {tier} counts by its size, at {own.noise / first.noise:.0%} of that noise; with least "
            f"noise {last.least_represented} would lose most and keep {last.influence_ratio:.2f} of its share."
        )
    return said + (
        f"This plan needs {own.noise / first.noise:.0%} and moves {own.moved:.0%}: "
        f"{own.least_represented} loses most and keeps {own.influence_ratio:.2f} of its share by size."
    )
