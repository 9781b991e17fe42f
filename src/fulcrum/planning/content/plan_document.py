"""The content of a plan's file: every field, figure and word, with epsilons rounded up.

>>> epsilon_entry(0.9900001), epsilon_entry(math.inf)
(0.990001, None)
"""

import math
from typing import Any

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.plan.guarantee import Guarantee
from fulcrum.core.plan.plan_file import (
    FORMAT,
    Epsilon,
    FederationEntry,
    NodeEntry,
    PlanFile,
    PlanGuarantee,
    PlanSettings,
    PlanSummary,
    Required,
    SiloEntry,
)
from fulcrum.core.topology import SILO
from fulcrum.planning.content.advice import advice_on
from fulcrum.planning.content.plan_figures import PlanFigures
from fulcrum.planning.theory.exposure import exposure_of
from fulcrum.readers.schedule_file import stays_by_silo
from fulcrum.rounding import rounded_up
from fulcrum.version import package_version


def document_of(plan: PlanFigures) -> PlanFile:
    """Returns the content of a plan's file: figures, words and advice, made here once."""
    federation, guarantee = plan.federation, guarantee_of(plan)
    return PlanFile(
        format=FORMAT,
        made_by=f"fulcrum {package_version()}",
        purpose=plan.purpose,
        federation=FederationEntry(
            name=federation.name,
            digest=federation.digest,
            silos=len(federation),
            tiers=[tier.name for tier in federation.tiers],
        ),
        settings=_settings(plan),
        guarantee=PlanGuarantee(
            statement=guarantee.statement,
            adjacency=guarantee.adjacency,
            sensitivity=plan.unit.sensitivity * plan.clip_norm,
            assumptions=list(guarantee.assumptions),
        ),
        summary=PlanSummary(
            noise_budget=plan.noise_budget,
            uniform_noise_budget=plan.uniform_noise_budget,
            saving=plan.saving,
            dispersion=plan.dispersion,
            epsilon_above_worst=epsilon_entry(float(plan.epsilon_above.max())),
            epsilon_above_mean=epsilon_entry(float(plan.epsilon_above.mean())),
            epsilon_inside_worst=epsilon_entry(float(plan.epsilon_inside.max())),
            epsilon_inside_mean=epsilon_entry(float(plan.epsilon_inside.mean())),
            **{name: epsilon_entry(epsilon) for name, epsilon in plan.person_epsilons.items()},
        ),
        tiers={tier.name: _node_entries(plan, depth) for depth, tier in enumerate(federation.tiers)},
        silos=_silo_entries(plan),
        advice=[advice.text for advice in advice_on(plan)],
        keys=dict(plan.keys),
    )


def guarantee_of(plan: PlanFigures) -> Guarantee:
    """Returns the guarantee of a plan in words: statement, assumptions, and a description of each observer."""
    inner = plan.federation.innermost.name
    innermost = {inner: plan.epsilon_above, SILO: plan.epsilon_inside}
    outer = {tier: plan.epsilon(tier) for tier in plan.epsilon_target if tier not in innermost}
    return Guarantee(
        rounds=plan.rounds,
        delta=plan.delta,
        accountant=plan.accountant,
        innermost=inner,
        worst={tier: epsilon_entry(float(epsilon.max())) for tier, epsilon in (innermost | outer).items()},
        targets=plan.epsilon_target,
        injection=plan.injection,
        purpose=plan.purpose,
        colluders=plan.colluders,
        dropouts=plan.dropouts,
        follows=plan.continues_previous_plan,
        sizes_known=plan.federation.sizes_known,
        weights_given=plan.weights_given,
        server=plan.server,
        aggregation=plan.aggregation,
        masked_tier=plan.group_tier,
        smallest_group=plan.smallest_group,
        regions=len(plan.federation.innermost.nodes),
        complete_tier=plan.outermost_complete_tier,
        less_spent_outside=_less_spent_outside(plan),
        prior="" if plan.spectrum is None else plan.spectrum.origin,
        scheduled=plan.federation.rosters is not None,
        unit=plan.unit,
        persons={name: epsilon_entry(epsilon) for name, epsilon in plan.person_epsilons.items()},
    )


def _less_spent_outside(plan: PlanFigures) -> bool:
    """Returns True if a silo had spent less before this plan further out than at the outermost complete tier."""
    tiers, nothing = plan.federation.tier_names, np.zeros(len(plan.federation))
    complete = plan.outermost_complete_tier
    inside = plan.spent.get(complete, nothing)
    outer = tiers[tiers.index(complete) + 1 :]
    return any(bool((plan.spent.get(tier, nothing) < inside).any()) for tier in outer)


def _settings(plan: PlanFigures) -> PlanSettings:
    target, required = plan.target, plan.required_multiplier
    return PlanSettings(
        rounds=target.rounds,
        delta=target.delta,
        reserve=target.reserve,
        clip_norm=plan.clip_norm,
        accountant=target.accountant,
        allocation=plan.allocation,
        seed=plan.seed,
        injection=plan.injection,
        colluders=target.colluders,
        dropouts=target.dropouts,
        parameters=target.parameters,
        epsilon=dict(target.epsilon),
        information=target.information,
        bound=target.bound,
        floor=None if target.floor is None else _one_or_all(target.floor),
        coupling=target.coupling,
        budget=target.budget,
        required_multiplier={tier: _one_or_all(np.asarray(values)) for tier, values in required.items()},
        **_beyond_the_paper(plan),
    )


def _beyond_the_paper(plan: PlanFigures) -> dict[str, Any]:
    """Returns the settings that are not the paper's; only these are written, so digests of the paper stay."""
    chosen = {
        "weights": plan.weights_rule,
        "clip_share": plan.clip_share,
        "server": plan.server,
        "shrink": plan.shrink,
        "spectrum": plan.spectrum,
        "least_influence": plan.least_influence,
        "disputed_influence": plan.disputed_influence,
        "influence_mix": plan.influence_mix,
        "aggregation": plan.aggregation,
        "absent_regions": plan.absent_regions,
        "unit": plan.unit.name,
        "neighbours": plan.unit.neighbours,
        "silos_per_person": plan.unit.silos_per_person,
        "unit_name": plan.unit.label,
        "persons_per_silo": plan.persons_per_silo,
        "silo_clip": plan.silo_clip,
        "silo_epsilon": plan.silo_epsilon,
    }
    # msgspec omits a default only if the value is the same object, and a computed float never is.
    usual = {field.name: field.default for field in msgspec.structs.fields(PlanSettings)}
    return {name: value for name, value in chosen.items() if value != usual[name]}


def _silo_entries(plan: PlanFigures) -> list[SiloEntry]:
    federation, regions, groups = plan.federation, plan.federation.innermost, plan.federation.group
    declared = federation.preferences
    epsilon = {tier: _epsilon_entries(plan.epsilon(tier)) for tier in federation.tier_names}
    names, sizes, noise = federation.silo_names.tolist(), federation.sizes.tolist(), plan.noise_multiplier.tolist()
    wished = federation.declared_weights
    rounds = None if federation.rosters is None else stays_by_silo(federation.rosters)
    has_inside = SILO in plan.required_multiplier
    return [
        SiloEntry(
            silo=name,
            records=_records(records) if federation.sizes_known else None,
            node=regions.nodes[regions.parent_of[index]],
            noise_multiplier=multiplier,
            epsilon={tier: values[index] for tier, values in epsilon.items()},
            preference=None if declared is None or math.isnan(declared[index]) else float(declared[index]),
            group=None if groups is None else groups.nodes[groups.parent_of[index]],
            spent={tier: float(spent[index]) for tier, spent in plan.spent.items()} or None,
            moved_from=plan.moved.get(name),
            weight=None if federation.chosen_weights is None else float(federation.weights[index]),
            declared_weight=None if wished is None else float(wished[index]),
            site="" if federation.declared_sites is None else str(federation.declared_sites[index]),
            rounds=None if rounds is None else rounds[index],
            price=None if plan.prices is None else float(plan.prices[0, index]),
            inside_price=None if plan.prices is None or not has_inside else float(plan.prices[1, index]),
        )
        for index, (name, records, multiplier) in enumerate(zip(names, sizes, noise, strict=True))
    ]


def _records(size: float) -> int | float:
    return int(size) if size.is_integer() else size


def _node_entries(plan: PlanFigures, depth: int) -> list[NodeEntry]:
    federation = plan.federation
    tier = federation.tiers[depth]
    outer = federation.tiers[depth + 1] if depth + 1 < len(federation.tiers) else None
    profile = exposure_of(federation, tier=tier.name, colluders=plan.colluders, dropouts=plan.dropouts)
    worst = np.zeros(len(tier.nodes))
    np.maximum.at(worst, federation.membership(tier.name), plan.epsilon(tier.name))
    injected = plan.aggregator_noise_multiplier if depth == 0 else None
    noise = np.sqrt(plan.node_noise(tier.name)) if injected is None else injected
    by_phase = plan.phase_multiplier
    steps, counted = (None, None) if depth else (plan.lattice_steps, plan.rule_weights)
    return [
        NodeEntry(
            name=name,
            parent=None if outer is None else outer.nodes[outer.parent_of[index]],
            silos=int(profile.silos[index]),
            exposure=float(profile.exposure[index]),
            noise_multiplier=float(noise[index]),
            epsilon_worst=epsilon_entry(float(worst[index])),
            lattice_step=None if steps is None else float(steps[index]),
            rule_weight=None if counted is None else float(counted[index]),
            phase_multipliers=None if by_phase is None or depth else by_phase[:, index].tolist(),
        )
        for index, name in enumerate(tier.nodes)
    ]


def _epsilon_entries(epsilon: FloatArray) -> list[Epsilon]:
    """Returns epsilons for the file: rounded up, and None without a guarantee."""
    values, where = np.unique(epsilon, return_inverse=True)
    entries = [epsilon_entry(value) for value in values.tolist()]
    return [entries[index] for index in where.tolist()]


def epsilon_entry(epsilon: float) -> Epsilon:
    """Returns one epsilon for the file."""
    return rounded_up(epsilon) if math.isfinite(epsilon) else None


def _one_or_all(values: FloatArray) -> Required:
    """Returns a number if all values are equal, else the list."""
    same = values.ndim == 0 or (values == values[0]).all()
    return float(values.flat[0]) if same else values.tolist()
