"""Checks every number and word of a plan file against recomputed figures, without the solver.

`fulcrum.core.plan.recomputed` recomputes the figures from multipliers and roster. Here targets follow from the
settings, information and lattice from formulas of this module. A mistake in the solver, in the vectorised sums or in
the file therefore shows as a failed check. Planner and verification share the accountant and the sensitivity of the
unit alone. Verification also reads the file by the file's own types, and compares the words of the guarantee with the
template of the words.

>>> from fulcrum.planning.planner import plan
>>> checks = verify(plan("consortium", rounds=10, epsilon=1.0).content())
>>> all(check.holds for check in checks), len(checks)
(True, 19)
"""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fulcrum.checks import Check
from fulcrum.core.plan.earlier_words import EarlierGuarantee, UnsealedGuarantee
from fulcrum.core.plan.guarantee import NO_PROTECTION, Guarantee
from fulcrum.core.plan.plan_file import Epsilon, PlanFile, content_digest, values_by_silo
from fulcrum.core.plan.plan_reader import SupportsContent, content_in
from fulcrum.core.plan.recomputed import Recomputed, group_tier, largest_by_node, sum_by_node
from fulcrum.core.plan.recomputed_phases import RecomputedPhases
from fulcrum.core.plan.verify_floors import floor_problem
from fulcrum.core.plan.verify_masking import masking_problem
from fulcrum.core.plan.verify_persons import person_epsilons, stated_epsilons
from fulcrum.core.plan.verify_weights import least_possible_noise, weights_problem
from fulcrum.core.topology import ROOT, SILO, name_problem

_SLACK = 1e-6  # an epsilon may be stated this much too high, never too low
_TOLERANCE = 1e-9  # relative; sums are taken in another order than the planner's
_PRIORS = ("spectrum", "one-scale", "even-scale")  # shrinkage by input variances

# The bounds of deployment, stated anew: `fulcrum.core.lattice` and `fulcrum.core.noise.discrete_gaussian` prove them.
# An import of those constants would let a mistake there pass here.
_STEPS_A_SIGNAL = 100  # of the lightest silo's w C over sqrt(d), at least
_LEAST_WIDTH = 16.0  # steps
_FARTHEST = 32  # widths between a draw and 0, at most
_DISTANCE = 2.0**-108  # of a coordinate of one silo's noise, in total variation
_REFUSED = 2.0**-79  # the chance that a region refuses an honest release: the refusal is visible above the region


def verify(plan: str | Path | SupportsContent | PlanFile) -> tuple[Check, ...]:
    """Returns the checks of a plan; the plan may be relied on only if every check holds.

    Neighbouring relation: the relation of the plan's unit of privacy (`PrivacyUnit.relation`).

    Guarantees, if every check holds:

    - every stated epsilon is at least the epsilon that follows from the file's multipliers, weights and tree, with the
      worst colluders and dropouts of every region excluded;
    - every target, preference and information bound of the settings is met;
    - statement, adjacency and assumptions are the words of the stated figures, or true words of an earlier version;
    - in deployment all silos share a lattice, and delta covers the distance of lattice noise from Gaussian noise.

    Not checked are values without a figure that follows from them: names, keys unless sums are masked, the allocation
    and its seed, advice. Not checked either are values that rest on other files: the shift spent before, the silos
    that moved, and an information floor without a coupling, which is taken as declared.

    Args:
        plan: A plan file to read, or a plan or the content of a file in memory.

    Raises:
        PlanError: The plan is malformed; a content in memory must have the form of a file (`content_in`).
    """
    content = content_in(plan)  # refuses a roster whose digest is not the digest in the file
    seen = Recomputed(content)
    settings, summary, kappa = content.settings, content.summary, seen.unit.sensitivity
    digest, uniform = content_digest(content), seen.uniform_budget()
    roster = f"{len(content.silos)} silos, digest {content.federation.digest[:12]}"
    checks = [
        Check(name="digest", holds=content.digest in ("", digest), detail=digest[:12]),
        Check(name="federation", holds=True, detail=roster),
        _equal(f"sensitivity is {kappa:g}C", content.guarantee.sensitivity, kappa * settings.clip_norm),
        _weights(content, seen),
        *([_clip_share(content, seen)] if settings.clip_share != 1 else []),
        *([_server(content, seen)] if settings.server != "sum" else []),
        *([_prior(content)] if settings.spectrum is not None or settings.shrink in _PRIORS else []),
        *([_masking(content, seen)] if settings.aggregation == "masked" else []),
        *([_floors(content)] if settings.coupling is not None else []),
        *([_phases(content, seen.phases)] if seen.phases is not None else []),
        _equal("noise budget", summary.noise_budget, math.fsum(seen.variance)),
        _equal("uniform noise budget", summary.uniform_noise_budget, uniform),
        _equal("saving", summary.saving, 1 - math.fsum(seen.variance) / uniform if uniform else -math.inf, share=True),
        _equal("dispersion", summary.dispersion, seen.dispersion(), share=True),
    ]
    for tier in seen.tiers:
        checks.append(_covers(f"epsilon at {tier}", content, tier, seen.epsilon(tier)))
        if tier in settings.required_multiplier or _has_target(content, tier):
            checks.append(_requirement(content, tier, seen))
    checks += [_nodes(content, tier, seen) for tier in content.federation.tiers]
    above, inside = seen.epsilon(seen.innermost), seen.epsilon(SILO)
    checks += [
        _epsilon_check("worst epsilon above", summary.epsilon_above_worst, max(above)),
        _epsilon_check("mean epsilon above", summary.epsilon_above_mean, math.fsum(above) / len(above)),
        _epsilon_check("worst epsilon inside", summary.epsilon_inside_worst, max(inside)),
        _epsilon_check("mean epsilon inside", summary.epsilon_inside_mean, math.fsum(inside) / len(inside)),
        *([_persons(content, seen)] if seen.unit.is_within_silo else []),
        *_promises(content, seen),
        *([_lattice(content, seen)] if content.purpose == "deployment" else []),
        _words(content, seen),
    ]
    return tuple(checks)


def _words(content: PlanFile, seen: Recomputed) -> Check:
    """Checks that statement, adjacency and assumptions are the words of the stated figures.

    A file in the words of an earlier version passes while the earlier words are true of the figures: the file keeps
    digest and signatures. A false sentence fails, for an officer would sign the sentence.
    """
    settings, silos = content.settings, content.silos
    worst: dict[str, Epsilon] = {}
    for tier in [seen.innermost, SILO, *(tier for tier in settings.epsilon if tier not in (seen.innermost, SILO))]:
        stated = [entry.epsilon[tier] for entry in silos]
        worst[tier] = None if None in stated else max(value for value in stated if value is not None)
    words = Guarantee(
        rounds=settings.rounds,
        delta=settings.delta,
        accountant=settings.accountant,
        innermost=seen.innermost,
        worst=worst,
        targets=settings.epsilon,
        injection=settings.injection,
        purpose=content.purpose,
        colluders=settings.colluders,
        dropouts=settings.dropouts,
        follows=silos[0].spent is not None,
        sizes_known=silos[0].records is not None,
        weights_given=silos[0].declared_weight is not None or settings.weights == "by-silo",
        server=settings.server,
        aggregation=settings.aggregation,
        masked_tier=group_tier(content),
        smallest_group=_smallest_group(content, seen),
        regions=len(content.tiers[seen.innermost]),
        complete_tier=seen.complete,
        less_spent_outside=seen.less_spent_outside(),
        prior="" if settings.spectrum is None else settings.spectrum.origin,
        unit=seen.unit,
        persons=stated_epsilons(content.summary),
        scheduled=seen.phases is not None,
    )
    if not (differing := _differing_words(content, words)):
        return Check(name="words", holds=True, detail="statement, adjacency, assumptions")
    problem = f"the {differing} is not what the figures say"
    for earlier in (UnsealedGuarantee.of(words), EarlierGuarantee.of(words)):
        if not _differing_words(content, earlier):
            problem = earlier.untrue and f"not true: {earlier.untrue}. Make the plan again with: fulcrum plan"
    return _check("words", problem, "statement, adjacency, assumptions, in earlier words that are true")


def _smallest_group(content: PlanFile, seen: Recomputed) -> int:
    """Returns the number of silos in the smallest masked sum of any round."""
    if seen.phases is not None:
        return min(size for _, size in seen.phases.roster_sizes())
    return len(content.silos) if group_tier(content) == ROOT else min(Counter(seen.region).values())


def _differing_words(content: PlanFile, words: Guarantee) -> str:
    """Returns the first part of a file's guarantee that differs from the words, or an empty string."""
    parts = ("statement", "adjacency", "assumptions")  # the last is a list in a file
    return next((part for part in parts if tuple(getattr(content.guarantee, part)) != tuple(getattr(words, part))), "")


def _weights(content: PlanFile, seen: Recomputed) -> Check:
    """Checks that silos have the weights of the settings."""
    rule = content.settings.weights
    detail = rule if isinstance(rule, str) else f"{rule:g} of the way from sizes to least noise"
    return _check("weights", weights_problem(content, seen), detail)


def _clip_share(content: PlanFile, seen: Recomputed) -> Check:
    """Checks that updates are clipped at the share of the clip norm that suits the noise."""
    settings = content.settings
    if settings.parameters is None or settings.clip_norm != 1:
        return _check("clip share", "a share of the clip norm needs a known model, and C = 1")
    least = least_possible_noise(content, seen)
    return _equal("clip share", settings.clip_share, 1 / (1 + settings.parameters * least), slack=1e-7)


def _server(content: PlanFile, seen: Recomputed) -> Check:
    """Checks that the server rule costs no privacy (docs/maths.md, "What a server may do for free").

    A rule that reads regional sums is post-processing for an observer of these sums alone: a target further out is
    refused. If all silos are masked as one group, the rule reads the global sum, the only sum that any party sees.
    """
    settings, inner = content.settings, seen.innermost
    outside = [tier for tier in settings.epsilon if tier not in (SILO, inner, seen.group)]
    holds = not outside and settings.injection == "silo"
    if settings.disputed_influence and (settings.server != "random-effects" or seen.group == ROOT):
        return Check(name="server", holds=False, detail="influence in disputes, of a server that sees no regional sums")
    detail = f"{settings.server} over {'the global sum' if seen.group == ROOT else f'{inner}s'}"
    if not holds:
        detail += f", with a target on {outside[0]!r}" if outside else ", of noise that aggregators inject"
    return Check(name="server", holds=holds, detail=detail)


def _prior(content: PlanFile) -> Check:
    """Checks that the server's prior reads released sums and public variances alone: post-processing of these sums."""
    settings, spectrum = content.settings, content.settings.spectrum
    if spectrum is None or settings.shrink not in _PRIORS or settings.server == "sum":
        return _check("prior", "a prior by input variances, or variances, without a server that reads them")
    released = spectrum.origin != "public" and content.purpose == "deployment"
    problem = "the variances come from the silos' own records, and no epsilon counts them" if released else ""
    if rule := name_problem(spectrum.source):  # the source stands in reports, where a line could be forged
        problem = problem or f"the name of the variances' source must {rule}"
    inputs, parameters = len(spectrum.variances), settings.parameters
    if parameters is not None and parameters % (inputs + 1) and parameters % inputs:
        problem = problem or f"{inputs} variances for a head of {parameters} parameters"
    return _check("prior", problem, f"{len(spectrum.variances)} input variances, {spectrum.origin}")


def _masking(content: PlanFile, seen: Recomputed) -> Check:
    """Checks that every masked group can lose the silos that may be missing, and still unmask the sum."""
    return _check("masking", masking_problem(content, seen), f"sums of each {seen.group} are masked")


def _floors(content: PlanFile) -> Check:
    """Checks that the information floors follow from the coupling."""
    return _check("floor", floor_problem(content), f"coupling {content.settings.coupling:g}")


def _phases(content: PlanFile, phases: RecomputedPhases) -> Check:
    """Checks that every silo states the largest multiplier of its phases."""
    for entry, largest in zip(content.silos, phases.largest(), strict=True):
        if not math.isclose(entry.noise_multiplier, largest, rel_tol=_TOLERANCE):
            problem = f"silo {entry.silo!r} states {entry.noise_multiplier:.6g}, its largest is {largest:.6g}"
            return _check("phases", problem)
    return _check("phases", "", f"{len(phases.lengths)} phases of rounds with the same roster")


def _lattice(content: PlanFile, seen: Recomputed) -> Check:
    """Checks the lattice of a deployment.

    - All regions share a step, the largest power of two that is fine enough for the lightest silo.
    - The noise of every silo is wide enough for a sum of discrete Gaussians to be nearly Gaussian, and a release with
      the farthest possible draw fits into the integers.
    - The reserve of delta covers, against every observer, the distance of lattice noise from Gaussian noise.
    """
    settings, silos = content.settings, len(content.silos)
    if settings.injection != "silo" or not settings.parameters:
        return _check("lattice", "silos draw no noise of their own, or for no known model")
    finest = min(seen.weight) * settings.clip_norm / (_STEPS_A_SIGNAL * math.sqrt(settings.parameters))
    steps = {node.lattice_step or 0.0 for node in content.tiers[seen.innermost]}
    step = max(steps)
    if len(steps) > 1 or math.frexp(step)[0] != 0.5 or not finest / 2 < step * (1 + _TOLERANCE) <= finest * (1 + 2e-9):
        span = f"steps from {min(steps):.3g} to {step:.3g}"
        return _check("lattice", f"{span}, not the one largest power of two up to {finest:.3g}")
    largest = min(2.0**52, 2.0**63 / silos)
    rows = zip(content.silos, seen.weight, seen.largest_sum, seen.narrowest, strict=True)
    for entry, weight, sum_norm, least in rows:
        row = weight * settings.clip_norm / step  # the norm of the update, or of one person's gradient, in steps
        signal, width = row * sum_norm, entry.noise_multiplier * row
        if not (least * row >= _LEAST_WIDTH and signal + _FARTHEST * width < largest):
            problem = f"silo {entry.silo!r} has noise {least * row:.3g} steps wide, and a signal of {signal:.3g}"
            return _check("lattice", problem)
    # A distance d between the noises costs (1 + e^epsilon) d of delta, for every round and every silo of a sum.
    needed = max(
        settings.rounds
        * max(Counter(seen.path[seen.group or tier] if tier == SILO else nodes).values())
        * (settings.parameters * _DISTANCE + (0.0 if tier == SILO and seen.group is None else _REFUSED))
        * (1 + math.exp(min(max(seen.epsilon(tier)), 700.0)))
        for tier, nodes in seen.path.items()
    )
    detail = f"one step of {step:.3g}, {settings.reserve:.3g} of delta reserved, {needed:.3g} needed"
    return Check(name="lattice", holds=settings.reserve >= needed, detail=detail)


def _persons(content: PlanFile, seen: Recomputed) -> Check:
    """Checks the further epsilons of persons: the second convention, two silos, a silo as a whole.

    In deployment the reserve of delta must cover the distance of lattice noise at an epsilon, or the epsilon is no
    guarantee. A silo as a whole that words call unprotected has the epsilon of Gaussian noise.
    """
    stated, true = stated_epsilons(content.summary), person_epsilons(seen)  # of the same names: `_problems_of_settings`
    for name, value in true.items():
        unprotected = name == "whole_silo_above" and value > NO_PROTECTION
        continuous = content.purpose != "deployment"
        covered = unprotected or continuous or _further_cost(content, value) <= content.settings.reserve
        check = _epsilon_check(name, stated[name], value if covered else math.inf)
        if not check.holds:
            return _check("persons", f"{name.replace('_', ' ')}: {check.detail}")
    return Check(name="persons", holds=True, detail=f"{seen.unit.name}: {len(true)} further epsilons")


def _further_cost(content: PlanFile, epsilon: float) -> float:
    """Returns the part of delta that lattice noise costs at an epsilon, in a sum of all silos; see `_lattice`."""
    settings = content.settings
    distance = (settings.parameters or math.inf) * _DISTANCE + _REFUSED
    return settings.rounds * len(content.silos) * distance * (1 + math.exp(min(epsilon, 700.0)))


def _promises(content: PlanFile, seen: Recomputed) -> list[Check]:
    """Checks the targets as the user stated them: epsilon by tier, declared preferences, the information bound."""
    settings = content.settings
    checks = [
        _within(f"epsilon target at {tier}", max(seen.epsilon(tier)), promised)
        for tier, promised in settings.epsilon.items()
    ]
    count = sum(entry.preference is not None for entry in content.silos)
    if count:
        bound = zip(content.silos, seen.epsilon(seen.innermost), _binding_preferences(content), strict=True)
        over = [entry.silo for entry, epsilon, preference in bound if epsilon > preference * (1 + _TOLERANCE)]
        detail = f"{count} declared" + (f", exceeded for {over[0]!r}" if over else "")
        checks.append(Check(name="preferences", holds=not over, detail=detail))
    if settings.silo_epsilon is not None:
        worst_silo = max(seen.whole_silo_epsilons(seen.effective(seen.innermost)))
        if any(seen.spent[seen.innermost]):  # the largest sums of earlier plans are not known
            worst_silo = math.inf
        checks.append(_within("epsilon target of silos as a whole", worst_silo, settings.silo_epsilon))
    if settings.budget is not None:
        checks.append(_equal("budget", content.summary.noise_budget, settings.budget))
    if settings.information is not None:
        worst = max(_information(content, seen, seen.effective(seen.innermost)))
        has_floor = settings.coupling is not None or any(values_by_silo(settings.floor or 0.0, 1))
        unit = " nats" if has_floor else " nats, added by releases"
        checks.append(_within("information bound", worst, settings.information, unit))
    return checks


def _binding_preferences(content: PlanFile) -> list[float]:
    """Returns by silo the preference that binds the noise of the silo; infinity without a preference.

    A person in several silos must have the epsilon that the strictest of these silos declares. The plan does not know
    which silos share persons, so the strictest preference of all binds every silo.
    """
    declared = [math.inf if entry.preference is None else entry.preference for entry in content.silos]
    return declared if content.settings.silos_per_person == 1 else [min(declared)] * len(declared)


def _information(content: PlanFile, seen: Recomputed, multipliers: Iterable[float]) -> list[float]:
    """Returns by silo the nats of the floor, the past and all rounds (docs/maths.md, "Information bound").

    Args:
        content: The plan file; a floor that is not declared counts as 0.
        seen: The figures of the file.
        multipliers: By silo, the effective multiplier at the innermost tier; 0 reveals everything.
    """
    settings = content.settings
    floor, before = values_by_silo(settings.floor or 0.0, len(content.silos)), seen.spent[seen.innermost]
    apart = seen.unit.sensitivity**2 / 2  # the ball's diameter squared, over twice the square of its radius

    def nats_of_rounds(multiplier: float) -> float:
        if not multiplier:
            return math.inf
        ratio = 1 / multiplier
        if settings.bound == "paper":
            return settings.rounds * apart * ratio * ratio
        if settings.parameters is None:
            return settings.rounds * ratio * ratio / 2
        return settings.rounds * settings.parameters / 2 * math.log1p(ratio * ratio / settings.parameters)

    share = 2 if settings.bound == "paper" else 4 * apart
    return [
        lateral + past / share + nats_of_rounds(multiplier)
        for lateral, past, multiplier in zip(floor, before, multipliers, strict=True)
    ]


def _has_target(content: PlanFile, tier: str) -> bool:
    """Returns True if the settings, or a stricter epsilon that a silo asks for, state a target at a tier."""
    information = content.settings.information is not None
    inner = information or any(entry.preference is not None for entry in content.silos)
    inner = inner or content.settings.silo_epsilon is not None
    return tier in content.settings.epsilon or (tier == content.federation.tiers[0] and inner)


def _requirement(content: PlanFile, tier: str, seen: Recomputed) -> Check:
    """Checks that the requirement of a tier follows from the targets, and that every silo meets the requirement."""
    name, silos = f"requirement at {tier}", content.silos
    requirement = values_by_silo(content.settings.required_multiplier.get(tier, 0.0), len(silos))
    wrong = _first_wrong_requirement(content, tier, requirement, seen)
    if wrong is not None:
        return _check(name, f"silo {silos[wrong].silo!r}: {requirement[wrong]:.6g} is not what its targets ask for")
    for entry, has, required in zip(silos, seen.effective(tier), requirement, strict=True):
        if has < required * (1 - _TOLERANCE):
            return _check(name, f"silo {entry.silo!r} has {has:.6g}, required {required:.6g}")
    return Check(name=name, holds=True, detail=f"{len(requirement)} silos")


def _first_wrong_requirement(content: PlanFile, tier: str, requirement: list[float], seen: Recomputed) -> int | None:
    """Returns the first silo whose requirement is not the least that keeps all targets of the silo at a tier, or None.

    A requirement below the least would accept too little noise. A requirement above the least would overstate the
    uniform noise budget and the saving. A silo without a target has an infinite promise, and 0 is the least.
    """
    settings, silos = content.settings, content.silos
    more, less = ([required * (1 + sign * _TOLERANCE) for required in requirement] for sign in (1, -1))
    reached = seen.epsilon_at(tier, more), seen.epsilon_at(tier, less)
    targets = [([settings.epsilon.get(tier, math.inf)] * len(silos), *reached)]
    if tier == seen.innermost:
        if settings.silo_epsilon is not None:
            whole = seen.whole_silo_epsilons(more), seen.whole_silo_epsilons(less)
            targets.append(([settings.silo_epsilon] * len(silos), *whole))
        declared = _binding_preferences(content)
        bound = math.inf if settings.information is None else settings.information
        learned = _information(content, seen, more), _information(content, seen, less)
        targets += [(declared, *reached), ([bound] * len(silos), *learned)]
    for index in range(len(silos)):
        enough = all(with_more[index] <= promised[index] * (1 + _TOLERANCE) for promised, with_more, _ in targets)
        least = any(with_less[index] >= promised[index] * (1 - _TOLERANCE) for promised, _, with_less in targets)
        if not (enough and least):
            return index
    return None


def _nodes(content: PlanFile, tier: str, seen: Recomputed) -> Check:
    """Checks that the entries of a tier's nodes follow from the silos below."""
    name = f"nodes of {tier}"
    noise, rho = sum_by_node(seen.path[tier], seen.variance), seen.exposure(tier)
    members, worst = Counter(seen.path[tier]), largest_by_node(seen.path[tier], seen.epsilon(tier))
    for node in content.tiers[tier]:
        if node.name not in members:
            return _check(name, f"{tier} {node.name!r} has no silos")
        for check in (
            _equal("silos", node.silos, members[node.name]),
            _equal("exposure", node.exposure, rho[node.name]),
            _equal("noise multiplier", node.noise_multiplier, math.sqrt(noise[node.name])),
            _epsilon_check("worst epsilon", node.epsilon_worst, worst[node.name]),
        ):
            if not check.holds:
                return _check(name, f"{tier} {node.name!r}: {check.name} {check.detail}")
    return Check(name=name, holds=len(members) == len(content.tiers[tier]), detail=f"{len(members)} nodes")


def _covers(name: str, content: PlanFile, tier: str, epsilon: list[float]) -> Check:
    """Checks that the file's epsilons are the recomputed epsilons rounded up: never below, never far above."""
    for entry, true in zip(content.silos, epsilon, strict=True):
        check = _epsilon_check(name, entry.epsilon.get(tier), true)
        if not check.holds:
            return _check(name, f"silo {entry.silo!r}: {check.detail}")
    return Check(name=name, holds=True, detail=f"at most {max(epsilon):.6g}")


def _check(name: str, problem: str, detail: str = "") -> Check:
    """Returns a check that holds if the problem is an empty string."""
    return Check(name=name, holds=not problem, detail=problem or detail)


def _epsilon_check(name: str, stated: Epsilon, true: float) -> Check:
    """Checks that a stated epsilon is the true epsilon rounded up; None states an infinite epsilon."""
    value = math.inf if stated is None else stated
    holds = true * (1 - _TOLERANCE) <= value and (value <= true * (1 + 2e-5) + _SLACK or value == true)
    return Check(name=name, holds=holds, detail=f"stated {value:.6g}, recomputed {true:.6g}")


def _within(name: str, worst: float, promised: float, unit: str = "") -> Check:
    """Checks that the worst figure of all silos is at most the promised figure."""
    detail = f"worst {worst:.6g}{unit}, promised {promised:.6g}"
    return Check(name=name, holds=worst <= promised * (1 + _TOLERANCE), detail=detail)


def _equal(name: str, stated: float, true: float, *, share: bool = False, slack: float = _TOLERANCE) -> Check:
    """Checks that two figures agree; a share of 1 may be 0 up to rounding."""
    holds = math.isclose(stated, true, rel_tol=slack, abs_tol=_TOLERANCE if share else 0.0)
    return Check(name=name, holds=holds, detail=f"stated {stated:.6g}, recomputed {true:.6g}")
