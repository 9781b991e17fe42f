"""The command that attacks a plan, a run or a silo's own installation, and shows the results beside the claims."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from fulcrum.audit.audit_run import AuditedModule, Learning, whole_audit
from fulcrum.audit.evidence.findings import EVERY_COLUMN, VIOLATED, save_audit
from fulcrum.audit.integration.engine_runs import check_engine
from fulcrum.audit.integration.recorded_noise import read_recorded_run
from fulcrum.audit.learning.property_inference import LEAST_SHADOWS, MOST_SHADOWS
from fulcrum.audit.replays.canary_game import CONFIDENCE, TRIALS, check_canary_silos
from fulcrum.cli.run_commands.deployments import module_option
from fulcrum.cli.shared_options.options import (
    ATTACKS,
    FormatOption,
    argument,
    number,
    option,
    output_option,
    several,
    words_of,
)
from fulcrum.cli.shared_options.training_options import DEFAULT_DATA, TrainingOptions
from fulcrum.core.silo.policy import Policy
from fulcrum.core.silo.site import read_site
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import MissingExtraError, ParameterError
from fulcrum.planning.files.plan_from_file import plan_of, read_plan
from fulcrum.planning.plan import Plan
from fulcrum.server.run_results import run_folder
from fulcrum.simulation.data.datasets import read_data
from fulcrum.views.charts.chart_style import svg
from fulcrum.views.terminal.audit_picture import audit_picture
from fulcrum.views.terminal.audit_tables import audit_chart
from fulcrum.views.terminal.screen import Result, phases, show


def audit_command(
    plan_file: Annotated[
        Path, argument("Plan file, as `fulcrum plan -o` writes it; with --silo also the folder of a site.")
    ],
    *,
    run: Annotated[
        Path | None, option("Folder that `fulcrum train -o` wrote, whose sums are tested too. Default: none.", ATTACKS)
    ] = None,
    engine: Annotated[
        Literal["nvflare", "flower"] | None,
        option("Engine to send canaries through too, with every site on this machine. Default: none.", ATTACKS),
    ] = None,
    silo: Annotated[
        str | None,
        option("Silo to audit alone, as its operator on the silo's own installation. Default: all silos.", ATTACKS),
    ] = None,
    canary_silos: Annotated[
        int | None,
        number(
            "Number of silos with records of the attacked person, for a plan with --unit person or record. Default: as "
            "many as the plan provides for.",
            ATTACKS,
        ),
    ] = None,
    trials: Annotated[int, number("Number of replays of every game.", ATTACKS)] = TRIALS,
    shadows: Annotated[
        int, number("Number of federations to train for attacks on classes and records of silos; 0 for none.", ATTACKS)
    ] = 0,
    confidence: Annotated[
        float, option("Confidence, from 0 to 1, with which all bounds and verdicts hold together.", ATTACKS)
    ] = CONFIDENCE,
    seed: Annotated[int | None, number("Seed of the replays. Default: drawn at random.", ATTACKS)] = None,
    train: Annotated[
        str | None,
        option(
            "Training module whose gradients are checked by person, in this process, for a plan with --unit person or "
            "record. Default: the module of the site, or none.",
            ATTACKS,
        ),
    ] = None,
    settings: Annotated[
        tuple[str, ...],
        several("Option NAME=VALUE of the training module; may be repeated. Default: none.", ATTACKS, name="--option"),
    ] = (),
    learning: TrainingOptions | None = None,
    output: Annotated[Path | None, output_option("Folder to write audit.json and audit.svg to. Default: none.")] = None,
    style: FormatOption = "table",
) -> int:
    """Attack a plan as each observer would, and put the measured beside the claimed epsilon."""
    plan, policy, module = _plan_of(plan_file, silo)
    if settings and train is None:
        raise ParameterError("cli.option-without-train")
    if train is not None:
        if "" not in sys.path:  # a module in the current folder is found, as by `fulcrum up`
            sys.path.append("")
        module = AuditedModule(name=train, options=dict(map(module_option, settings)))
    check_canary_silos(plan, canary_silos)
    if engine is not None:
        if silo is not None:
            raise ParameterError("cli.silo-with-engine")
        check_engine(engine, plan)
    learned = _learning(plan, run, shadows, silo, learning)
    if output is not None:
        run_folder(output)
    with phases() as tell:
        results = whole_audit(
            plan,
            trials=trials,
            seed=seed,
            confidence=confidence,
            silo=silo,
            canary_silos=canary_silos,
            module=module,
            policy=policy,
            learning=learned,
            engine=engine,
            on_progress=tell,
        )
    if output is not None:
        repeated = {"trials": trials, "confidence": confidence, "silo": silo, "engine": engine, "shadows": shadows}
        repeated |= {"canary-silos": canary_silos, "train": train, "seed": results.seed}
        command = _command(plan_file, run, learning, repeated, settings)
        save_audit(msgspec.structs.replace(results, command=command), output)
        with suppress(MissingExtraError):  # the picture needs vl-convert; its figures are in audit.json
            write_whole(output / "audit.svg", svg(audit_chart(results)).encode())
    every = Result(
        data=results.summary(), rows=results.every_row(), fields=EVERY_COLUMN, picture=audit_picture(results)
    )
    show(every, style)
    return 1 if results.verdict == VIOLATED else 0


def _command(
    plan_file: Path,
    run: Path | None,
    learning: TrainingOptions | None,
    settings: Mapping[str, Any],
    options: Sequence[str],
) -> str:
    """Returns the command that repeats an audit, with the seed of the replays."""
    usual = {"confidence": CONFIDENCE, "silo": None, "engine": None, "shadows": 0, "canary-silos": None, "train": None}
    words = ["fulcrum audit", "SITE" if plan_file.is_dir() else "plan.json"]
    words += [] if run is None else ["--run run"]
    words += [
        f"--{name} {shlex.quote(str(value))}"
        for name, value in settings.items()
        if name not in usual or value != usual[name]
    ]
    words += [f"--option {shlex.quote(option_text)}" for option_text in options]
    words += [] if learning is None else [words_of(learning)]
    return f"{' '.join(word for word in words if word)} -o audit"


def _plan_of(where: Path, silo: str | None) -> tuple[Plan, Policy | None, AuditedModule | None]:
    """Returns the plan and, of a site's folder, the silo's policy and training module; the ledger is not opened."""
    if not where.is_dir():
        return read_plan(where), None, None
    if silo is None:
        raise ParameterError("cli.audit-of-folder", folder=where)
    site = read_site(where, "silo")
    if site.settings.name != silo:
        raise ParameterError("cli.site-of-other-silo", folder=where, found_silo=site.settings.name, silo=silo)
    if site.policy is not None:
        site.policy.check(site.plan, silo)  # early, since replays take minutes; every release checks the policy again
    settings, plan = site.settings, plan_of(site.plan.content())
    checked = plan.unit.is_within_silo and settings.train
    module = AuditedModule(name=settings.train, options=settings.options) if checked else None
    return plan, site.policy, module


def _learning(
    plan: Plan, run: Path | None, shadows: int, silo: str | None, choices: TrainingOptions | None
) -> Learning | None:
    """Returns the training for attacks on models; None without attacks on models. A useless option is refused."""
    if shadows and not LEAST_SHADOWS <= shadows <= MOST_SHADOWS:
        raise ParameterError("cli.shadows-range", least=LEAST_SHADOWS, most=MOST_SHADOWS, shadows=shadows)
    if silo is not None and (run is not None or shadows):
        raise ParameterError("cli.silo-with-run-or-shadows")
    if run is None and not shadows:
        if choices is not None:
            raise ParameterError("cli.learning-without-attack")
        return None
    options = choices or TrainingOptions()
    if options.records is not None:
        raise ParameterError("cli.audit-records")
    if not shadows and options.training != TrainingOptions().training:
        raise ParameterError("cli.learning-of-recorded-run")
    recorded = None if run is None else read_recorded_run(run, plan)
    named = options.source if recorded is None or options.source != DEFAULT_DATA else recorded.task
    task = read_data(named, plan.federation, **options.data_options)
    return Learning(task=task, training=options.training, shadows=shadows, run=recorded)
