"""The command that writes the report of a plan."""

from datetime import date
from pathlib import Path
from typing import Annotated

from fulcrum.audit.evidence.findings import read_audit
from fulcrum.cli.shared_options.options import (
    INPUT,
    OUTPUT,
    FormatOption,
    PlanArgument,
    check_output,
    option,
    output_option,
)
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import ParameterError
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.views.report.deployments_registry import as_yaml, registry_entry
from fulcrum.views.report.dossier import UNANSWERED, Answers, answers_template, read_answers
from fulcrum.views.report.html_report import report
from fulcrum.views.terminal.screen import Result, facts, show, working
from fulcrum.words.languages.phrases import Language


def report_command(
    plan_file: PlanArgument,
    *,
    output: Annotated[Path, output_option("HTML file to write.")],
    run: Annotated[
        Path | None,
        option(
            "Folder of results that `fulcrum train -o`, `up -o`, `follow -o` or `compare --train -o` wrote. "
            "Default: none.",
            INPUT,
        ),
    ] = None,
    audit: Annotated[
        Path | None, option("Folder that `fulcrum audit -o` wrote, or its audit.json. Default: none.", INPUT)
    ] = None,
    answers: Annotated[
        Path | None,
        option(
            "TOML file of people's answers about the deployment; a missing file is written, to be filled in. "
            "Default: none.",
            INPUT,
        ),
    ] = None,
    registry: Annotated[
        Path | None, option("YAML file to write an entry of the Deployments Registry to. Default: none.", OUTPUT)
    ] = None,
    written: Annotated[
        str | None,
        option(
            "Date of the report, YYYY-MM-DD. Default: the date of SOURCE_DATE_EPOCH, or today.", OUTPUT, name="--date"
        ),
    ] = None,
    language: Annotated[
        Language,
        option(
            "Language of the first page: promise, verdict, figures and signature. The plan and the rest stay English.",
            OUTPUT,
        ),
    ] = "en",
    style: FormatOption = "table",
) -> int:
    """Write a plan as one HTML file to read, print and sign; the file needs no network."""
    for path in (output, registry):
        check_output(path)
    day = None if written is None else _read_date(written)
    plan = read_plan(plan_file)
    audited = None if audit is None else read_audit(audit)
    missing_answers = answers is not None and not answers.exists()
    if answers is not None and missing_answers:
        write_whole(answers, answers_template().encode())
    known_answers = None if answers is None else read_answers(answers)
    with working("Drawing the report"):
        page = report(plan, run, audit=audited, answers=known_answers, written=day, language=language).encode()
        entry = None if registry is None else registry_entry(plan, known_answers or Answers(), audit=audited)
    write_whole(output, page)
    summary = {"report": str(output), "bytes": len(page), "plan_digest": plan.digest}
    lines = [
        ("report", f"{output}, {len(page) / 1e6:.2f} MB; open it in any browser"),
        ("of plan", f"{plan_file}, digest {plan.digest[:12]}"),
    ]
    if registry is not None:
        write_whole(registry, (as_yaml(entry) + "\n").encode())
        summary["registry"] = str(registry)
        lines.append(("registry", f"{registry}, a draft; look for {UNANSWERED!r} in it"))
    if missing_answers:
        summary["answers"] = str(answers)
        lines.append(
            ("answers", f"{answers} was written for you to fill in; until then the report shows them as unanswered")
        )
    show(Result(data=summary, rows=[summary], picture=[facts(lines)]), style)
    return 0


def _read_date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ParameterError("cli.date-form", text=text) from None
