"""The commands that run a plan on Flower: simulated, as processes on this machine, or as kits for its operators."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fulcrum.cli.engines import (
    IssuerKeyOption,
    KitsOption,
    RunFolder,
    SiteOptions,
    deployment_of,
    notes_on_the_model,
)
from fulcrum.cli.options import FormatOption, PlanArgument, number, option, words_of
from fulcrum.cli.training_options import TrackingOptions, TrainingOptions
from fulcrum.engines.deployed_run import save_deployed_run, save_model
from fulcrum.engines.flower.kits import write_kits
from fulcrum.engines.flower.loopback import free_port, run_here
from fulcrum.engines.flower.simulation import simulate
from fulcrum.engines.flower.sites import check_deployable, silos_of
from fulcrum.engines.sites import BUILT_IN, Deployment, LocalRun
from fulcrum.engines.trainable import check_fits, loaded_module
from fulcrum.planning.plan_reading import read_plan
from fulcrum.simulation.results import RoundResult
from fulcrum.views.columns import Column
from fulcrum.views.run_tables import round_table
from fulcrum.views.terminal import Result, check_format, facts, remarks, show, steps, table, working

_RunOutput = Annotated[Path | None, Parameter(name=["--output", "-o"], help="Keep sites, logs, run and model here.")]
_Runner = Callable[[Deployment, Path, Callable[[RoundResult], None]], LocalRun]


def simulate_flower(
    plan_file: PlanArgument,
    *,
    output: _RunOutput = None,
    sites: SiteOptions | None = None,
    training: TrainingOptions | None = None,
    tracked: TrackingOptions | None = None,
    style: FormatOption = "table",
) -> int:
    """Run a plan on Flower's simulation: every silo a virtual node on Ray, with the messages of a deployment."""

    def run(deployment: Deployment, folder: Path, on_round: Callable[[RoundResult], None]) -> LocalRun:
        return simulate(deployment, folder / "sites", on_round=on_round)

    return _run("simulate", plan_file, output, sites, training, tracked, style, run, "virtual nodes on Ray")


def up_flower(
    plan_file: PlanArgument,
    *,
    output: _RunOutput = None,
    sites: SiteOptions | None = None,
    training: TrainingOptions | None = None,
    tracked: TrackingOptions | None = None,
    style: FormatOption = "table",
) -> int:
    """Run a plan on Flower with every site a process on this machine, and stop them all at the end."""

    def run(deployment: Deployment, folder: Path, on_round: Callable[[RoundResult], None]) -> LocalRun:
        with working("Making certificates and kits"):
            write_kits(deployment, folder / "kits")
        return run_here(deployment, folder / "kits", on_round=on_round, stall=60 + 15 * deployment.patience)

    return _run("up", plan_file, output, sites, training, tracked, style, run, "SuperNodes with TLS, all stopped")


def deploy_flower(
    plan_file: PlanArgument,
    *,
    output: KitsOption,
    sites: SiteOptions | None = None,
    training: TrainingOptions | None = None,
    host: Annotated[str, option("The name under which sites reach the SuperLink.")] = "localhost",
    port: Annotated[int, number("The SuperLink's port; the next one takes runs, on its machine alone.")] = 9092,
    key: IssuerKeyOption = None,
    style: FormatOption = "table",
) -> int:
    """Write kits for Flower: TLS, registered SuperNodes, the signed plan in place, and the app to run."""
    check_format(style)
    deployment = deployment_of(plan_file, sites, training, engine="flower", host=host, port=port)
    check_deployable(deployment)
    notes = notes_on_the_model(deployment)
    with working("Making certificates and kits"):
        made = write_kits(deployment, output, issuer_key=key)
    if made["keys_made"]:
        notes.insert(0, (True, "Every private key was made here: whoever holds this folder can act for every silo."))
    notes.append((True, "A SuperNode runs whatever app its SuperLink sends: README.md says what follows from that."))
    notes.append((False, f"Hand each site its folder, then follow {output / 'README.md'}"))
    rows = [{"site": name, "kit": str(output / name)} for name in ("server", *silos_of(deployment))]
    columns = [Column(key=name, heading=name, figures=False) for name in ("site", "kit")]
    picture = [
        table(f"{deployment.plan.federation.name}: kits for {len(rows)} sites", columns, rows),
        facts([("plan", made["plan_digest"]), ("issuer", made["issuer"])]),
        remarks(notes),
    ]
    show(Result(data={"kits": str(output), **made}, rows=rows, picture=picture), style)
    return 0


def _run(
    verb: str,
    plan_file: Path,
    output: Path | None,
    sites: SiteOptions | None,
    training: TrainingOptions | None,
    tracked: TrackingOptions | None,
    style: str,
    run: _Runner,
    nodes: str,
) -> int:
    """Runs a plan to its last round, and shows what came of it."""
    check_format(style)
    plan = read_plan(plan_file)
    sites, training = sites or SiteOptions(), training or TrainingOptions()
    deployment = sites.deployment(plan, training, host="127.0.0.1", port=free_port())
    check_deployable(deployment)
    learner = loaded_module(sites.train)
    check_fits(learner, plan, learner.starting_model(deployment.options))
    with RunFolder.of(output) as folder, (tracked or TrackingOptions()).open(plan, engine="flower") as tell:
        with steps(f"{len(plan.federation)} silos") as say:
            say("starting")

            def on_round(found: RoundResult) -> None:
                say(found.in_words(of=plan.rounds))
                tell(found)

            done = run(deployment, folder.path, on_round)
        result = done.run
        if folder.stays:
            learned = words_of(training, "data") if sites.train == BUILT_IN else ""
            said = [f"fulcrum {verb} flower plan.json", words_of(sites), learned, "-o run"]
            result.command = " ".join(filter(None, said))
            save_model(done.model, folder.path)
            save_deployed_run(result, folder.path)
        seconds = done.seconds / max(1, len(result.rounds) - 1)
        told = [("sites", f"{len(plan.federation)} {nodes}"), ("time", f"{seconds:.2f} s a round after the first")]
        for name, curve in result.curves().items():
            told.append((name, f"{curve[-1].value:.4f} after round {curve[-1].round} of {plan.rounds}"))
        told += [("written to", str(folder.path))] if folder.stays else []
        data = msgspec.to_builtins(result) | {"history": done.history, "seconds_a_round": seconds}
        picture = [round_table(f"{plan.federation.name} on Flower", result), facts(told)]
        picture.append(remarks([(False, note) for note in result.notes]))
        show(Result(data=data, rows=result.round_rows(), picture=picture), style)
    return 0
