"""What the commands of every engine share: what sites are told, their kits, and runs on this machine alone."""

import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from fulcrum.cli.options import FormatOption, number, option, words_of
from fulcrum.cli.training_options import TrackingOptions, TrainingOptions
from fulcrum.core.silo.policy import read_policy
from fulcrum.engines.engine import Engine
from fulcrum.engines.local_sites import free_port
from fulcrum.engines.site_folders import BUILT_IN, Deployment, LocalRun
from fulcrum.engines.training_check import check_fits, loaded_module
from fulcrum.errors import DataError, EngineError, ParameterError, PlanError
from fulcrum.parsing import toml_of
from fulcrum.planning.files.plan_from_file import read_plan
from fulcrum.planning.plan import Plan
from fulcrum.server.deployed_run import save_deployed_run, save_model
from fulcrum.server.run_results import RoundResult
from fulcrum.views.terminal.run_tables import round_table
from fulcrum.views.terminal.screen import Result, check_format, facts, remarks, show, steps, table, working
from fulcrum.views.terminal.table_columns import Column


@Parameter(name="*")
@dataclass(kw_only=True)
class SiteOptions:
    """What sites run, and how long they wait for each other."""

    train: Annotated[str, option("A module with the functions start and train, installed at silos and server.")] = (
        BUILT_IN
    )
    settings: Annotated[
        tuple[str, ...],
        Parameter(name="--option", negative=(), help="NAME=VALUE for your training module; may be repeated."),
    ] = ()
    policy: Annotated[Path | None, option("The policy that every silo starts with, a TOML file.")] = None
    patience: Annotated[float, option("Seconds a region waits for its silos in a round.")] = 120.0
    seed: Annotated[int, number("Seed of a research plan's partition, batches and noise.")] = 0

    def deployment(self, plan: Plan, training: TrainingOptions, **where: Any) -> Deployment:
        """Returns what is to be deployed; what cannot be is refused here."""
        if not self.patience > 0:
            raise ParameterError("cli.patience-range", patience=self.patience)
        if self.policy is not None:
            read_policy(self.policy)  # whether every silo may release under the plan is asked once it is signed
            if plan.purpose == "research":
                raise ParameterError("cli.policy-for-research-plan")
        given = dict(map(_setting, self.settings))
        if given and self.train == BUILT_IN:
            raise ParameterError("cli.option-without-train")
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
        raise ParameterError("cli.option-form", text=text)
    try:
        return name, toml_of(f"value = {value}")["value"]
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
    engine: Engine,
    host: str,
    port: int,
) -> Deployment:
    """Returns what is handed out to operators; a research plan is refused."""
    plan = read_plan(plan_file)
    if plan.purpose == "research":
        raise PlanError("cli.research-plan-deployed", file=plan_file, engine=engine.name)
    return (sites or SiteOptions()).deployment(
        plan, training or TrainingOptions(), plan_file=plan_file, host=host, port=port
    )


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
            raise EngineError("cli.run-failed", reason=str(error), folder=folder.path, cause=error.code) from None
        finally:
            if not folder.stays:
                shutil.rmtree(folder.path)


def show_kits(
    deployment: Deployment,
    output: Path,
    made: dict[str, Any],
    rows: Sequence[dict[str, str]],
    notes: list[tuple[bool, str]],
    style: str,
) -> None:
    """Shows the kits that were written, a row a site, and what is to be said of them."""
    columns = [Column(key=name, heading=name, figures=False) for name in rows[0]]
    picture = [
        table(f"{deployment.plan.federation.name}: kits for {len(rows)} sites", columns, rows),
        facts([("plan", made["plan_digest"]), ("issuer", made["issuer"])]),
        remarks(notes),
    ]
    show(Result(data={"kits": str(output), **made}, rows=rows, picture=picture), style)


@Parameter(name="*")
@dataclass(kw_only=True)
class LocalOptions:
    """How a plan is run with every site on this machine."""

    output: Annotated[Path | None, Parameter(name=["--output", "-o"], help="Keep sites, logs, run and model here.")] = (
        None
    )
    sites: SiteOptions = field(default_factory=SiteOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    tracked: TrackingOptions = field(default_factory=TrackingOptions)
    style: FormatOption = "table"


Runner = Callable[[Deployment, Path, Callable[[RoundResult], None]], LocalRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class Further:
    """What an engine tells of a run beyond what all do.

    Attributes:
        data: For programs.
        told: Names and facts, for people.
        notes: Whether each is a warning, and its text.
    """

    data: dict[str, Any] = field(default_factory=dict)
    told: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[bool, str]] = field(default_factory=list)


def run_locally(
    plan_file: Path,
    options: LocalOptions | None,
    engine: Engine,
    *,
    sites: Callable[[Deployment], int],
    called: str,
    nodes: str,
    verb: str = "up",
    run: Runner | None = None,
    further: Callable[[Deployment, LocalRun, Path], Further] = lambda *_: Further(),
) -> int:
    """Runs a plan to its last round with every site on this machine, and shows what came of it.

    Args:
        plan_file: The plan.
        options: What was asked for.
        engine: The engine that runs it.
        sites: How many sites are told of.
        called: What they are called while it runs: "silos".
        nodes: What they were, in the end.
        verb: The command, as it is typed.
        run: Runs a deployment in a folder, and tells of each round; by default the engine does, with kits.
        further: What the engine tells of the run beside.
    """
    given = options or LocalOptions()
    check_format(given.style)
    plan = read_plan(plan_file)
    deployment = given.sites.deployment(
        plan, given.training, host=engine.host_here, port=free_port(following=1), runs_here=True
    )
    engine.check(deployment)
    learner = loaded_module(given.sites.train)
    check_fits(learner, plan, learner.starting_model(deployment.options))
    with RunFolder.of(given.output) as folder, given.tracked.open(plan, engine=engine.name) as tell:
        with steps(f"{sites(deployment)} {called}") as say:
            say("starting")

            def on_round(found: RoundResult) -> None:
                say(found.in_words(of=plan.rounds))
                tell(found)

            done = (run or _runner(engine))(deployment, folder.path, on_round)
        folder.stays = folder.stays or bool(done.failed)
        if folder.stays:
            learned = words_of(given.training, "data") if given.sites.train == BUILT_IN else ""
            said = [f"fulcrum {verb} {engine.name} plan.json", words_of(given.sites), learned, "-o run"]
            done.run.command = " ".join(filter(None, said))
            save_model(done.model, folder.path)
            save_deployed_run(done.run, folder.path)
        _show_run(
            deployment,
            done,
            folder,
            f"{sites(deployment)} {nodes}",
            engine.title,
            further(deployment, done, folder.path),
            given.style,
        )
    return 0


def _runner(engine: Engine) -> Runner:
    """Returns a runner that writes kits and starts each of them here."""

    def run(deployment: Deployment, folder: Path, on_round: Callable[[RoundResult], None]) -> LocalRun:
        with working("Making certificates and kits"):
            engine.write_kits(deployment, folder / "kits")
        return engine.run_here(deployment, folder / "kits", on_round=on_round)

    return run


def _show_run(
    deployment: Deployment, done: LocalRun, folder: RunFolder, nodes: str, title: str, further: Further, style: str
) -> None:
    """Shows what came of every round, and of the model."""
    plan, run = deployment.plan, done.run
    seconds = done.seconds / max(1, len(run.rounds) - 1)
    told = [("sites", nodes), ("time", f"{seconds:.2f} s a round after the first")]
    for name, curve in run.curves().items():
        told.append((name, f"{curve[-1].value:.4f} after round {curve[-1].round} of {plan.rounds}"))
    told += further.told
    if folder.stays:
        told.append(("written to", str(folder.path)))
    notes = [*further.notes, *((False, note) for note in run.notes)]
    data = msgspec.to_builtins(run) | {"history": done.history, "seconds_a_round": seconds} | further.data
    picture = [round_table(f"{plan.federation.name} on {title}", run), facts(told), remarks(notes)]
    show(Result(data=data, rows=run.round_rows(), picture=picture), style)
