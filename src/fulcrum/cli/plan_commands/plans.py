"""The commands that make, check, compare and export plan files."""

import sys
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from fulcrum.cli.shared_options.federations import (
    ColumnOption,
    NameOption,
    ScheduleOption,
    ThousandsOption,
    add_schedule,
    federation_argument,
    note_on_coalitions,
)
from fulcrum.cli.shared_options.model_options import ModelOptions
from fulcrum.cli.shared_options.options import (
    INPUT,
    OUTPUT,
    FederationArgument,
    FormatOption,
    OutputOption,
    PlanArgument,
    check_output,
    option,
    setting,
)
from fulcrum.cli.shared_options.target_options import TargetOptions
from fulcrum.core.choices import Purpose
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.core.plan.plan_reader import federation_in, read_content
from fulcrum.core.plan.verification import verify
from fulcrum.core.plan.verified_plan import data_in
from fulcrum.core.store.durable_files import write_whole
from fulcrum.core.topology import SILO
from fulcrum.engines.flower.kits.app_files import app_files
from fulcrum.errors import ParameterError
from fulcrum.parsing import toml_of
from fulcrum.planning.files.differences import Difference, differences, on_digests
from fulcrum.planning.files.exports import export_plan
from fulcrum.planning.files.plan_from_file import is_server_known, plan_of, read_plan, read_verified_content
from fulcrum.planning.files.plan_issue import issue_checks
from fulcrum.planning.plan import Plan, check_same_federation, save_plan
from fulcrum.planning.planner import plan
from fulcrum.planning.theory.scheduling import certificate_checks, with_rosters
from fulcrum.views.terminal.plan_tables import show_checks, show_plan
from fulcrum.views.terminal.screen import Result, remarks, show, table, working
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.numbers import epsilon_text
from fulcrum.words.verdict import verdict


def plan_command(
    federation: FederationArgument,
    *,
    column: ColumnOption = (),
    thousands: ThousandsOption = None,
    name: NameOption = None,
    target: TargetOptions,
    own: ModelOptions | None = None,
    purpose: Annotated[Purpose, setting("purpose")] = "research",
    keys: Annotated[Path | None, setting("keys")] = None,
    schedule: ScheduleOption = None,
    output: OutputOption = None,
    style: FormatOption = "table",
) -> int:
    """Compute how much noise each silo must add."""
    check_output(output)
    topology = add_schedule(federation_argument(federation, column, thousands, name).federation, schedule)
    model = None if own is None else own.load()
    if model is not None:
        if target.parameters not in (None, model.parameters):
            raise ParameterError("cli.parameters-differ", parameters=target.parameters, trained=model.parameters)
        target = replace(target, parameters=model.parameters)
    with working("Planning"):
        carried = None if keys is None else _read_keys(keys)
        new_plan = plan(
            topology, allocation=target.allocation, purpose=purpose, keys=carried, **target.arguments(topology)
        )
    note_on_coalitions(topology, colluders=new_plan.colluders, dropouts=new_plan.dropouts)
    if output is not None:
        with working("Writing the plan"):
            save_plan(new_plan, output)
    show_plan(new_plan, output, style)
    return 0


def verify_command(
    plan_file: PlanArgument,
    *,
    federation: Annotated[
        str | None,
        option("Federation that the plan must be for: a file or a built-in name. Default: not checked.", INPUT),
    ] = None,
    column: ColumnOption = (),
    thousands: ThousandsOption = None,
    name: NameOption = None,
    schedule: ScheduleOption = None,
    issuer: Annotated[
        str | None,
        option("Public key, or .pub file, of the issuer that must have signed the plan. Default: not checked.", INPUT),
    ] = None,
    style: FormatOption = "table",
) -> int:
    """Recompute every number of a plan from its multipliers and roster, without the solver."""
    reading = None if federation is None else federation_argument(federation, column, thousands, name)
    with working("Verifying"):
        content = read_content(plan_file)
        issued = issue_checks(plan_file, content, issuer)
        if reading is not None:
            stated = with_rosters(add_schedule(reading.federation, schedule), content.settings.rounds)
            check_same_federation(federation_in(content), stated, source=federation or "")
        figures = verify(content)
        if all(check.holds for check in figures):
            figures = (*figures, *certificate_checks(PlanData(**data_in(content))))  # type: ignore[arg-type]
        sound, rule_known = all(check.holds for check in figures), is_server_known(content)
        also: dict[str, Any] = {"verdict": verdict(plan_of(content)).summary() if sound and rule_known else None}
    checks = (*issued, *figures)
    name, remark = content.settings.server, ""
    if not rule_known:
        remark = (
            f"The server rule {name!r} is not known here, so there is no verdict. No silo's privacy rests on the rule."
        )
    if reading is not None or remark:
        also["notes"] = [*(() if reading is None else reading.notes), *([remark] if remark else [])]
    return show_checks(str(plan_file), checks, style, otherwise="do not use this plan", remark=remark, also=also)


def diff(before: PlanArgument, after: PlanArgument, *, style: FormatOption = "table") -> int:
    """Show the differences between two plans, and the affected silos."""
    first, second = read_verified_content(before), read_verified_content(after)
    changes = differences(first, second)
    rows = [asdict(difference) for difference in changes]
    silos = len({difference.subject for difference in changes if difference.kind == SILO})
    columns = (
        Column(key="subject", heading="who", figures=False),
        Column(key="what", heading="what", figures=False),
        Column(key="before", heading="before"),
        Column(key="after", heading="after"),
    )
    note = on_digests(first, second) or ("The plans are the same." if not rows else f"{silos:,} silos are affected.")
    table_rows = [
        row
        | {"subject": f"{row['kind']} {row['subject']}".strip()}
        | {side: _printable_value(row["what"], row[side]) for side in ("before", "after")}
        for row in rows
        if row["subject"] != "guarantee"
    ]  # the guarantee's sentences follow from the figures and do not fit into a cell
    picture = [table(f"{before} → {after}", columns, table_rows, note=note)] if rows else [remarks([(False, note)])]
    show(Result(data=rows, rows=rows, fields=list(Difference.__dataclass_fields__), picture=picture), style)
    return 0


def _printable_value(what: str, value: object) -> object:
    """Returns the value of a cell: an epsilon rounded up, a digest cut to 12 characters, other numbers at six digits.

    With the four digits of other tables, both sides of a small difference look alike.
    """
    if what == "digest" and isinstance(value, str):
        return value[:12]
    is_epsilon = what.startswith(("epsilon", "other_neighbours", "two_silos", "whole_silo"))
    if isinstance(value, float):
        return epsilon_text(value) if is_epsilon else f"{value:.6g}"
    return value


def export(
    plan_file: PlanArgument,
    *,
    to: Annotated[
        Literal["csv", "flower", "nvflare"],
        option("Form of the export: a table, or settings for Flower or NVIDIA FLARE.", OUTPUT),
    ],
    output: OutputOption = None,
    style: FormatOption = "table",
) -> int:
    """Write a plan as a table (csv), or as settings for Flower or NVIDIA FLARE.

    With --to flower, a plan for masked sums and --output, the command writes a complete Flower app into a new folder.
    """
    plan = read_plan(plan_file)
    if to == "flower" and plan.is_masked and output is not None:
        return _export_app(plan, output, style)
    check_output(output)
    text = export_plan(plan, to)
    if output is not None:
        write_whole(output, text.encode())
    if style == "json":
        written = None if output is None else str(output)
        show(Result(data={"to": to, "output": written, "text": text}, rows=()), style)
    elif output is None:
        sys.stdout.write(text)
    return 0


def _export_app(plan: Plan, folder: Path, style: str) -> int:
    """Writes a Flower app into a new folder, and shows its files."""
    files = app_files(plan)
    if folder.exists():
        raise ParameterError("cli.app-folder-exists", folder=folder)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, text.encode())
    summary = {"to": "flower", "output": str(folder), "files": sorted(files)}
    note = f"{folder} is a Flower app: fulcrum deploy flower writes its sites, flwr run {folder} runs it."
    show(Result(data=summary, rows=[summary], picture=[remarks([(False, note)])]), style)
    return 0


def _read_keys(path: Path) -> dict[str, str]:
    """Returns public keys by name from a TOML file."""
    try:
        keys = toml_of(path.read_bytes())
    except OSError as error:
        raise ParameterError("file.unreadable", file=path, reason=error.strerror) from None
    except tomllib.TOMLDecodeError as error:
        raise ParameterError("cli.keys-not-toml", file=path, reason=str(error)) from None
    wrong = next((name for name, key in keys.items() if not isinstance(key, str)), None)
    if wrong is not None:
        raise ParameterError("cli.key-not-a-string", file=path, name=wrong)
    return keys
