"""The accuracy of an observer of regional sums who estimates a silo's class concentration, and the information bound.

The observer knows the prior, the data's distribution, the plan and the training of silos. The observer therefore trains
federations of its own, shadows, with known concentrations, learns from them the effect of a concentration on a silo's
update in every round, and uses the best linear estimate for that effect and the known width of the noise. Three
observers:

- floor: sees no update at all, and knows the concentrations of the silo's group (the paper's lateral floor);
- sums: sees the sums of the region, and knows no concentration;
- all: knows every other silo's records, subtracts their updates, and also knows the group's concentrations.

An estimate of mean squared error v proves that I(p; seen) is at least h(p) - log(2 pi e v) / 2, since no variable of
that variance has a larger entropy than a normal variable. The paper's bound T m + floor limits both latter observers:
the information of the releases, and the information that the group reveals without releases. T m alone bounds neither
observer, because the releases of other silos of the group reveal information on the group.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.audit.evidence.findings import CONSISTENT, VIOLATED, PropertyFinding
from fulcrum.audit.integration.recorded_noise import noise_of_sums
from fulcrum.errors import ParameterError
from fulcrum.planning.inputs.targets import group_by_silo
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.prior import lateral_floor, prior_entropy
from fulcrum.simulation.data.partition import partition_by_share
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import train_jobs
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.training_settings import LocalTraining

COUPLING = 20.0
"""The coupling of the paper's prior, for a plan that declares none."""

FLOOR, SUMS, ALL = "floor", "sums", "all"

NO_PRIVACY = "no privacy"
"""The variant without clip and noise, with the first plan's weights; a variant of other weights has its plan's name."""

LEAST_SHADOWS, MOST_SHADOWS = 20, 10_000

_STREAM = 0x70726F70
_FINEST = 400
_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # in typical sizes of a signal
_EDGE = 0.02  # concentrations nearer to 0 or 1 are drawn back: a class must have records


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shadow:
    """A federation that the observer trained, by variant: the content of the sums, by region, flat over rounds."""

    concentration: FloatArray
    others: FloatArray
    sums: list[FloatArray]
    signal: list[FloatArray]
    left: list[FloatArray]
    own: list[FloatArray]


def property_findings(
    plans: dict[str, Plan],
    task: Task,
    *,
    training: LocalTraining,
    shadows: int = 60,
    seed: int = 0,
    confidence: float = 0.95,
    on_shadow: Callable[[int, int], None] | None = None,
) -> list[PropertyFinding]:
    """Returns, by region, variant and observer, the accuracy of the estimate of a silo's concentration.

    Args:
        plans: By name, plans for the same federation and number of rounds; variants without noise are added.
        task: The training data; the concentration is the share of the sensitive classes.
        training: The local training of silos.
        shadows: Federations to train. An estimate is fitted on a half of the shadows and judged on the rest.
        seed: Seed of concentrations, records, batches and noise.
        confidence: The confidence with which all lower bounds on information hold together, as far as errors average
            out.
        on_shadow: Called with the number of trained shadows, and the total number.
    """
    if not LEAST_SHADOWS <= shadows <= MOST_SHADOWS:
        raise ParameterError("audit.shadows-range", least=LEAST_SHADOWS, most=MOST_SHADOWS, shadows=shadows)
    first = next(iter(plans.values()))
    coupling = first.coupling or COUPLING
    targets = [int(np.argmax(np.where(first.federation.innermost.parent_of == region, first.epsilon_above, -1.0)))
               for region in range(len(first.federation.innermost.nodes))]  # fmt: skip
    runs = []
    bare = _without_privacy(plans)
    for number in range(shadows):
        runs.append(
            _shadow(list(plans.values()), list(bare.values()), task, training, targets, coupling, seed + number)
        )
        if on_shadow is not None:
            on_shadow(number + 1, shadows)
    variants = [(name, plan, True) for name, plan in plans.items()]
    variants += [(name, plan, False) for name, plan in bare.items()]
    error = (1 - confidence) / (3 * len(variants) * len(targets))
    findings = []
    for place, (name, plan, private) in enumerate(variants):
        for region, silo in enumerate(targets):
            variance = _noise_seen(plan, region) if private else 0.0
            for observer, errors in _estimates(runs, place, region, variance).items():
                findings.append(_finding(plan, private, name, region, silo, observer, errors, runs, coupling, error))
    return findings


def _without_privacy(plans: dict[str, Plan]) -> dict[str, Plan]:
    """Returns variants without privacy by name: a plan for every distinct choice of weights."""
    variants: dict[str, Plan] = {}
    for name, plan in plans.items():
        if not any(np.array_equal(plan.weights, other.weights) for other in variants.values()):
            variants[f"{name}, {NO_PRIVACY}" if variants else NO_PRIVACY] = plan
    return variants


def _noise_seen(plan: Plan, region: int) -> float:
    """Returns the variance of the noise in a coordinate of a region's sum in a round."""
    by_region = plan.node_noise(plan.federation.innermost.name) * plan.clip_norm**2
    return float(by_region.sum() if plan.one_group else by_region[region])


def drawn_concentrations(group_of: IntArray, coupling: float, seed: int) -> FloatArray:
    """Returns concentrations from the declared prior: a mean for every group, and silos about the mean."""
    drawn = np.random.default_rng([_STREAM, seed])
    mean = drawn.beta(2.0, 2.0, int(group_of.max()) + 1)[group_of]
    return np.clip(drawn.beta(coupling * mean, coupling * (1 - mean)), _EDGE, 1 - _EDGE)


def _shadow(
    plans: Sequence[Plan],
    bare: Sequence[Plan],
    task: Task,
    training: LocalTraining,
    targets: Sequence[int],
    coupling: float,
    seed: int,
) -> _Shadow:
    federation = plans[0].federation
    group_of = group_by_silo(federation)
    wanted = drawn_concentrations(group_of, coupling, seed)
    partition = partition_by_share(task, federation, wanted, seed=seed)
    variants = Variants.from_plans(plans)
    for plan in bare:
        variants = variants.concatenate(replace(variants.without_privacy(), weights=plan.weights[:, None]))
    job = Job(seed=seed, partition=partition, variants=variants)
    [run] = train_jobs([job], task, training, keep_regional_sums=True, every_round=False)
    shares = partition.shares
    sums, signal, left, own = [], [], [], []
    for variant, plan in enumerate([*plans, *bare]):
        alone = replace(job, variants=_single_variant(variants, variant))
        seen = run.regional_sums[..., variant] if run.regional_sums is not None else np.empty(0)
        noise = noise_of_sums(alone, task, training, seen)
        with_own = noise_of_sums(alone, task, training, seen, but=targets)
        flat, mine = seen.reshape(*noise.shape), with_own - noise
        if plan.one_group:  # the observer sees the sum of all regions alone
            flat, noise = (np.repeat(kind.sum(axis=1, keepdims=True), kind.shape[1], axis=1) for kind in (flat, noise))
        sums.append(_by_region(flat))
        signal.append(_by_region(flat - noise))
        left.append(_by_region(noise + mine))
        own.append(_by_region(mine))
    others = [_mean_of_others(shares, group_of, silo) for silo in targets]
    return _Shadow(
        concentration=shares[list(targets)], others=np.array(others), sums=sums, signal=signal, left=left, own=own
    )


def _single_variant(variants: Variants, variant: int) -> Variants:
    return replace(
        variants,
        weights=variants.weights[:, [variant]],
        noise_multiplier=variants.noise_multiplier[:, [variant]],
        aggregator_noise_multiplier=variants.aggregator_noise_multiplier[:, [variant]],
        clip_norm=variants.clip_norm[[variant]],
        clip_share=variants.clip_share[[variant]],
        rules=(variants.rules[variant],),
    )


def _by_region(values: FloatArray) -> FloatArray:
    """Reorders (rounds, regions, parameters) to (regions, rounds * parameters)."""
    return np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(values.shape[1], -1)


def _mean_of_others(shares: FloatArray, group_of: IntArray, silo: int) -> float:
    there = np.flatnonzero((group_of == group_of[silo]) & (np.arange(len(group_of)) != silo))
    return float(shares[there].mean()) if len(there) else 0.5


def _estimates(runs: Sequence[_Shadow], variant: int, region: int, variance: float) -> dict[str, FloatArray]:
    """Returns, by observer, the errors of the estimates for a region's silo."""
    truth = np.array([shadow.concentration[region] for shadow in runs])
    others = np.array([shadow.others[region] for shadow in runs])
    halves = np.arange(len(runs)) % 2 == 0
    views = {
        SUMS: [
            np.array([kind[variant][region] for kind in kinds])
            for kinds in zip(*((s.sums, s.signal) for s in runs), strict=True)
        ],
        ALL: [
            np.array([kind[variant][region] for kind in kinds])
            for kinds in zip(*((s.left, s.own) for s in runs), strict=True)
        ],
    }
    errors = {observer: np.empty(len(runs)) for observer in (FLOOR, SUMS, ALL)}
    for half in (halves, ~halves):  # fitted on a half, judged on the other half
        lateral = _from_group(others[~half], truth[~half], others)
        errors[FLOOR][half] = (truth - lateral)[half]
        for observer, (seen, signal) in views.items():
            typical = float(np.square(signal - signal.mean(axis=0)).sum(axis=1).mean())
            # The group's mean has no noise: a large factor keeps the ridge from shrinking its weight.
            with_group = [100 * math.sqrt(variance + typical) * others] if observer == ALL else []
            signals, shown = np.column_stack([signal, *with_group]), np.column_stack([seen, *with_group])
            weights, middle = _best_filter(signals[~half], truth[~half], variance, typical)
            guess = truth[~half].mean() + (shown[half] - middle) @ weights
            errors[observer][half] = truth[half] - np.clip(guess, 0.0, 1.0)
    return errors


def _from_group(others: FloatArray, truth: FloatArray, means: FloatArray) -> FloatArray:
    """Returns the estimate of a silo's concentration from the mean of its group, by linear regression."""
    spread = others - others.mean()
    slope = float(spread @ truth) / float(spread @ spread) if spread.any() else 0.0
    return np.asarray(truth.mean() + slope * (means - others.mean()))


def _best_filter(
    signal: FloatArray, truth: FloatArray, variance: float, typical: float
) -> tuple[FloatArray, FloatArray]:
    """Returns the weights of the best linear estimate from signals plus noise of known variance, and the signals' mean.

    The observer knows the signals of its shadows without noise, and the width of the noise: adding the variance of the
    noise to the signals' covariance is exact, while noisy shadows would need averaging. The amount of further shrinkage
    is chosen by leaving out every shadow in turn.
    """
    middle, wanted = signal.mean(axis=0), truth - truth.mean()
    if not signal.any():
        return np.zeros(signal.shape[1]), middle
    centred = signal - middle
    products = centred @ centred.T
    count = len(truth)
    best: tuple[float, FloatArray] | None = None
    for share in _RIDGES:
        inverse = np.linalg.inv(products + count * (variance + share * typical) * np.eye(count))
        solved = inverse @ wanted
        left_out = float(np.square(solved / np.diag(inverse)).sum())
        if best is None or left_out < best[0]:
            best = (left_out, solved)
    weights = centred.T @ (best[1] if best else wanted)
    return np.asarray(weights), middle


def information_at_least(errors: FloatArray, coupling: float, error: float) -> float:
    """Returns the nats that estimates of these errors prove, with a normal bound on the mean of their squares."""
    squares = errors**2
    worst = squares.mean() + float(-special.ndtri(error)) * squares.std(ddof=1) / math.sqrt(len(squares))
    entropy = prior_entropy(coupling, levels=_FINEST) - math.log(_FINEST)
    return max(0.0, entropy - 0.5 * math.log(2 * math.pi * math.e * float(worst)))


def _finding(
    plan: Plan,
    private: bool,
    variant: str,
    region: int,
    silo: int,
    observer: str,
    errors: FloatArray,
    runs: Sequence[_Shadow],
    coupling: float,
    error: float,
) -> PropertyFinding:
    federation = plan.federation
    size = int((group_by_silo(federation) == group_by_silo(federation)[silo]).sum())
    floor = float(lateral_floor(size, coupling=coupling))
    mechanism = float(plan.mechanism_information[silo]) if private else None
    bound = floor if observer == FLOOR else None if mechanism is None else mechanism + floor
    proven = information_at_least(errors, coupling, error)
    truth = np.array([shadow.concentration[region] for shadow in runs])
    # The floor belongs to the prior. Shadows clip concentrations at the edges and use whole records, so an
    # estimate from the group alone may pass the floor without any release.
    broken = bound is not None and observer != FLOOR and proven > bound
    return PropertyFinding(
        node=federation.innermost.nodes[region],
        silo=federation.silo_name(silo),
        arm=variant,
        weights=str(plan.weights_rule),
        server=plan.server if private else "sum",
        noise=private,
        observer=observer,
        error=float(np.sqrt((errors**2).mean())),
        blind_error=float(truth.std()),
        nats_at_least=proven,
        nats_at_most=bound,
        shadows=len(runs),
        verdict=VIOLATED if broken else CONSISTENT,
    )
