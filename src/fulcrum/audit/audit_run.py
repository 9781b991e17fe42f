"""A whole audit: the games by replay, the noise of real parts, and attacks on silos and their records.

>>> from fulcrum.planning.planner import plan
>>> audited = whole_audit(plan("isic-paper", rounds=2, epsilon=1.0), trials=2_000, seed=1, confidence=0.999)
>>> audited.verdict, sorted({probe.of for probe in audited.probes})
('consistent', ["a region's sum", 'release', 'the embedded engine'])
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from fulcrum.audit.evidence.findings import Audit, Probe
from fulcrum.audit.evidence.judging import Errors
from fulcrum.audit.integration.engine_runs import check_engine, engine_run_probes
from fulcrum.audit.integration.mask_attacks import MASKS_A_TRIAL, MOST_MASKS, mask_probes
from fulcrum.audit.integration.masked_noise import masked_probes
from fulcrum.audit.integration.recorded_noise import RecordedRun, engine_probes, run_probes
from fulcrum.audit.integration.release_noise import probed_silos, region_probes, release_probes
from fulcrum.audit.learning.baselines import baseline_plans
from fulcrum.audit.learning.property_inference import property_findings
from fulcrum.audit.learning.record_attacks import record_findings
from fulcrum.audit.replays.canary_game import CONFIDENCE, TRIALS, audit
from fulcrum.core.silo.policy import Policy
from fulcrum.planning.plan import Plan
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import LocalTraining

MOST_ENGINE_SILOS = 20_000
"""The largest federation for which the audit runs the embedded engine to test the noise."""

_LEARNING_SHARE = 0.2
"""The share of the allowed error for attacks on trained federations; games and noise tests share the rest."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Records and training of silos, for attacks on training.

    Attributes:
        task: The records.
        training: The local training of silos.
        shadows: Number of federations that an observer trains; 0 omits the attacks.
        run: A recorded run on the same records, whose noise is tested.
    """

    task: Task
    training: LocalTraining
    shadows: int = 0
    run: RecordedRun | None = None


def whole_audit(
    plan: Plan,
    *,
    trials: int = TRIALS,
    seed: int | None = None,
    confidence: float = CONFIDENCE,
    silo: str | None = None,
    policy: Policy | None = None,
    learning: Learning | None = None,
    engine: str | None = None,
    on_progress: Progress = lambda *_: None,
) -> Audit:
    """Attacks a plan by every attack of this package.

    Args:
        plan: The plan under audit.
        trials: Replays of a game.
        seed: Seed of all draws except deployed noise; random by default.
        confidence: The joint confidence of all bounds and verdicts.
        silo: Audit this silo alone, with its releases.
        policy: The policy of the silo.
        learning: Records and training of silos, for attacks on training.
        engine: Send canaries through this engine too, with every site on this machine: "nvflare" or "flower".
        on_progress: Called with the name of a step, the number done, and the total number.
    """
    seed = secrets.randbelow(2**31) if seed is None else seed
    if engine is not None:
        check_engine(engine, plan)
    learns = learning is not None and learning.shadows > 0
    spared = _LEARNING_SHARE * (1 - confidence) if learns else 0.0
    probing, probes = _probing(plan, seed, silo, policy, learning)
    if engine is not None:
        through = engine
        probing.append(lambda errors: engine_run_probes(plan, errors, engine=through, seed=seed, on_round=on_progress))
        probes += len(plan.federation.innermost.nodes)
    if plan.is_masked:
        masks = min(MASKS_A_TRIAL * trials, MOST_MASKS)
        probing.append(lambda errors: masked_probes(plan, errors, seed=seed, silo=silo))
        probing.append(lambda _: mask_probes(plan, masks=masks, on_masks=partial(on_progress, "Making masks")))
        probes += 1  # two sound masks are never alike, so the mask test needs no share of the error
    audited = audit(
        plan,
        trials=trials,
        seed=seed,
        confidence=confidence + spared,
        silo=silo,
        probing=probing,
        probes=probes,
        on_replays=partial(on_progress, "Replaying"),
    )
    if learning is None or not learns:
        return audited
    of_attacks = 1 - spared / 2
    properties = property_findings(
        baseline_plans(plan, parameters=(learning.task.width + 1) * len(learning.task.classes)),
        learning.task,
        training=learning.training,
        shadows=learning.shadows,
        seed=seed,
        confidence=of_attacks,
        on_shadow=partial(on_progress, "Training shadows"),
    )
    records = record_findings(plan, learning.task, training=learning.training, seed=seed, confidence=of_attacks)
    tests = audited.tests + len(properties) + 2 * len(records)
    return msgspec.structs.replace(audited, confidence=confidence, tests=tests, properties=properties, records=records)


def _probing(
    plan: Plan, seed: int, silo: str | None, policy: Policy | None, learning: Learning | None
) -> tuple[list[Callable[[Errors], list[Probe]]], int]:
    """Returns the tests of real draws, and the largest number of results of all tests."""
    regions = len(plan.federation.innermost.nodes)
    silos = probed_silos(plan) if silo is None else [silo]
    probing: list[Callable[[Errors], list[Probe]]] = []
    count = 0
    if plan.silos_draw_noise:
        probing.append(lambda errors: release_probes(plan, errors, silos=silos, seed=seed, policy=policy))
        count += len(silos)
    if silo is None:
        probing.append(lambda errors: region_probes(plan, errors, seed=seed))
        count += 1
        if len(plan.federation) <= MOST_ENGINE_SILOS:
            probing.append(lambda errors: engine_probes(plan, errors, seed=seed))
            count += regions
    if learning is not None and (run := learning.run) is not None:
        task = learning.task
        probing.append(lambda errors: run_probes(run, plan, task, errors))
        count += regions
    return probing, count
