"""The commands that run a plan on Flower: in simulation, as processes on this machine, or by kits for operators."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from fulcrum.cli.run_commands.deployments import (
    IssuerKeyOption,
    KitsOption,
    LocalOptions,
    OnRound,
    ReplaceOption,
    Runner,
    Say,
    SiteOptions,
    deployment_of,
    notes_on_the_model,
    run_locally,
    show_kits,
)
from fulcrum.cli.shared_options.options import DEPLOYMENT, FormatOption, PlanArgument, number, option, words_of
from fulcrum.cli.shared_options.training_options import TrainingOptions
from fulcrum.engines.flower.flower_engine import FLOWER
from fulcrum.engines.flower.flower_simulation import simulate, write_simulated_sites
from fulcrum.engines.flower.kits.user_apps import app_package
from fulcrum.engines.site_folders import Deployment, LocalRun
from fulcrum.errors import ParameterError
from fulcrum.planning.engine_limits import SERVER
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.views.terminal.screen import Result, facts, remarks, show, working

AppOption = Annotated[
    Path | None,
    option("Folder of your own Flower app, with Fulcrum's mod and strategy. Default: the built-in app.", DEPLOYMENT),
]


def simulate_flower(
    plan_file: PlanArgument,
    *,
    app: AppOption = None,
    only_sites: Annotated[
        bool, option("Write the sites to --output, and print the command of Flower that runs the app.", DEPLOYMENT)
    ] = False,
    options: LocalOptions | None = None,
) -> int:
    """Run a plan on Flower's simulation: every silo a virtual node on Ray, with the messages of a deployment."""
    if only_sites:
        return _write_sites(plan_file, app, options or LocalOptions())

    def run(deployment: Deployment, folder: Path, on_round: OnRound, say: Say) -> LocalRun:
        return simulate(deployment, folder / "sites", app=app, on_round=on_round, say=say)

    return _run(plan_file, options, "virtual nodes on Ray", verb="simulate", app=app, run=run)


def up_flower(plan_file: PlanArgument, *, app: AppOption = None, options: LocalOptions | None = None) -> int:
    """Run a plan on Flower with every site a process on this machine, and stop all processes at the end."""

    def run(deployment: Deployment, folder: Path, on_round: OnRound, say: Say) -> LocalRun:
        say("making certificates and kits")
        FLOWER.write_kits(deployment, folder / "kits")
        return FLOWER.run_here(deployment, folder / "kits", on_round=on_round, app=app, say=say)

    return _run(plan_file, options, "SuperNodes with TLS, all stopped", app=app, run=run)


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
    plan_file: Path, options: LocalOptions | None, nodes: str, *, app: Path | None, run: Runner, verb: str = "up"
) -> int:
    _check_own_training(app, options or LocalOptions())
    return run_locally(
        plan_file,
        options,
        FLOWER,
        sites=lambda deployment: len(deployment.plan.federation),
        called="silos",
        nodes=nodes,
        verb=verb,
        run=run,
        app=None if app is None else (app, app_package),
    )


def _write_sites(plan_file: Path, app: Path | None, choices: LocalOptions) -> int:
    """Writes the sites of a simulation alone, and shows the commands that run an app with the sites."""
    if choices.output is None:
        raise ParameterError("cli.only-sites-output")
    _check_own_training(app, choices)
    plan = read_plan(plan_file)
    train = choices.sites.train if app is None else app_package(app, plan)
    deployment = replace(choices.sites, train=train).deployment(plan, choices.training, runs_here=True)
    FLOWER.check(deployment)
    write_simulated_sites(deployment, choices.output)
    sites, folder = choices.output.resolve(), choices.output / "app" if app is None else app
    commands = [
        f"export FULCRUM_SITES={shlex.quote(str(sites))} FULCRUM_SITE={shlex.quote(str(sites / SERVER))}",
        f"flwr run {shlex.quote(str(folder))} --stream --federation-config 'num-supernodes={len(plan.federation)}'",
    ]
    notes = [(False, "Flower's local SuperLink keeps the environment of its start. Stop an earlier SuperLink first.")]
    picture = [facts([("sites", str(sites))]), "\n".join(commands) + "\n", remarks(notes)]
    rows = [{"command": command} for command in commands]
    show(Result(data={"sites": str(sites), "commands": commands}, rows=rows, picture=picture), choices.style)
    return 0


def _check_own_training(app: Path | None, choices: LocalOptions) -> None:
    """Raises `ParameterError` for options of another training than the training of the user's app."""
    training = replace(choices.sites, policy=None, patience=SiteOptions.patience, seed=SiteOptions.seed)
    words = " ".join(filter(None, [words_of(training), words_of(choices.training)]))
    if app is not None and words:
        raise ParameterError("cli.app-own-training", options=words)
