"""The commands that make, check, tell apart and hand on plan files."""

import sys
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fulcrum.cli.federations import ColumnOption, given_federation, told_of_coalitions
from fulcrum.cli.model_options import ModelOptions
from fulcrum.cli.options import FederationArgument, FormatOption, OutputOption, PlanArgument, check_output, setting
from fulcrum.cli.target_options import TargetOptions
from fulcrum.core.choices import Purpose
from fulcrum.core.plan.plan_reader import federation_in, read_content
from fulcrum.core.plan.verification import verify
from fulcrum.core.store.durable_files import write_whole
from fulcrum.core.topology import SILO
from fulcrum.engines.flower.app_files import app_files
from fulcrum.errors import ParameterError, listing
from fulcrum.parsing import toml_of
from fulcrum.planning.files.differences import Difference, differences, on_digests
from fulcrum.planning.files.exports import EXPORTS, export_plan
from fulcrum.planning.files.plan_from_file import is_server_known, plan_of, read_plan, read_verified_content
from fulcrum.planning.files.plan_issue import issue_checks
from fulcrum.planning.plan import Plan, check_same_federation, save_plan
from fulcrum.planning.planner import plan
from fulcrum.views.terminal.plan_tables import show_checks, show_plan
from fulcrum.views.terminal.screen import Result, check_format, remarks, show, table, working
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.numbers import shown_epsilon
from fulcrum.words.verdict import verdict


def plan_command(
    federation: FederationArgument,
    *,
    column: ColumnOption = (),
    target: TargetOptions,
    own: ModelOptions | None = None,
    purpose: Annotated[Purpose, setting("purpose")] = "research",
    keys: Annotated[Path | None, setting("keys")] = None,
    output: OutputOption = None,
    style: FormatOption = "table",
) -> int:
    """Compute how much noise each silo must add."""
    check_format(style)
    check_output(output)
    found = given_federation(federation, column).federation
    model = None if own is None else own.loaded()
    if model is not None:
        if target.parameters not in (None, model.parameters):
            raise ParameterError("cli.parameters-differ", parameters=target.parameters, trained=model.parameters)
        target = replace(target, parameters=model.parameters)
    with working("Planning"):
        carried = None if keys is None else _read_keys(keys)
        made = plan(found, allocation=target.allocation, purpose=purpose, keys=carried, **target.arguments(found))
    told_of_coalitions(found, colluders=made.colluders, dropouts=made.dropouts)
    if output is not None:
        with working("Writing the plan"):
            save_plan(made, output)
    show_plan(made, output, style)
    return 0


def verify_command(
    plan_file: PlanArgument,
    *,
    federation: Annotated[str | None, Parameter(help="Also check that the plan is for this federation.")] = None,
    column: ColumnOption = (),
    issuer: Annotated[str | None, Parameter(help="Also check the signature by this public key, or .pub file.")] = None,
    style: FormatOption = "table",
) -> int:
    """Recompute every number of a plan from its multipliers and roster, without the solver."""
    check_format(style)
    reading = None if federation is None else given_federation(federation, column)
    with working("Verifying"):
        content = read_content(plan_file)
        issued = issue_checks(plan_file, content, issuer)
        if reading is not None:
            check_same_federation(federation_in(content), reading.federation, source=federation or "")
        figures = verify(content)
        sound, known = all(check.holds for check in figures), is_server_known(content)
        also: dict[str, Any] = {"verdict": verdict(plan_of(content)).summary() if sound and known else None}
    checks = (*issued, *figures)
    name, remark = content.settings.server, ""
    if not known:
        remark = (
            f"The server's rule {name!r} is not known here, so no verdict is told. No silo's privacy rests on the rule."
        )
    if reading is not None or remark:
        also["notes"] = [*(() if reading is None else reading.notes), *([remark] if remark else [])]
    return show_checks(str(plan_file), checks, style, otherwise="do not use this plan", remark=remark, also=also)


def diff(before: PlanArgument, after: PlanArgument, *, style: FormatOption = "table") -> int:
    """Say what changed from one plan to another, and for whom."""
    check_format(style)
    first, second = read_verified_content(before), read_verified_content(after)
    found = differences(first, second)
    rows = [asdict(difference) for difference in found]
    silos = len({difference.subject for difference in found if difference.kind == SILO})
    columns = (
        Column(key="subject", heading="who", figures=False),
        Column(key="what", heading="what", figures=False),
        Column(key="before", heading="before"),
        Column(key="after", heading="after"),
    )
    note = on_digests(first, second) or ("The plans say the same." if not rows else f"{silos:,} silos are affected.")
    told = [
        row
        | {"subject": f"{row['kind']} {row['subject']}".strip()}
        | {side: _as_shown(row["what"], row[side]) for side in ("before", "after")}
        for row in rows
        if row["subject"] != "guarantee"
    ]  # its sentences follow from the figures and do not fit into a cell
    picture = [table(f"{before} → {after}", columns, told, note=note)] if rows else [remarks([(False, note)])]
    show(Result(data=rows, rows=rows, fields=list(Difference.__dataclass_fields__), picture=picture), style)
    return 0


def _as_shown(what: str, value: object) -> object:
    """Returns a figure for a cell; an epsilon is rounded up, as everywhere, and a digest is cut as everywhere."""
    if what == "digest" and isinstance(value, str):
        return value[:12]
    return shown_epsilon(value) if what.startswith("epsilon") and isinstance(value, float) else value


def export(
    plan_file: PlanArgument,
    *,
    to: Annotated[str, Parameter(help=f"One of {listing(EXPORTS)}.")],
    output: OutputOption = None,
    style: FormatOption = "table",
) -> int:
    """Write a plan as a table, as settings for Flower or NVIDIA FLARE, or as a Flower app that runs."""
    check_format(style)
    found = read_plan(plan_file)
    if to == "flower" and found.aggregation == "masked" and output is not None:
        return _export_app(found, output, style)
    check_output(output)
    text = export_plan(found, to)
    if output is not None:
        write_whole(output, text.encode())
    if style == "json":
        written = None if output is None else str(output)
        show(Result(data={"to": to, "output": written, "text": text}, rows=()), style)
    elif output is None:
        sys.stdout.write(text)
    return 0


def _export_app(plan: Plan, folder: Path, style: str) -> int:
    """Writes a Flower app into a new folder."""
    files = app_files(plan)
    if folder.exists():
        raise ParameterError("cli.app-folder-exists", folder=folder)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, text.encode())
    told = {"to": "flower", "output": str(folder), "files": sorted(files)}
    note = f"{folder} is a Flower app: fulcrum deploy flower writes its sites, flwr run {folder} runs it."
    show(Result(data=told, rows=[told], picture=[remarks([(False, note)])]), style)
    return 0


def _read_keys(path: Path) -> dict[str, str]:
    """Reads public keys by name from a TOML file."""
    try:
        found = toml_of(path.read_bytes())
    except OSError as error:
        raise ParameterError("cli.keys-unreadable", file=path, reason=error.strerror) from None
    except tomllib.TOMLDecodeError as error:
        raise ParameterError("cli.keys-not-toml", file=path, reason=str(error)) from None
    wrong = next((name for name, key in found.items() if not isinstance(key, str)), None)
    if wrong is not None:
        raise ParameterError("cli.key-not-a-string", file=path, name=wrong)
    return found
