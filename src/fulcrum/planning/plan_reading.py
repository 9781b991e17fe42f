"""Plans made of their files: a file becomes a plan only where it verifies as it was read."""

from pathlib import Path

import numpy as np

from fulcrum.arrays import FloatArray, read_only
from fulcrum.errors import PlanError
from fulcrum.planning.content_reading import all_or_none, federation_in, read_content
from fulcrum.planning.plan import Plan
from fulcrum.planning.plan_file import PlanFile
from fulcrum.planning.targets import Target, floor_by_silo
from fulcrum.planning.verified_contents import check_verified
from fulcrum.privacy.allocation import Requirement


def read_plan(path: str | Path) -> Plan:
    """Reads a plan file, verifies it as it was read, and returns the plan.

    Raises:
        PlanError: The file is no plan, or a check of `fulcrum verify` fails.
    """
    return plan_of(read_content(path), source=str(path))


def read_verified_content(path: str | Path) -> PlanFile:
    """Reads a plan file, verifies it, and returns the content as it was read; it raises as `read_plan` does."""
    content = read_content(path)
    check_verified(content, PlanError, source=str(path))
    return content


def plan_of(content: PlanFile, *, issuer: str = "", source: str = "the plan") -> Plan:
    """Returns the plan that a content describes, once every check of `fulcrum verify` holds for that content.

    A `Plan` carries no stated figure: it computes epsilons and words anew. Therefore the stated ones are verified here,
    before they are dropped, and no other function makes a `Plan` of a `PlanFile`.

    Args:
        content: As it was read, the stated figures included.
        issuer: The public key whose signature of the file was checked.
        source: The name of the file in messages.

    Raises:
        PlanError: A check fails.
    """
    digest = check_verified(content, PlanError, source=source)
    return _described(content).read_from(digest, issuer=issuer)


def _described(content: PlanFile) -> Plan:
    """Returns the plan of a content's multipliers, roster and settings."""
    settings = content.settings
    federation = federation_in(content)
    requirement = Requirement(
        multiplier={
            tier: asked if isinstance(asked, float) else read_only(np.array(asked))
            for tier, asked in settings.required_multiplier.items()
        },
        colluders=settings.colluders,
        dropouts=settings.dropouts,
        masked=settings.aggregation == "masked",
    )
    entries = {entry.name: entry for entry in content.tiers[federation.innermost.name]}
    inner = [entries[name] for name in federation.innermost.nodes]
    noise = read_only(np.array([node.noise_multiplier for node in inner])) if settings.injection != "silo" else None
    counted = all_or_none([node.rule_weight for node in inner])
    return Plan(
        federation=federation,
        target=Target(
            rounds=settings.rounds,
            delta=settings.delta,
            accountant=settings.accountant,
            epsilon=settings.epsilon,
            information=settings.information,
            floor=floor_by_silo(federation, settings.floor),
            coupling=settings.coupling,
            bound=settings.bound,
            parameters=settings.parameters,
            budget=settings.budget,
            colluders=settings.colluders,
            dropouts=settings.dropouts,
            aggregation=settings.aggregation,
            reserve=settings.reserve,
            spent=_spent_by_tier(content),
        ),
        allocation=settings.allocation,
        requirement=requirement,
        noise_multiplier=read_only(np.array([entry.noise_multiplier for entry in content.silos])),
        aggregator_noise_multiplier=noise,
        clip_norm=settings.clip_norm,
        clip_share=settings.clip_share,
        weights_rule=settings.weights,
        least_influence=settings.least_influence,
        influence_mix=settings.influence_mix,
        absent_regions=settings.absent_regions,
        rule_weights=None if counted is None else read_only(counted),
        server=settings.server,
        shrink=settings.shrink,
        injection=settings.injection,
        seed=settings.seed,
        purpose=content.purpose,
        moved={entry.silo: entry.moved_from for entry in content.silos if entry.moved_from is not None},
        keys=content.keys,
    )


def _spent_by_tier(content: PlanFile) -> dict[str, FloatArray]:
    """Returns what silos had spent before the plan, by tier; nothing for a first plan."""
    tiers = content.silos[0].spent or {}
    return {
        tier: read_only(np.array([(entry.spent or {}).get(tier, 0.0) for entry in content.silos])) for tier in tiers
    }
