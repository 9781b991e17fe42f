"""The observers that the audit plays: their targets, their views, and the plan's claims against them.

>>> from fulcrum.planning.planner import plan
>>> stages = stages_of(plan("isic-paper", rounds=2, epsilon=1.0))
>>> [(stage.node, [view.observer for view in stage.views]) for stage in stages][:2]
[('region-1', ['above', 'colluding']), ('region-1', ['inside'])]
"""

import math
from dataclasses import dataclass

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.accounting import epsilon_of_shift
from fulcrum.core.topology import ROOT, SILO
from fulcrum.errors import ParameterError
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.calibration import shift_of

ABOVE, INSIDE, COLLUDING, DROPOUTS = "above", "inside", "colluding", "dropouts"
"""The observer of a node's sums; inside a region; of sums, with colluders; of sums, with missing silos as well.

The observer inside sees single releases. With masked sums the observer inside is the server together with members of
every region, at least one: the members subtract their own updates and noise from the sums.
"""

MOST_REGIONS = 24
"""The most regions in an audit; of more, the regions with the highest epsilons, the smallest and the largest."""

MOST_RELEASES = 100_000
"""The most releases of a replay, over all audited regions: more would take hours."""

_MOST_VERIFIED = 4_000_000  # silos that verify a deployment plan, times silos of the plan: two minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The plan's claim for a silo against an observer, over the rounds of this plan.

    Attributes:
        shift: mu, from the noise multipliers.
        exact: The epsilon of that shift, tight for Gaussian noise.
        renyi: The epsilon by the paper's Theorem 1.
        stated: The epsilon that the plan states, by its own accountant.
    """

    shift: float
    exact: float
    renyi: float
    stated: float

    @property
    def epsilon(self) -> float:
        """The smaller of the stated epsilon and the epsilon of the noise; a measurement must not exceed it."""
        return min(self.stated, self.exact)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """An observer's view of the silo under attack.

    Attributes:
        observer: `ABOVE`, `INSIDE`, `COLLUDING` or `DROPOUTS`.
        colluders: Silos whose updates and noise the observer knows.
        missing: Silos whose releases are not in the sum.
        claim: The plan's claim against the observer.
        colluding: The largest number of colluders in a region.
        absent: The largest number of missing silos in a region.
        noise_std: The noise in the view of a round, without colluders' noise, in units of the update.
        single: True if the observer sees the silo's own release, and no sum.
    """

    observer: str
    colluders: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    colluding: int = 0
    absent: int = 0
    claim: Claim
    noise_std: float
    single: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A game: a node whose silos release, with a silo under attack, and the observers.

    Attributes:
        tier: Tier of the node.
        node: Name of the node.
        silo: The silo under attack: the silo with the highest epsilon at the node.
        members: The silos by region of the node; a single silo if the observer sees single releases.
        views: The observers' views.
    """

    tier: str
    node: str
    silo: int
    members: dict[int, tuple[int, ...]]
    views: tuple[View, ...]

    @property
    def silos(self) -> int:
        """Number of silos that release."""
        return sum(len(members) for members in self.members.values())


def stages_of(plan: Plan, *, regions: int = MOST_REGIONS, silo: int | None = None) -> tuple[Stage, ...]:
    """Returns the games of a plan, region by region, then the games of the tiers further out.

    Args:
        plan: The plan under audit.
        regions: The largest number of regions; see `MOST_REGIONS`.
        silo: Audit this silo alone, in its region.
    """
    federation = plan.federation
    inner, region_of = federation.innermost, federation.innermost.parent_of
    room = _room(plan)
    if plan.one_group:  # no observer sees the sum of a smaller group
        if len(federation) > room:
            raise _too_large(plan, ROOT, len(federation), room)
        everyone = {region: _silos_of(plan, region) for region in range(len(inner.nodes))}
        return _stages_of_group(plan, ROOT, ROOT, everyone, silo)
    wanted = _by_turns(plan) if silo is None else [int(region_of[silo])]
    chosen = _fitting(plan, wanted, regions, room)
    members = {region: _silos_of(plan, region) for region in chosen}
    if not chosen:
        if plan.is_masked:
            raise _too_large(plan, inner.name, int(np.bincount(region_of)[wanted].min()), room)
        return (_stage_inside(plan, int(np.argmax(plan.epsilon_inside)) if silo is None else silo),)
    stages: list[Stage] = []
    for region in chosen:
        stages += _stages_of_group(plan, inner.name, inner.nodes[region], {region: members[region]}, silo)
    # Beyond the outermost complete tier an observer may see one node of that tier alone, which was played before.
    tiers = federation.tier_names
    outer = tiers[tiers.index(inner.name) + 1 : tiers.index(plan.outermost_complete_tier) + 1]
    for tier in outer if silo is None else ():
        node_of, shown = federation.membership(tier), plan.epsilon(tier, colluders=0, dropouts=0)
        names = (ROOT,) if tier == ROOT else federation.tier(tier).nodes
        for node, name in enumerate(names):
            below = sorted(set(region_of[node_of == node].tolist()))
            if set(below) <= members.keys() and len(below) > 1:
                among = {region: members[region] for region in below}
                target = int(np.argmax(np.where(node_of == node, shown, -1.0)))
                views = _views_of_sums(plan, tier, target)
                stages.append(Stage(tier=tier, node=name, silo=target, members=among, views=views))
                lightest = int(np.argmin(np.where(node_of == node, federation.weights, np.inf)))
                if plan.is_deployment and lightest != target:  # low bits reveal most of the lightest silo
                    view = _view(plan, tier, lightest, ABOVE)
                    stages.append(Stage(tier=tier, node=name, silo=lightest, members=among, views=(view,)))
    return tuple(stages)


def whole_federation(plan: Plan, observer: str) -> Stage:
    """Returns the stage of an observer of all regions, against the silo with the highest epsilon above.

    The claim is the claim against an observer of the regions' sums.
    """
    members = {region: _silos_of(plan, region) for region in range(len(plan.federation.innermost.nodes))}
    silo = int(np.argmax(plan.epsilon_above))
    view = _view(plan, plan.federation.innermost.name, silo, observer)
    return Stage(tier=ROOT, node=ROOT, silo=silo, members=members, views=(view,))


def _room(plan: Plan) -> int:
    """Returns the largest number of silos in a replay: every silo releases in every round, and may verify the plan."""
    most = MOST_RELEASES // plan.rounds
    return most if plan.is_research else min(most, _MOST_VERIFIED // len(plan.federation))


def _too_large(plan: Plan, tier: str, silos: int, room: int) -> ParameterError:
    return ParameterError("audit.masked-sum-too-large", tier=tier, silos=silos, rounds=plan.rounds, room=room)


def _fitting(plan: Plan, wanted: list[int], most: int, room: int) -> list[int]:
    """Returns the regions to audit: the first wanted regions that fit."""
    sizes = np.bincount(plan.federation.innermost.parent_of)
    fitting: list[int] = []
    for region in wanted:
        if len(fitting) < most and sizes[region] <= room:
            fitting.append(region)
            room -= int(sizes[region])
    return sorted(fitting)


def _by_turns(plan: Plan) -> list[int]:
    """Returns all regions: in turn the highest epsilon above, the highest inside, the smallest and the largest."""
    region_of = plan.federation.innermost.parent_of
    count = len(plan.federation.innermost.nodes)
    above, inside = np.zeros(count), np.zeros(count)
    np.maximum.at(above, region_of, np.minimum(plan.epsilon_above, 1e300))
    np.maximum.at(inside, region_of, np.minimum(plan.epsilon_inside, 1e300))
    sizes = np.bincount(region_of, minlength=count)
    orders = [np.argsort(-above, kind="stable"), np.argsort(-inside, kind="stable")]
    orders += [np.argsort(sizes, kind="stable"), np.argsort(-sizes, kind="stable")]
    return list(dict.fromkeys(int(order[place]) for place in range(count) for order in orders))


def _silos_of(plan: Plan, region: int) -> tuple[int, ...]:
    return tuple(np.flatnonzero(plan.federation.innermost.parent_of == region).tolist())


def _stages_of_group(
    plan: Plan, tier: str, name: str, members: dict[int, tuple[int, ...]], silo: int | None
) -> tuple[Stage, ...]:
    """Returns the games of silos with a common sum: against the observer of the sum, and the observer inside."""
    where = [member for some in members.values() for member in some]
    target = int(where[np.argmax(plan.epsilon_above[where])]) if silo is None else silo
    single = int(where[np.argmax(plan.epsilon_inside[where])]) if silo is None else silo
    sums = Stage(tier=tier, node=name, silo=target, members=members, views=_views_of_sums(plan, tier, target))
    if plan.is_masked:
        if len(where) == 1:  # no other member could be inside
            return (sums,)
        missing = plan.dropouts
        inside = _view(plan, SILO, single, INSIDE, colluders=max(1, plan.colluders), dropouts=missing)
        return (sums, Stage(tier=SILO, node=name, silo=single, members=members, views=(inside,)))
    return (sums, _stage_inside(plan, single))


def _stage_inside(plan: Plan, silo: int) -> Stage:
    """Returns the game against the observer of a silo's single releases."""
    inner = plan.federation.innermost
    region, view = int(inner.parent_of[silo]), _view(plan, SILO, silo, INSIDE)
    return Stage(tier=SILO, node=inner.nodes[region], silo=silo, members={region: (silo,)}, views=(view,))


def _views_of_sums(plan: Plan, tier: str, target: int) -> tuple[View, ...]:
    """Returns the views of a tier's sums: alone, with colluders of every region, and with missing silos."""
    views = [_view(plan, tier, target, ABOVE)]
    helpers = max(1, plan.colluders)
    colluding = _view(plan, tier, target, COLLUDING, colluders=helpers)
    if not plan.silos_draw_noise or not colluding.colluders:
        return tuple(views)
    further_out = tier not in (plan.group_tier, plan.federation.innermost.name)
    if not plan.is_masked:
        views.append(colluding)
    elif further_out:  # at the group itself the observer inside has a game of its own
        views.append(_view(plan, tier, target, INSIDE, colluders=helpers, dropouts=plan.dropouts))
    if plan.dropouts:
        views.append(_view(plan, tier, target, DROPOUTS, colluders=plan.colluders, dropouts=plan.dropouts))
    return tuple(views)


def _view(plan: Plan, tier: str, silo: int, observer: str, *, colluders: int = 0, dropouts: int = 0) -> View:
    """Returns the view of a silo by an observer of a tier, with the worst coalition of every region."""
    federation, variance = plan.federation, plan.noise_variance
    missing: list[tuple[int, ...]] = []
    colluding: list[tuple[int, ...]] = []
    seen = plan.group_tier if tier == SILO and plan.is_masked else tier
    if seen == SILO:
        left = float(variance[silo]) if plan.silos_draw_noise else 0.0
    else:
        node_of, region_of = federation.membership(seen), federation.innermost.parent_of
        there = np.flatnonzero(node_of == node_of[silo])
        for region in np.unique(region_of[there]) if colluders or dropouts else ():
            others = [int(silo_number) for silo_number in there[region_of[there] == region] if silo_number != silo]
            worst = tuple(sorted(others, key=lambda silo_number: -variance[silo_number]))
            missing.append(worst[:dropouts])
            colluding.append(worst[dropouts : dropouts + colluders])
        excluded = {silo_number for some in (*missing, *colluding) for silo_number in some}
        left = math.fsum(float(variance[silo_number]) for silo_number in there.tolist() if silo_number not in excluded)
    claim = _claim(plan, tier, silo, colluders=colluders, dropouts=dropouts)
    return View(
        observer=observer,
        colluders=tuple(silo_number for some in colluding for silo_number in some),
        missing=tuple(silo_number for some in missing for silo_number in some),
        colluding=max(map(len, colluding), default=0),
        absent=max(map(len, missing), default=0),
        claim=claim,
        noise_std=math.sqrt(left) * plan.clip_norm,
        single=seen == SILO,
    )


def _claim(plan: Plan, tier: str, silo: int, *, colluders: int, dropouts: int) -> Claim:
    multiplier = float(plan.effective_multiplier(tier, colluders=colluders, dropouts=dropouts)[silo])
    shift = float(shift_of(multiplier, rounds=plan.rounds, unit=plan.unit))
    delta = plan.target.accounted_delta
    by = {name: float(epsilon_of_shift(shift, delta=delta, accountant=name)) for name in ("exact", "renyi")}
    # The plan's epsilons include earlier releases, which cannot be replayed.
    stated = by[plan.accountant]
    if not plan.continues_previous_plan:
        stated = float(plan.epsilon(tier, colluders=colluders, dropouts=dropouts)[silo])
    return Claim(shift=shift, stated=stated, **by)


def known_signal(plan: Plan, silo: int) -> float:
    """Returns the shift of a region's sum by a silo's canary after clip and weight."""
    weights: FloatArray = plan.federation.weights
    return float(weights[silo]) * plan.clip_norm


def silos_of(stage: Stage) -> IntArray:
    """Returns all silos of a stage, region by region."""
    return np.array([silo for members in stage.members.values() for silo in members], dtype=np.intp)
