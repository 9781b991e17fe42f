"""The command that writes what people look at: the report."""

from datetime import date
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fulcrum.audit.evidence.findings import read_audit
from fulcrum.cli.options import FormatOption, PlanArgument, check_output, option
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import ParameterError
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.views.report.dossier import UNANSWERED, Answers, answers_template, read_answers
from fulcrum.views.report.html_report import report
from fulcrum.views.report.registry import as_yaml, registry_entry
from fulcrum.views.terminal.screen import Result, check_format, facts, show, working


def report_command(
    plan_file: PlanArgument,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The HTML file to write.")],
    run: Annotated[
        Path | None,
        Parameter(help="A folder that `fulcrum train -o`, `up -o`, `follow -o` or `compare --train -o` wrote."),
    ] = None,
    audit: Annotated[
        Path | None, Parameter(help="What `fulcrum audit -o` wrote: its folder, or audit.json in it.")
    ] = None,
    answers: Annotated[
        Path | None,
        Parameter(help="A TOML file of what Fulcrum cannot know; one that is not there is written, to be filled in."),
    ] = None,
    registry: Annotated[
        Path | None, Parameter(help="Write an entry of the Deployments Registry, in YAML, to this file too.")
    ] = None,
    written: Annotated[
        str | None, option("Its date, YYYY-MM-DD; that of SOURCE_DATE_EPOCH or today's by default.", name="--date")
    ] = None,
    style: FormatOption = "table",
) -> int:
    """Write a plan as one HTML file to read, print and sign; it asks nothing of any network."""
    check_format(style)
    for path in (output, registry):
        check_output(path)
    day = None if written is None else _read_date(written)
    made = read_plan(plan_file)
    audited = None if audit is None else read_audit(audit)
    asked = answers is not None and not answers.exists()
    if answers is not None and asked:
        write_whole(answers, answers_template().encode())
    given = None if answers is None else read_answers(answers)
    with working("Drawing the report"):
        page = report(made, run, audit=audited, answers=given, written=day).encode()
        entry = None if registry is None else registry_entry(made, given or Answers(), audit=audited)
    write_whole(output, page)
    told = {"report": str(output), "bytes": len(page), "plan_digest": made.digest}
    lines = [
        ("report", f"{output}, {len(page) / 1e6:.2f} MB; open it in any browser"),
        ("of plan", f"{plan_file}, digest {made.digest[:12]}"),
    ]
    if registry is not None:
        write_whole(registry, (as_yaml(entry) + "\n").encode())
        told["registry"] = str(registry)
        lines.append(("registry", f"{registry}, a draft; look for {UNANSWERED!r} in it"))
    if asked:
        told["answers"] = str(answers)
        lines.append(("answers", f"{answers} was written for you to fill in; until then they are shown as unanswered"))
    show(Result(data=told, rows=[told], picture=[facts(lines)]), style)
    return 0


def _read_date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ParameterError("cli.date-form", text=text) from None
