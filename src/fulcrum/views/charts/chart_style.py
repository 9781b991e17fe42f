"""How every chart looks, in light and in dark, and a chart as SVG, PNG or part of a page.

>>> theme()["background"], theme(dark=True)["range"]["category"][0]
('transparent', '#5cb8f2')

A chart is a Vega-Lite specification in a plain dict. It holds no colours: `theme` gives them, so that one specification
serves page, print and file.
"""

import html
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from fulcrum.errors import MissingExtraError

Spec: TypeAlias = dict[str, Any]
ChartRow: TypeAlias = dict[str, Any]

PALETTE: Mapping[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#15181c"),
    "surface": ("#f6f7f8", "#1d2126"),
    "line": ("#dfe3e7", "#343a41"),
    "ink": ("#1a2027", "#e9ecef"),
    "muted": ("#56606b", "#a3adb7"),
    "above": ("#0068a8", "#5cb8f2"),
    "inside": ("#b84a00", "#ff9d5c"),
    "third": ("#00735a", "#3ecfa6"),
    "fourth": ("#8f4473", "#e29cc4"),
    "low": ("#4396d0", "#3f7fb0"),
    "high": ("#0a2f52", "#d9efff"),
    "warning": ("#8a4b00", "#ffb35c"),
    "caution": ("#fff6e8", "#2b2217"),
}
"""Colours by role, light and dark: after Okabe and Ito, told apart with any colour vision, text at contrast 4.5."""

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'

STILL_FONT = 'Arial, "Liberation Sans", Helvetica, sans-serif'
"""For pictures on paper: fonts of equal widths, so that what is printed is rarely narrowed or widened."""

LONGEST_NAME = 36
"""Letters of a name that a chart shows."""

OBSERVERS = ["above", "inside"]
"""Who sees the sums of regions, and who sees single updates."""

NAME_WIDTH = 260
"""Pixels that a name in a chart takes at most."""

_WIDTH = 680  # of a picture where the page does not say: the text of an A4 sheet
_TEXT = re.compile(r'<text((?: [\w:-]+="[^"]*")*)>([^<]+)</text>')  # no chart has text of several lines


def theme(*, dark: bool = False) -> Spec:
    """Returns the Vega-Lite configuration that all charts share, in light or dark colours."""
    colour = {role: pair[dark] for role, pair in PALETTE.items()}
    text = {"labelColor": colour["muted"], "titleColor": colour["muted"], "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "axis": {
            **text,
            "titleFontWeight": "normal",
            "titlePadding": 10,
            "gridColor": colour["line"],
            "domainColor": colour["line"],
            "tickColor": colour["line"],
            "labelLimit": NAME_WIDTH,
            "labelPadding": 6,
            "tickCount": 6,
        },
        "axisY": {"ticks": False, "domain": False},
        "legend": {
            **text,
            "titleFontWeight": "normal",
            "orient": "top",
            "symbolSize": 80,
            "columnPadding": 26,
            "symbolOpacity": 1,
            "labelLimit": 300,
        },
        "text": {"color": colour["ink"], "fontSize": 12},
        "range": {
            "category": [colour[role] for role in ("above", "inside", "third", "fourth")],
            "ramp": [colour["low"], colour["high"]],
        },
        "style": {
            "guide-line": {"color": colour["muted"], "strokeDash": [5, 4]},
            "link": {"color": colour["line"], "strokeWidth": 1.5},
            "joint": {"color": colour["muted"]},
            "muted": {"color": colour["muted"]},
            "strong": {"color": colour["ink"], "fontWeight": 600},
            "plain": {"color": colour["above"]},
            "here": {"color": colour["inside"]},
            "halo": {"color": colour["paper"], "stroke": colour["paper"], "strokeWidth": 4, "strokeJoin": "round"},
        },
    }


def svg(spec: Spec, *, dark: bool = False, width: int = _WIDTH, font: str = FONT) -> str:
    """Returns a chart as SVG; `width` is that of the plot where the specification leaves it to the page."""
    return fitted_svg(_drawn(spec, width), config={**theme(dark=dark), "font": font})


def fitted_svg(spec: Spec, *, config: Spec | None = None) -> str:
    """Returns a specification as SVG whose every text takes the room that was measured for it, in whatever font.

    A reader's machine may not have the font that the picture was laid out in: a wider one would be cut at the edges.
    """
    drawn = str(_converter().vegalite_to_svg(spec, config=config))
    widths = iter(_measured(_TEXT.findall(drawn)))

    def fitted(found: re.Match[str]) -> str:
        attributes, text = found.groups()
        return f'<text{attributes} textLength="{next(widths):.1f}" lengthAdjust="spacingAndGlyphs">{text}</text>'

    return _TEXT.sub(fitted, drawn)


def png(spec: Spec, *, dark: bool = False, width: int = _WIDTH, scale: float = 2.0) -> bytes:
    """Returns a chart as PNG on the paper's colour, `scale` pixels to each of the SVG's."""
    paper = {**theme(dark=dark), "background": PALETTE["paper"][dark]}
    return bytes(_converter().vegalite_to_png(_drawn(spec, width), config=paper, scale=scale))


def javascript_bundle() -> str:
    """Returns Vega, Vega-Lite and Vega-Embed as one script for a page."""
    return str(_converter().javascript_bundle())


def spread_axis(title: str, values: Iterable[float], *, zero: bool = True) -> Spec:
    """Returns an axis on which all values can be told apart: logarithmic where they span much, else from `zero`."""
    found = list(values)
    if not found or min(found) <= 0 or max(found) <= 6 * min(found):
        return {"title": title, "scale": {"zero": zero, "nice": zero, **({} if zero else {"padding": 12})}}
    low, high = 0.8 * min(found), 1.25 * max(found)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high < 1e4 * low else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
    scale = {"type": "log", "nice": False, "padding": 12}
    return {"title": f"{title}, log scale", "scale": scale, "axis": {"format": "~g", "values": ticks}}


def tooltip(**fields: str | tuple[str, str]) -> list[Spec]:
    """Returns what a chart tells under the pointer: titles by field, with a number format where one is given."""
    return [
        {"field": name, "title": title}
        if isinstance(title, str)
        else {"field": name, "title": title[0], "format": title[1]}
        for name, title in fields.items()
    ]


def short_names(names: Iterable[str]) -> list[str]:
    """Returns names that fit in a chart, long ones without their middle; those that then look alike stay whole.

    >>> short_names(["north", "A region with a rather long name, number 3"])
    ['north', 'A region with a r…ng name, number 3']
    """
    full = list(names)
    half = (LONGEST_NAME - 1) // 2
    short = [name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}" for name in full]
    alike = Counter(short)
    return [cut if alike[cut] == 1 else name for cut, name in zip(short, full, strict=True)]


def plain_word(name: str) -> str:
    """Returns a name that can stand inside an expression's string."""
    return "".join(letter for letter in name if letter.isalnum() or letter in " -_")


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise MissingExtraError("charts.extra-missing") from None
    return vl_convert


def _measured(texts: Sequence[tuple[str, str]]) -> list[float]:
    """Returns the widths of texts, each with its attributes in SVG, as the layout measured them: Vega tells bounds."""
    named = {"font": "font-family", "fontSize": "font-size", "fontStyle": "font-style", "fontWeight": "font-weight"}
    rows = []
    for attributes, text in texts:
        given = {key: html.unescape(value) for key, value in re.findall(r'([\w:-]+)="([^"]*)"', attributes)}
        row: ChartRow = {key: given[name] for key, name in named.items() if name in given}
        rows.append(row | {"fontSize": float(row["fontSize"].removesuffix("px")), "text": html.unescape(text)})
    encoding = {key: {"field": key} for key in (*named, "text")}
    spec = {
        "data": [{"name": "texts", "values": rows}],
        "marks": [
            {"type": "text", "name": "drawn", "from": {"data": "texts"}, "encode": {"enter": encoding}},
            {
                "type": "rect",
                "from": {"data": "drawn"},
                "encode": {"enter": {"x": {"field": "bounds.x1"}, "x2": {"field": "bounds.x2"}}},
            },
        ],
    }
    [frame] = _converter().vega_to_scenegraph(spec)["scenegraph"]["items"]
    return [bar["width"] for bar in frame["items"][1]["items"]]


def _drawn(spec: Spec, width: int) -> Spec:
    return spec | {"width": width} if spec.get("width") == "container" else spec


def curve_layers(
    points: Sequence[ChartRow], here: ChartRow, encoding: Spec, *, tips: list[Spec], marked: Sequence[ChartRow] = ()
) -> list[Spec]:
    """Returns a curve of alternatives: its line, a dot at every point of it and of `marked`, a ring around this plan.

    Args:
        points: From left to right.
        here: Where the plan stands.
        encoding: Its axes, x and y.
        tips: What is shown of a point under the pointer.
        marked: More points that are no part of the line.
    """
    told = {**encoding, "tooltip": tips}
    dot = {"type": "point", "filled": True, "size": 28, "opacity": 1, "style": "plain"}
    ring = {"type": "point", "filled": False, "size": 220, "strokeWidth": 2.5, "opacity": 1, "style": "here"}
    return [
        {
            "data": {"values": list(points)},
            "mark": {"type": "line", "style": "plain", "strokeWidth": 2.5},
            "encoding": {**encoding, "order": {"field": encoding["x"]["field"]}},
        },
        {"data": {"values": [*points, *marked]}, "mark": dot, "encoding": told},
        {"data": {"values": [here]}, "mark": ring, "encoding": told},
    ]


def name_layer(point: ChartRow, style: str, encoding: Spec, *, right: bool, **text: Any) -> Spec:
    """Returns the `label` of a point beside it: to its left where it stands on the right; `text` is where else."""
    place = {"align": "right" if right else "left", "dx": 4 if right else 11, **text}
    return {
        "data": {"values": [point]},
        "mark": {"type": "text", "style": style, **place},
        "encoding": {**encoding, "text": {"field": "label"}},
    }
