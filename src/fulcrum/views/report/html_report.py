"""A plan as one HTML file to read, print and sign: what is promised, to whom, at what price, and on what it rests.

>>> from fulcrum.planning.planner import plan
>>> page = report(plan("consortium", rounds=10, epsilon=1.0))
>>> "88.0%" in page, "//cdn" in page
(True, False)

The file asks nothing of any network: charts, script and style stand in it, and its content security policy admits
nothing else. Without scripts it shows the same charts as pictures and the first silos as a plain table.
"""

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from markupsafe import Markup

from fulcrum.audit.evidence.findings import Audit
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.topology import SILO
from fulcrum.errors import DataError, ParameterError, in_one_line
from fulcrum.planning.advice import LEVELS, advice_on, information_ceiling
from fulcrum.planning.files.plan_from_file import with_figures
from fulcrum.planning.plan import Plan
from fulcrum.planning.plan_document import guarantee_of
from fulcrum.planning.weight_tradeoff import own_choice
from fulcrum.server.run_results import Results, read_results, unkeyed_digest
from fulcrum.version import package_version
from fulcrum.views.charts.chart_style import STILL_FONT, Spec, javascript_bundle, svg, theme
from fulcrum.views.charts.drawings import Drawing, plan_drawings, run_drawings, weights_drawing
from fulcrum.views.charts.plan_charts import information_rows, information_words
from fulcrum.views.html import inline_json, inline_script, promise, rendered, script, style
from fulcrum.views.report.dossier import SOURCE, Answers, questions_of
from fulcrum.views.terminal.audit_tables import audit_drawing, audit_section
from fulcrum.views.terminal.silo_columns import first_rows, silo_table
from fulcrum.words.alignment import aligned
from fulcrum.words.numbers import figure
from fulcrum.words.recipe_words import recipe_name, recipe_words, weights_name
from fulcrum.words.recorded_commands import recorded_command
from fulcrum.words.reproduction import reproducing_commands
from fulcrum.words.verdict import verdict

PRINTED_ROWS = 1_000
"""Silos that paper, and a browser without scripts, show of the table."""

_PHONE = 330  # pixels that a phone has for a picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart in the report: its specification, its picture for paper, and its figures as a table."""

    key: str
    spec: Spec
    picture: Markup
    narrow: Markup | None
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]


def report(
    plan: Plan | VerifiedPlan,
    run: str | Path | None = None,
    *,
    audit: Audit | None = None,
    answers: Answers | None = None,
    written: date | None = None,
) -> str:
    """Returns the report of a plan as a page of HTML that needs nothing beside itself.

    Args:
        plan: What to report. A plan whose signature was checked (`read_signed_plan`) is reported with its issuer.
        run: A folder that training under this plan wrote, for the accuracies.
        audit: What attacks on this plan measured.
        answers: What people say of the deployment, for the questions that a plan alone does not answer.
        written: The date that the report bears; by default that of SOURCE_DATE_EPOCH, or today's. The same plan, run
            and date give the same bytes.

    Raises:
        MissingExtraError: vl-convert-python is not installed.
        DataError: The folder holds no results, or results or audit are of another plan.
    """
    issuer = plan.issuer if isinstance(plan, VerifiedPlan) else ""
    plan = with_figures(plan)
    if audit is not None and audit.plan_digest != plan.digest:
        raise DataError("report.audit-of-other-plan", digest=audit.plan_digest, expected=plan.digest)
    day = written or _today()
    results = None if run is None else read_results(run, plan)
    drawings = [*plan_drawings(plan), weights_drawing(plan), *(run_drawings(results) if results else ())]
    drawings += [] if audit is None else [audit_drawing(audit)]
    drawn = [drawing for drawing in drawings if drawing is not None]
    figures = {drawing.key: _figure(drawing) for drawing in drawn}
    table, ceiling = silo_table(plan), information_ceiling(plan)
    data = {
        "charts": {key: spec for drawing in drawn for key, spec in drawing.specs.items()},
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
        written=day,
        issuer=issuer,
        guarantee=guarantee_of(plan),
        advice=advice_on(plan),
        verdict=verdict(plan),
        power={"above": plan.observer_power(), "inside": plan.observer_power(SILO)},
        noise=plan.model_noise,
        recipe=recipe_name(plan),
        weights=weights_name(plan),
        recipe_words=recipe_words(plan),
        own=own_choice(plan),
        information=information_words(information_rows(plan), ceiling=ceiling, floor_declared=plan.floor_declared),
        levels=LEVELS,
        figures=figures,
        learning=[key for key in figures if key.startswith("learning")],
        results=results,
        rounds=_deployed_rounds(results),
        audit=None if audit is None else audit_section(audit),
        questions=[] if answers is None else questions_of(plan, answers, audit=audit, results=results),
        source_of_questions=SOURCE,
        table=table,
        first_rows=first_rows(table, PRINTED_ROWS),
        printed=PRINTED_ROWS,
        commands=reproducing_commands(
            plan,
            trained=_training_commands(results),
            audited=_audit_command(audit),
            answered=answers is not None,
            written=day.isoformat(),
        ),
        unkeyed=unkeyed_digest(plan) if plan.keys else plan.digest,
        version=package_version(),
        policy=_policy(inlined),
        data=inline_json(data),
        **inlined,
    )


def _today() -> date:
    """Returns the date of SOURCE_DATE_EPOCH, seconds since 1970, where builds are to be reproduced; else today's."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is None:
        return datetime.now(UTC).date()
    try:
        return datetime.fromtimestamp(int(given), UTC).date()
    except (ValueError, OverflowError, OSError):
        raise ParameterError("report.source-date-epoch", seconds=given) from None


def _training_commands(results: Results | None) -> list[str]:
    """Returns the commands that trained what is shown, or says how it was trained where no command did."""
    found = []
    for trained in () if results is None else (results.run, results.comparison):
        if trained is not None:
            seeds = f", seeds {', '.join(map(str, trained.seeds))}" if trained.seeds else ""
            by_hand = f"# trained on {in_one_line(trained.task)} without the command line{seeds}"
            found.append(recorded_command(trained.command, into="run") if trained.command else by_hand)
    return found


def _audit_command(audit: Audit | None) -> str:
    """Returns the command that made the audit that is shown, or says how it was made where no command did."""
    if audit is None:
        return ""
    by_hand = f"# audited without the command line: {audit.trials:,} replays, seed {audit.seed}"
    return recorded_command(audit.command, into="audit") if audit.command else by_hand


def _deployed_rounds(results: Results | None) -> list[tuple[str, ...]]:
    """Returns what became of every round of a deployed run: headings, then rows; empty where it was none."""
    run = None if results is None else results.run
    if run is None or run.engine == "embedded" or not run.rounds:
        return []
    rows = run.round_rows()
    columns = [aligned([_shown(row[heading]) for row in rows]) for heading in rows[0]]
    return [tuple(rows[0]), *zip(*columns, strict=True)]


def _shown(value: object) -> str:
    """Returns what was measured, or who withheld, as text."""
    return figure(value) if isinstance(value, (int, float)) else str(value or "")


def _figure(drawing: Drawing) -> Figure:
    columns = [aligned(column) for column in zip(*drawing.rows, strict=True)]
    return Figure(
        key=drawing.key,
        spec=drawing.spec,
        picture=_picture(drawing.spec, drawing.width),
        narrow=None if drawing.narrow is None else _picture(drawing.narrow, _PHONE),
        headings=drawing.headings,
        rows=list(zip(*columns, strict=True)),
    )


def _picture(spec: Spec, width: int) -> Markup:
    # A picture speaks through its figure's caption and table, so its marks need no names of their own. Its font is the
    # one it was measured in, which the style sheet names once.
    drawn = svg(spec, width=width, font=STILL_FONT)
    bare = re.sub(r' (?:aria-[a-z]+|role|font-family)="[^"]*"', "", drawn)
    return Markup(bare.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1))  # noqa: S704


def _policy(inlined: Mapping[str, Markup]) -> str:
    """Returns the content security policy: the page's own scripts and style by their hashes, and nothing else."""

    def sources(*names: str) -> str:
        hashes = (hashlib.sha256(str(inlined[name]).encode()).digest() for name in names)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes)

    return (
        f"default-src 'none'; script-src {sources('bundle', 'script')}; style-src {sources('style')}; "
        "base-uri 'none'; form-action 'none'"
    )
