"""A plan as an HTML file to read, print and sign: promise, observers, cost and assumptions.

>>> from fulcrum.planning.planner import plan
>>> page = report(plan("consortium", rounds=10, epsilon=1.0))
>>> "88.0%" in page, "//cdn" in page
(True, False)

The file needs no network: charts, script and style are inside, and its content security policy admits nothing else. A
browser without scripts shows the same charts as pictures and the first silos as a plain table.
"""

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fulcrum.audit.evidence.findings import Audit
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.topology import SILO
from fulcrum.errors import DataError, ParameterError, check_known, in_one_line
from fulcrum.planning.comparisons.weight_tradeoff import own_choice
from fulcrum.planning.content.advice import advice_on
from fulcrum.planning.content.plan_document import guarantee_of
from fulcrum.planning.content.plan_facts import LEVELS, information_ceiling
from fulcrum.planning.files.plan_from_file import with_figures
from fulcrum.planning.plan import Plan
from fulcrum.server.run_results import Results, read_results, unkeyed_digest
from fulcrum.version import package_version
from fulcrum.views.charts.chart_style import STILL_FONT, Spec, javascript_bundle, svg, theme
from fulcrum.views.charts.drawings import Drawing, plan_drawings, run_drawings, weights_drawing
from fulcrum.views.charts.plan_charts import information_rows, information_words
from fulcrum.views.html import inline_json, inline_script, promise, render, script, style
from fulcrum.views.report.dossier import SOURCE, Answers, questions_of
from fulcrum.views.terminal.audit_tables import audit_drawing, audit_section
from fulcrum.views.terminal.silo_columns import first_rows, silo_table
from fulcrum.words.alignment import align_figures
from fulcrum.words.languages.phrases import LANGUAGES, Language
from fulcrum.words.languages.translated_page import translated_page
from fulcrum.words.numbers import figure
from fulcrum.words.person_words import (
    clip_norms,
    conventions_words,
    guess_words,
    meaning_for_one,
    recognition_words,
    several_silos_words,
    size_word,
    whole_silo_sentence,
)
from fulcrum.words.recipe_words import clip_share_text, recipe_name, recipe_words, weights_name
from fulcrum.words.recorded_commands import recorded_command
from fulcrum.words.reproduction import reproducing_commands
from fulcrum.words.schedule_words import phase_words
from fulcrum.words.verdict import verdict

PRINTED_ROWS = 1_000
"""The most silos in the table on paper and without scripts."""

_PHONE = 330  # width of a picture on a phone, in pixels


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
    language: Language = "en",
) -> str:
    """Returns the report of a plan as a page of HTML without any further file.

    Args:
        plan: The plan. A plan with a checked signature (`read_signed_plan`) is reported with its issuer.
        run: The folder of a run under the plan, for its accuracies.
        audit: The results of attacks on the plan.
        answers: People's answers to questions that a plan cannot answer.
        written: The date of the report; by default the date of SOURCE_DATE_EPOCH, or today. The same plan, run and date
            give the same bytes.
        language: The language of the first page: promise, verdict, figures and signature. The plan and the rest stay
            English, and the first page says so.

    Raises:
        MissingExtraError: vl-convert-python is not installed.
        DataError: The folder has no results, or results or audit belong to a different plan.
        ParameterError: The language is not known.
    """
    check_known("language", language, LANGUAGES)
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
    table = silo_table(plan)
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
    return render(
        "report.html",
        **first_page_values(plan, language, issuer=issuer, written=day),
        guarantee=guarantee_of(plan),
        meaning=meaning_for_one(plan),
        conventions=conventions_words(plan) if plan.unit.is_within_silo else "",
        several_silos=several_silos_words(plan) if plan.unit.is_within_silo else "",
        whole_silo=whole_silo_sentence(plan),
        sensitivity=clip_norms(plan.unit.sensitivity),
        guess=guess_words(plan.unit, "the most exposed silo"),
        recognition=recognition_words(plan.unit),
        power={"above": plan.observer_power(), "inside": plan.observer_power(SILO)},
        noise=plan.model_noise,
        recipe_words=recipe_words(plan),
        own=own_choice(plan),
        phases="" if plan.federation.rosters is None else phase_words(plan),
        information=_information_remarks(plan),
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
            language=language,
        ),
        version=package_version(),
        policy=_policy(inlined),
        data=inline_json(data),
        **inlined,
    )


def first_page_values(plan: Plan, language: str, *, issuer: str, written: date) -> dict[str, Any]:
    """Returns the values of `report_first_page.html`: promise, verdict, figures, settings and signature.

    Args:
        plan: The plan, with its figures.
        language: The language of the page.
        issuer: The issuer of a signed plan; empty for a plan without a checked signature.
        written: The date of the report.
    """
    return {
        **promise(plan),
        "page": None if language == "en" else translated_page(plan, language),
        "advice": advice_on(plan),
        "verdict": verdict(plan),
        "size_word": size_word(plan.unit),
        "recipe": recipe_name(plan),
        "clip_share": clip_share_text(plan),
        "weights": weights_name(plan),
        "issuer": issuer,
        "written": written,
        "unkeyed": unkeyed_digest(plan) if plan.keys else plan.digest,
    }


def _information_remarks(plan: Plan) -> list[str]:
    """Returns remarks on the chart of information; empty for a plan for persons, which has no such chart."""
    if plan.unit.is_within_silo or plan.federation.rosters is not None:
        return []
    ceiling = information_ceiling(plan)
    return information_words(information_rows(plan), ceiling=ceiling, floor_declared=plan.floor_declared)


def _today() -> date:
    """Returns the date of SOURCE_DATE_EPOCH, the seconds since 1970 of a reproducible build; otherwise today."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    if seconds is None:
        return datetime.now(UTC).date()
    try:
        return datetime.fromtimestamp(int(seconds), UTC).date()
    except (ValueError, OverflowError, OSError):
        raise ParameterError("report.source-date-epoch", seconds=seconds) from None


def _training_commands(results: Results | None) -> list[str]:
    """Returns the commands of the trained runs in the report; a comment for a run without a command."""
    commands = []
    for trained in () if results is None else (results.run, results.comparison):
        if trained is not None:
            seeds = f", seeds {', '.join(map(str, trained.seeds))}" if trained.seeds else ""
            by_hand = f"# trained on {in_one_line(trained.task)} without the command line{seeds}"
            commands.append(recorded_command(trained.command, into="run") if trained.command else by_hand)
    return commands


def _audit_command(audit: Audit | None) -> str:
    """Returns the command that ran the audit; a comment if Python code ran the audit, "" if no audit ran."""
    if audit is None:
        return ""
    by_hand = f"# audited without the command line: {audit.trials:,} replays, seed {audit.seed}"
    return recorded_command(audit.command, into="audit") if audit.command else by_hand


def _deployed_rounds(results: Results | None) -> list[tuple[str, ...]]:
    """Returns the table of rounds of a deployed run: headings, then rows; empty for a run in process."""
    run = None if results is None else results.run
    if run is None or run.engine == "embedded" or not run.rounds:
        return []
    rows = run.round_rows()
    columns = [align_figures([_printable_cell(row[heading]) for row in rows]) for heading in rows[0]]
    return [tuple(rows[0]), *zip(*columns, strict=True)]


def _printable_cell(value: object) -> str:
    """Returns a measured figure, or the names of withholding regions, as text."""
    return figure(value) if isinstance(value, (int, float)) else str(value or "")


def _figure(drawing: Drawing) -> Figure:
    columns = [align_figures(column) for column in zip(*drawing.rows, strict=True)]
    return Figure(
        key=drawing.key,
        spec=drawing.spec,
        picture=_picture(drawing.spec, drawing.width),
        narrow=None if drawing.narrow is None else _picture(drawing.narrow, _PHONE),
        headings=drawing.headings,
        rows=list(zip(*columns, strict=True)),
    )


def _picture(spec: Spec, width: int) -> Markup:
    # Caption and table are the accessible text of a picture, so its marks need no names. The style sheet names the font
    # of the layout once.
    drawn = svg(spec, width=width, font=STILL_FONT)
    bare = re.sub(r' (?:aria-[a-z]+|role|font-family)="[^"]*"', "", drawn)
    return Markup(bare.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1))  # noqa: S704


def _policy(inlined: Mapping[str, Markup]) -> str:
    """Returns the content security policy: the page's own scripts and style by their hashes alone."""

    def sources(*names: str) -> str:
        hashes = (hashlib.sha256(str(inlined[name]).encode()).digest() for name in names)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes)

    return (
        f"default-src 'none'; script-src {sources('bundle', 'script')}; style-src {sources('style')}; "
        "base-uri 'none'; form-action 'none'"
    )
