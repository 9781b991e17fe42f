"""Shared parts of the commands of all engines: options of sites, kits, and runs on a single machine."""

import shlex
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from fulcrum.cli.shared_options.options import (
    DEPLOYMENT,
    FormatOption,
    number,
    option,
    output_option,
    several,
    words_of,
)
from fulcrum.cli.shared_options.training_options import TrackingOptions, TrainingOptions
from fulcrum.core.silo.policy import read_policy
from fulcrum.engines.built_in_training import check_options
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
from fulcrum.simulation.data.real_federations import is_real_federation
from fulcrum.simulation.data.tasks import BUILT_IN as NAMED_DATA
from fulcrum.views.terminal.run_tables import round_table
from fulcrum.views.terminal.screen import Result, facts, remarks, show, steps, table
from fulcrum.views.terminal.table_columns import Column


@Parameter(name="*")
@dataclass(kw_only=True)
class SiteOptions:
    """The options of sites: training module, policy, patience and seed."""

    train: Annotated[
        str,
        option("Training module with the functions start and train, installed at silos and server.", DEPLOYMENT),
    ] = BUILT_IN
    settings: Annotated[
        tuple[str, ...],
        several(
            "Option NAME=VALUE of your training module; may be repeated. Default: none.", DEPLOYMENT, name="--option"
        ),
    ] = ()
    policy: Annotated[
        Path | None, option("Policy that every silo starts with, a TOML file. Default: none.", DEPLOYMENT)
    ] = None
    patience: Annotated[
        float,
        option(
            "Seconds that a region waits for its silos in a round. Then the region sends the sum of the releases that "
            "came, or withholds the sum if too many are missing.",
            DEPLOYMENT,
        ),
    ] = 120.0
    seed: Annotated[int, number("Seed of a research plan: of its partition, batches and noise.", DEPLOYMENT)] = 0

    def deployment(self, plan: Plan, training: TrainingOptions, **where: Any) -> Deployment:
        """Returns the deployment of a plan.

        Raises:
            ParameterError: The options contradict the plan, or contradict themselves.
        """
        if not self.patience > 0:
            raise ParameterError("cli.patience-range", patience=self.patience)
        if self.policy is not None:
            read_policy(
                self.policy
            )  # an unreadable file is refused now; the plan is checked against the policy once the plan is signed
            if plan.is_research:
                raise ParameterError("cli.policy-for-research-plan")
        settings = dict(map(module_option, self.settings))
        if settings and self.train == BUILT_IN:
            raise ParameterError("cli.option-without-train")
        return Deployment(
            plan=plan,
            train=self.train,
            options=settings or (_options(training, **where) if self.train == BUILT_IN else {}),
            patience=self.patience,
            seed=self.seed,
            policy=self.policy,
            **where,
        )


def module_option(text: str) -> tuple[str, Any]:
    """Returns name and value of NAME=VALUE; a number, true, false or a list as in TOML, any other value as text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ParameterError("cli.option-form", text=text)
    try:
        return name, toml_of(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name, value


def _options(training: TrainingOptions, *, runs_here: bool = False, **_: Any) -> dict[str, Any]:
    """Returns the data and all options of the built-in training with a value other than the default.

    Sites run in folders of their own. Paths of a run on this machine are therefore made absolute; the records of a
    deployment are at the sites.
    """
    choices = vars(training) | {"silo": training.silo_column, "person": training.person_column}
    choices = {name: value for name, value in choices.items() if name not in ("silo_column", "person_column")}
    if training.input_factors is not None:
        choices["input_factors"] = training.input_factors.absolute()
    usual = vars(TrainingOptions()) | {"silo": None, "person": None}
    chosen = {name: value for name, value in choices.items() if value != usual.get(name)}
    chosen["data"] = training.source
    if runs_here:
        has_name = training.source in NAMED_DATA or is_real_federation(training.source, training.data_dir)
        for name in {"data_dir", "ranges", *([] if has_name else ["data"])} & chosen.keys():
            if Path(chosen[name]).exists():
                chosen[name] = Path(chosen[name]).absolute()
    return {name: str(value) if isinstance(value, Path) else value for name, value in chosen.items()}


_MISTAKES_OF_MODULES = (
    "training.function-missing",
    "training.function-type",
    "training.head-type",
    "training.server-rate",
)
"""Mistakes of a training module that are the same on every machine."""

KitsOption = Annotated[Path, output_option("New folder for the kits.")]
IssuerKeyOption = Annotated[
    Path | None, option("Private key of the issuer, which signs the plan. Default: a new key.", DEPLOYMENT)
]


ReplaceOption = Annotated[
    bool,
    option("Replace kits that an earlier call wrote into the folder. Kits that anybody has changed stay.", DEPLOYMENT),
]


def deployment_of(
    plan_file: Path,
    sites: SiteOptions | None,
    training: TrainingOptions | None,
    *,
    engine: Engine,
    host: str,
    port: int,
    replaces: bool,
) -> Deployment:
    """Returns the deployment for the operators of sites; a research plan is refused."""
    plan = read_plan(plan_file)
    if plan.is_research:
        raise PlanError("cli.research-plan-deployed", file=plan_file, engine=engine.name)
    return (sites or SiteOptions()).deployment(
        plan, training or TrainingOptions(), plan_file=plan_file, host=host, port=port, replaces=replaces
    )


def notes_on_the_model(deployment: Deployment) -> list[tuple[bool, str]]:
    """Checks the model against the plan, and returns remarks on the model.

    The machine for making kits need not have the training module or the data. The remark then says so. A module that is
    here and lacks a function is refused: every site would refuse the module later.
    """
    try:
        training_module = loaded_module(deployment.train)
        start = training_module.starting_model(deployment.options)
    except DataError as error:
        if error.code in _MISTAKES_OF_MODULES:
            raise
        _check_declared_classes(deployment)
        return [(True, f"The model could not be checked against the plan on this machine: {error}.")]
    check_fits(training_module, deployment.plan, start)
    if deployment.train == BUILT_IN:
        check_options(deployment.options, deployment.plan)
    return [(False, remark) for remark in training_module.form(deployment.options).remarks()]


def _check_declared_classes(deployment: Deployment) -> None:
    """Raises for missing declarations of classes, which show without the data of the sites."""
    try:
        if deployment.train == BUILT_IN:
            check_options(deployment.options, deployment.plan)
    except DataError as error:
        if error.code == "data.classes-undeclared":
            raise


@dataclass(kw_only=True)
class RunFolder:
    """The folder of a run; `stays` is False for a folder to remove at the end."""

    path: Path
    stays: bool

    @classmethod
    @contextmanager
    def of(cls, output: Path | None) -> "Iterator[RunFolder]":
        """Yields the chosen folder, or a temporary folder, kept only for the logs of a failure."""
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
    summary: dict[str, Any],
    rows: Sequence[dict[str, str]],
    notes: list[tuple[bool, str]],
    style: str,
) -> None:
    """Shows the new kits, a row for every site, and remarks."""
    columns = [Column(key=name, heading=name, figures=False) for name in rows[0]]
    picture = [
        table(f"{deployment.plan.federation.name}: kits for {len(rows)} sites", columns, rows),
        facts([("plan", summary["plan_digest"]), ("issuer", summary["issuer"])]),
        remarks(notes),
    ]
    show(Result(data={"kits": str(output), **summary}, rows=rows, picture=picture), style)


@Parameter(name="*")
@dataclass(kw_only=True)
class LocalOptions:
    """The options of a run with every site on this machine."""

    output: Annotated[Path | None, output_option("Folder to keep sites, logs, run and model in. Default: none.")] = None
    sites: SiteOptions = field(default_factory=SiteOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)
    tracked: TrackingOptions = field(default_factory=TrackingOptions)
    style: FormatOption = "table"


OnRound = Callable[[RoundResult], None]
Say = Callable[[str], None]
Runner = Callable[[Deployment, Path, OnRound, Say], LocalRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class Further:
    """An engine's own results of a run.

    Attributes:
        data: Results for programs.
        lines: Names and facts for people.
        notes: Remarks: True for a warning, and the text.
    """

    data: dict[str, Any] = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)
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
    app: tuple[Path, Callable[[Path, Plan], str]] | None = None,
) -> int:
    """Runs a plan to its last round with every site on this machine, and shows the results.

    Args:
        plan_file: The plan.
        options: The options of the command line.
        engine: The engine of the run.
        sites: Returns the number of sites to show.
        called: The word for sites during the run: "silos".
        nodes: The words for sites after the run.
        verb: The command as a user types it.
        run: Runs a deployment in a folder, and reports every round and every step. By default the engine does so, with
            kits.
        further: Returns the engine's own results.
        app: The folder of a user's app, which trains in the place of a training module, and the function that checks
            the app and returns the name of the app's package.
    """
    choices = options or LocalOptions()
    plan = read_plan(plan_file)
    sites_of_app = choices.sites if app is None else replace(choices.sites, train=app[1](app[0], plan))
    deployment = sites_of_app.deployment(
        plan, choices.training, host=engine.host_here, port=free_port(following=1), runs_here=True
    )
    engine.check(deployment)
    if app is None:
        training_module = loaded_module(choices.sites.train)
        check_fits(training_module, plan, training_module.starting_model(deployment.options))
    if deployment.train == BUILT_IN:
        check_options(deployment.options, plan)
    with RunFolder.of(choices.output) as folder, choices.tracked.open(plan, engine=engine.name) as tell:
        with steps(f"{sites(deployment)} {called}") as say:
            say("starting")

            def on_round(result: RoundResult) -> None:
                say(result.in_words(of=plan.rounds))
                tell(result)

            done = (run or _runner(engine))(deployment, folder.path, on_round, say)
        folder.stays = folder.stays or bool(done.failed)
        if folder.stays:
            learned = words_of(choices.training, "data") if deployment.train == BUILT_IN else ""
            learned = learned if app is None else f"--app {shlex.quote(str(app[0]))}"
            words = [f"fulcrum {verb} {engine.name} plan.json", words_of(choices.sites), learned, "-o run"]
            done.run.command = " ".join(filter(None, words))
            save_model(done.model, folder.path)
            save_deployed_run(done.run, folder.path)
        results = further(deployment, done, folder.path)
        failed = [(True, f"{done.failed[0].upper()}{done.failed[1:]}")] if done.failed else []
        _show_run(
            deployment,
            done,
            folder,
            f"{sites(deployment)} {nodes}",
            engine.title,
            replace(results, notes=[*results.notes, *failed], data={**results.data, "failed": done.failed}),
            choices.style,
        )
    return 0


def _runner(engine: Engine) -> Runner:
    """Returns a runner that writes kits and starts every kit on this machine."""

    def run(deployment: Deployment, folder: Path, on_round: OnRound, say: Say) -> LocalRun:
        say("making certificates and kits")
        engine.write_kits(deployment, folder / "kits")
        return engine.run_here(deployment, folder / "kits", on_round=on_round, say=say)

    return run


def _show_run(
    deployment: Deployment, done: LocalRun, folder: RunFolder, nodes: str, title: str, further: Further, style: str
) -> None:
    """Shows the results of every round, and of the model."""
    plan, run = deployment.plan, done.run
    seconds = done.seconds / max(1, len(run.rounds) - 1)
    lines = [("sites", nodes), ("time", f"{seconds:.2f} s a round after the first")]
    for name, curve in run.curves().items():
        lines.append((name, f"{curve[-1].value:.4f} after round {curve[-1].round} of {plan.rounds}"))
    lines += further.lines
    if folder.stays:
        lines.append(("written to", str(folder.path)))
    notes = [*further.notes, *((False, note) for note in run.notes)]
    data = msgspec.to_builtins(run) | {"history": done.history, "seconds_a_round": seconds} | further.data
    picture = [round_table(f"{plan.federation.name} on {title}", run), facts(lines), remarks(notes)]
    show(Result(data=data, rows=run.round_rows(), picture=picture), style)
