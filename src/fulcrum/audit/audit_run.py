"""A whole audit: the games by replay, the noise of real parts, and attacks on silos and their records.

>>> from fulcrum.planning.planner import plan
>>> audited = whole_audit(plan("isic-paper", rounds=2, epsilon=1.0), trials=2_000, seed=1, confidence=0.999)
>>> audited.verdict, sorted({probe.of for probe in audited.probes})
('consistent', ["a region's sum", 'release', 'the embedded engine'])
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from fulcrum.audit.evidence.findings import Audit, Probe
from fulcrum.audit.evidence.judging import Errors
from fulcrum.audit.integration.engine_runs import check_engine, engine_run_probes
from fulcrum.audit.integration.mask_attacks import MASKS_A_TRIAL, MOST_MASKS, mask_probes
from fulcrum.audit.integration.masked_noise import masked_probes
from fulcrum.audit.integration.person_checks import made_up_persons, person_probes, several_silos_probe, sum_of_rows
from fulcrum.audit.integration.real_person_sums import head_sum, module_probes
from fulcrum.audit.integration.recorded_noise import RecordedRun, engine_probes, run_probes
from fulcrum.audit.integration.release_noise import probed_silos, region_probes, release_probes
from fulcrum.audit.learning.baselines import baseline_plans
from fulcrum.audit.learning.property_inference import property_findings
from fulcrum.audit.learning.record_attacks import record_findings
from fulcrum.audit.replays.audited_path import PARAMETERS, AuditedPath
from fulcrum.audit.replays.canary_game import CONFIDENCE, TRIALS, audit, check_canary_silos
from fulcrum.audit.replays.played_observers import worst_placement
from fulcrum.core.messages.membership import index_of
from fulcrum.core.silo.policy import Policy
from fulcrum.core.training.training_module import TrainingModule, load_training_module
from fulcrum.errors import ParameterError
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.scheduling import check_one_roster
from fulcrum.simulation.data.person_groups import check_task_fits
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.training_settings import LocalTraining

MOST_ENGINE_SILOS = 20_000
"""The largest federation for which the audit runs the embedded engine to test the noise."""

_LEARNING_SHARE = 0.2
"""The share of the allowed error for attacks on trained federations; games and noise tests share the rest."""

_MOST_PARAMETERS = 4_096
"""The most coordinates of the made-up gradients of persons: a fault of the sum shows in few coordinates."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedModule:
    """A training module whose gradients are checked.

    Attributes:
        name: The name of the module, to be imported.
        options: The options of the site.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


def whole_audit(
    plan: Plan,
    *,
    trials: int = TRIALS,
    seed: int | None = None,
    confidence: float = CONFIDENCE,
    silo: str | None = None,
    canary_silos: int | None = None,
    mechanism: AuditedPath | None = None,
    module: AuditedModule | None = None,
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
        canary_silos: The number of silos with records of the canary person, for a plan for persons; by default as many
            as the plan provides for.
        mechanism: The path from update to sum; the plan's own by default.
        module: The training module whose gradients are checked, for a plan for persons.
        policy: The policy of the silo.
        learning: Records and training of silos, for attacks on training.
        engine: Send canaries through this engine too, with every site on this machine: "nvflare" or "flower".
        on_progress: Called with the name of a step, the number done, and the total number.
    """
    check_one_roster(plan.federation, "an audit")
    seed = secrets.randbelow(2**31) if seed is None else seed
    if engine is not None:
        check_engine(engine, plan)
    learns = learning is not None and learning.shadows > 0
    if learns and plan.unit.is_within_silo:
        raise ParameterError("audit.shadows-of-persons", unit=plan.unit.name)
    if learning is not None:
        check_task_fits(learning.task, plan.unit)  # early, since replays take minutes
    spared = _LEARNING_SHARE * (1 - confidence) if learns else 0.0
    probing, probes = _probing(plan, seed, silo, policy, learning)
    if plan.unit.is_within_silo:
        check_canary_silos(plan, canary_silos)
        path = mechanism or AuditedPath(plan=plan)
        training = None if module is None else load_training_module(module.name)  # early, since replays take minutes
        # Checks without noise never fail by chance, so they need no share of the error.
        probing.append(lambda _: _checks_of_persons(plan, path, silo, canary_silos, seed, module, training))
    elif module is not None:
        raise ParameterError("audit.module-without-persons")
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
        canary_silos=canary_silos,
        mechanism=mechanism,
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


def _checks_of_persons(
    plan: Plan,
    path: AuditedPath,
    silo: str | None,
    canary_silos: int | None,
    seed: int,
    module: AuditedModule | None,
    training: TrainingModule | None,
) -> list[Probe]:
    """Returns the checks of a silo's sum before noise, and of a person in more silos than the plan provides for."""
    parameters = min(plan.parameters or PARAMETERS, _MOST_PARAMETERS)
    node = probed_silos(plan)[0] if silo is None else silo
    rows = made_up_persons(parameters=parameters, seed=seed)
    silo_sum = sum_of_rows(path.by_person, rows, of=f"sum by {plan.unit.noun}", node=node)
    probes = person_probes(silo_sum, plan.unit, lattice=plan.is_deployment)
    if silo is None:
        probes += person_probes(head_sum(seed=seed, node=node), plan.unit, lattice=False)
    if module is not None and training is not None:
        probes += module_probes(plan, training, name=module.name, silo=node, options=module.options, seed=seed)
    if canary_silos is not None and canary_silos > plan.unit.silos_per_person:
        index = None if silo is None else index_of(plan, silo)
        stage, epsilon = worst_placement(plan, silo=index, canary_silos=canary_silos)
        if epsilon > stage.views[0].claim.stated:
            stated = stage.views[0].claim.stated
            probes.append(several_silos_probe(stage.node, epsilon, stated, plan.unit, len(stage.canary_silos)))
    return probes


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
