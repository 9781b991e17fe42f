"""The commands that run a plan on Flower: in simulation, as processes on this machine, or by kits for operators."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from fulcrum.cli.run_commands.deployments import (
    IssuerKeyOption,
    KitsOption,
    LocalOptions,
    ReplaceOption,
    Runner,
    SiteOptions,
    deployment_of,
    notes_on_the_model,
    run_locally,
    show_kits,
)
from fulcrum.cli.shared_options.options import DEPLOYMENT, FormatOption, PlanArgument, number, option
from fulcrum.cli.shared_options.training_options import TrainingOptions
from fulcrum.engines.flower.flower_engine import FLOWER
from fulcrum.engines.flower.flower_simulation import simulate
from fulcrum.engines.site_folders import Deployment, LocalRun
from fulcrum.server.run_results import RoundResult
from fulcrum.views.terminal.screen import working


def simulate_flower(plan_file: PlanArgument, *, options: LocalOptions | None = None) -> int:
    """Run a plan on Flower's simulation: every silo a virtual node on Ray, with the messages of a deployment."""

    def run(deployment: Deployment, folder: Path, on_round: Callable[[RoundResult], None]) -> LocalRun:
        return simulate(deployment, folder / "sites", on_round=on_round)

    return _run(plan_file, options, "virtual nodes on Ray", verb="simulate", run=run)


def up_flower(plan_file: PlanArgument, *, options: LocalOptions | None = None) -> int:
    """Run a plan on Flower with every site a process on this machine, and stop all processes at the end."""
    return _run(plan_file, options, "SuperNodes with TLS, all stopped")


def deploy_flower(
    plan_file: PlanArgument,
    *,
    output: KitsOption,
    sites: SiteOptions | None = None,
    training: TrainingOptions | None = None,
    host: Annotated[str, option("Host name under which sites reach the SuperLink.", DEPLOYMENT)] = "localhost",
    port: Annotated[
        int, number("Port of the SuperLink; the next port takes runs, from its machine alone.", DEPLOYMENT)
    ] = FLOWER.port,
    key: IssuerKeyOption = None,
    replace: ReplaceOption = False,
    style: FormatOption = "table",
) -> int:
    """Write kits for Flower: TLS, registered SuperNodes, the signed plan in place, and the app to run."""
    deployment = deployment_of(plan_file, sites, training, engine=FLOWER, host=host, port=port, replaces=replace)
    FLOWER.check(deployment)
    notes = notes_on_the_model(deployment)
    with working("Making certificates and kits"):
        kits = FLOWER.write_kits(deployment, output, issuer_key=key)
    if kits["keys_made"]:
        notes.insert(0, (True, "Every private key was made here: any holder of this folder can act for every silo."))
    notes.append((True, "A SuperNode runs any app that its SuperLink sends. README.md explains the consequences."))
    notes.append((False, f"Hand each site its folder, then follow {output / 'README.md'}"))
    rows = [{"site": name, "kit": str(output / name)} for name in FLOWER.sites(deployment)]
    show_kits(deployment, output, kits, rows, notes, style)
    return 0


def _run(
    plan_file: Path, options: LocalOptions | None, nodes: str, *, verb: str = "up", run: Runner | None = None
) -> int:
    return run_locally(
        plan_file,
        options,
        FLOWER,
        sites=lambda deployment: len(deployment.plan.federation),
        called="silos",
        nodes=nodes,
        verb=verb,
        run=run,
    )
