"""The commands that run a plan on a real federation: kits for its sites, the job, and all of it on one machine."""

import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from fulcrum.cli.options import FormatOption, PlanArgument, RunOption, number, option, words_of
from fulcrum.cli.training_options import TrackingOptions, TrainingOptions
from fulcrum.engines.deployed_run import save_deployed_run, save_model
from fulcrum.engines.nvflare.console import follow
from fulcrum.engines.nvflare.kits import write_kits
from fulcrum.engines.nvflare.loopback import free_port, run_here
from fulcrum.engines.sites import BUILT_IN, Deployment, LocalRun
from fulcrum.engines.trainable import check_fits, loaded_module
from fulcrum.errors import DataError, EngineError, ParameterError, PlanError
from fulcrum.ledger.ledger import Ledger
from fulcrum.planning.plan import Plan
from fulcrum.planning.plan_reading import read_plan
from fulcrum.roles.policy import read_policy
from fulcrum.roles.site import ledger_name
from fulcrum.simulation.results import RoundResult
from fulcrum.simulation.runs import run_folder
from fulcrum.views.columns import Column
from fulcrum.views.run_tables import round_table
from fulcrum.views.terminal import Result, check_format, facts, remarks, show, steps, table, working


@Parameter(name="*")
@dataclass(kw_only=True)
class SiteOptions:
    """What sites run, and how long they wait for each other."""

    train: Annotated[str, option("A module with the functions start and train, installed at silos and server.")] = (
        BUILT_IN
    )
    settings: Annotated[
        tuple[str, ...], Parameter(name="--option", help="NAME=VALUE for your training module; may be repeated.")
    ] = ()
    policy: Annotated[Path | None, option("The policy that every silo starts with, a TOML file.")] = None
    patience: Annotated[float, option("Seconds a region waits for its silos in a round.")] = 120.0
    seed: Annotated[int, number("Of a research plan: partition, batches and noise.")] = 0

    def deployment(self, plan: Plan, training: TrainingOptions, **where: Any) -> Deployment:
        """Returns what is to be deployed; what cannot be is refused here."""
        if not self.patience > 0:
            raise ParameterError(f"--patience must be a number of seconds above 0, got {self.patience:g}")
        if self.policy is not None:
            wanted = read_policy(self.policy)
            if plan.purpose == "research":
                raise ParameterError(
                    "a policy is for deployment plans, and this is a research plan. Leave --policy out"
                )
            for silo in plan.federation.silo_names.tolist():
                wanted.check(plan, silo)
        given = dict(map(_setting, self.settings))
        if given and self.train == BUILT_IN:
            raise ParameterError("--option is for a training module of your own. Give it with --train")
        return Deployment(
            plan=plan,
            train=self.train,
            options=given or (_options(training) if self.train == BUILT_IN else {}),
            patience=self.patience,
            seed=self.seed,
            policy=self.policy,
            **where,
        )


def _setting(text: str) -> tuple[str, Any]:
    """Reads NAME=VALUE; a value that is a number, true, false or a list in TOML is that, any other is text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ParameterError(f"--option must be NAME=VALUE, got {text!r}")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


def _options(training: TrainingOptions) -> dict[str, Any]:
    """Returns the options of the built-in training that are not its defaults."""
    given = vars(training) | {"silo": training.silo_column}
    given = {name: value for name, value in given.items() if name != "silo_column"}
    usual = vars(TrainingOptions()) | {"silo": None}
    chosen = {name: value for name, value in given.items() if value != usual.get(name)}
    return {"data": training.data} | {
        name: str(value) if isinstance(value, Path) else value for name, value in chosen.items()
    }


KitsOption = Annotated[Path, Parameter(name=["--output", "-o"], help="The folder for the kits; it must be new.")]
IssuerKeyOption = Annotated[
    Path | None, option("The issuer's private key, to sign the plan with; a new one by default.")
]


def deployment_of(
    plan_file: Path,
    sites: SiteOptions | None,
    training: TrainingOptions | None,
    *,
    engine: str,
    host: str,
    port: int,
) -> Deployment:
    """Returns what is handed out to operators; a research plan is refused."""
    plan = read_plan(plan_file)
    if plan.purpose == "research":
        raise PlanError(
            f"{plan_file} is a research plan, which protects nobody. Plan with --purpose deployment, or try it on this "
            f"machine with: fulcrum up {engine}"
        )
    return (sites or SiteOptions()).deployment(
        plan, training or TrainingOptions(), plan_file=plan_file, host=host, port=port
    )


def deploy_nvflare(
    plan_file: PlanArgument,
    *,
    output: KitsOption,
    sites: SiteOptions | None = None,
    training: TrainingOptions | None = None,
    host: Annotated[str, option("The name under which sites reach the server.")] = "localhost",
    port: Annotated[int, number("The server's port; the next one is the administrator's.")] = 8002,
    key: IssuerKeyOption = None,
    style: FormatOption = "table",
) -> int:
    """Write start-up kits for NVIDIA FLARE: mutual TLS, the signed plan in place, nothing open."""
    check_format(style)
    deployment = deployment_of(plan_file, sites, training, engine="nvflare", host=host, port=port)
    of_the_model = notes_on_the_model(deployment)
    with working("Making certificates and kits"):
        made = write_kits(deployment, output, issuer_key=key)
    told = {"kits": str(output), **made}
    rows = [{"site": name, "role": role, "kit": str(output / name)} for name, role in deployment.sites.items()]
    columns = [Column(key=name, heading=name, figures=False) for name in ("site", "role", "kit")]
    notes = [
        (False, f"Hand each site its kit, start them with start.sh, then run: fulcrum follow nvflare {output}"),
    ]
    if sites is not None and sites.train != BUILT_IN:
        notes.insert(0, (False, f"Install the module {sites.train} at every silo and at the server."))
    notes = of_the_model + notes
    if made["keys_made"]:
        notes.insert(0, (True, "Every private key was made here: whoever holds this folder can read every release."))
    picture = [
        table(f"{deployment.plan.federation.name}: kits for {len(rows)} sites", columns, rows),
        facts([("plan", made["plan_digest"]), ("issuer", made["issuer"])]),
        remarks(notes),
    ]
    show(Result(data=told, rows=rows, picture=picture), style)
    return 0


def notes_on_the_model(deployment: Deployment) -> list[tuple[bool, str]]:
    """Holds the model against the plan, where this machine can load it, and returns what is to be said of it.

    The training module, and what its function start reads, need not be where kits are made.
    """
    try:
        learner = loaded_module(deployment.train)
        start = learner.starting_model(deployment.options)
    except DataError as error:
        return [(True, f"Whether the model fits the plan could not be checked here: {error}.")]
    check_fits(learner, deployment.plan, start)
    return [(False, told) for told in learner.form(deployment.options).remarks()]


def follow_nvflare(
    kits: Annotated[Path, Parameter(help="The folder that `fulcrum deploy nvflare` wrote: admin and job are used.")],
    *,
    output: RunOption = None,
    tracked: TrackingOptions | None = None,
    style: FormatOption = "table",
) -> int:
    """Submit the job to a running federation and follow it; one that broke off goes on from its checkpoint."""
    check_format(style)
    if output is not None:
        run_folder(output)
    plan = read_plan(kits / "plan.json") if (kits / "plan.json").exists() else None  # who follows may lack it
    with (tracked or TrackingOptions()).open(plan, engine="nvflare") as tell, steps("Following") as say:

        def on_round(found: RoundResult) -> None:
            say(found.in_words(of=plan.rounds if plan else None))
            tell(found)

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


def up_nvflare(
    plan_file: PlanArgument,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"], help="Keep kits, logs and model here.")] = None,
    sites: SiteOptions | None = None,
    training: TrainingOptions | None = None,
    tracked: TrackingOptions | None = None,
    style: FormatOption = "table",
) -> int:
    """Run a plan on NVIDIA FLARE with every site a process on this machine, and stop them all at the end."""
    check_format(style)
    plan = read_plan(plan_file)
    sites, training = sites or SiteOptions(), training or TrainingOptions()
    deployment = sites.deployment(plan, training, port=free_port())
    learner = loaded_module(sites.train)
    check_fits(learner, plan, learner.starting_model(deployment.options))
    with RunFolder.of(output) as folder, (tracked or TrackingOptions()).open(plan, engine="nvflare") as tell:
        kits = folder.path / "kits"
        with working("Making certificates and kits"):
            write_kits(deployment, kits)
        with steps(f"{len(deployment.sites)} sites") as say:
            say("starting")

            def on_round(found: RoundResult) -> None:
                say(found.in_words(of=plan.rounds))
                tell(found)

            done = run_here(deployment, kits, on_round=on_round, stall=60 + 3 * sites.patience)
        folder.stays = folder.stays or bool(done.failed)
        if folder.stays:
            save_model(done.model, folder.path)
            learned = words_of(training, "data") if sites.train == BUILT_IN else ""
            said = ["fulcrum up nvflare plan.json", words_of(sites), learned, "-o run"]
            done.run.command = " ".join(filter(None, said))
            save_deployed_run(done.run, folder.path)
        _show_run(deployment, done, folder, style)
    return 0


@dataclass(kw_only=True)
class RunFolder:
    """The folder of a run, and whether it stays."""

    path: Path
    stays: bool

    @classmethod
    @contextmanager
    def of(cls, output: Path | None) -> "Iterator[RunFolder]":
        """Gives the folder asked for, or one that is gone afterwards unless its logs tell why something failed."""
        if output is not None:
            yield cls(path=output, stays=True)
            return
        folder = cls(path=Path(tempfile.mkdtemp(prefix="fulcrum-")), stays=False)
        try:
            yield folder
        except EngineError as error:
            folder.stays = True
            raise EngineError(f"{error} (kept: {folder.path})") from None
        finally:
            if not folder.stays:
                shutil.rmtree(folder.path)


def _show_run(deployment: Deployment, done: LocalRun, folder: RunFolder, style: str) -> None:
    """Shows what came of every round, and of the model."""
    plan, run = deployment.plan, done.run
    data: dict[str, Any] = msgspec.to_builtins(run) | {
        "sites": len(deployment.sites),
        "history": done.history,
        "seconds_a_round": done.seconds / max(1, len(run.rounds) - 1),
        "releases": _releases(deployment, folder.path / "kits"),
        "failed": done.failed,
    }
    told = [("sites", f"{len(deployment.sites)} processes with mutual TLS, all stopped")]
    told.append(("time", f"{data['seconds_a_round']:.2f} s a round after the first"))
    for name, curve in run.curves().items():
        told.append((name, f"{curve[-1].value:.4f} after round {curve[-1].round} of {plan.rounds}"))
    if plan.purpose == "deployment":
        told.append(("ledgers", f"{sum(data['releases'].values())} releases of {len(plan.federation)} silos charged"))
    if folder.stays:
        told.append(("written to", str(folder.path)))
    silent = sorted(set(deployment.regions) - {region for summary in done.history for region in summary["summed"]})
    notes = [(True, f"{', '.join(silent)} never summed: log.txt in the kit says why.")] if silent else []
    notes += [(True, f"{done.failed[0].upper()}{done.failed[1:]}")] if done.failed else []
    notes += [(False, note) for note in run.notes]
    picture = [round_table(f"{plan.federation.name} on NVIDIA FLARE", run), facts(told), remarks(notes)]
    show(Result(data=data, rows=run.round_rows(), picture=picture), style)


def _releases(deployment: Deployment, kits: Path) -> dict[str, int]:
    """Returns how many releases each silo's ledger holds; research plans keep none."""
    found = {}
    for silo in deployment.plan.federation.silo_names.tolist():
        path = kits / silo / "local" / "fulcrum" / "state" / ledger_name(silo)
        if path.exists():
            with Ledger.read(path) as ledger:
                found[silo] = len(ledger.entries())
    return found
