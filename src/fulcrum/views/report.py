"""A plan as one HTML file to read, print and sign: what is promised, to whom, at what price, and on what it rests.

>>> from fulcrum.planning.making import plan
>>> page = report(plan("consortium", rounds=10, epsilon=1.0))
>>> "88.0%" in page, "//cdn" in page
(True, False)

The file asks nothing of any network: charts, script and style stand in it, and its content security policy admits
nothing else. Without scripts it shows the same charts as pictures and the first silos as a plain table.
"""

import base64
import hashlib
import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from markupsafe import Markup

from fulcrum.arrays import FloatArray
from fulcrum.federation.profiles import PROFILES, profile
from fulcrum.federation.structure import SILO
from fulcrum.planning.advice import LEVELS, information_ceiling
from fulcrum.planning.comparing import observer_trade
from fulcrum.planning.plan import Plan
from fulcrum.privacy.accounting import rounded_up
from fulcrum.simulation.results import Results, read_results
from fulcrum.version import package_version
from fulcrum.views.chart_style import STILL_FONT, Row, Spec, javascript_bundle, shown_epsilon, svg, theme
from fulcrum.views.charts import (
    accuracy_chart,
    information_chart,
    information_rows,
    learning_chart,
    price_chart,
    trade_chart,
)
from fulcrum.views.html import environment, inline_json, inline_script, promise, script, style
from fulcrum.views.region_charts import epsilon_chart, region_rows, tree_chart
from fulcrum.views.terminal import figure

PRINTED_ROWS = 1_000
"""Silos that paper, and a browser without scripts, show of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A chart: its specification, and its figures as a table, not made before they are asked for."""

    key: str
    spec: Spec
    headings: tuple[str, ...]
    rows: Iterable[tuple[str, ...]]
    width: int = 620


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart in the report: its specification, its picture for paper, and its figures as a table."""

    key: str
    spec: Spec
    picture: Markup
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]


def report(plan: Plan, run: str | Path | None = None) -> str:
    """Returns the report of a plan as a page of HTML that needs nothing beside itself.

    Args:
        plan: What to report.
        run: A folder that training under this plan wrote, for the accuracies.

    Raises:
        MissingExtraError: vl-convert-python is not installed.
        DataError: The folder holds no results, or those of another plan.
    """
    results = None if run is None else read_results(run, plan)
    drawings = (*plan_drawings(plan), *(_run_drawings(results) if results else ()))
    figures = {drawing.key: _figure(drawing) for drawing in drawings}
    table = silo_table(plan)
    data = {
        "charts": {key: made.spec for key, made in figures.items()},
        "themes": {"light": theme(), "dark": theme(dark=True)},
        "table": {"printed": PRINTED_ROWS, **table},
    }
    inlined = {
        "bundle": inline_script(javascript_bundle()),
        "script": inline_script(script("report.js")),
        "style": Markup(style("report.css")),  # noqa: S704, ours alone
    }
    return (
        environment()
        .get_template("report.html")
        .render(
            **promise(plan),
            power=plan.observer_power(),
            ceiling=information_ceiling(plan),
            levels=LEVELS,
            figures=figures,
            results=results,
            table=table,
            first_rows=_first_rows(table),
            printed=PRINTED_ROWS,
            commands=reproducing_commands(plan),
            version=package_version(),
            policy=_policy(inlined),
            data=inline_json(data),
            **inlined,
        )
    )


def silo_table(plan: Plan) -> dict[str, Any]:
    """Returns the table by silo as columns, compact enough for 10^5 of them.

    A column has a heading, a kind (text, number or epsilon) and its values; where few values repeat, `values` are the
    distinct ones and `codes` says which stands in each row. Epsilons are rounded up to four digits, None is no
    guarantee; other figures have six.
    """
    federation = plan.federation
    columns: list[Row] = [{"heading": "silo", "kind": "text", "values": federation.silo_names.tolist()}]
    for tier in federation.tiers:
        codes = federation.membership(tier.name)
        columns.append({"heading": tier.name, "kind": "text", "values": list(tier.nodes), "codes": codes.tolist()})
    if federation.group is not None:
        group = federation.group
        columns.append(
            {"heading": "group", "kind": "text", "values": list(group.nodes), "codes": group.parent_of.tolist()}
        )
    columns.append(_numbers("records", federation.sizes))
    columns += silo_figures(plan)
    return {"rows": len(federation), "columns": columns}


def silo_figures(plan: Plan) -> list[Row]:
    """Returns the columns of the table by silo that the plan decides: noise and both epsilons."""
    federation = plan.federation
    if plan.aggregator_noise_multiplier is None:
        columns = [_numbers("noise multiplier", plan.noise_multiplier)]
    else:
        drawn = plan.aggregator_noise_multiplier[federation.innermost.parent_of]
        columns = [_numbers("noise on the sum", drawn)]
    if federation.preferences is not None:
        columns.append(_numbers("ε declared", federation.preferences))
    columns.append(_numbers("ε above", plan.epsilon_above, epsilon=True))
    columns.append(_numbers("ε inside", plan.epsilon_inside, epsilon=True))
    return columns


def reproducing_commands(plan: Plan) -> list[str]:
    """Returns the commands that make the plan again, check it and write this report; FEDERATION stands for its file."""
    federation, target = plan.federation, plan.target
    built_in = federation.name in PROFILES and profile(federation.name).digest == federation.digest
    source = shlex.quote(federation.name) if built_in else "FEDERATION"
    if target.spent:
        own = f" --allocation {shlex.quote(plan.allocation)}" if ":" in plan.allocation else ""
        made = f"fulcrum replan OLD_PLAN.json --federation {source} --ledgers LEDGERS{own} -o plan.json"
    else:
        options: dict[str, Any] = {"rounds": plan.rounds, "delta": plan.delta}
        if target.budget is not None:
            options["budget"] = target.budget
        else:
            inside = {tier: epsilon for tier, epsilon in target.epsilon.items() if tier != SILO}
            options["epsilon"] = ",".join(f"{tier}={epsilon!r}" for tier, epsilon in inside.items()) or None
            options |= {"epsilon-inside": target.epsilon.get(SILO), "information": target.information}
        options |= {
            "floor": _floor_option(plan),
            "bound": target.bound if plan.floor is not None else "paper",
            "accountant": plan.accountant,
            "allocation": plan.allocation,
            "colluders": plan.colluders or None,
            "dropouts": plan.dropouts or None,
            "parameters": plan.parameters,
            "clip-norm": plan.clip_norm,
            "injection": plan.injection,
            "seed": plan.seed or None,
            "purpose": plan.purpose,
        }
        usual = {
            "bound": "paper",
            "allocation": "optimal",
            "clip-norm": 1.0,
            "injection": "silo",
            "purpose": "research",
        }
        words = [
            f"--{name} {shlex.quote(str(value))}"
            for name, value in options.items()
            if value is not None and usual.get(name) != value
        ]
        keys = " --keys KEYS.toml" if plan.keys else ""
        made = f"fulcrum plan {source} {' '.join(words)}{keys} -o plan.json"
    return [made, "fulcrum verify plan.json", "fulcrum report plan.json -o report.html"]


def _floor_option(plan: Plan) -> str | None:
    """Returns the floor as the command line takes it; None where it has none or cannot say it."""
    floor, inner = plan.floor, plan.federation.innermost
    if plan.coupling is not None:
        return f"coupling={plan.coupling!r}"
    if floor is None or (floor == 0).all():
        return None
    if (floor == floor[0]).all():
        return repr(float(floor[0]))
    by_region = dict(zip((inner.nodes[code] for code in inner.parent_of.tolist()), floor.tolist(), strict=True))
    return ",".join(f"{name}={value!r}" for name, value in by_region.items())


def plan_drawings(plan: Plan, *, points: int = 17) -> Iterable[Drawing]:
    """Yields the charts of a plan; `points` is the number of divisions that the trade between observers shows."""
    regions = region_rows(plan)
    injected = plan.injection == "aggregator"
    noise = "noise on the sum" if injected else "noise multiplier"
    yield Drawing(
        key="tree",
        spec=tree_chart(regions, name=plan.federation.name, injected=injected),
        headings=(regions[0]["tier"], "silos", noise),
        rows=((row["name"], f"{row['silos']:,}", row["noise_shown"]) for row in regions),
    )
    columns = ("above", "inside", "uniform_above", "uniform_inside")
    yield Drawing(
        key="epsilon",
        spec=epsilon_chart(regions, allocation=plan.allocation, injected=injected),
        headings=(regions[0]["tier"], "ε above", "ε inside", "ε above, uniform", "ε inside, uniform"),
        rows=((row["name"], *(_epsilon_cell(row[column]) for column in columns)) for row in regions),
    )
    trades = observer_trade(plan, points=points)
    above, inside = plan.worst_epsilon(), plan.worst_epsilon(SILO)
    asked = plan.requirement.multiplier
    one_wish = set(asked) <= {plan.federation.innermost.name, SILO} and all(np.ndim(q) == 0 for q in asked.values())
    if trades and one_wish:  # else worst epsilons do not say whose promise is kept
        yield Drawing(
            key="trade",
            spec=trade_chart(trades, above=above, inside=inside),
            headings=("worst ε inside", "worst ε above"),
            rows=((shown_epsilon(trade.inside_at_budget), shown_epsilon(trade.above_at_budget)) for trade in trades),
            width=300,
        )
    if trades:
        yield Drawing(
            key="price",
            spec=price_chart(trades, inside=inside, budget=plan.noise_budget),
            headings=("worst ε inside", "noise budget, C²", "of uniform's"),
            rows=(
                (
                    shown_epsilon(trade.epsilon_inside),
                    figure(trade.noise_budget),
                    f"{trade.noise_budget / trades[-1].noise_budget:.1%}",
                )
                for trade in trades
            ),
            width=300,
        )
    learned = information_rows(plan)
    yield Drawing(
        key="information",
        spec=information_chart(learned, ceiling=information_ceiling(plan), target=plan.target.information),
        headings=("round", "observer", "nats at most"),
        rows=((str(row["round"]), row["observer"], f"{row['nats']:.4g}") for row in learned),
    )


def _run_drawings(results: Results) -> Iterable[Drawing]:
    run, compared = results.run, results.comparison
    reference = None if run is None else run.reference
    if compared is not None:
        rows = [msgspec.structs.asdict(row) for row in compared.rows]
        yield Drawing(
            key="accuracy",
            spec=accuracy_chart(rows, reference=reference),
            headings=("allocation", "noise budget, C²", "accuracy", "gain over uniform, points"),
            rows=(
                (
                    row.allocation,
                    figure(row.noise_budget),
                    _with_error(row.accuracy, row.accuracy_se, ".3f"),
                    _with_error(100 * row.gain, None if row.gain_se is None else 100 * row.gain_se, "+.2f"),
                )
                for row in compared.rows
            ),
        )
    if run is not None:
        rounds = [msgspec.structs.asdict(row) for row in run.rounds]
        yield Drawing(
            key="learning",
            spec=learning_chart(rounds, reference=reference),
            headings=("round", "accuracy"),
            rows=((str(row.round), _with_error(row.accuracy, row.accuracy_se, ".3f")) for row in run.rounds),
        )


def _figure(drawing: Drawing) -> Figure:
    # A picture speaks through its figure's caption and table, so its marks need no names of their own. Its font is the
    # one it was measured in, which the style sheet names once.
    drawn = svg(drawing.spec, width=drawing.width, font=STILL_FONT)
    bare = re.sub(r' (?:aria-[a-z]+|role|font-family)="[^"]*"', "", drawn)
    picture = Markup(bare.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1))  # noqa: S704
    rows = list(drawing.rows)
    return Figure(key=drawing.key, spec=drawing.spec, picture=picture, headings=drawing.headings, rows=rows)


def _numbers(heading: str, values: FloatArray, *, epsilon: bool = False) -> Row:
    """Returns a column of figures, the repeated ones once."""
    distinct, codes = np.unique(values, return_inverse=True)
    shown = [_cell_value(value, epsilon) for value in distinct.tolist()]
    kind = "epsilon" if epsilon else "number"
    if len(distinct) > len(values) / 2:
        return {"heading": heading, "kind": kind, "values": [shown[code] for code in codes.tolist()]}
    return {"heading": heading, "kind": kind, "values": shown, "codes": codes.tolist()}


def _cell_value(value: float, epsilon: bool) -> float | int | None:
    if not math.isfinite(value):
        return None
    if epsilon:
        return rounded_up(value, digits=4)
    return int(value) if value.is_integer() else float(f"{value:.6g}")


def _first_rows(table: Mapping[str, Any]) -> list[list[tuple[str, str]]]:
    """Returns the rows for a browser without scripts: kind and text of each cell."""
    found = []
    for row in range(min(table["rows"], PRINTED_ROWS)):
        cells = []
        for column in table["columns"]:
            value = column["values"][column["codes"][row] if "codes" in column else row]
            cells.append((column["kind"], _cell_text(value, column["kind"])))
        found.append(cells)
    return found


def _cell_text(value: Any, kind: str) -> str:
    if kind == "text":
        return str(value)
    if value is None:
        return "none" if kind == "epsilon" else ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _epsilon_cell(epsilon: float | None) -> str:
    return "no guarantee" if epsilon is None else shown_epsilon(epsilon)


def _with_error(value: float, error: float | None, digits: str) -> str:
    return f"{value:{digits}}" + ("" if error is None else f" ± {error:{digits.removeprefix('+')}}")


def _policy(inlined: Mapping[str, Markup]) -> str:
    """Returns the content security policy: the page's own scripts and style by their hashes, and nothing else."""

    def sources(*names: str) -> str:
        hashes = (hashlib.sha256(str(inlined[name]).encode()).digest() for name in names)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes)

    return (
        f"default-src 'none'; script-src {sources('bundle', 'script')}; style-src {sources('style')}; "
        "base-uri 'none'; form-action 'none'"
    )
