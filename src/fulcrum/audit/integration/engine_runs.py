"""The canary game on a real engine: all silos of a federation send canaries, and the auditor tests the server's sums.

Every site runs as in a deployment, on this machine: silos clip, perturb, account and seal or mask, and the server
stores the sums (`fulcrum.server.sum_archive`). The auditor knows all updates and subtracts them. Noise remains, a value
for every coordinate of a round's sum. The verdict rests on the width and freshness of the noise and on any part of the
canaries beyond the clip. A run takes seconds and not microseconds, so runs repeat until the time is up.
"""

import importlib.util
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.audit.evidence.findings import Probe
from fulcrum.audit.evidence.judging import Errors, probe
from fulcrum.audit.integration.masked_noise import canaries_of
from fulcrum.audit.integration.release_noise import VALUES_A_SILO
from fulcrum.core.messages.aggregation_tree import AggregationTree, levels_of, tree_of
from fulcrum.core.messages.regional_reply import RegionalSum
from fulcrum.engines.engine import engine_named
from fulcrum.engines.flower.flower_simulation import simulate
from fulcrum.engines.local_sites import free_port
from fulcrum.engines.site_folders import Deployment
from fulcrum.errors import EngineError, MissingExtraError, ParameterError
from fulcrum.planning.engine_limits import SERVER
from fulcrum.planning.plan import Plan
from fulcrum.server.checkpoint import RoundSummary
from fulcrum.server.sum_archive import read_kept_sums

ENGINES = {"nvflare": "NVIDIA FLARE", "flower": "Flower"}
"""Engines that an audit can send canaries through, and their names in sentences."""

CANARIES = "fulcrum.audit.integration.canary_training"
"""The training module of every site."""

SECONDS = 120.0
"""No further run begins if it would end later than this."""

_NEEDS = {"nvflare": ("nvflare",), "flower": ("flwr", "ray")}
_MOST_SITES = {"nvflare": 40, "flower": 200}  # processes, each of its own interpreter; nodes on Ray
_MOST_RUNS = 8
_PATIENCE = 60.0  # seconds: canaries take no time to train

OnRound = Callable[[str, int, int], None]


def check_engine(engine: str, plan: Plan) -> None:
    """Raises unless canaries can be sent through an engine under a plan, before any game starts."""
    if engine not in ENGINES:
        raise ParameterError("audit.engine-unknown", known=", ".join(ENGINES), engine=engine)
    engine_named(engine).check(Deployment(plan=plan, train=CANARIES))
    if any(importlib.util.find_spec(name) is None for name in _NEEDS[engine]):
        raise MissingExtraError("engine.not-installed", package=ENGINES[engine], extra=engine)
    aggregators = sum(len(tier.nodes) for tier in levels_of(plan)) if engine == "nvflare" else 0
    sites = len(plan.federation) + aggregators + 1
    if sites > _MOST_SITES[engine]:
        raise ParameterError("audit.sites-too-many", engine_name=ENGINES[engine], most=_MOST_SITES[engine], sites=sites)


def engine_run_probes(
    plan: Plan, errors: Errors, *, engine: str, seed: int, seconds: float = SECONDS, on_round: OnRound = lambda *_: None
) -> list[Probe]:
    """Returns the verdict on the sums of an engine's server, by sender: the plan's noise and clipped canaries.

    Args:
        plan: The plan, run to its last round; on Flower with masked sums.
        errors: Allowed error of every test.
        engine: A key of `ENGINES`.
        seed: Seed of the canaries, and of the noise in research.
        seconds: Time after which no further run begins.
        on_round: Called with the name of the run, the number of finished rounds, and the number of all rounds.
    """
    check_engine(engine, plan)
    began, runs, longest = time.monotonic(), 0, 0.0
    seen: dict[str, list[tuple[FloatArray, FloatArray]]] = {name: [] for name in _tree(plan, engine).reporting}
    while runs < _MOST_RUNS:
        started = time.monotonic()
        sums = _run(plan, engine, seed + runs, partial(on_round, f"{ENGINES[engine]}, run {runs + 1}"))
        for name, region_runs in seen.items():
            own = [total for total in sums if total.region == name]
            region_runs.append(canaries_of(plan, own, seed + runs, logical=engine == "flower"))
        runs, longest = runs + 1, max(longest, time.monotonic() - started)
        enough = all(sum(sent.size for sent, _ in region_runs) >= VALUES_A_SILO for region_runs in seen.values())
        if enough or time.monotonic() - began + longest > seconds:
            break
    return [_probe(engine, name, region_runs, errors) for name, region_runs in seen.items()]


def _tree(plan: Plan, engine: str) -> AggregationTree:
    """Returns the aggregators of a plan on an engine; Flower has none."""
    return tree_of(plan, logical=engine == "flower")


def _probe(engine: str, name: str, runs: Sequence[tuple[FloatArray, FloatArray]], errors: Errors) -> Probe:
    sent = np.concatenate([sums for sums, _ in runs], axis=1)
    expected = np.concatenate([updates for _, updates in runs], axis=1)
    return probe(ENGINES[engine], name, sent - expected, errors, expected, parameters=runs[0][0].shape[1])


def _run(plan: Plan, engine: str, seed: int, tell: Callable[[int, int], None]) -> list[RegionalSum]:
    """Runs a plan to the last round with silos that send canaries, and returns the server's sums."""
    options = {"parameters": plan.parameters or -(-VALUES_A_SILO // plan.rounds), "directions": seed}
    deployment = Deployment(
        plan=plan,
        train=CANARIES,
        options=options,
        patience=_PATIENCE,
        seed=seed,
        port=free_port(following=1),
        keep_sums=True,
        runs_here=True,
    )
    with tempfile.TemporaryDirectory(prefix="fulcrum-audit-") as scratch:
        folder = Path(scratch) / "sites"
        tell(0, plan.rounds)
        if engine == "nvflare":
            runner = engine_named(engine)
            runner.write_kits(deployment, folder)
            done = runner.run_here(deployment, folder, on_round=lambda at: tell(at.round, plan.rounds))
            history: Sequence[RoundSummary] = done.history
            sums = read_kept_sums(runner.site_folder(folder, SERVER) / "state")
        else:
            history = simulate(deployment, folder, on_round=lambda at: tell(at.round, plan.rounds)).history
            sums = read_kept_sums(folder / SERVER / "state")
    for summary in history:
        for name in _tree(plan, engine).reporting:
            if name not in summary["summed"]:
                why = summary["withheld"].get(name, "it did not answer")
                raise EngineError(
                    "audit.sum-missing",
                    engine_name=ENGINES[engine],
                    sender=name,
                    round_number=summary["round"],
                    reason=why,
                )
    return sums
