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
from fulcrum.core.plan import figures
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
        members: The silos by region of the node; the silos under attack if the observer sees single releases.
        views: The observers' views.
        further: Further silos that hold records of the canary person, for a person with records in several silos.
        is_apart: True if the observer sees one sum for every region of `members`, and not the sum of all.
    """

    tier: str
    node: str
    silo: int
    members: dict[int, tuple[int, ...]]
    views: tuple[View, ...]
    further: tuple[int, ...] = ()
    is_apart: bool = False

    @property
    def canary_silos(self) -> tuple[int, ...]:
        """All silos that send the canary, the silo under attack first."""
        return (self.silo, *self.further)

    @property
    def silos(self) -> int:
        """Number of silos that release."""
        return sum(len(members) for members in self.members.values())


def stages_of(
    plan: Plan, *, regions: int = MOST_REGIONS, silo: int | None = None, canary_silos: int | None = None
) -> tuple[Stage, ...]:
    """Returns the games of a plan, region by region, then the games of the tiers further out.

    Args:
        plan: The plan under audit.
        regions: The largest number of regions; see `MOST_REGIONS`.
        silo: Audit this silo alone, in its region.
        canary_silos: The number of silos that hold records of the canary person; by default as many as the plan
            provides for.
    """
    copies = plan.unit.silos_per_person if canary_silos is None else canary_silos
    federation = plan.federation
    inner, region_of = federation.innermost, federation.innermost.parent_of
    room = _room(plan)
    if plan.one_group:  # no observer sees the sum of a smaller group
        if len(federation) > room:
            raise _too_large(plan, ROOT, len(federation), room)
        everyone = {region: _silos_of(plan, region) for region in range(len(inner.nodes))}
        return _stages_of_group(plan, ROOT, ROOT, everyone, silo, copies)
    wanted = _by_turns(plan) if silo is None else [int(region_of[silo])]
    chosen = _fitting(plan, wanted, regions, room)
    members = {region: _silos_of(plan, region) for region in chosen}
    if not chosen:
        if plan.is_masked:
            raise _too_large(plan, inner.name, int(np.bincount(region_of)[wanted].min()), room)
        return (_stage_inside(plan, int(np.argmax(plan.epsilon_inside)) if silo is None else silo, copies),)
    stages: list[Stage] = []
    for region in chosen:
        stages += _stages_of_group(plan, inner.name, inner.nodes[region], {region: members[region]}, silo, copies)
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
                further = _further_silos(plan, target, among, copies)
                views = _views_of_sums(plan, tier, target, further)
                stages.append(Stage(tier=tier, node=name, silo=target, members=among, views=views, further=further))
                lightest = int(np.argmin(np.where(node_of == node, federation.weights, np.inf)))
                if plan.is_deployment and lightest != target:  # low bits reveal most of the lightest silo
                    view = _view(plan, tier, lightest, ABOVE)
                    stages.append(Stage(tier=tier, node=name, silo=lightest, members=among, views=(view,)))
    if silo is None and copies > 1 and (apart := _stage_apart(plan, members, copies)):
        stages.append(apart)
    return tuple(stages)


def whole_federation(plan: Plan, observer: str, *, canary_silos: int | None = None) -> Stage:
    """Returns the stage of an observer of all regions, against the silo with the highest epsilon above.

    The claim is the claim against an observer of the regions' sums.
    """
    inner = plan.federation.innermost
    members = {region: _silos_of(plan, region) for region in range(len(inner.nodes))}
    silo = int(np.argmax(plan.epsilon_above))
    copies = plan.unit.silos_per_person if canary_silos is None else canary_silos
    region = int(inner.parent_of[silo])
    further = _further_silos(plan, silo, {region: members[region]}, copies)
    view = _view(plan, inner.name, silo, observer, further=further)
    return Stage(tier=ROOT, node=ROOT, silo=silo, members=members, views=(view,), further=further)


def _further_silos(plan: Plan, silo: int, members: dict[int, tuple[int, ...]], copies: int) -> tuple[int, ...]:
    """Returns the silos of a node in which a person of `silo` moves the node's sum most, at most `copies` - 1."""
    weights = plan.federation.weights
    others = [member for some in members.values() for member in some if member != silo]
    return tuple(sorted(others, key=lambda member: -weights[member])[: copies - 1])


def _stage_apart(plan: Plan, members: dict[int, tuple[int, ...]], copies: int) -> Stage | None:
    """Returns the game of a person in silos of several regions; None if the worst placement is within one region.

    The observer sees the sum of every region. The person moves the sum of region v by the k_v largest weights of its
    silos, and the squared shifts add up over regions: dynamic programming over regions finds the largest total.
    """
    weights, variance, inner = plan.federation.weights, plan.noise_variance, plan.federation.innermost
    best: list[tuple[float, tuple[tuple[int, ...], ...]]] = [(0.0, ())] * (copies + 1)
    for silos in members.values():
        noise = float(variance[list(silos)].sum())
        if not noise:
            continue
        heaviest = sorted(silos, key=lambda member: -weights[member])[:copies]
        reached = np.cumsum(weights[heaviest])
        for count in range(copies, 0, -1):
            for here in range(1, min(count, len(heaviest)) + 1):
                gain, elsewhere = best[count - here]
                if gain + reached[here - 1] ** 2 / noise > best[count][0] * (1 + 1e-12):
                    best[count] = (gain + reached[here - 1] ** 2 / noise, (*elsewhere, tuple(heaviest[:here])))
    placed = best[copies][1]
    if len(placed) < 2:
        return None
    shown = plan.epsilon(inner.name, colluders=0, dropouts=0)
    attacked = sorted((silo for silos in placed for silo in silos), key=lambda silo: -shown[silo])
    first, further = attacked[0], tuple(attacked[1:])
    # The region of the first silo comes first, so the first row of the view is the sum whose noise is tested.
    regions = sorted({int(inner.parent_of[silo]) for silo in attacked}, key=lambda at: at != inner.parent_of[first])
    names = [inner.nodes[region] for region in regions]
    node = " + ".join(names[:3]) + (f" + {len(names) - 3} more" if len(names) > 3 else "")
    view = _view(plan, inner.name, first, ABOVE, further=further)
    among = {region: members[region] for region in regions}
    return Stage(tier=inner.name, node=node, silo=first, members=among, views=(view,), further=further, is_apart=True)


def _room(plan: Plan) -> int:
    """Returns the largest number of silos in a replay: every silo releases in every round, and may verify the plan."""
    most = MOST_RELEASES // plan.rounds
    return most if plan.is_research else min(most, _MOST_VERIFIED // len(plan.federation))


def _too_large(plan: Plan, tier: str, silos: int, room: int) -> ParameterError:
    return ParameterError("audit.masked-sum-too-large", tier=tier, silos=silos, rounds=plan.rounds, room=room)


def _fitting(plan: Plan, wanted: list[int], most: int, room: int) -> list[int]:
    """Returns the indices of the regions to audit, sorted.

    The wanted regions are taken in order: at most `most` regions, with at most `room` silos together.
    """
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
    plan: Plan, tier: str, name: str, members: dict[int, tuple[int, ...]], silo: int | None, copies: int
) -> tuple[Stage, ...]:
    """Returns the games of silos with a common sum: against the observer of the sum, and the observer inside.

    Args:
        plan: The plan under audit.
        tier: The tier of the observer of the sum.
        name: The node of the tier whose sum the observer sees.
        members: By index of a region, the indices of its silos in the sum.
        silo: The silo under attack; None for the silo with the highest epsilon against each observer.
        copies: The number of silos that hold records of the canary person.
    """
    where = [member for some in members.values() for member in some]
    target = int(where[np.argmax(plan.epsilon_above[where])]) if silo is None else silo
    single = int(where[np.argmax(plan.epsilon_inside[where])]) if silo is None else silo
    further = _further_silos(plan, target, members, copies)
    views = _views_of_sums(plan, tier, target, further)
    sums = Stage(tier=tier, node=name, silo=target, members=members, views=views, further=further)
    if plan.is_masked:
        if len(where) == 1:  # no other member could be inside
            return (sums,)
        missing, also = plan.dropouts, _further_silos(plan, single, members, copies)
        inside = _view(plan, SILO, single, INSIDE, colluders=max(1, plan.colluders), dropouts=missing, further=also)
        return (sums, Stage(tier=SILO, node=name, silo=single, members=members, views=(inside,), further=also))
    return (sums, _stage_inside(plan, single, copies))


def _stage_inside(plan: Plan, silo: int, copies: int) -> Stage:
    """Returns the game against the observer of single releases: of a silo, or of the silos of a region with a person.

    A person in several silos of a region is worst off in the silos with the least noise for the weight.
    """
    inner, multiplier = plan.federation.innermost, plan.noise_multiplier
    region = int(inner.parent_of[silo])
    others = [member for member in _silos_of(plan, region) if member != silo and multiplier[member] > 0]
    further = tuple(sorted(others, key=lambda member: multiplier[member])[: copies - 1])
    view = _view(plan, SILO, silo, INSIDE, further=further)
    return Stage(
        tier=SILO,
        node=inner.nodes[region],
        silo=silo,
        members={region: (silo, *further)},
        views=(view,),
        further=further,
    )


def _views_of_sums(plan: Plan, tier: str, target: int, further: tuple[int, ...]) -> tuple[View, ...]:
    """Returns the views of a tier's sums: alone, with colluders of every region, and with missing silos."""
    views = [_view(plan, tier, target, ABOVE, further=further)]
    helpers = max(1, plan.colluders)
    colluding = _view(plan, tier, target, COLLUDING, colluders=helpers, further=further)
    if not plan.silos_draw_noise or not colluding.colluders:
        return tuple(views)
    further_out = tier not in (plan.group_tier, plan.federation.innermost.name)
    if not plan.is_masked:
        views.append(colluding)
    elif further_out:  # at the group itself the observer inside has a game of its own
        views.append(_view(plan, tier, target, INSIDE, colluders=helpers, dropouts=plan.dropouts, further=further))
    if plan.dropouts:
        views.append(
            _view(plan, tier, target, DROPOUTS, colluders=plan.colluders, dropouts=plan.dropouts, further=further)
        )
    return tuple(views)


def _view(
    plan: Plan,
    tier: str,
    silo: int,
    observer: str,
    *,
    colluders: int = 0,
    dropouts: int = 0,
    further: tuple[int, ...] = (),
) -> View:
    """Returns the view of a silo by an observer of a tier, with the worst coalition of every region.

    No silo of the canary is in a coalition: a colluding silo knows the records of its own persons anyway.
    """
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
            others = [int(silo_number) for silo_number in there[region_of[there] == region]]
            others = [silo_number for silo_number in others if silo_number not in (silo, *further)]
            worst = tuple(sorted(others, key=lambda silo_number: -variance[silo_number]))
            missing.append(worst[:dropouts])
            colluding.append(worst[dropouts : dropouts + colluders])
        excluded = {silo_number for some in (*missing, *colluding) for silo_number in some}
        left = math.fsum(float(variance[silo_number]) for silo_number in there.tolist() if silo_number not in excluded)
    claim = _claim(plan, tier, (silo, *further), colluders=colluders, dropouts=dropouts)
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


def _claim(plan: Plan, tier: str, attacked: tuple[int, ...], *, colluders: int, dropouts: int) -> Claim:
    """Returns the weakest claim of the silos that send the canary.

    The squared shift of a person in several silos is at most the mean of the silos' squared shifts, each with the
    factor of `PrivacyUnit.factors`, and therefore at most the largest.
    """
    silos = list(attacked)
    multiplier = plan.effective_multiplier(tier, colluders=colluders, dropouts=dropouts)[silos]
    factor = np.broadcast_to(figures.sensitivity(plan, tier), len(plan.federation))[silos] / plan.unit.sensitivity
    shift = float(shift_of(multiplier / factor, rounds=plan.rounds, unit=plan.unit).max())
    delta = plan.target.accounted_delta
    by = {name: float(epsilon_of_shift(shift, delta=delta, accountant=name)) for name in ("exact", "renyi")}
    # The plan's epsilons include earlier releases, which cannot be replayed.
    stated = by[plan.accountant]
    if not plan.continues_previous_plan:
        stated = float(plan.epsilon(tier, colluders=colluders, dropouts=dropouts)[silos].max())
    return Claim(shift=shift, stated=stated, **by)


def known_signal(plan: Plan, stage: Stage, view: View) -> float:
    """Returns the shift of the first sum of a view by the canary, from the middle of two neighbours.

    Two neighbours of "replace" are twice this shift apart, and so are two neighbours of "add-remove", whose canary is
    there or not.
    """
    weights: FloatArray = plan.federation.weights
    region_of = plan.federation.innermost.parent_of
    seen = [silo for silo in stage.canary_silos if not stage.is_apart or region_of[silo] == region_of[stage.silo]]
    half = 0.5 if plan.unit.neighbours == "add-remove" else 1.0
    return half * float(weights[[stage.silo] if view.single else seen].sum()) * plan.clip_norm


def worst_placement(plan: Plan, *, silo: int | None, canary_silos: int) -> tuple[Stage, float]:
    """Returns the game of the worst placed person against an observer of sums, and the exact epsilon of that person."""
    stages = [
        stage
        for stage in stages_of(plan, silo=silo, canary_silos=canary_silos)
        if stage.views[0].observer == ABOVE and stage.views[0].noise_std
    ]
    if not stages:
        raise ParameterError("audit.region-silent")
    shifts = [_shift_of_stage(plan, stage) for stage in stages]
    worst = int(np.argmax(shifts))
    delta = plan.target.accounted_delta
    return stages[worst], float(epsilon_of_shift(shifts[worst], delta=delta, accountant=plan.accountant))


def _shift_of_stage(plan: Plan, stage: Stage) -> float:
    """Returns mu of the canary person: changes add up within a sum, and their squares over sums."""
    weights, variance = plan.federation.weights, plan.noise_variance
    groups = stage.members.values() if stage.is_apart else [[silo for some in stage.members.values() for silo in some]]
    squares = [
        float(weights[[silo for silo in silos if silo in stage.canary_silos]].sum()) ** 2
        / float(variance[list(silos)].sum())
        for silos in groups
    ]
    return plan.unit.sensitivity * math.sqrt(plan.rounds * math.fsum(squares))


def silos_of(stage: Stage) -> IntArray:
    """Returns all silos of a stage, region by region."""
    return np.array([silo for members in stage.members.values() for silo in members], dtype=np.intp)
