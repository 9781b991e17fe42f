"""The audit of a plan: every observer is played by replay, and every measured epsilon is compared with the claim.

>>> from fulcrum.planning.planner import plan
>>> audited = audit(plan("isic-paper", rounds=2, epsilon=1.0), trials=4_000, seed=1)
>>> audited.verdict, len(audited.findings)
('consistent', 11)
"""

import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial

from scipy import special

from fulcrum.audit.evidence.findings import PROVES_NOTHING, Audit, Finding, Probe, Reasons, finite
from fulcrum.audit.evidence.judging import Errors, judge_freshness, judge_rounds, judge_shape, judge_width
from fulcrum.audit.evidence.noise_tests import bare_bits, repetition
from fulcrum.audit.replays.audited_path import AuditedPath
from fulcrum.audit.replays.played_observers import (
    ABOVE,
    COLLUDING,
    DROPOUTS,
    INSIDE,
    Stage,
    stages_of,
    whole_federation,
)
from fulcrum.audit.replays.post_processing import MODEL, models_replayed
from fulcrum.audit.replays.post_processing import MOST_TRIALS as MOST_MODELS
from fulcrum.audit.replays.replaying import Reading, Replays, replay_stage
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.messages.membership import index_of
from fulcrum.core.privacy_unit import PrivacyUnit
from fulcrum.core.topology import ROOT, SILO
from fulcrum.errors import ParameterError
from fulcrum.planning.plan import Plan
from fulcrum.version import package_version

CONFIDENCE = 0.95
TRIALS = 20_000
"""Replays of a game by default."""

LEAST_TRIALS = 1_000
MOST_TRIALS = 100_000_000

MOST_POOLED = 2_000
"""The largest plan whose server's models are attacked: all silos release in every replay."""


def audit(
    plan: Plan,
    *,
    trials: int = TRIALS,
    seed: int | None = None,
    confidence: float = CONFIDENCE,
    silo: str | None = None,
    canary_silos: int | None = None,
    mechanism: AuditedPath | None = None,
    probing: Sequence[Callable[[Errors], list[Probe]]] = (),
    probes: int = 0,
    on_replays: Callable[[int, int], None] | None = None,
) -> Audit:
    """Attacks a plan, and returns measured and claimed epsilons.

    Guarantees, for a mechanism that keeps the plan's claims in the plan's unit of privacy:

    - the audit says `violated` anywhere with probability at most one minus the confidence;
    - every lower bound is at most the true epsilon, all together with the confidence.

    Args:
        plan: The plan under audit.
        trials: Replays of a game; a fifth of them, at most 20,000, are the pilot for the thresholds.
        seed: Seed of the canaries' signs, and of the noise in research; random by default.
        confidence: The confidence with which all bounds and verdicts hold together.
        silo: Audit this silo alone.
        canary_silos: The number of silos with records of the canary person, for a plan for persons; by default as many
            as the plan provides for.
        mechanism: The path from update to sum; the plan's own by default.
        probing: Tests of the draws of real parts; every test receives the allowed errors.
        probes: The largest number of results of all tests together.
        on_replays: Called with the number of replays done, and the total number.
    """
    began = time.monotonic()
    seed = secrets.randbelow(2**31) if seed is None else seed
    _check(trials, seed, confidence)
    check_canary_silos(plan, canary_silos)
    path = mechanism or AuditedPath(plan=plan)
    index = None if silo is None else index_of(plan, silo)
    stages = stages_of(plan, silo=index, canary_silos=canary_silos)
    pooled = (
        whole_federation(plan, MODEL, canary_silos=canary_silos)
        if not plan.server_rule.adds_up and silo is None and len(plan.federation) <= MOST_POOLED
        else None
    )
    views = sum(len(stage.views) for stage in stages) + (pooled is not None)
    errors = Errors.share(views, probes, confidence)
    findings: list[Finding] = []
    for number, stage in enumerate(stages):
        before, total = number * trials, trials * len(stages)
        played = replay_stage(
            path,
            stage,
            trials=trials,
            seed=seed * len(stages) + number,
            error=errors.bound,
            on_replays=None if on_replays is None else partial(_tell, on_replays, before, total),
        )
        findings += _findings(plan, played, errors)
    if pooled is not None:
        played = models_replayed(path, pooled, trials=min(trials, MOST_MODELS), seed=seed, error=errors.bound)
        findings += _findings(plan, played, errors)
    results = [probe for probe_with in probing for probe in probe_with(errors)]
    return Audit(
        version=package_version(),
        plan_digest=plan.digest,
        federation=plan.federation.name,
        purpose=plan.purpose,
        delta=plan.delta,
        rounds=plan.rounds,
        confidence=confidence,
        tests=errors.tests,
        trials=trials,
        seed=seed,
        seconds=time.monotonic() - began,
        findings=findings,
        probes=results,
        aggregation=plan.aggregation,
        unit=plan.unit.noun,
        relation=plan.unit.relation,
        notes=[PROVES_NOTHING, *_notes(plan, stages, trials=trials, alone=silo is not None)],
    )


def _tell(on_replays: Callable[[int, int], None], before: int, total: int, done: int) -> None:
    on_replays(before + done, total)


def _check(trials: int, seed: int, confidence: float) -> None:
    if isinstance(trials, str) or not LEAST_TRIALS <= trials <= MOST_TRIALS:
        raise ParameterError("audit.trials-range", least=LEAST_TRIALS, most=MOST_TRIALS, trials=trials)
    if isinstance(seed, str) or not 0 <= seed < 2**31:
        raise ParameterError("audit.seed-range", most=2**31 - 1, seed=seed)
    if isinstance(confidence, str) or not 0.5 <= confidence < 1:
        raise ParameterError("audit.confidence-range", confidence=confidence)


def check_canary_silos(plan: Plan, canary_silos: int | None) -> None:
    """Raises unless a canary can be in so many silos: one silo for a plan that protects silos."""
    if canary_silos is None:
        return
    if not plan.unit.is_within_silo:
        raise ParameterError("audit.canary-silos-of-silos")
    if isinstance(canary_silos, bool) or not 1 <= canary_silos <= len(plan.federation):
        raise ParameterError("audit.canary-silos-range", most=len(plan.federation), canary_silos=canary_silos)


def _notes(plan: Plan, stages: Sequence[Stage], *, trials: int, alone: bool) -> list[str]:
    notes = []
    inner = plan.federation.innermost
    summed = {region for stage in stages if not stage.views[0].single for region in stage.members}
    if alone:
        notes.append(f"Silo {plan.federation.silo_name(stages[0].silo)!r} alone was audited, and no other.")
        if plan.is_deployment:
            notes.append("The silo's own ledger was not opened: fulcrum ledger verify checks it.")
    if plan.unit.is_within_silo:
        count = max(len(stage.canary_silos) for stage in stages)
        places = "one silo" if count == 1 else f"{count} silos"
        notes.append(
            f"The game is played for one {plan.unit.noun}: {plan.unit.relation}. The canary {plan.unit.noun} is in "
            f"{places}, among others whose rows stay the same."
        )
    if not summed:
        notes.append("No sum was replayed: those of this plan have too many silos and rounds.")
    elif not alone and len(summed) < len(inner.nodes):
        notes.append(
            f"{len(summed)} of {len(inner.nodes):,} regions were audited: those with the highest epsilons, the "
            "smallest and the largest, as many as can be replayed. Sums further out were audited where all regions "
            "below them were."
        )
    if not plan.server_rule.adds_up and not alone:
        if len(plan.federation) > MOST_POOLED:
            notes.append(f"The server's models were not attacked: the plan has more than {MOST_POOLED:,} silos.")
        elif trials > MOST_MODELS:
            notes.append(f"The server's models were replayed {MOST_MODELS:,} times.")
    if plan.continues_previous_plan:
        notes.append("Epsilons here are those of this plan's rounds. What silos released before cannot be replayed.")
    if plan.is_masked:
        helping = max(1, plan.colluders)
        notes.append(
            f"Sums are masked: inside is the server together with {helping} {'silo' if helping == 1 else 'silos'} of "
            "each region, who take what they know themselves off the sums."
        )
    if not plan.silos_draw_noise:
        notes.append("Aggregators inject the noise: inside a region nothing conceals a silo, and nothing is claimed.")
    return notes


def _findings(plan: Plan, played: Replays, errors: Errors) -> list[Finding]:
    """Returns the finding of every observer of a stage; the first finding includes the noise of single silos."""
    findings = []
    for place, reading in enumerate(played.readings):
        reasons = Reasons()
        if place == 0:
            _judge_silos(plan, played, errors, reasons)
        findings.append(_finding(plan, played, reading, errors, reasons))
    return findings


def _finding(plan: Plan, played: Replays, reading: Reading, errors: Errors, reasons: Reasons) -> Finding:
    claim, delta, stage, unit = reading.view.claim, plan.delta, played.stage, plan.unit
    free = reading.rare.epsilon_at_least(errors.bound, delta=delta)
    gaussian = float(epsilon_of_shift(reading.usual.shift_at_least(errors.bound), delta=delta))
    reach = float(epsilon_of_shift(reading.usual.shift_at_most(errors.bound), delta=delta))
    how = "" if reading.modulus is None else f", reading sums modulo {reading.modulus:,} steps of the lattice"
    for bound, which in ((free, "whatever the mechanism"), (gaussian, "on a Gaussian trade-off")):
        if bound > claim.epsilon:
            gives = f"{claim.stated:.4g} is stated"
            if bound <= claim.stated:
                gives += f", and the plan's noise should give {claim.exact:.4g} at most"
            reasons.violated.append(f"Epsilon is at least {bound:.4g}, {which}{how}; {gives}.")
    if reasons.violated and len(stage.canary_silos) > unit.silos_per_person:
        reasons.violated.append(two_silos_reason(unit, len(stage.canary_silos)))
    if reading.messages > 1:
        of_region = stage.tier == plan.federation.innermost.name or (plan.is_masked and stage.tier == SILO)
        tier = "region" if of_region else stage.tier
        reasons.violated.append(f"The {tier} sends {reading.messages} messages up in a round, and not one sum.")
    # A claim for a person in several silos covers every placement, and most placements reach less.
    if reach < claim.stated and unit.silos_per_person == 1:
        why = " The accountant renyi counts more than Gaussian noise costs." if reach >= claim.exact else ""
        reasons.looser.append(
            f"This attack reaches epsilon {reach:.4g} at most, and {claim.stated:.4g} is stated.{why}"
        )
    _judge_noise(reading, errors, reasons, f"canary {unit.noun}" if unit.is_within_silo else "canary")
    return Finding(
        tier=stage.tier,
        node=stage.node,
        observer=reading.view.observer,
        silo=plan.federation.silo_name(stage.silo),
        further=[plan.federation.silo_name(silo) for silo in stage.further],
        colluders=reading.view.colluding,
        missing=reading.view.absent,
        stated=finite(claim.stated),
        exact=finite(claim.exact),
        renyi=finite(claim.renyi),
        assumption_free=free,
        gaussian=gaussian,
        reach=finite(reach),
        noise_ratio=None if reading.noise is None else reading.noise.width.ratio,
        trials=played.trials,
        verdict=reasons.verdict,
        reasons=reasons.sentences,
    )


def two_silos_reason(unit: PrivacyUnit, count: int) -> str:
    """Returns the reason for a canary person in more silos than the plan provides for."""
    return (
        f"One {unit.noun} has records in {count} silos, and the plan provides for {unit.silos_per_person}: the changes "
        f"add up. Plan again with --silos-per-person {count}."
    )


def _judge_noise(reading: Reading, errors: Errors, reasons: Reasons, canary: str) -> None:
    """Adds reasons from the noise of a view; `canary` is the canary in words."""
    noise = reading.noise
    if noise is not None:
        if special.ndtr(-(noise.response - 1) / noise.error) < errors.noise:
            reasons.violated.append(f"The {canary} arrives {noise.response:.3g} times as large as the clip admits.")
        judge_width("The noise that it meets", noise.width, errors.noise, reasons)
        judge_rounds("the noise that it meets", noise.products.diagonal(), noise.count, errors.noise, reasons)
        judge_freshness("The noise", noise.products, noise.count, errors.noise, reasons)
        judge_shape("The noise that it meets", reading.shape, errors.noise, reasons)
    bits = bare_bits(reading.turns, reading.looked_at)
    if bits is not None and bits.p_value < errors.noise:
        reasons.violated.append(
            f"Noise does not reach the low bits: modulo {bits.modulus:,} steps the sums are not uniform "
            f"(concentration {bits.concentration:.3f})."
        )


def _judge_silos(plan: Plan, played: Replays, errors: Errors, reasons: Reasons) -> None:
    """Adds reasons from the noise of single silos, the silo farthest from the claim first."""
    share = errors.noise / max(len(played.silos), 1)
    short = [silo for silo, width in played.silos.items() if width.too_little < share]
    if short:
        worst = min(short, key=lambda silo: played.silos[silo].ratio)
        others = f" So is that of {len(short) - 1} others." if len(short) > 1 else ""
        reasons.violated.append(
            f"The noise of silo {plan.federation.silo_name(worst)!r} is {played.silos[worst].ratio:.1%} as wide as the "
            f"plan says.{others}"
        )
    wide = [silo for silo, width in played.silos.items() if width.too_much < share]
    if wide:
        worst = max(wide, key=lambda silo: played.silos[silo].ratio)
        reasons.looser.append(
            f"What silo {plan.federation.silo_name(worst)!r} releases beyond its update is "
            f"{played.silos[worst].ratio:.3g} times as wide as the plan says."
        )
    judge_freshness("Single silos' noise", played.products, played.compared, errors.noise, reasons)
    for silo, counts in played.shapes.items():
        name = plan.federation.silo_name(silo)
        judge_shape(f"The noise of silo {name!r}", counts, errors.noise / len(played.shapes), reasons)
    alike = repetition(played.between, played.compared * plan.rounds // max(len(played.silos), 1))
    if alike is not None and alike.p_value < errors.noise:
        drawing = list(played.silos)
        first, second = (plan.federation.silo_name(drawing[place - 1]) for place in alike.two)
        reasons.violated.append(
            f"Silos {first!r} and {second!r} do not draw noise of their own: its correlation is "
            f"{alike.correlation:.3f}."
        )


def observer_words(audited: Audit) -> dict[str, str]:
    """Returns a description of every observer of an audit."""
    inside = "who sees single releases"
    if audited.aggregation == "masked":
        of_all = {finding.tier for finding in audited.findings if finding.observer == INSIDE} == {
            ROOT
        }  # masked as one group
        inside = f"the server together with silos of {'each' if of_all else 'the'} region"
    return {
        ABOVE: "who sees the sums, and knows none of their noise",
        INSIDE: inside,
        COLLUDING: "who sees the sums, with silos that hand over their noise",
        DROPOUTS: "who sees sums that silos are missing from",
        MODEL: "who sees the server's models",
    }
