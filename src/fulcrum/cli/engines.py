"""The commands that run a plan on a real federation: kits for its sites, the job, and all of it on one machine."""

import shutil
import socket
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from fulcrum.cli.options import FormatOption, PlanArgument, number, option
from fulcrum.cli.training_options import TrainingOptions
from fulcrum.engines.built_in_training import accuracy
from fulcrum.engines.nvflare.console import follow
from fulcrum.engines.nvflare.kits import BUILT_IN, Deployment, write_kits
from fulcrum.engines.nvflare.loopback import run_here
from fulcrum.errors import EngineError, ParameterError, PlanError
from fulcrum.exchange.model import checked_model
from fulcrum.ledger.ledger import Ledger
from fulcrum.planning.plan import Plan
from fulcrum.planning.plan_reading import read_plan
from fulcrum.roles.checkpoint import RoundSummary
from fulcrum.roles.learning import load_learner
from fulcrum.roles.policy import read_policy
from fulcrum.roles.site import ledger_name
from fulcrum.views.terminal import Column, Result, check_format, facts, remarks, show, steps, table, working


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


def deploy_nvflare(
    plan_file: PlanArgument,
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The folder for the kits; it must be new.")],
    sites: SiteOptions | None = None,
    training: TrainingOptions | None = None,
    host: Annotated[str, option("The name under which sites reach the server.")] = "localhost",
    port: Annotated[int, number("The server's port; the next one is the administrator's.")] = 8002,
    key: Annotated[
        Path | None, option("The issuer's private key, to sign the plan with; a new one by default.")
    ] = None,
    style: FormatOption = "table",
) -> int:
    """Write start-up kits for NVIDIA FLARE: mutual TLS, the signed plan in place, nothing open."""
    check_format(style)
    plan = read_plan(plan_file)
    if plan.purpose == "research":
        raise PlanError(
            f"{plan_file} is a research plan, which protects nobody. Plan with --purpose deployment, or try it on this "
            "machine with: fulcrum up nvflare"
        )
    deployment = (sites or SiteOptions()).deployment(
        plan, training or TrainingOptions(), plan_file=plan_file, host=host, port=port
    )
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
    if made["keys_made"]:
        notes.insert(0, (True, "Every private key was made here: whoever holds this folder can read every release."))
    picture = [
        table(f"{deployment.plan.federation.name}: kits for {len(rows)} sites", columns, rows),
        facts([("plan", made["plan_digest"]), ("issuer", made["issuer"])]),
        remarks(notes),
    ]
    show(Result(data=told, rows=rows, picture=picture), style)
    return 0


def follow_nvflare(
    kits: Annotated[Path, Parameter(help="The folder that `fulcrum deploy nvflare` wrote: admin and job are used.")],
    *,
    style: FormatOption = "table",
) -> int:
    """Submit the job to a running federation and follow it; one that broke off goes on from its checkpoint."""
    check_format(style)
    with steps("Following") as say:
        follow(kits, tick=lambda: None, on_status=say)
    told = {"kits": str(kits), "complete": True}
    show(Result(data=told, rows=[told], picture=[remarks([(False, "Every round of the plan is over.")])]), style)
    return 0


def up_nvflare(
    plan_file: PlanArgument,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"], help="Keep kits, logs and model here.")] = None,
    sites: SiteOptions | None = None,
    training: TrainingOptions | None = None,
    style: FormatOption = "table",
) -> int:
    """Run a plan on NVIDIA FLARE with every site a process on this machine, and stop them all at the end."""
    check_format(style)
    plan = read_plan(plan_file)
    sites, training = sites or SiteOptions(), training or TrainingOptions()
    deployment = sites.deployment(plan, training, port=_free_ports())
    if "" not in sys.path:
        sys.path.append("")  # the user's own module may stand in the current folder
    learner = load_learner(sites.train)
    start = learner.starting_model(deployment.options)
    checked_model(plan, start)
    learner.classes(start)  # refused here where it is declared wrongly
    with _folder(output) as folder:
        kits = folder / "kits"
        with working("Making certificates and kits"):
            write_kits(deployment, kits)
        with steps(f"{len(deployment.sites)} sites") as say:
            say("starting")
            run = run_here(
                deployment,
                kits,
                on_round=lambda told: say(_in_words(told, plan.rounds)),
                stall=60 + 3 * sites.patience,
            )
        _show_run(deployment, run, folder, style, kept=output is not None)
    return 0


@contextmanager
def _folder(output: Path | None) -> Iterator[Path]:
    """The folder of a run: as asked for, or one that is gone afterwards unless the logs tell why a run failed."""
    if output is not None:
        yield output
        return
    folder = Path(tempfile.mkdtemp(prefix="fulcrum-"))
    try:
        yield folder
    except EngineError as error:
        raise EngineError(f"{error} (kept: {folder})") from None
    except BaseException:
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


def _show_run(deployment: Deployment, run: dict[str, Any], folder: Path, style: str, *, kept: bool) -> None:
    """Shows what became of every round, and of the model."""
    plan, kits = deployment.plan, folder / "kits"
    data: dict[str, Any] = {
        "plan_digest": read_plan(kits / "plan.json").digest,
        "sites": len(deployment.sites),
        "rounds": run["history"],
        "seconds_a_round": run["seconds"] / max(1, len(run["history"]) - 1),
        "releases": _releases(deployment, kits),
    }
    told = [("sites", f"{len(deployment.sites)} processes with mutual TLS, all stopped")]
    told.append(("time", f"{data['seconds_a_round']:.2f} s a round after the first"))
    if deployment.train == BUILT_IN:
        data["accuracy"] = accuracy(run["model"], deployment.options)
        told.append(("accuracy", f"{data['accuracy']:.4f} after {plan.rounds} rounds"))
    if plan.purpose == "deployment":
        told.append(("ledgers", f"{sum(data['releases'].values())} releases of {len(plan.federation)} silos charged"))
    if kept:
        np.savez(folder / "model.npz", **run["model"])
        told.append(("written to", str(folder)))
    rows = [
        {
            "round": summary["round"],
            "summed": len(summary["summed"]),
            "silos": sum(map(len, summary["members"].values())),
            "withheld": ", ".join(sorted({*summary["withheld"], *summary["missing"]})),
        }
        for summary in run["history"]
    ]
    columns = [
        Column(key="round", heading="round"),
        Column(key="summed", heading="regions summed"),
        Column(key="silos", heading="silos in them"),
        Column(key="withheld", heading="withheld", figures=False),
    ]
    silent = sorted(set(deployment.regions) - {region for summary in run["history"] for region in summary["summed"]})
    warned = [(True, f"{', '.join(silent)} never summed: log.txt in the kit says why.")] if silent else []
    picture = [table(f"{plan.federation.name} on NVIDIA FLARE", columns, rows), facts(told), remarks(warned)]
    show(Result(data=data, rows=rows, picture=picture), style)


def _in_words(told: RoundSummary, rounds: int) -> str:
    without = sorted({*told["withheld"], *told["missing"]})
    kept = f", withheld by {', '.join(without)}" if without else ""
    return f"round {told['round']} of {rounds}: {len(told['summed'])} regional sums{kept}"


def _releases(deployment: Deployment, kits: Path) -> dict[str, int]:
    """Returns how many releases each silo's ledger holds; research plans keep none."""
    found = {}
    for silo in deployment.plan.federation.silo_names.tolist():
        path = kits / silo / "local" / "fulcrum" / "state" / ledger_name(silo)
        if path.exists():
            with Ledger.read(path) as ledger:
                found[silo] = len(ledger.entries())
    return found


def _free_ports() -> int:
    """Returns a port that is free here, with a free one after it."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("", port + 1))
            except OSError:
                continue
            return port
