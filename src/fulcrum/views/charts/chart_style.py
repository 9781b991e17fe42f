"""The look of every chart in light and dark, and a chart as SVG, PNG or part of a page.

>>> theme()["background"], theme(dark=True)["range"]["category"][0]
('transparent', '#5cb8f2')

A chart is a Vega-Lite specification in a plain dict, without colours: `theme` adds the colours, so that the same
specification serves page, print and file.
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
"""For pictures on paper: fonts of equal widths, so that text is rarely narrowed or widened."""

LONGEST_NAME = 36
"""The most letters of a name in a chart."""

OBSERVERS = ["above", "inside"]
"""The observer of the sums of regions, and the observer of single releases."""

NAME_WIDTH = 260
"""The most pixels of a name in a chart."""

_WIDTH = 680  # of a picture where the page does not say: the text of an A4 sheet
_TEXT = re.compile(r'<text((?: [\w:-]+="[^"]*")*)>([^<]+)</text>')  # no chart has text of several lines


def theme(*, dark: bool = False) -> Spec:
    """Returns the Vega-Lite configuration of all charts, in light or dark colours."""
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
    """Returns a chart as SVG.

    Args:
        spec: The Vega-Lite specification of the chart.
        dark: True for the colours of a dark page.
        width: The width, in pixels, of a plot that follows the width of the page; other plots keep their width.
        font: The font of all texts.
    """
    return fitted_svg(_with_width(spec, width), config={**theme(dark=dark), "font": font})


def fitted_svg(spec: Spec, *, config: Spec | None = None) -> str:
    """Returns a specification as SVG with a fixed width for every text.

    A reader's machine may lack the font of the layout, and text in a wider font would be cut at the edges.
    """
    drawn = str(_converter().vegalite_to_svg(spec, config=config))
    widths = iter(_text_widths(_TEXT.findall(drawn)))

    def with_width(match: re.Match[str]) -> str:
        attributes, text = match.groups()
        return f'<text{attributes} textLength="{next(widths):.1f}" lengthAdjust="spacingAndGlyphs">{text}</text>'

    return _TEXT.sub(with_width, drawn)


def png(spec: Spec, *, dark: bool = False, width: int = _WIDTH, scale: float = 2.0) -> bytes:
    """Returns a chart as PNG on the paper's colour, `scale` pixels to a pixel of the SVG."""
    paper = {**theme(dark=dark), "background": PALETTE["paper"][dark]}
    return bytes(_converter().vegalite_to_png(_with_width(spec, width), config=paper, scale=scale))


def javascript_bundle() -> str:
    """Returns Vega, Vega-Lite and Vega-Embed as a single script for a page."""
    return str(_converter().javascript_bundle())


def spread_axis(title: str, values: Iterable[float], *, zero: bool = True) -> Spec:
    """Returns an axis that separates all values: logarithmic for a wide span, else linear."""
    numbers = list(values)
    if not numbers or min(numbers) <= 0 or max(numbers) <= 6 * min(numbers):
        return {"title": title, "scale": {"zero": zero, "nice": zero, **({} if zero else {"padding": 12})}}
    low, high = 0.8 * min(numbers), 1.25 * max(numbers)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high < 1e4 * low else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]
    scale = {"type": "log", "nice": False, "padding": 12}
    return {"title": f"{title}, log scale", "scale": scale, "axis": {"format": "~g", "values": ticks}}


def tooltip(**fields: str | tuple[str, str]) -> list[Spec]:
    """Returns the tooltip of a chart: titles by field, or pairs of title and number format."""
    return [
        {"field": name, "title": title}
        if isinstance(title, str)
        else {"field": name, "title": title[0], "format": title[1]}
        for name, title in fields.items()
    ]


def short_names(names: Iterable[str]) -> list[str]:
    """Returns names that fit in a chart: long names lose their middle, unless two names would look alike.

    >>> short_names(["north", "A region with a rather long name, number 3"])
    ['north', 'A region with a r…ng name, number 3']
    """
    full = list(names)
    half = (LONGEST_NAME - 1) // 2
    short = [name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[-half:]}" for name in full]
    alike = Counter(short)
    return [cut if alike[cut] == 1 else name for cut, name in zip(short, full, strict=True)]


def plain_word(name: str) -> str:
    """Returns a name without characters that could end a string inside a Vega expression."""
    return "".join(letter for letter in name if letter.isalnum() or letter in " -_")


def _converter() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise MissingExtraError("charts.extra-missing") from None
    return vl_convert


def _text_widths(texts: Sequence[tuple[str, str]]) -> list[float]:
    """Returns the widths of texts with their SVG attributes, measured by the bounds of a Vega layout."""
    named = {"font": "font-family", "fontSize": "font-size", "fontStyle": "font-style", "fontWeight": "font-weight"}
    rows = []
    for attributes, text in texts:
        values = {key: html.unescape(value) for key, value in re.findall(r'([\w:-]+)="([^"]*)"', attributes)}
        row: ChartRow = {key: values[name] for key, name in named.items() if name in values}
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


def _with_width(spec: Spec, width: int) -> Spec:
    return spec | {"width": width} if spec.get("width") == "container" else spec


def curve_layers(
    points: Sequence[ChartRow], here: ChartRow, encoding: Spec, *, tips: list[Spec], marked: Sequence[ChartRow] = ()
) -> list[Spec]:
    """Returns a curve of alternatives: a line, a dot at every point, and a ring around the plan.

    Args:
        points: The points of the line, from left to right.
        here: The point of the plan.
        encoding: The axes x and y.
        tips: The tooltip of a point.
        marked: Further points, beside the line.
    """
    hovered = {**encoding, "tooltip": tips}
    dot = {"type": "point", "filled": True, "size": 28, "opacity": 1, "style": "plain"}
    ring = {"type": "point", "filled": False, "size": 220, "strokeWidth": 2.5, "opacity": 1, "style": "here"}
    return [
        {
            "data": {"values": list(points)},
            "mark": {"type": "line", "style": "plain", "strokeWidth": 2.5},
            "encoding": {**encoding, "order": {"field": encoding["x"]["field"]}},
        },
        {"data": {"values": [*points, *marked]}, "mark": dot, "encoding": hovered},
        {"data": {"values": [here]}, "mark": ring, "encoding": hovered},
    ]


def name_layer(point: ChartRow, style: str, encoding: Spec, *, right: bool, **text: Any) -> Spec:
    """Returns the `label` beside a point: on the left of points at the right edge; `text` moves the label further."""
    place = {"align": "right" if right else "left", "dx": 4 if right else 11, **text}
    return {
        "data": {"values": [point]},
        "mark": {"type": "text", "style": style, **place},
        "encoding": {**encoding, "text": {"field": "label"}},
    }
