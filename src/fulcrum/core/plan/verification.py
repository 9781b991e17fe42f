"""Recomputes a plan file's every number from its multipliers and roster, without the solver.

The path is deliberately another one than the planner's: exact sums silo by silo (`math.fsum`), coalitions by sorting
each region, targets read from the settings, information and lattice by formulas of its own. Of all that computes a
plan it shares the accountant and the sensitivity of the unit alone; beside that, it reads the file by the file's own
types and compares the words of the guarantee with the template they are made from.

>>> from fulcrum.planning.planner import plan
>>> checks = verify(plan("consortium", rounds=10, epsilon=1.0).content())
>>> all(check.holds for check in checks), len(checks)
(True, 19)
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from fulcrum.checks import Check
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.plan.earlier_words import EarlierGuarantee
from fulcrum.core.plan.guarantee import Guarantee
from fulcrum.core.plan.plan_file import Epsilon, PlanFile, Required, content_digest
from fulcrum.core.plan.plan_reader import SupportsContent, content_in, federation_in
from fulcrum.core.plan.verify_floors import floor_problem
from fulcrum.core.plan.verify_masking import group_tier, masking_problem
from fulcrum.core.plan.verify_weights import least_possible_noise, weights_problem
from fulcrum.core.privacy_unit import UNITS
from fulcrum.core.topology import ROOT, SILO

_SOLVED_AT_ONCE = 1_000
_SLACK = 1e-6  # an epsilon may be stated this much too high, never too low
_TOLERANCE = 1e-9  # relative; sums are taken in another order than the planner's

# What deployment must keep, stated anew: `fulcrum.core.lattice` and `fulcrum.core.noise.discrete_gaussian` prove it.
_STEPS_A_SIGNAL = 100  # of the lightest silo's w C over sqrt(d), at least
_LEAST_WIDTH = 16.0  # steps
_FARTHEST = 32  # widths that a draw may be away
_DISTANCE = 2.0**-108  # of a coordinate of one silo's noise, in total variation
_REFUSED = 2.0**-79  # the chance that a region refuses an honest release, which shows above it


def verify(plan: str | Path | SupportsContent | PlanFile) -> tuple[Check, ...]:
    """Returns the checks of a plan; it holds up if all of them do.

    Args:
        plan: A plan file to read, or a plan or the content of a file in memory. What no figure follows from is not
            checked: names, keys unless sums are masked, the allocation and its seed, advice; nor what rests on other
            files: what was spent before, who moved, and a floor, which is taken as declared unless a coupling is said
            to be behind it.

    Raises:
        PlanError: It is no plan: a content in memory is held to the form of a file (`content_in`).
    """
    content = content_in(plan)
    seen = Recomputed(content)
    settings, summary, kappa = content.settings, content.summary, seen.unit.sensitivity
    tiers = [SILO, *content.federation.tiers, ROOT]
    federation = federation_in(content)  # raises where the roster is not the one the digest names
    uniform = seen.uniform_budget()
    checks = [
        Check(
            name="digest", holds=content.digest in ("", content_digest(content)), detail=content_digest(content)[:12]
        ),
        Check(name="federation", holds=True, detail=f"{len(federation)} silos, digest {federation.digest[:12]}"),
        _equal(f"sensitivity is {kappa:g}C", content.guarantee.sensitivity, kappa * settings.clip_norm),
        _weights(content, seen),
        *([_clip_share(content, seen)] if settings.clip_share != 1 else []),
        *([_server(content)] if settings.server != "sum" else []),
        *([_masking(content, seen)] if settings.aggregation == "masked" else []),
        *([_floors(content)] if settings.coupling is not None else []),
        _equal("noise budget", summary.noise_budget, math.fsum(seen.variance)),
        _equal("uniform noise budget", summary.uniform_noise_budget, uniform),
        _equal("saving", summary.saving, 1 - math.fsum(seen.variance) / uniform if uniform else -math.inf, share=True),
        _equal("dispersion", summary.dispersion, seen.dispersion(), share=True),
    ]
    for tier in tiers:
        epsilon = seen.epsilon(tier)
        checks.append(_covers(f"epsilon at {tier}", content, tier, epsilon))
        if tier in settings.required_multiplier or _promised(content, tier):
            checks.append(_met(content, tier, seen))
    checks += [_nodes(content, tier, seen) for tier in content.federation.tiers]
    above, inside = seen.epsilon(content.federation.tiers[0]), seen.epsilon(SILO)
    checks += [
        _stated("worst epsilon above", summary.epsilon_above_worst, max(above)),
        _stated("mean epsilon above", summary.epsilon_above_mean, math.fsum(above) / len(above)),
        _stated("worst epsilon inside", summary.epsilon_inside_worst, max(inside)),
        _stated("mean epsilon inside", summary.epsilon_inside_mean, math.fsum(inside) / len(inside)),
        *_promises(content, seen),
        *([_lattice(content, seen)] if content.purpose == "deployment" else []),
        _words(content, seen),
    ]
    return tuple(checks)


def _words(content: PlanFile, seen: "Recomputed") -> Check:
    """Whether statement, adjacency and assumptions are those of the stated figures."""
    settings, inner = content.settings, content.federation.tiers[0]
    worst: dict[str, Epsilon] = {}
    for tier in [inner, SILO, *(tier for tier in settings.epsilon if tier not in (inner, SILO))]:
        stated = [entry.epsilon[tier] for entry in content.silos]
        worst[tier] = None if None in stated else max(value for value in stated if value is not None)
    words = Guarantee(
        rounds=settings.rounds,
        delta=settings.delta,
        accountant=settings.accountant,
        innermost=inner,
        worst=worst,
        targets=settings.epsilon,
        injection=settings.injection,
        purpose=content.purpose,
        colluders=settings.colluders,
        dropouts=settings.dropouts,
        follows=content.silos[0].spent is not None,
        sizes_known=content.silos[0].records is not None,
        weights_given=content.silos[0].declared_weight is not None or settings.weights == "by-silo",
        server=settings.server,
        aggregation=settings.aggregation,
        masked_tier=group_tier(content),
        smallest_group=_smallest_group(content),
        regions=len(content.tiers[inner]),
        complete_tier=seen.complete,
        less_spent_outside=seen.less_spent_outside(),
        unit=seen.unit,
    )
    differing = _differing_words(content, words)
    if not differing:
        return Check(name="words", holds=True, detail="statement, adjacency, assumptions")
    earlier = EarlierGuarantee.of(words)
    if _differing_words(content, earlier):
        return Check(name="words", holds=False, detail=f"the {differing} is not what the figures say")
    if earlier.untrue:
        detail = f"not true: {earlier.untrue}. Make the plan again with: fulcrum plan"
        return Check(name="words", holds=False, detail=detail)
    return Check(name="words", holds=True, detail="statement, adjacency, assumptions, in earlier words that are true")


def _smallest_group(content: PlanFile) -> int:
    """How many silos the smallest sum holds of those that are masked, where sums are."""
    whole = group_tier(content) == ROOT
    return len(content.silos) if whole else min(Counter(entry.node for entry in content.silos).values())


def _differing_words(content: PlanFile, words: Guarantee) -> str:
    """Names the first part of a file's guarantee that is not in these words; empty where all of it is."""
    stated = content.guarantee
    pairs = {
        "statement": (stated.statement, words.statement),
        "adjacency": (stated.adjacency, words.adjacency),
        "assumptions": (tuple(stated.assumptions), words.assumptions),
    }
    return next((name for name, (written, true) in pairs.items() if written != true), "")


class Recomputed:
    """The plan's figures, from multipliers and roster alone."""

    def __init__(self, content: PlanFile) -> None:
        self.settings = content.settings
        self.unit = UNITS[content.settings.unit]
        self._epsilon: dict[str, list[float]] = {}
        # Below what was promised even where the reserve is less than a rounding of it.
        promised, reserve = content.settings.delta, content.settings.reserve
        self.delta = min(promised - reserve, math.nextafter(promised, 0.0)) if reserve else promised
        sizes = [entry.records or 1.0 for entry in content.silos]
        total = math.fsum(sizes)
        self.weight = [
            size / total if entry.weight is None else entry.weight
            for size, entry in zip(sizes, content.silos, strict=True)
        ]
        self.multiplier = [entry.noise_multiplier for entry in content.silos]
        path = {SILO: [entry.silo for entry in content.silos], ROOT: [ROOT] * len(content.silos)}
        labels = [entry.node for entry in content.silos]
        for tier in content.federation.tiers:
            path[tier] = labels
            parents = {node.name: node.parent for node in content.tiers[tier]}
            labels = [parents[label] or "" for label in labels]
        self.path = path
        self.spent = {tier: [(entry.spent or {}).get(tier, 0.0) for entry in content.silos] for tier in path}
        self.innermost = content.federation.tiers[0]
        self.group = group_tier(content) if content.settings.aggregation == "masked" else None
        self.tiers = [SILO, *content.federation.tiers, ROOT]
        self.complete = self._outermost_complete_tier()
        self.region = path[self.innermost]
        if content.settings.injection == "aggregator":
            mass = _sums(self.region, (weight**2 for weight in self.weight))
            noise = {node.name: node.noise_multiplier**2 for node in content.tiers[self.innermost]}
            self.variance = [
                weight**2 * noise[region] / mass[region]
                for weight, region in zip(self.weight, self.region, strict=True)
            ]
        else:
            self.variance = [
                (weight * multiplier) ** 2 for weight, multiplier in zip(self.weight, self.multiplier, strict=True)
            ]

    def _outermost_complete_tier(self) -> str:
        """The outermost tier whose sums have the noise of every region below them in every round.

        Further out an observer may see the sum of one such node alone: by every rule but "sum" the model may be a
        function of single regional sums, and a round that goes on without absent regions may hold one node. Silos that
        are masked as one group have one sum, which is unmasked whole or not at all.
        """
        if self.group == ROOT:
            return ROOT
        if self.settings.server != "sum":
            return self.innermost
        if not self.settings.absent_regions:
            return ROOT
        return max([self.innermost, *self.settings.epsilon], key=self.tiers.index)

    def less_spent_outside(self) -> bool:
        """Whether a silo had spent less before this plan further out than at the outermost complete tier."""
        inside = self.spent[self.complete]
        outer = self.tiers[self.tiers.index(self.complete) + 1 :]
        return any(less < more for tier in outer for less, more in zip(self.spent[tier], inside, strict=True))

    def remaining(self, variance: list[float], tier: str) -> list[float]:
        """By silo, the noise that conceals it at a tier without the worst colluders and dropouts of each region."""
        excluded_silos = self.settings.colluders + self.settings.dropouts
        if tier == SILO and self.group is None:
            return variance
        if tier == SILO:  # inside is the server, with one silo of each region at least
            tier, excluded_silos = self.group or tier, max(1, self.settings.colluders) + self.settings.dropouts
        by_region: dict[str, list[float]] = defaultdict(list)
        for region, value in zip(self.region, variance, strict=True):
            by_region[region].append(value)
        ordered = {region: sorted(values, reverse=True) for region, values in by_region.items()}
        node_of = dict(zip(self.region, self.path[tier], strict=True))
        # What is left is added up, never taken from a total: light silos would be lost to rounding beside heavy ones.
        left = _sums(
            (node for region in ordered for node in [node_of[region]] * len(ordered[region][excluded_silos:])),
            (value for values in ordered.values() for value in values[excluded_silos:]),
        )
        found = []
        for region, node, value in zip(self.region, self.path[tier], variance, strict=True):
            # A silo among the largest is not in its own coalition: the next largest takes its place.
            edge = ordered[region][excluded_silos] if excluded_silos < len(ordered[region]) else 0.0
            found.append(left.get(node, 0.0) + max(value - edge, 0.0))
        return found

    def effective(self, tier: str) -> list[float]:
        """By silo, the effective multiplier at a tier."""
        if tier == SILO and self.group is None:
            return self.multiplier
        if tier != SILO:
            tier = min(tier, self.complete, key=self.tiers.index)
        if self.group == ROOT and tier != SILO:  # nobody sees a sum further in
            tier = ROOT
        remaining = self.remaining(self.variance, tier)
        return [math.sqrt(noise) / weight for noise, weight in zip(remaining, self.weight, strict=True)]

    def epsilon(self, tier: str) -> list[float]:
        """By silo, the epsilon at a tier; solved a few at a time, so that none is read off a table."""
        if tier not in self._epsilon:
            self._epsilon[tier] = self.epsilon_at(tier, self.effective(tier))
        return self._epsilon[tier]

    def epsilon_at(self, tier: str, multipliers: Iterable[float]) -> list[float]:
        """By silo, the epsilon at a tier, were these its effective multipliers there."""
        settings, kappa = self.settings, self.unit.sensitivity
        shifts = [
            math.hypot(kappa * math.sqrt(settings.rounds) / multiplier, math.sqrt(before)) if multiplier else math.inf
            for multiplier, before in zip(multipliers, self.spent[tier], strict=True)
        ]
        distinct = sorted(set(shifts))
        solved: dict[float, float] = {}
        for start in range(0, len(distinct), _SOLVED_AT_ONCE):
            some = distinct[start : start + _SOLVED_AT_ONCE]
            found = epsilon_of_shift(some, delta=self.delta, accountant=settings.accountant)
            solved |= zip(some, found.tolist(), strict=True)
        return [solved[shift] for shift in shifts]

    def uniform_budget(self) -> float:
        """The least budget of one multiplier for all that meets the requirement."""
        squared = [weight**2 for weight in self.weight]
        level = max(
            weight**2 * asked**2 / present
            for tier, required in self.settings.required_multiplier.items()
            for weight, asked, present in zip(
                self.weight, _by_silo(required, len(squared)), self.remaining(squared, tier), strict=True
            )
        )
        return level * math.fsum(squared)

    def exposure(self, tier: str) -> dict[str, float]:
        """By node of a tier, the largest share that one silo has of the squared weight that conceals it."""
        squared = [weight**2 for weight in self.weight]
        shares = (value / present for value, present in zip(squared, self.remaining(squared, tier), strict=True))
        return _largest(self.path[tier], shares)

    def dispersion(self) -> float:
        """1 - <rho>_V / rho_max at the innermost tier."""
        squared = [weight**2 for weight in self.weight]
        rho, mass = self.exposure(self.innermost), _sums(self.region, squared)
        return 1 - math.fsum(rho[region] * mass[region] for region in rho) / math.fsum(squared) / max(rho.values())


def _weights(content: PlanFile, seen: Recomputed) -> Check:
    """Whether silos count for what the settings say."""
    problem = weights_problem(content, seen)
    rule = content.settings.weights
    shown = rule if isinstance(rule, str) else f"{rule:g} of the way from sizes to least noise"
    return Check(name="weights", holds=not problem, detail=problem or shown)


def _clip_share(content: PlanFile, seen: Recomputed) -> Check:
    """Whether updates are clipped at the share of the clip norm that the noise asks for."""
    settings = content.settings
    if settings.parameters is None or settings.clip_norm != 1:
        return Check(name="clip share", holds=False, detail="a share of the clip norm needs a known model, and C = 1")
    least = least_possible_noise(content, seen)
    return _equal("clip share", settings.clip_share, 1 / (1 + settings.parameters * least), slack=1e-7)


def _server(content: PlanFile) -> Check:
    """Whether what the server does with the sums costs no privacy."""
    settings, inner = content.settings, content.federation.tiers[0]
    outside = [tier for tier in settings.epsilon if tier not in (SILO, inner)]
    holds = not outside and settings.injection == "silo"
    detail = f"{settings.server} over {inner}s"
    if not holds:
        detail += f", with a target on {outside[0]!r}" if outside else ", of noise that aggregators inject"
    return Check(name="server", holds=holds, detail=detail)


def _masking(content: PlanFile, seen: Recomputed) -> Check:
    """Whether every masked group can lose the silos that may be missing and still unmask its sum."""
    problem = masking_problem(content, seen.path, seen.region)
    return Check(name="masking", holds=not problem, detail=problem or f"sums of each {seen.group} are masked")


def _floors(content: PlanFile) -> Check:
    """Whether floors are those of the coupling."""
    problem = floor_problem(content)
    return Check(name="floor", holds=not problem, detail=problem or f"coupling {content.settings.coupling:g}")


def _lattice(content: PlanFile, seen: Recomputed) -> Check:
    """Whether all regions share a lattice that is fine enough, all that is released fits it, and delta is reserved."""
    settings, silos = content.settings, len(content.silos)
    if settings.injection != "silo" or not settings.parameters:
        return Check(name="lattice", holds=False, detail="silos draw no noise of their own, or for no known model")
    finest = min(seen.weight) * settings.clip_norm / (_STEPS_A_SIGNAL * math.sqrt(settings.parameters))
    steps = {node.lattice_step or 0.0 for node in content.tiers[seen.innermost]}
    step = max(steps)
    if len(steps) > 1 or math.frexp(step)[0] != 0.5 or not finest / 2 < step * (1 + _TOLERANCE) <= finest * (1 + 2e-9):
        detail = f"steps from {min(steps):.3g} to {step:.3g}, not the one largest power of two up to {finest:.3g}"
        return Check(name="lattice", holds=False, detail=detail)
    largest = min(2.0**52, 2.0**63 / silos)
    for entry, weight in zip(content.silos, seen.weight, strict=True):
        signal = weight * settings.clip_norm / step
        width = entry.noise_multiplier * signal
        if not (width >= _LEAST_WIDTH and signal + _FARTHEST * width < largest):
            detail = f"silo {entry.silo!r} has noise {width:.3g} steps wide, and a signal of {signal:.3g}"
            return Check(name="lattice", holds=False, detail=detail)
    needed = max(
        settings.rounds
        * max(Counter(seen.path[seen.group or tier] if tier == SILO else nodes).values())
        * (settings.parameters * _DISTANCE + (0.0 if tier == SILO and seen.group is None else _REFUSED))
        * (1 + math.exp(min(max(seen.epsilon(tier)), 700.0)))
        for tier, nodes in seen.path.items()
    )
    detail = f"one step of {step:.3g}, {settings.reserve:.3g} of delta reserved, {needed:.3g} needed"
    return Check(name="lattice", holds=settings.reserve >= needed, detail=detail)


def _promises(content: PlanFile, seen: Recomputed) -> list[Check]:
    """The targets as the user stated them: epsilon by tier, declared preferences, the information bound."""
    settings = content.settings
    inner = content.federation.tiers[0]
    found = []
    for tier, promised in settings.epsilon.items():
        worst = max(seen.epsilon(tier))
        detail = f"worst {worst:.6g}, promised {promised:.6g}"
        found.append(Check(name=f"epsilon target at {tier}", holds=worst <= promised * (1 + _TOLERANCE), detail=detail))
    preferring = [index for index, entry in enumerate(content.silos) if entry.preference is not None]
    if preferring:
        epsilon = seen.epsilon(inner)
        over = [
            content.silos[index].silo
            for index in preferring
            if epsilon[index] > (content.silos[index].preference or 0.0) * (1 + _TOLERANCE)
        ]
        detail = f"{len(preferring)} declared" + (f", exceeded for {over[0]!r}" if over else "")
        found.append(Check(name="preferences", holds=not over, detail=detail))
    if settings.budget is not None:
        found.append(_equal("budget", content.summary.noise_budget, settings.budget))
    if settings.information is not None:
        worst = max(_information(content, seen, seen.effective(inner)))
        added = (
            "" if settings.coupling is not None or any(_by_silo(settings.floor or 0.0, 1)) else ", added by releases"
        )
        detail = f"worst {worst:.6g} nats{added}, promised {settings.information:.6g}"
        holds = worst <= settings.information * (1 + _TOLERANCE)
        found.append(Check(name="information bound", holds=holds, detail=detail))
    return found


def _information(content: PlanFile, seen: Recomputed, multipliers: Iterable[float]) -> list[float]:
    """By silo, the floor where one is declared, and the nats that the past and all rounds add at these multipliers."""
    settings = content.settings
    floor, before = _by_silo(settings.floor or 0.0, len(content.silos)), seen.spent[seen.innermost]
    apart = seen.unit.sensitivity**2 / 2  # the ball's diameter squared, over twice the square of its radius

    def rounds(multiplier: float) -> float:
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
        lateral + past / share + rounds(multiplier)
        for lateral, past, multiplier in zip(floor, before, multipliers, strict=True)
    ]


def _promised(content: PlanFile, tier: str) -> bool:
    """Whether anything was promised against an observer of a tier."""
    settings = content.settings
    if tier == content.federation.tiers[0] and (
        settings.information is not None or any(entry.preference is not None for entry in content.silos)
    ):
        return True
    return tier in settings.epsilon


def _met(content: PlanFile, tier: str, seen: Recomputed) -> Check:
    """Whether every silo has the effective multiplier that its tier requires, and that is what its targets ask for."""
    name, silos = f"requirement at {tier}", content.silos
    required = _by_silo(content.settings.required_multiplier.get(tier, 0.0), len(silos))
    wrong = _not_asked_for(content, tier, required, seen)
    if wrong is not None:
        detail = f"silo {silos[wrong].silo!r}: {required[wrong]:.6g} is not what its targets ask for"
        return Check(name=name, holds=False, detail=detail)
    effective = seen.effective(tier)
    for entry, has, asked in zip(silos, effective, required, strict=True):
        if has < asked * (1 - _TOLERANCE):
            return Check(name=name, holds=False, detail=f"silo {entry.silo!r} has {has:.6g}, required {asked:.6g}")
    return Check(name=name, holds=True, detail=f"{len(required)} silos")


def _not_asked_for(content: PlanFile, tier: str, required: list[float], seen: Recomputed) -> int | None:
    """The first silo whose requirement is not the least that keeps all its targets at a tier, if there is one.

    Where a silo has no target its promise is infinite, and 0 the least that keeps it.
    """
    settings, silos = content.settings, content.silos
    more, less = ([asked * (1 + sign * _TOLERANCE) for asked in required] for sign in (1, -1))
    reached = seen.epsilon_at(tier, more), seen.epsilon_at(tier, less)
    targets = [([settings.epsilon.get(tier, math.inf)] * len(silos), *reached)]
    if tier == content.federation.tiers[0]:
        declared = [math.inf if entry.preference is None else entry.preference for entry in silos]
        bound = math.inf if settings.information is None else settings.information
        learned = _information(content, seen, more), _information(content, seen, less)
        targets += [(declared, *reached), ([bound] * len(silos), *learned)]
    for index in range(len(silos)):
        kept = all(with_more[index] <= promised[index] * (1 + _TOLERANCE) for promised, with_more, _ in targets)
        least = any(with_less[index] >= promised[index] * (1 - _TOLERANCE) for promised, _, with_less in targets)
        if not (kept and least):
            return index
    return None


def _nodes(content: PlanFile, tier: str, seen: Recomputed) -> Check:
    """Whether the entries of a tier's nodes follow from their silos."""
    name = f"nodes of {tier}"
    noise, rho = _sums(seen.path[tier], seen.variance), seen.exposure(tier)
    members, worst = Counter(seen.path[tier]), _largest(seen.path[tier], seen.epsilon(tier))
    for node in content.tiers[tier]:
        if node.name not in members:
            return Check(name=name, holds=False, detail=f"{tier} {node.name!r} has no silos")
        for check in (
            _equal("silos", node.silos, members[node.name]),
            _equal("exposure", node.exposure, rho[node.name]),
            _equal("noise multiplier", node.noise_multiplier, math.sqrt(noise[node.name])),
            _stated("worst epsilon", node.epsilon_worst, worst[node.name]),
        ):
            if not check.holds:
                return Check(name=name, holds=False, detail=f"{tier} {node.name!r}: {check.name} {check.detail}")
    return Check(name=name, holds=len(members) == len(content.tiers[tier]), detail=f"{len(members)} nodes")


def _covers(name: str, content: PlanFile, tier: str, epsilon: list[float]) -> Check:
    """Whether the file's epsilons are the true ones rounded up: never below, never far above."""
    for entry, true in zip(content.silos, epsilon, strict=True):
        check = _stated(name, entry.epsilon.get(tier), true)
        if not check.holds:
            return Check(name=name, holds=False, detail=f"silo {entry.silo!r}: {check.detail}")
    return Check(name=name, holds=True, detail=f"at most {max(epsilon):.6g}")


def _stated(name: str, stated: Epsilon, true: float) -> Check:
    value = math.inf if stated is None else stated
    holds = true * (1 - _TOLERANCE) <= value and (value <= true * (1 + 2e-5) + _SLACK or value == true)
    return Check(name=name, holds=holds, detail=f"stated {value:.6g}, recomputed {true:.6g}")


def _equal(name: str, stated: float, true: float, *, share: bool = False, slack: float = _TOLERANCE) -> Check:
    """Whether two figures are the same; shares of one may be 0 up to rounding."""
    holds = math.isclose(stated, true, rel_tol=slack, abs_tol=_TOLERANCE if share else 0.0)
    return Check(name=name, holds=holds, detail=f"stated {stated:.6g}, recomputed {true:.6g}")


def _by_silo(value: Required, silos: int) -> list[float]:
    return value if isinstance(value, list) else [value] * silos


def _sums(nodes: Iterable[str], values: Iterable[float]) -> dict[str, float]:
    gathered: dict[str, list[float]] = defaultdict(list)
    for node, value in zip(nodes, values, strict=True):
        gathered[node].append(value)
    return {node: math.fsum(parts) for node, parts in gathered.items()}


def _largest(nodes: Iterable[str], values: Iterable[float]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for node, value in zip(nodes, values, strict=True):
        largest[node] = max(largest.get(node, value), value)
    return largest
