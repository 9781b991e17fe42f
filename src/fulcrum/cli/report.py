"""The command that writes what people look at: the report."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fulcrum.cli.options import FormatOption, PlanArgument
from fulcrum.planning.plan_reading import read_plan
from fulcrum.storage.files import write_whole
from fulcrum.views.report import report
from fulcrum.views.terminal import Result, check_format, facts, show, working


def report_command(
    plan_file: PlanArgument,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The HTML file to write.")],
    run: Annotated[
        Path | None, Parameter(help="A folder that `fulcrum train -o` or `compare --train -o` wrote.")
    ] = None,
    style: FormatOption = "table",
) -> int:
    """Write a plan as one HTML file to read, print and sign; it asks nothing of any network."""
    check_format(style)
    made = read_plan(plan_file)
    with working("Drawing the report"):
        page = report(made, run).encode()
    write_whole(output, page)
    told = {"report": str(output), "bytes": len(page), "plan_digest": made.digest}
    lines = [
        ("report", f"{output}, {len(page) / 1e6:.2f} MB; open it in any browser"),
        ("of plan", f"{plan_file}, digest {made.digest[:12]}"),
    ]
    show(Result(data=told, rows=[told], picture=[facts(lines)]), style)
    return 0
