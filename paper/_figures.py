"""The figures: Vega-Lite specifications as plain dicts, as JSON, and as SVG where vl-convert-python is installed.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; shapes repeat what colours say.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from fulcrum.errors import MissingExtraError
from fulcrum.views.charts.chart_style import Spec, fitted_svg

FIGURES = Path(__file__).parents[1] / "out" / "paper"
"""Where figures go unless a script is told otherwise."""

WRITTEN: list[Path] = []
"""Every file that this process has written a figure to."""

Points = Sequence[Mapping[str, Any]]

BLUE, ORANGE, GREEN, PURPLE, BLACK = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000"
TASKS = {"cifar10": "CIFAR-10", "agnews": "AG News", "digits": "Digits"}
_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, BLACK)
_LEGEND = {"symbolOpacity": 1, "labelLimit": 300, "labelFontSize": 11}
_DASHES = {**_LEGEND, "symbolSize": 900, "symbolStrokeWidth": 1.5}  # long enough to tell dashes from dots
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")


def task_name(task: str) -> str:
    """Returns how a figure calls a task."""
    return TASKS.get(task, task)


def write_figure(spec: Spec, folder: Path, name: str) -> list[Path]:
    """Writes a figure as NAME.json, and as NAME.svg if it can, and returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{name}.json"]
    written[0].write_bytes(msgspec.json.format(msgspec.json.encode(spec), indent=1))
    try:
        drawn = fitted_svg(spec)
    except MissingExtraError:
        pass
    else:
        written.append(folder / f"{name}.svg")
        written[1].write_text(drawn, "utf-8")
    WRITTEN.extend(written)
    return written


def floor_figure(points: Points, *, couplings: Sequence[float]) -> Spec:
    """Returns the lateral floor against the size of the group: a line for each coupling, and its saturation dotted.

    Args:
        points: With kappa, group_size, floor and saturation.
        couplings: The values of kappa.
    """
    colour = _scale("kappa", "coupling kappa", couplings)
    x = _axis("group_size", "silos in the group")
    y = _axis("floor", "lateral floor, nats")
    shown = {"x": x, "y": y, "color": colour}
    return {
        **_head(
            "What its group reveals of a silo that sends nothing",
            "Mutual information with the others' class shares; dotted: a group without end",
        ),
        "width": 460,
        "height": 280,
        "data": {"values": list(points)},
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 1.5}, "encoding": shown},
            {
                "mark": {"type": "point", "filled": True, "size": 50, "opacity": 1},
                "encoding": {**shown, "shape": _shape("kappa", "coupling kappa", couplings)},
            },
            {
                "mark": {"type": "line", "strokeWidth": 1.5, "strokeDash": [2, 3]},
                "encoding": {**shown, "y": {**y, "field": "saturation"}},
            },
        ],
    }


def gain_figure(points: Points, *, names: Sequence[str]) -> Spec:
    """Returns gain over uniform noise against dispersion: a panel for each task and size law, a line for each rule.

    Args:
        points: With task, sizes, profile, dispersion, allocation, gain and error.
        names: The rules, best first.
    """
    colour = _scale("allocation", "allocation", names)
    x = _axis("dispersion", "exposure dispersion", domain=[-0.04, 0.86])
    y = _axis("gain", "gain over uniform noise, points")
    y["scale"] = {"nice": False, "padding": 6}
    shown = {"x": x, "y": y, "color": colour}
    shape = _shape("allocation", "allocation", names)
    best, beneath = names[0], names[1]
    layers: list[Spec] = [
        {"mark": {"type": "rule", "color": "#999999", "strokeDash": [4, 3]}, "encoding": {"y": {"datum": 0}}},
        # Where the first two rules agree, the second shows as a wide band around the first.
        {
            "transform": [{"filter": {"field": "allocation", "equal": beneath}}],
            "mark": {"type": "line", "strokeWidth": 9, "opacity": 0.3},
            "encoding": shown,
        },
        {
            "transform": [{"filter": {"not": {"field": "allocation", "equal": beneath}}}],
            "mark": {"type": "line", "strokeWidth": 1.5},
            "encoding": shown,
        },
        _error_bars(shown, "gain"),
        {
            "transform": [{"filter": {"not": {"field": "allocation", "equal": best}}}],
            "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
            "encoding": {**shown, "shape": shape},
        },
        {
            "transform": [{"filter": {"field": "allocation", "equal": best}}],
            "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
            "encoding": {**shown, "shape": shape},
        },
        # The control: no dispersion, so no gain.
        {
            "transform": [{"filter": f"datum.allocation == '{best}' && datum.dispersion == 0"}],
            "mark": {"type": "point", "size": 260, "color": BLACK, "shape": "circle"},
            "encoding": {"x": x, "y": y},
        },
    ]
    return _panels(
        "Accuracy gain at the same guarantee, against exposure dispersion",
        "Balanced, mild, severe; circled: dispersion 0; error bars: standard error of the paired difference over seeds",
        points,
        layers,
    )


def privacy_utility_figure(points: Points, references: Points, *, operating_point: float) -> Spec:
    """Returns accuracy against epsilon by task, with non-private references.

    Args:
        points: With task, epsilon, accuracy and error.
        references: With task, accuracy and whose reference it is.
        operating_point: The epsilon of the other experiments.
    """
    names = list(dict.fromkeys(str(point["task"]) for point in points))
    colour = _scale("task", "task", names)
    x = _axis("epsilon", "epsilon of every silo (delta = 1e-5), log scale", log=True)
    x["axis"] = {"values": [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50], "grid": True}
    x["scale"]["domain"] = [0.08, 60]
    y = _axis("accuracy", "test accuracy", domain=[0.45, 1.0])
    shown = {"x": x, "y": y, "color": colour}
    dash = {
        "field": "whose",
        "type": "nominal",
        "title": "without privacy",
        "scale": {"domain": ["ours", "paper"], "range": [[2, 3], [8, 4]]},
        "legend": _DASHES,
    }
    return {
        **_head("Accuracy against epsilon", "Uniform noise, balanced profile; error bars: standard error over seeds"),
        "width": 460,
        "height": 280,
        "layer": [
            {
                "data": {"values": [{"epsilon": operating_point, "label": f"operating point {operating_point:g}"}]},
                "encoding": {"x": x},
                "layer": [
                    {"mark": {"type": "rule", "color": "#999999"}},
                    {
                        "mark": {"type": "text", "align": "left", "dx": 5, "color": "#555555"},
                        "encoding": {"text": {"field": "label"}, "y": {"datum": 0.47}},
                    },
                ],
            },
            {
                "data": {"values": list(references)},
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {"y": y, "color": colour, "strokeDash": dash},
            },
            {
                "data": {"values": list(points)},
                "layer": [
                    {"mark": {"type": "line", "strokeWidth": 1.5}, "encoding": shown},
                    _error_bars(shown, "accuracy"),
                    {
                        "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
                        "encoding": {**shown, "shape": _shape("task", "task", names)},
                    },
                ],
            },
        ],
    }


def parameters_figure(points: Points, *, names: Sequence[str], chance: Points) -> Spec:
    """Returns accuracy and predicted signal to noise against the number of trainable parameters.

    Args:
        points: With task, model, noise, parameters, accuracy, error and signal_to_noise (None without noise).
        names: The models.
        chance: With task and accuracy: what answering the largest class gives.
    """
    colour = _scale("model", "what is trained", names)
    dash = {
        "field": "noise",
        "type": "nominal",
        "title": "noise",
        "scale": {"domain": ["epsilon 0.99", "no privacy"], "range": [[1, 0], [2, 3]]},
        "legend": _DASHES,
    }
    x = _axis("parameters", "trainable parameters d, log scale", log=True)
    most = max(point["parameters"] for point in points)
    x["axis"] = {
        "format": "~s",
        "values": [10, 30, 100, 300, 1000] if most < 10_000 else [10, 100, 1000, 10_000, 100_000],
    }
    x["scale"] |= {"domain": [8, 1.3 * most], "nice": False}
    y = _axis("accuracy", "test accuracy", domain=[0.4, 1.0])
    shown = {"x": x, "y": y, "color": colour}
    ratio = _axis("signal_to_noise", "signal to noise (log)", log=True)
    ratio["axis"] = {"values": [0.01, 0.03, 0.1, 0.3, 1], "format": "~g"}
    ratio["scale"] |= {"nice": False, "padding": 8}
    panels = []
    for task in dict.fromkeys(str(point["task"]) for point in points):
        mine = [point for point in points if point["task"] == task]
        level = [{**point, "label": "largest class alone"} for point in chance if point["task"] == task]
        baseline: Spec = {
            "data": {"values": level},
            "encoding": {"y": {"field": "accuracy", "type": "quantitative"}},
            "layer": [
                {"mark": {"type": "rule", "color": "#999999", "strokeDash": [4, 3]}},
                {
                    "mark": {"type": "text", "align": "left", "dy": 9, "color": "#555555"},
                    "encoding": {"text": {"field": "label"}, "x": {"value": 4}},
                },
            ],
        }
        accuracy: Spec = {
            "title": task,
            "width": 340,
            "height": 230,
            "data": {"values": mine},
            "layer": [
                baseline,
                {"mark": {"type": "line", "strokeWidth": 1.5}, "encoding": {**shown, "strokeDash": dash}},
                _error_bars(shown, "accuracy"),
                {
                    "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
                    "encoding": {**shown, "shape": _shape("model", "what is trained", names)},
                },
            ],
        }
        predicted: Spec = {
            "width": 340,
            "height": 110,
            "data": {"values": [point for point in mine if point["signal_to_noise"] is not None]},
            "mark": {"type": "line", "color": BLACK, "strokeWidth": 1.5, "point": {"color": BLACK, "size": 25}},
            "encoding": {"x": x, "y": ratio},
        }
        panels.append({"vconcat": [accuracy, predicted]})
    return {
        **_head(
            "Accuracy and predicted signal to noise, against trainable parameters",
            "Uniform noise, balanced profile; error bars: standard error over seeds",
        ),
        "hconcat": panels,
    }


def _head(title: str, subtitle: str) -> Spec:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": {"text": title, "subtitle": subtitle, "anchor": "start", "fontSize": 14, "subtitleColor": "#555555"},
        "background": "white",
        "config": {
            "axis": {"labelFontSize": 11, "titleFontSize": 12, "gridColor": "#eeeeee", "labelFlush": False},
            "view": {"stroke": None},
        },
    }


def _panels(title: str, subtitle: str, points: Points, layers: list[Spec]) -> Spec:
    """Returns a grid of panels: tasks side by side, size laws below each other."""
    laws = list(dict.fromkeys(str(point["sizes"]) for point in points))
    names = list(dict.fromkeys(str(point["task"]) for point in points))
    header = {"labelFontSize": 12, "labelFontWeight": "bold", "title": None}
    return {
        **_head(title, subtitle),
        "data": {"values": list(points)},
        "facet": {
            "column": {"field": "task", "type": "nominal", "sort": names, "header": header},
            "row": {"field": "sizes", "type": "nominal", "sort": laws, "header": header},
        },
        "spec": {"width": 300, "height": 210, "layer": layers},
    }


def _axis(field: str, title: str, *, log: bool = False, domain: Sequence[float] | None = None) -> Spec:
    scale: Spec = {"type": "log"} if log else {"zero": False}
    if domain is not None:
        scale["domain"] = list(domain)
    return {"field": field, "type": "quantitative", "title": title, "scale": scale}


def _scale(field: str, title: str, names: Sequence[object]) -> Spec:
    scale = {"domain": list(names), "range": list(_COLOURS[: len(names)])}
    return {"field": field, "type": "nominal", "title": title, "sort": list(names), "scale": scale, "legend": _LEGEND}


def _shape(field: str, title: str, names: Sequence[object]) -> Spec:
    return {**_scale(field, title, names), "scale": {"domain": list(names), "range": list(_SHAPES[: len(names)])}}


def _error_bars(shown: Spec, field: str) -> Spec:
    """Returns one standard error up and down."""
    low, high = f"datum.{field} - datum.error", f"datum.{field} + datum.error"
    return {
        "transform": [{"calculate": low, "as": "low"}, {"calculate": high, "as": "high"}],
        "mark": {"type": "rule", "strokeWidth": 1.5},
        "encoding": {**shown, "y": {**shown["y"], "field": "low"}, "y2": {"field": "high"}},
    }
