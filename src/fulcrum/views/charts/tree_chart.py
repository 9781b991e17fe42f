"""A federation drawn as a tree: every region with its noise, its influence and a dot for every silo.

>>> from fulcrum.planning.planner import plan
>>> from fulcrum.views.charts.region_charts import region_rows
>>> rows = region_rows(plan("consortium", rounds=10, epsilon=1.0))
>>> tree_chart(rows, name="consortium")["description"].split(". ")[1]
'The noise multiplier is 23.59 at country-5, the most, and 4.308 at country-1, the least'

Two drawings: a tree as wide as the page, and a stacked tree for phones, with regions below each other. The module
computes positions alone.
"""

import re
from collections.abc import Sequence
from typing import Any

from fulcrum.views.charts.chart_style import NAME_WIDTH, ChartRow, Spec, short_names, tooltip
from fulcrum.words.alignment import align_figures
from fulcrum.words.numbers import percent

_DOT, _WIDEST_DOT = 8, 15  # pixels from one silo to the next, at least and at most
_BAR, _WIDEST_BAR = 50, 220  # pixels of the longest bar of influence, at least and at most
_FEWEST_DOTS = 12
_COUNT = 72  # pixels for the number of silos, behind their dots
_ROOT, _TIER, _WIDEST_TIER = 8, 92, 190  # pixels to the root, and from one tier to the next, at least and at most
_HEAD, _TITLE = -26, -46  # pixels from the first region up to the headings; to a long name of the federation
_LETTER = 7  # pixels, about
_NAME_AT, _NOISE, _SHARE, _GAP = 14, 104, 84, 26  # pixels from a region to its name; for its columns; to its dots
_STACKED_AT, _STACKED, _PARENT = 18, 70, 26  # pixels from the left; for a region on a phone; for the node around it
_TELLING = 5e-4  # shares that are nearer to each other are the same in print


def tree_chart(rows: Sequence[ChartRow], *, name: str, injected: bool = False) -> Spec:
    """Returns the federation as a tree as wide as the page: a wider page has more dots for silos.

    Args:
        rows: The rows of `region_rows`.
        name: The name of the federation.
        injected: True where aggregators draw the noise, once for the sum of a region.
    """
    step = 30 if len(rows) <= 14 else 22
    outer = max((len(node) for row in rows for node in row["path"]), default=0)
    wide = min(max(_TIER, _LETTER * outer + 12), _WIDEST_TIER)
    leaf = _ROOT + wide * (1 + max(len(row["path"]) for row in rows))
    joints, links = _branches(rows, name, leaf, step, wide)
    short = short_names(row["name"] for row in rows)
    room = min(max(112, _LETTER * max(map(len, short))), NAME_WIDTH)
    shares = _shares(rows)
    noise_at = leaf + _NAME_AT + room + _NOISE
    share_at = {field: noise_at + _SHARE * (1 + place) for place, field in enumerate(shares)}
    bars_at = max(share_at.values()) + _NAME_AT
    leaves = _leaves(rows, short)
    for index, drawn in enumerate(leaves):
        drawn |= {"x": leaf, "y": index * step, "bar_at": bars_at}
    tier, tips = rows[0]["tier"], _tips(rows[0]["tier"], injected, shares)
    heads = [
        (leaf + _NAME_AT, tier, "left"),
        (noise_at, _noise_word(injected), "right"),
        *((share_at[field], f"| {text}" if field == "by_size" else text, "right") for field, text in shares.items()),
    ]
    top = {"y": _HEAD}
    long = _LETTER * len(name) > leaf  # a long name of the federation stands above the headings
    return {
        "description": _description(rows, name, injected),
        "width": "container",
        "height": (len(rows) - 1) * step + 10,
        "padding": {"left": 5, "right": 5, "top": 58 if long else 38, "bottom": 6},
        "params": [
            {"name": "bar", "expr": f"clamp(0.4 * (width - {bars_at}), {_BAR}, {_WIDEST_BAR})"},
            *_dot_params(rows, f"({bars_at + _GAP} + bar)"),
        ],
        "usermeta": {
            "least_width": bars_at + _BAR + _GAP + _FEWEST_DOTS * _DOT + _COUNT + 10
        },  # a narrower page draws the stacked tree
        "layer": [
            _layer(
                links,
                {"type": "line", "interpolate": "basis", "style": "link"},
                detail={"field": "link"},
                order={"field": "order"},
            ),
            _layer(joints, {**_POINT, "size": 60, "style": "joint"}),
            _text(
                [{"x": 0, "label": name, "y": _TITLE if long else _HEAD}],
                "label",
                align="left",
                limit=noise_at if long else leaf,
                style="strong",
            ),
            _text(joints[1:], "label", align="right", dx=5, dy=-13, limit=wide - 6, style="strong"),
            *(
                _text([{"x": x, "label": label, **top}], "label", align=align, style="muted")
                for x, label, align in heads
            ),
            _silos_head({"x": 0, **top}),
            _layer(leaves, {**_POINT, "size": 110}, color=_COLOUR, tooltip=tips),
            _text(leaves, "short", tips=tips, align="left", dx=_NAME_AT, limit=room),
            _text_at(leaves, "noise_shown", noise_at, limit=110, style="strong"),
            *(
                _text_at(leaves, field, at, style="strong" if field == "influence" else "muted")
                for field, at in share_at.items()
            ),
            *_bars(leaves, marked="by_size" in shares),
            *_dots(leaves, tips),
        ],
    }


def stacked_tree_chart(rows: Sequence[ChartRow], *, name: str, injected: bool = False) -> Spec:
    """Returns the federation for a narrow page: regions below each other, with their figures under their names.

    Args:
        rows: The rows of `region_rows`.
        name: The name of the federation.
        injected: True where aggregators draw the noise, once for the sum of a region.
    """
    shares = _shares(rows)
    leaves = _leaves(rows, short_names(row["name"] for row in rows))
    parents, at, before = [], 0, None
    for row, drawn in zip(rows, leaves, strict=True):
        around = " › ".join(row["path"])
        if around != (before or ""):
            parents.append({"x": 0, "y": at, "label": around})
            at += _PARENT
        before = around
        figures = [f"noise {row['noise_shown']}"]
        figures += [f"{heading} {drawn[field]}" for field, heading in shares.items()]
        drawn |= {"x": 6, "y": at, "second": at + 19, "third": at + 38, "said": ", ".join(figures)}
        at += _STACKED
    line = {"x": 6, "link": 0}
    ends = [{**line, "order": 0, "y": leaves[0]["y"]}, {**line, "order": 1, "y": leaves[-1]["y"]}]
    tips = _tips(rows[0]["tier"], injected, shares)
    beneath = [{**drawn, "y": drawn["third"]} for drawn in leaves]
    return {
        "description": _description(rows, name, injected),
        "width": "container",
        "height": at - 24,
        "padding": {"left": 2, "right": 5, "top": 40, "bottom": 6},
        "params": _dot_params(rows, f"{_STACKED_AT}"),
        "layer": [
            _layer(ends, {"type": "line", "style": "link"}, order={"field": "order"}),
            _silos_head({"x": -_STACKED_AT, "y": _HEAD - 4}),
            *([_text(parents, "label", align="left", style="muted")] if parents else []),
            _layer(leaves, {**_POINT, "size": 90}, color=_COLOUR, tooltip=tips),
            _text(leaves, "short", tips=tips, align="left", dx=_STACKED_AT - 6, style="strong"),
            _text([{**drawn, "y": drawn["second"]} for drawn in leaves], "said", align="left", dx=_STACKED_AT - 6),
            *_dots(beneath, tips),
        ],
    }


_POINT: Spec = {"type": "point", "filled": True, "opacity": 1}
_COLOUR: Spec = {"field": "shade", "type": "quantitative", "legend": None, "scale": {"domainMin": 0}}


def _shares(rows: Sequence[ChartRow]) -> dict[str, str]:
    """Returns the headings of shares by field; the share by size is left out where influence is the same."""
    shares = {"influence": "influence"}
    if any(abs(row["influence"] - row["by_size"]) > _TELLING for row in rows):
        shares["by_size"] = "by size" if rows[0]["sizes_known"] else "by number"
    return shares


def _leaves(rows: Sequence[ChartRow], short: Sequence[str]) -> list[ChartRow]:
    """Returns the drawn fields of every region, without a position."""
    most = max(max(row["influence"], row["by_size"]) for row in rows)
    return [
        {key: row[key] for key in ("name", "silos", "noise", "noise_shown", "together")}
        | {
            "short": short[index],
            "shade": float(f"{row['noise']:.4g}"),  # equal figures have equal colours
            "influence": percent(row["influence"]),
            "by_size": percent(row["by_size"]),
            "length": round(row["influence"] / most, 4),
            "length_by_size": round(row["by_size"] / most, 4),
            "about": f"{row['silos']:,}" + (f" in {row['regions']:,} {row['inner']}s" if row["regions"] > 1 else ""),
        }
        for index, row in enumerate(rows)
    ]


def _dot_params(rows: Sequence[ChartRow], dots_at: str) -> list[Spec]:
    """Returns the parameters of dots: start, silos per dot, and distance, all by the width of the page."""
    largest = max(row["silos"] for row in rows if not row["together"])
    room = f"(width - dots_at - {_COUNT})"
    return [
        {"name": "dots_at", "expr": dots_at},
        {"name": "per_dot", "expr": f"max(1, ceil({largest} / max({_FEWEST_DOTS}, floor({room} / {_DOT}))))"},
        {"name": "pitch", "expr": f"clamp({room} / ceil({largest} / per_dot), {_DOT}, {_WIDEST_DOT})"},
    ]


def _dots(leaves: list[ChartRow], tips: list[Spec]) -> list[Spec]:
    """Returns a row of dots for every region with its number of silos; regions that are drawn together have no dots."""
    single, others = ([drawn for drawn in leaves if drawn["together"] is together] for together in (False, True))
    mark = {"type": "rule", "strokeWidth": 5.5, "strokeCap": "round", "strokeDash": {"expr": "[0, pitch]"}}
    first = {"calculate": "dots_at", "as": "first_dot"}
    last = {"calculate": "dots_at + (ceil(datum.silos / per_dot) - 1) * pitch + 0.01", "as": "last_dot"}
    layers = [
        _layer(
            single,
            mark,
            x="first_dot",
            x2={"field": "last_dot"},
            transform=[first, last],
            color=_COLOUR,
            tooltip=tips,
        ),
        _text(single, "about", x="last_dot", transform=[last], align="left", dx=10, style="muted"),
    ]
    if others:
        layers.append(_text(others, "about", x="first_dot", transform=[first], align="left", dx=-3, style="muted"))
    return layers


def _silos_head(place: ChartRow) -> Spec:
    """Returns the heading above the dots, `place` pixels from the first dot."""
    heading = "per_dot > 1 ? 'silos, a dot for ' + format(per_dot, ',') : 'silos, a dot for each'"
    mark = {"type": "text", "text": {"expr": heading}, "align": "left", "style": "muted"}
    return _layer([place], mark, x="at", transform=[{"calculate": "dots_at + datum.x", "as": "at"}])


def _bars(leaves: list[ChartRow], *, marked: bool) -> list[Spec]:
    """Returns a bar of influence for every region; with `marked`, a stroke at its share by size."""
    bar, stroke = (
        [{"calculate": f"datum.bar_at + bar * datum.{field}", "as": "to"}] for field in ("length", "length_by_size")
    )
    mark = {"type": "rule", "strokeWidth": 9, "style": "plain"}
    layers = [_layer(leaves, mark, x="bar_at", x2={"field": "to"}, transform=bar)]
    if marked:
        mark = {"type": "tick", "orient": "vertical", "size": 17, "thickness": 2, "style": "strong"}
        layers.append(_layer(leaves, mark, x="to", transform=stroke))
    return layers


def _layer(
    values: list[ChartRow], mark: Spec, *, x: str = "x", transform: Sequence[Spec] = (), **encoding: Any
) -> Spec:
    """Returns a layer; its rows hold the fields of the layer alone, so that pages stay small."""
    placed = {"x": _at(x), "y": _at("y"), **encoding}
    read = set(re.findall(r"(?<='field': ')\w+(?=')|(?<=datum\.)\w+", f"{placed} {transform}"))
    rows = [{field: value for field, value in row.items() if field in read} for row in values]
    layer = {"data": {"values": rows}, "mark": mark, "encoding": placed}
    return layer | {"transform": list(transform)} if transform else layer


def _text(
    values: list[ChartRow],
    field: str,
    *,
    x: str = "x",
    transform: Sequence[Spec] = (),
    tips: list[Spec] | None = None,
    **mark: Any,
) -> Spec:
    hover = {} if tips is None else {"tooltip": tips}
    return _layer(values, {"type": "text", **mark}, x=x, transform=transform, text={"field": field}, **hover)


def _text_at(leaves: list[ChartRow], field: str, at: int, **mark: Any) -> Spec:
    """Returns a column of figures that end at the position `at`."""
    shown = align_figures([drawn[field] for drawn in leaves])
    values = [{"x": at, "y": drawn["y"], field: text} for drawn, text in zip(leaves, shown, strict=True)]
    return _text(values, field, align="right", **mark)


def _at(field: str) -> Spec:
    """Returns the encoding of a position in pixels."""
    return {"field": field, "type": "quantitative", "scale": None}


def _tips(tier: str, injected: bool, shares: dict[str, str]) -> list[Spec]:
    return tooltip(name=tier, about="silos", noise_shown=_noise_word(injected), **shares)


def _noise_word(injected: bool) -> str:
    return "noise on the sum" if injected else "noise multiplier"


def _description(rows: Sequence[ChartRow], name: str, injected: bool) -> str:
    least, most = (choose(rows, key=lambda row: float(row["noise"])) for choose in (min, max))
    most_gained, most_lost = (choose(rows, key=lambda row: row["influence"] / row["by_size"]) for choose in (max, min))
    by = "by size" if rows[0]["sizes_known"] else "by number of silos"
    sentences = (
        f"{name} as a tree of {len(rows)} {rows[0]['tier']} nodes. The {_noise_word(injected)} is "
        f"{most['noise_shown']} at {most['name']}, the most, and {least['noise_shown']} at {least['name']}, the least. "
    )
    if "by_size" not in _shares(rows):
        return sentences + f"Every {rows[0]['tier']} has its influence {by}."
    return sentences + (
        f"{most_gained['name']} has {percent(most_gained['influence'])} of the model, and {by} would have "
        f"{percent(most_gained['by_size'])}; {most_lost['name']} has {percent(most_lost['influence'])} in place of "
        f"{percent(most_lost['by_size'])}."
    )


def _branches(
    rows: Sequence[ChartRow], name: str, leaf: int, step: int, wide: int
) -> tuple[list[ChartRow], list[ChartRow]]:
    """Returns the nodes above the rows, the root first, and the lines between all nodes, of four points each.

    Args:
        rows: The rows of `region_rows`.
        name: The name of the federation.
        leaf: The position of regions, in pixels.
        step: Pixels from one region to the next.
        wide: Pixels from one tier to the next.
    """
    beneath: dict[tuple[str, ...], list[int]] = {}
    for index, row in enumerate(rows):
        for level in range(len(row["path"]) + 1):
            beneath.setdefault(tuple(row["path"][:level]), []).append(index * step)
    place = {path: (_ROOT + wide * len(path), sum(ys) / len(ys)) for path, ys in beneath.items()}
    joints = [{"x": x, "y": y, "label": path[-1] if path else name} for path, (x, y) in place.items()]
    ends = [(place[path[:-1]], end) for path, end in place.items() if path]
    ends += [(place[tuple(row["path"])], (leaf, index * step)) for index, row in enumerate(rows)]
    links = []
    for number, ((x0, y0), (x1, y1)) in enumerate(ends):
        corners = [(x0, y0), ((x0 + x1) / 2, y0), ((x0 + x1) / 2, y1), (x1, y1)]
        links += [{"link": number, "order": order, "x": x, "y": y} for order, (x, y) in enumerate(corners)]
    return joints, links
