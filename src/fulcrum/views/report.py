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
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from fulcrum.planning.advice import LEVELS, information_ceiling
from fulcrum.planning.plan import Plan
from fulcrum.planning.reproducing import reproducing_commands
from fulcrum.simulation.results import read_results
from fulcrum.version import package_version
from fulcrum.views.chart_style import STILL_FONT, Spec, javascript_bundle, svg, theme
from fulcrum.views.drawings import Drawing, plan_drawings, run_drawings
from fulcrum.views.html import inline_json, inline_script, promise, rendered, script, style
from fulcrum.views.silo_columns import first_rows, silo_table

PRINTED_ROWS = 1_000
"""Silos that paper, and a browser without scripts, show of the table."""


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
    drawings = (*plan_drawings(plan), *(run_drawings(results) if results else ()))
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
    return rendered(
        "report.html",
        **promise(plan),
        power=plan.observer_power(),
        ceiling=information_ceiling(plan),
        levels=LEVELS,
        figures=figures,
        results=results,
        table=table,
        first_rows=first_rows(table, PRINTED_ROWS),
        printed=PRINTED_ROWS,
        commands=reproducing_commands(plan),
        version=package_version(),
        policy=_policy(inlined),
        data=inline_json(data),
        **inlined,
    )


def _figure(drawing: Drawing) -> Figure:
    # A picture speaks through its figure's caption and table, so its marks need no names of their own. Its font is the
    # one it was measured in, which the style sheet names once.
    drawn = svg(drawing.spec, width=drawing.width, font=STILL_FONT)
    bare = re.sub(r' (?:aria-[a-z]+|role|font-family)="[^"]*"', "", drawn)
    picture = Markup(bare.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1))  # noqa: S704
    rows = list(drawing.rows)
    return Figure(key=drawing.key, spec=drawing.spec, picture=picture, headings=drawing.headings, rows=rows)


def _policy(inlined: Mapping[str, Markup]) -> str:
    """Returns the content security policy: the page's own scripts and style by their hashes, and nothing else."""

    def sources(*names: str) -> str:
        hashes = (hashlib.sha256(str(inlined[name]).encode()).digest() for name in names)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes)

    return (
        f"default-src 'none'; script-src {sources('bundle', 'script')}; style-src {sources('style')}; "
        "base-uri 'none'; form-action 'none'"
    )
