"""The command that attacks a plan, a run or a silo's own installation, and puts what it finds beside the claim."""

import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from fulcrum.audit.audit_run import Learning, whole_audit
from fulcrum.audit.evidence.findings import EVERY_COLUMN, VIOLATED, save_audit
from fulcrum.audit.integration.engine_runs import check_engine
from fulcrum.audit.integration.recorded_noise import read_recorded_run
from fulcrum.audit.learning.property_inference import LEAST_SHADOWS, MOST_SHADOWS
from fulcrum.audit.replays.canary_game import CONFIDENCE, TRIALS
from fulcrum.cli.options import FormatOption, number, option, words_of
from fulcrum.cli.training_options import TrainingOptions
from fulcrum.core.silo.policy import Policy
from fulcrum.core.silo.site import read_site
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import MissingExtraError, ParameterError
from fulcrum.planning.files.plan_from_file import plan_of, read_plan
from fulcrum.planning.plan import Plan
from fulcrum.server.run_results import run_folder
from fulcrum.simulation.data.tasks import load_task
from fulcrum.views.charts.chart_style import svg
from fulcrum.views.terminal.audit_picture import audit_picture
from fulcrum.views.terminal.audit_tables import audit_chart
from fulcrum.views.terminal.screen import Result, check_format, phases, show


def audit_command(
    plan_file: Annotated[
        Path, Parameter(help="A plan file, as `fulcrum plan -o` writes it; with --silo also a site's folder.")
    ],
    *,
    run: Annotated[
        Path | None, Parameter(help="A folder that `fulcrum train -o` wrote: its sums are tested too.")
    ] = None,
    engine: Annotated[
        str | None, option("Send canaries through nvflare or flower too, with every site on this machine.")
    ] = None,
    silo: Annotated[
        str | None, option("Audit this silo alone, as its operator on the silo's own installation.")
    ] = None,
    trials: Annotated[int, number("Replays of each game.")] = TRIALS,
    shadows: Annotated[
        int, number("Federations to train for attacks on silos' classes and records; 0 leaves these out.")
    ] = 0,
    confidence: Annotated[float, option("With which all that is said holds together.")] = CONFIDENCE,
    seed: Annotated[int | None, number("Of the replays; drawn where not given.")] = None,
    learning: TrainingOptions | None = None,
    output: Annotated[
        Path | None, Parameter(name=["--output", "-o"], help="Write audit.json and audit.svg to this folder.")
    ] = None,
    style: FormatOption = "table",
) -> int:
    """Attack a plan as each observer would, and put the epsilon measured beside the one claimed."""
    check_format(style)
    plan, policy = _plan_of(plan_file, silo)
    if engine is not None:
        if silo is not None:
            raise ParameterError("cli.silo-with-engine")
        check_engine(engine, plan)
    learned = _learning(plan, run, shadows, silo, learning)
    if output is not None:
        run_folder(output)
    with phases() as tell:
        found = whole_audit(
            plan,
            trials=trials,
            seed=seed,
            confidence=confidence,
            silo=silo,
            policy=policy,
            learning=learned,
            engine=engine,
            on_progress=tell,
        )
    if output is not None:
        asked = {"trials": trials, "confidence": confidence, "silo": silo, "engine": engine, "shadows": shadows}
        command = _command(plan_file, run, learning, {**asked, "seed": found.seed})
        save_audit(msgspec.structs.replace(found, command=command), output)
        with suppress(MissingExtraError):  # the picture needs vl-convert; its figures are in audit.json
            write_whole(output / "audit.svg", svg(audit_chart(found)).encode())
    every = Result(data=found.summary(), rows=found.every_row(), fields=EVERY_COLUMN, picture=audit_picture(found))
    show(every, style)
    return 1 if found.verdict == VIOLATED else 0


def _command(plan_file: Path, run: Path | None, learning: TrainingOptions | None, asked: Mapping[str, Any]) -> str:
    """Returns the command that makes an audit again, its seed among what was asked for where it was drawn."""
    usual = {"confidence": CONFIDENCE, "silo": None, "engine": None, "shadows": 0}
    words = ["fulcrum audit", "SITE" if plan_file.is_dir() else "plan.json"]
    words += [] if run is None else ["--run run"]
    words += [
        f"--{name} {shlex.quote(str(value))}"
        for name, value in asked.items()
        if name not in usual or value != usual[name]
    ]
    words += [] if learning is None else [words_of(learning)]
    return f"{' '.join(word for word in words if word)} -o audit"


def _plan_of(where: Path, silo: str | None) -> tuple[Plan, Policy | None]:
    """Returns the plan, and the silo's policy where a site's folder was given; its ledger is not looked at."""
    if not where.is_dir():
        return read_plan(where), None
    if silo is None:
        raise ParameterError("cli.audit-of-folder", folder=where)
    site = read_site(where, "silo")
    if site.settings.name != silo:
        raise ParameterError("cli.site-of-other-silo", folder=where, found_silo=site.settings.name, silo=silo)
    if site.policy is not None:
        site.policy.check(site.plan, silo)  # before anybody waits for replays; releases ask it again
    return plan_of(site.plan.content()), site.policy


def _learning(
    plan: Plan, run: Path | None, shadows: int, silo: str | None, given: TrainingOptions | None
) -> Learning | None:
    """Returns what silos are trained on, where an attack needs it; an option that nothing would heed is refused."""
    if shadows and not LEAST_SHADOWS <= shadows <= MOST_SHADOWS:
        raise ParameterError("cli.shadows-range", least=LEAST_SHADOWS, most=MOST_SHADOWS, shadows=shadows)
    if silo is not None and (run is not None or shadows):
        raise ParameterError("cli.silo-with-run-or-shadows")
    if run is None and not shadows:
        if given is not None:
            raise ParameterError("cli.learning-without-attack")
        return None
    options = given or TrainingOptions()
    if options.records is not None:
        raise ParameterError("cli.audit-records")
    if not shadows and options.training != TrainingOptions().training:
        raise ParameterError("cli.learning-of-recorded-run")
    recorded = None if run is None else read_recorded_run(run, plan)
    named = options.data if recorded is None or options.data != TrainingOptions().data else recorded.task
    task = load_task(named, **options.data_options)
    return Learning(task=task, training=options.training, shadows=shadows, run=recorded)
