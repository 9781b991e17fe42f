"""The commands that run a plan on NVIDIA FLARE: by kits for operators, by a job, or as processes on this machine."""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from fulcrum.cli.run_commands.deployments import (
    Further,
    IssuerKeyOption,
    KitsOption,
    LocalOptions,
    ReplaceOption,
    SiteOptions,
    deployment_of,
    notes_on_the_model,
    run_locally,
    show_kits,
)
from fulcrum.cli.shared_options.options import (
    DEPLOYMENT,
    FormatOption,
    PlanArgument,
    RunOption,
    argument,
    number,
    option,
)
from fulcrum.cli.shared_options.training_options import TrackingOptions, TrainingOptions
from fulcrum.core.messages.aggregation_tree import tree_of
from fulcrum.core.silo.site import ledger_name
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.engines.nvflare.flare_engine import FLARE
from fulcrum.engines.nvflare.kits.console import follow
from fulcrum.engines.site_folders import BUILT_IN, Deployment, LocalRun
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.server.deployed_run import save_deployed_run
from fulcrum.server.run_results import RoundResult, run_folder
from fulcrum.views.terminal.run_tables import round_table
from fulcrum.views.terminal.screen import Result, facts, remarks, show, steps, working


def deploy_nvflare(
    plan_file: PlanArgument,
    *,
    output: KitsOption,
    sites: SiteOptions | None = None,
    training: TrainingOptions | None = None,
    host: Annotated[str, option("Host name under which sites reach the server.", DEPLOYMENT)] = "localhost",
    port: Annotated[int, number("Port of the server; the next port is the administrator's.", DEPLOYMENT)] = FLARE.port,
    key: IssuerKeyOption = None,
    replace: ReplaceOption = False,
    style: FormatOption = "table",
) -> int:
    """Write start-up kits for NVIDIA FLARE: mutual TLS, the signed plan in place, nothing open."""
    deployment = deployment_of(plan_file, sites, training, engine=FLARE, host=host, port=port, replaces=replace)
    notes = notes_on_the_model(deployment)
    with working("Making certificates and kits"):
        summary = FLARE.write_kits(deployment, output, issuer_key=key)
    technical = deployment.engine_names
    rows = [
        {"site": technical[name], "role": role}
        | ({"name": name} if any(plain != site for plain, site in technical.items()) else {})
        | {"kit": str(output / technical[name])}
        for name, role in deployment.sites.items()
    ]
    if sites is not None and sites.train != BUILT_IN:
        notes.append((False, f"Install the module {sites.train} at every silo and at the server."))
    notes.append(
        (
            False,
            "Hand each site its kit. Its operator runs fulcrum site init in the kit, once, and start.sh. Then run: "
            f"fulcrum follow nvflare {output}",
        )
    )
    if summary["keys_made"]:
        power = "act for every silo" if deployment.plan.is_masked else "read every release"
        notes.insert(0, (True, f"Every private key was made here: any holder of this folder can {power}."))
    show_kits(deployment, output, summary, rows, notes, style)
    return 0


def follow_nvflare(
    kits: Annotated[Path, argument("Folder that `fulcrum deploy nvflare` wrote; the command uses its admin and job.")],
    *,
    output: RunOption = None,
    tracked: TrackingOptions | None = None,
    style: FormatOption = "table",
) -> int:
    """Submit the job to a running federation and follow its rounds; an interrupted job resumes."""
    if output is not None:
        run_folder(output)
    plan = (
        read_plan(kits / "plan.json") if (kits / "plan.json").exists() else None
    )  # an administrator may follow without the plan file
    with (tracked or TrackingOptions()).open(plan, engine="nvflare") as tell, steps("Following") as say:

        def on_round(result: RoundResult) -> None:
            say(result.in_words(of=plan.rounds if plan else None))
            tell(result)

        run = follow(kits, tick=lambda: None, on_status=say, on_round=on_round)
    data: dict[str, Any] = {"kits": str(kits), "complete": True}
    picture = [remarks([(False, "Every round of the plan is over.")])]
    if run is None:
        show(Result(data=data, rows=[data], picture=picture), style)
        return 0
    if output is not None:
        run.command = "fulcrum follow nvflare KITS -o run"
        save_deployed_run(run, output)
        picture.append(facts([("written to", str(output))]))
    picture = [round_table(f"{kits} on NVIDIA FLARE", run), *picture, remarks([(False, note) for note in run.notes])]
    show(Result(data=data | msgspec.to_builtins(run), rows=run.round_rows(), picture=picture), style)
    return 0


def up_nvflare(plan_file: PlanArgument, *, options: LocalOptions | None = None) -> int:
    """Run a plan on NVIDIA FLARE with every site a process on this machine, and stop all processes at the end."""
    return run_locally(
        plan_file,
        options,
        FLARE,
        sites=lambda deployment: len(deployment.sites),
        called="sites",
        nodes="processes with mutual TLS, all stopped",
        further=_further,
    )


def _further(deployment: Deployment, done: LocalRun, folder: Path) -> Further:
    """Returns results on regions without any sum, and ledgers."""
    plan, releases = deployment.plan, _releases(deployment, folder / "kits")
    lines = []
    if plan.is_deployment:
        lines.append(("ledgers", f"{sum(releases.values())} releases of {len(plan.federation)} silos charged"))
    silent = sorted(set(tree_of(plan).reporting) - {region for summary in done.history for region in summary["summed"]})
    notes = [(True, f"{', '.join(silent)} never sent a sum: log.txt in the kit has the reason.")] if silent else []
    data = {"sites": len(deployment.sites), "releases": releases}
    return Further(data=data, lines=lines, notes=notes)


def _releases(deployment: Deployment, kits: Path) -> dict[str, int]:
    """Returns the number of releases in the ledger of every silo; empty for research plans, which have no ledgers."""
    counts = {}
    for silo in deployment.plan.federation.silo_names.tolist():
        path = FLARE.site_folder(kits, deployment.engine_names[silo]) / "state" / ledger_name(silo)
        if path.exists():
            with read_ledger(path) as ledger:
                counts[silo] = len(ledger.entries())
    return counts
