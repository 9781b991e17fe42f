"""The commands of those who run a site or issue plans: keys, signatures, policies, records, ledgers, replanning."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fulcrum.aggregation.site_setup import init_site
from fulcrum.cli.federations import ColumnOption, given_federation
from fulcrum.cli.options import (
    AllocationOption,
    FormatOption,
    OutputOption,
    PlanArgument,
    check_output,
    look_here_for,
    number,
    option,
)
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.plan.signatures import read_signed_plan
from fulcrum.core.plan.verified_plan import verified
from fulcrum.core.silo.policy import read_policy
from fulcrum.core.silo.release_parameters import release_parameters_of
from fulcrum.core.silo.site import read_site
from fulcrum.core.store.earlier_ledgers import convert_ledger
from fulcrum.core.store.ledger import Allowance, Cost, Ledger
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.errors import ParameterError, PolicyError
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.planning.files.plan_issue import new_key, sign_plan
from fulcrum.planning.plan import save_plan
from fulcrum.planning.replanning import replan
from fulcrum.views.terminal.plan_tables import show_checks, show_plan
from fulcrum.views.terminal.screen import Result, check_format, facts, remarks, show, table
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.numbers import shown_epsilon

LedgerArgument = Annotated[Path, Parameter(help="A silo's ledger.")]


def keygen(
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The private key; .pub goes beside it.")],
    *,
    kind: Annotated[str, option("signing, for issuers and silos, or sealing, for regions.")] = "signing",
    style: FormatOption = "table",
) -> int:
    """Make a key pair: to sign plans and releases with, or to open what silos seal to a region."""
    check_format(style)
    public = new_key(output, kind)
    told = {"private_key": str(output), "public_key": public}
    show(Result(data=told, rows=[told], picture=[facts([("private key", str(output)), ("public key", public)])]), style)
    return 0


def sign(
    plan_file: PlanArgument,
    *,
    key: Annotated[Path, Parameter(help="The issuer's private key.")],
    style: FormatOption = "table",
) -> int:
    """Sign a plan for deployment, so that silos know who issued it."""
    check_format(style)
    told = {"signature": str(sign_plan(plan_file, key))}
    show(Result(data=told, rows=[told], picture=[facts([("signature", told["signature"])])]), style)
    return 0


def policy(
    plan_file: PlanArgument,
    *,
    silo: Annotated[str, Parameter(help="Whose policy it is.")],
    rules: Annotated[Path, Parameter(name="--policy", help="The silo's policy, a TOML file.")],
    ledger: Annotated[
        Path | None, option("The silo's ledger: releases under other plans count towards largest_rounds.")
    ] = None,
    style: FormatOption = "table",
) -> int:
    """Check a plan against a silo's own policy, on figures recomputed from multipliers and roster."""
    check_format(style)
    wanted = read_policy(rules)
    made = verified(plan_file) if wanted.issuer is None else read_signed_plan(plan_file, wanted.issuer)
    before = 0
    if ledger is not None:
        with Ledger.read(ledger) as book:
            if book.silo != silo:
                raise PolicyError("cli.ledger-of-other-silo", file=ledger, found_silo=book.silo, silo=silo)
            before = book.releases_besides(made.digest)
    wanted.check(made, silo, before=before)
    told = {"plan": str(plan_file), "silo": silo, "allowed": True}
    show(Result(data=told, rows=[told], picture=[remarks([(False, f"{silo} may release under {plan_file}.")])]), style)
    return 0


def show_ledger(
    path: LedgerArgument,
    *,
    delta: Annotated[float, option("The DP parameter to state epsilon at.")] = 1e-5,
    accountant: Annotated[str, option("exact or renyi.")] = "renyi",
    style: FormatOption = "table",
) -> int:
    """Show every release of a silo and what it has spent against each observer."""
    check_format(style)
    with Ledger.read(path) as ledger:
        entries, spent, silo, head = ledger.entries(), ledger.spent.shifts, ledger.silo, ledger.head
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
    epsilons = {
        name: float(epsilon_of_shift(shift**0.5, delta=delta, accountant=accountant)) for name, shift in spent.items()
    }
    listed = [
        {**row, "shifts": dict(entry.cost.shifts), "former_hash": entry.former_hash}
        for row, entry in zip(rows, entries, strict=True)
    ]
    told = {"silo": silo, "releases": len(rows), "head": head, "spent": dict(spent), "epsilon": epsilons}
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
                *((f"spent at {name}", f"epsilon {shown_epsilon(epsilon)}") for name, epsilon in epsilons.items()),
                ("head", head),
            ]
        ),
    ]
    show(Result(data=told | {"entries": listed}, rows=rows, picture=picture), style)
    return 0


def convert_ledger_command(
    old: Annotated[Path, Parameter(help="A ledger of an earlier version of Fulcrum, closed.")],
    new: Annotated[Path, Parameter(help="The ledger to write; it must be new.")],
    *,
    plan: Annotated[
        tuple[Path, ...],
        Parameter(negative=(), help="A plan that the silo released under; give all of them, one after the other."),
    ] = (),
    style: FormatOption = "table",
) -> int:
    """Write a ledger of an earlier version anew; the old one releases nothing any more."""
    check_format(style)
    plans = [verified(path) for path in plan]

    def charges_of(silo: str) -> dict[str, tuple[Cost, Allowance]]:
        terms = [release_parameters_of(one, silo) for one in plans]
        return {one.plan_digest: (one.cost, one.allowance) for one in terms}

    done = convert_ledger(old, new, charges_of)
    told = {"silo": done.silo, "releases": done.releases, "ledger": str(new), "former_head": done.former_head}
    notes = [(False, f"{old} releases nothing any more: use {new}.")]
    named = [("silo", done.silo), ("releases", str(done.releases)), ("former head", done.former_head or "none")]
    show(Result(data=told, rows=[told], picture=[facts(named), remarks(notes)]), style)
    return 0


def init_site_command(
    folder: Annotated[Path, Parameter(help="The site's folder, or a kit that holds it.")],
    *,
    ledger: Annotated[
        Path | None,
        option("The ledger of a silo that took part before; `state` in site.toml names its folder."),
    ] = None,
    style: FormatOption = "table",
) -> int:
    """Make the ledger and the other records of a site, once, before it is started."""
    check_format(style)
    inner = folder / "local" / "fulcrum"  # in a kit of NVIDIA FLARE's
    home = inner if not (folder / "site.toml").exists() and (inner / "site.toml").exists() else folder
    site = read_site(home)
    made = [path.name for path in init_site(site, ledger=ledger)]
    where = str(home / site.settings.state)
    told = {"role": site.settings.role, "name": site.settings.name, "made": made, "in": where}
    notes = [(False, f"{site.settings.name} can be started." if made or ledger else "This site keeps no records.")]
    picture = [facts([("made", ", ".join(made) or "nothing"), ("in", where)]), remarks(notes)]
    show(Result(data=told, rows=[told | {"made": ", ".join(made)}], picture=picture), style)
    return 0


def verify_ledger_command(
    path: LedgerArgument,
    *,
    least_sequence: Annotated[int | None, number("The newest sequence number that somebody saw.")] = None,
    style: FormatOption = "table",
) -> int:
    """Recompute a ledger's chain, digests and sums; with --least-sequence, notice a restored old copy."""
    check_format(style)
    checks = verify_ledger(path, least_sequence=least_sequence)
    return show_checks(str(path), checks, style, otherwise="release nothing more")


def replan_command(
    plan_file: PlanArgument,
    *,
    federation: Annotated[str, Parameter(help="The federation from now on.")],
    column: ColumnOption = (),
    ledgers: Annotated[Path, Parameter(help="The folder that holds NAME.ledger of every silo.")],
    allocation: AllocationOption | None = None,
    output: OutputOption = None,
    style: FormatOption = "table",
) -> int:
    """Plan the remaining rounds from the budget that each silo has left."""
    check_format(style)
    if not ledgers.is_dir():
        raise ParameterError("cli.ledgers-not-a-folder", folder=ledgers)
    check_output(output)
    look_here_for(allocation or "")
    found = given_federation(federation, column).federation
    made = replan(read_plan(plan_file), found, ledgers, allocation=allocation)
    if output is not None:
        save_plan(made, output)
    show_plan(made, output, style)
    return 0
