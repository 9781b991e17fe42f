"""The commands of issuers and operators of sites: keys, signatures, policies, records, ledgers, replanning."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.text import Text

from fulcrum.aggregation.site_setup import init_site
from fulcrum.cli.shared_options.federations import (
    ColumnOption,
    ScheduleOption,
    ThousandsOption,
    add_schedule,
    federation_argument,
    note_on_same_rounds,
)
from fulcrum.cli.shared_options.options import (
    DEPLOYMENT,
    INPUT,
    NOISE,
    TARGET,
    FormatOption,
    OutputOption,
    PlanArgument,
    argument,
    check_output,
    look_here_for,
    number,
    option,
    output_option,
    several,
)
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.choices import Accountant
from fulcrum.core.plan.signatures import read_signed_plan
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.silo.policy import read_policy
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.core.silo.site import read_site
from fulcrum.core.store.durable_files import write_whole
from fulcrum.core.store.earlier_ledgers import convert_ledger
from fulcrum.core.store.ledger import Allowance, Cost
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import ParameterError, PolicyError
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.planning.files.plan_issue import new_key, sign_plan
from fulcrum.planning.plan import save_plan
from fulcrum.planning.replanning import replan
from fulcrum.views.terminal.plan_tables import show_checks, show_plan
from fulcrum.views.terminal.screen import Result, facts, remarks, show, table
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.numbers import epsilon_text
from fulcrum.words.policy_template import policy_template

LedgerArgument = Annotated[Path, argument("Ledger of a silo.")]


def keygen(
    output: Annotated[Path, output_option("File of the private key; the public key goes to the same name with .pub.")],
    *,
    kind: Annotated[
        Literal["signing", "sealing"],
        option("Kind of key: signing for issuers and silos, sealing for regions.", DEPLOYMENT),
    ] = "signing",
    style: FormatOption = "table",
) -> int:
    """Make a key pair: to sign plans and releases, or to open messages that silos seal to a region."""
    public = new_key(output, kind)
    summary = {"private_key": str(output), "public_key": public}
    show(
        Result(data=summary, rows=[summary], picture=[facts([("private key", str(output)), ("public key", public)])]),
        style,
    )
    return 0


def sign(
    plan_file: PlanArgument,
    *,
    key: Annotated[Path, option("Private key of the issuer.", DEPLOYMENT)],
    style: FormatOption = "table",
) -> int:
    """Sign a plan for deployment, as proof of its issuer to silos."""
    summary = {"signature": str(sign_plan(plan_file, key))}
    show(Result(data=summary, rows=[summary], picture=[facts([("signature", summary["signature"])])]), style)
    return 0


def policy(
    plan_file: Annotated[
        Path | None, argument("Plan file, as `fulcrum plan -o` writes it. Default: none, for --template alone.")
    ] = None,
    *,
    silo: Annotated[str | None, option("Name of the silo that has the policy. Default: none.", INPUT)] = None,
    rules: Annotated[
        Path | None, option("Policy of the silo, a TOML file. Default: none.", INPUT, name="--policy")
    ] = None,
    ledger: Annotated[
        Path | None,
        option(
            "Ledger of the silo; its releases under other plans count towards largest_rounds. Default: none.", INPUT
        ),
    ] = None,
    template: Annotated[
        bool, Parameter(help="Write a policy with a comment on every limit, and check no plan.", group=INPUT)
    ] = False,
    output: OutputOption = None,
    style: FormatOption = "table",
) -> int:
    """Check a plan against a silo's own policy, on figures recomputed from multipliers and roster."""
    if template:
        return _write_template(output, style)
    if plan_file is None or silo is None or rules is None:
        raise ParameterError("cli.policy-incomplete")
    wanted = read_policy(rules)
    plan = verified_plan(plan_file) if wanted.issuer is None else read_signed_plan(plan_file, wanted.issuer)
    before = 0
    if ledger is not None:
        with read_ledger(ledger) as book:
            if book.silo != silo:
                raise PolicyError("ledger.other-silo", file=ledger, owner=book.silo, silo=silo)
            before = book.releases_besides(plan.digest)
    wanted.check(plan, silo, before=before)
    summary = {"plan": str(plan_file), "silo": silo, "allowed": True}
    show(
        Result(data=summary, rows=[summary], picture=[remarks([(False, f"{silo} may release under {plan_file}.")])]),
        style,
    )
    return 0


def _write_template(output: Path | None, style: str) -> int:
    """Writes a commented policy to a file that does not exist, or to stdout."""
    text = policy_template()
    if output is not None:
        if output.exists():
            raise ParameterError("cli.file-exists", file=output)
        write_whole(output, text.encode())
    summary = {"template": text} if output is None else {"file": str(output)}
    whole = Text(text, no_wrap=True, overflow="ignore")  # stdout may be a file, where a wrapped line is no comment
    picture = [whole] if output is None else [facts([("written to", str(output))])]
    show(Result(data=summary, rows=[summary], picture=picture), style)
    return 0


def show_ledger(
    path: LedgerArgument,
    *,
    delta: Annotated[float, option("Delta of the stated epsilons, a probability in (0, 1).", TARGET)] = 1e-5,
    accountant: Annotated[
        Accountant,
        option("Rule that turns noise into epsilon: the tight Gaussian curve, or the paper's Theorem 1.", TARGET),
    ] = "renyi",
    style: FormatOption = "table",
) -> int:
    """Show every release of a silo, and the epsilon spent against each observer."""
    with read_ledger(path) as ledger:
        entries, spent, silo, head = ledger.entries(), ledger.total_cost.shifts, ledger.silo, ledger.head
        by_unit = {unit: dict(cost.shifts) for unit, cost in ledger.spent_by_unit().items()}
    observers = list(dict.fromkeys(name for entry in entries for name in entry.cost.shifts))
    rows = [
        {
            "sequence": entry.sequence,
            "plan": entry.plan_digest[:12],
            "round": entry.round_number,
            "payload": entry.payload_digest[:12],
            **{f"shift_{name}": entry.cost.shifts.get(name) for name in observers},
        }
        for entry in entries
    ]

    def epsilons_of(shifts: Mapping[str, float]) -> dict[str, float]:
        return {
            name: float(epsilon_of_shift(shift**0.5, delta=delta, accountant=accountant))
            for name, shift in shifts.items()
        }

    epsilons = epsilons_of(spent)
    listed = [
        {**row, "shifts": dict(entry.cost.shifts), "former_hash": entry.former_hash}
        for row, entry in zip(rows, entries, strict=True)
    ]
    summary = {"silo": silo, "releases": len(rows), "head": head, "spent": dict(spent), "epsilon": epsilons}
    if set(by_unit) - {"silo"}:  # a ledger for silos alone keeps its earlier form
        summary["units"] = {unit: {"spent": shifts, "epsilon": epsilons_of(shifts)} for unit, shifts in by_unit.items()}
    spent_lines = [
        (f"spent at {name}{f', by {unit}' if set(by_unit) != {'silo'} else ''}", f"epsilon {epsilon_text(epsilon)}")
        for unit, shifts in by_unit.items()
        for name, epsilon in epsilons_of(shifts).items()
    ]
    columns = [
        Column(key="sequence", heading="sequence"),
        Column(key="round", heading="round"),
        Column(key="plan", heading="plan", figures=False),
        Column(key="payload", heading="bytes", figures=False),
        *(Column(key=f"shift_{name}", heading=f"shift at {name}") for name in observers),
    ]
    picture = [
        table(f"{silo}: {len(rows):,} release{'' if len(rows) == 1 else 's'}", columns, rows),
        facts(
            [
                *spent_lines,
                ("head", head),
            ]
        ),
    ]
    show(Result(data=summary | {"entries": listed}, rows=rows, picture=picture), style)
    return 0


def convert_ledger_command(
    old: Annotated[Path, argument("Ledger of an earlier version of Fulcrum, closed.")],
    new: Annotated[Path, argument("New file for the converted ledger.")],
    *,
    plan: Annotated[
        tuple[Path, ...],
        several("Plan under which the silo released; repeat the option for every such plan. Default: none.", INPUT),
    ] = (),
    style: FormatOption = "table",
) -> int:
    """Write a ledger of an earlier version anew; the old ledger allows no further release."""
    plans = [verified_plan(path) for path in plan]
    scheduled = next((path for path, sound in zip(plan, plans, strict=True) if sound.federation.rosters), None)
    if scheduled is not None:  # every ledger with releases of such a plan has the format of today
        raise ParameterError("cli.ledger-plan-scheduled", file=scheduled)

    def charges_of(silo: str) -> dict[str, tuple[Cost, Allowance]]:
        parameters = [release_parameters_of(plan_file, silo) for plan_file in plans]
        return {terms.plan_digest: (terms.cost, terms.allowance) for terms in parameters}

    done = convert_ledger(old, new, charges_of)
    summary = {"silo": done.silo, "releases": done.releases, "ledger": str(new), "former_head": done.former_head}
    notes = [(False, f"{old} allows no further release. Use {new}.")]
    named = [("silo", done.silo), ("releases", str(done.releases)), ("former head", done.former_head or "none")]
    show(Result(data=summary, rows=[summary], picture=[facts(named), remarks(notes)]), style)
    return 0


def init_site_command(
    folder: Annotated[Path, argument("Folder of the site, or the kit with that folder.")],
    *,
    ledger: Annotated[
        Path | None,
        option(
            "Ledger of a silo that took part before; `state` in site.toml names its folder. Default: a new ledger.",
            DEPLOYMENT,
        ),
    ] = None,
    style: FormatOption = "table",
) -> int:
    """Make the ledger and further records of a site, once, before the first start."""
    inner = folder / "local" / "fulcrum"  # in a kit of NVIDIA FLARE's
    home = inner if not (folder / "site.toml").exists() and (inner / "site.toml").exists() else folder
    site = read_site(home)
    new_files = [path.name for path in init_site(site, ledger=ledger)]
    where = str(home / site.settings.state)
    summary = {"role": site.settings.role, "name": site.settings.name, "made": new_files, "in": where}
    notes = [(False, f"{site.settings.name} can be started." if new_files or ledger else "This site keeps no records.")]
    picture = [facts([("made", ", ".join(new_files) or "nothing"), ("in", where)]), remarks(notes)]
    show(Result(data=summary, rows=[summary | {"made": ", ".join(new_files)}], picture=picture), style)
    return 0


def verify_ledger_command(
    path: LedgerArgument,
    *,
    least_sequence: Annotated[
        int | None,
        number(
            "Newest sequence number that the operator knows of; an older ledger fails. Default: not checked.", TARGET
        ),
    ] = None,
    style: FormatOption = "table",
) -> int:
    """Recompute a ledger's chain, digests and sums; with --least-sequence, notice a restored old copy."""
    checks = verify_ledger(path, least_sequence=least_sequence)
    return show_checks(str(path), checks, style, otherwise="release nothing more")


def replan_command(
    plan_file: PlanArgument,
    *,
    federation: Annotated[str, option("Federation of the remaining rounds: a file or a built-in name.", INPUT)],
    column: ColumnOption = (),
    thousands: ThousandsOption = None,
    schedule: ScheduleOption = None,
    ledgers: Annotated[Path, option("Folder with the file NAME.ledger of every silo.", INPUT)],
    allocation: Annotated[
        str | None,
        option("Rule that divides the noise among silos, as for `fulcrum plan`. Default: the plan's.", NOISE),
    ] = None,
    output: OutputOption = None,
    style: FormatOption = "table",
) -> int:
    """Plan the remaining rounds from the rest of every silo's privacy budget, by the ledgers."""
    if not ledgers.is_dir():
        raise ParameterError("cli.ledgers-not-a-folder", folder=ledgers)
    check_output(output)
    look_here_for(allocation or "")
    topology = add_schedule(federation_argument(federation, column, thousands).federation, schedule)
    before = read_plan(plan_file)
    plan = replan(before, topology, ledgers, allocation=allocation)
    note_on_same_rounds(before.federation, topology)
    if output is not None:
        save_plan(plan, output)
    show_plan(plan, output, style)
    return 0
