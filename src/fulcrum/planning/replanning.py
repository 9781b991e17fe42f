"""A plan for the remaining rounds, from the remaining budget of each silo, when silos join, leave or resize.

A silo's ledger tells the silo's spending at each tier. The promise stays: every silo's epsilon over all its releases is
at most the old target, so a silo with more spending needs more noise from now on. The budget of a target was fixed
before the first round, and squared shifts add up to the budget for any noise of the later rounds, even for noise chosen
after earlier outputs were seen: the composition is a privacy filter (Rogers, Roth, Ullman and Vadhan 2016; for the
renyi accountant Feldman and Zrnic 2021, for the exact accountant Smith and Thakurta 2022). An observer without a target
has no budget: the epsilon against such an observer holds if earlier outputs had no influence on the new plan, and the
plan says so.

Colluders: a plan counts against each silo the worst c silos of the rest of its region. If silos move, past and future
count different colluders, so the guarantee over all plans is against at most c silos, the same throughout, of any
region of any plan so far. The plan says so and names the silos that moved.

An observer inside a silo's earlier region, such as the earlier aggregator, saw the silo's releases then. The promise
above is therefore against observers who were outside in every plan; against the rest a silo has its epsilon inside.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fulcrum.core.choices import BY_SILO, DECLARED
from fulcrum.core.messages.membership import regions_of
from fulcrum.core.silo.release_parameters import assumptions_of
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.core.topology import Topology
from fulcrum.errors import LedgerError, PlanError, UnreachableTargetError
from fulcrum.planning.content.advice import advice_on
from fulcrum.planning.inputs.past_releases import Past
from fulcrum.planning.inputs.targets import epsilon_by_tier
from fulcrum.planning.plan import Plan
from fulcrum.planning.planner import variant
from fulcrum.planning.theory.allocation import ALLOCATIONS, AllocationRule
from fulcrum.readers.federation_reader import read_federation
from fulcrum.spelling import other_spelling


def replan(
    old: Plan,
    federation: Any,
    ledgers: str | Path | Mapping[str, str | Path],
    *,
    allocation: str | AllocationRule | None = None,
    weights: str | float | Mapping[str, float] | None = None,
) -> Plan:
    """Returns a plan of the remaining rounds for a changed federation.

    Fails closed: a silo of the old plan that stays must show its ledger, since only the ledger tells the silo's
    spending.

    Args:
        old: The plan in force, with targets in epsilon.
        federation: The federation from now on: a `Federation`, or any value that `read_federation` takes.
        ledgers: The ledger files by silo name, or the folder with NAME.ledger for each silo.
        allocation: As in `plan`; by default the old plan's allocation, if built in. A plan is data: a function named in
            a plan is never imported, so a user's own allocation is given again.
        weights: As in `plan`; by default the old plan's rule. Weights given by silo are kept, in proportion, unless the
            federation declares weights; a silo that joins then needs a weight.
    """
    if allocation is None and old.allocation not in ALLOCATIONS:
        raise PlanError("replan.allocation-not-built-in", allocation=old.allocation)
    if not old.epsilon_target:
        raise PlanError("replan.epsilon-missing")
    if old.target.information is not None or old.floor is not None or old.target.budget is not None:
        raise PlanError("replan.target-unsupported")
    changed = read_federation(federation)
    inner = changed.innermost.name
    if inner != old.federation.innermost.name:
        raise PlanError("replan.tier-changed", old_tier=old.federation.innermost.name, new_tier=inner)
    if old.federation.sizes_known and not changed.sizes_known:
        raise PlanError("replan.sizes-public")
    old_silos, names = set(old.federation.silo_names.tolist()), set(changed.silo_names.tolist())
    spent, done = {tier: np.zeros(len(changed)) for tier in changed.tier_names}, 0
    for index, name in enumerate(changed.silo_names.tolist()):
        path = Path(ledgers) / f"{name}.ledger" if isinstance(ledgers, (str, Path)) else Path(ledgers.get(name, ""))
        if not path.is_file():
            if name in old_silos:
                raise PlanError("replan.ledger-missing", silo=name, file=path)
            # As a new silo it would have spent nothing.
            if (before := other_spelling(name, old_silos - names)) is not None:
                raise PlanError("replan.silo-respelled", silo=before, new_silo=name)
            continue
        with read_ledger(path) as ledger:
            if ledger.silo != name:
                raise PlanError("ledger.other-silo", file=path, owner=ledger.silo, silo=name)
            failed = next((check for check in verify_ledger(ledger) if not check.holds), None)
            if failed is not None:
                raise PlanError("replan.ledger-untrusted", file=path, check=failed.name, detail=failed.detail)
            if mixed := sorted(set(ledger.spent_by_unit()) - {old.unit.name}):
                raise PlanError("replan.unit-mixed", file=path, unit=old.unit.name, earlier_unit=mixed[0])
            for tier, shift in _spent_by(ledger, changed, old, path).items():
                spent[tier][index] = shift
            rounds = [entry.round_number for entry in ledger.entries() if entry.plan_digest == old.digest]
        done = max([done, *rounds])
    remaining = old.rounds - done
    if remaining < 1:
        raise UnreachableTargetError("replan.rounds-done", rounds=old.rounds)
    changes: dict[str, Any] = {
        "federation": changed,
        "allocation": old.allocation if allocation is None else allocation,
        "weights": _kept_weights(old, changed) if weights is None else weights,
    }
    target = replace(old.target, rounds=remaining, epsilon=epsilon_by_tier(changed, old.epsilon_target))
    past = Past(spent=spent, reserve=old.target.reserve, moved=_moved_silos(old.federation, changed))
    new_plan = variant(old, target=target, past=past, **changes)
    growth = _growth(old, new_plan)
    if growth > 1:
        new_plan = variant(old, target=target, past=replace(past, reserve=past.reserve * growth), **changes)
    advice_on(new_plan)
    return new_plan


def _spent_by(ledger: Ledger, changed: Topology, old: Plan, path: Path) -> Mapping[str, float]:
    """Returns the spending of a silo by tier of the changed federation.

    A tier that an earlier plan did not name, or with more colluders than the earlier plan counted, is charged as the
    next tier inside.
    """
    assumed = replace(assumptions_of(old), federation=changed.digest, continuing=True)
    try:
        return ledger.spent_at(changed.tier_names, assumed).shifts
    except LedgerError as error:
        raise PlanError("replan.spending-unknown", file=path, reason=str(error)) from None


def _growth(old: Plan, new: Plan) -> float:
    """Returns the factor by which the part of delta grows that lattice noise of the past costs.

    The part is a distance times 1 + e^epsilon with the epsilon of all rounds, so the part grows with epsilon. The old
    reserve is twice the need, as every reserve is; the factor of two covers the small change of epsilon by a larger
    reserve.
    """
    if new.is_research:
        return 1.0
    tiers = set(old.federation.tier_names) & set(new.federation.tier_names)
    epsilons = [(min(new.worst_epsilon(tier), 700.0), old.worst_epsilon(tier)) for tier in tiers]
    return max((1 + math.exp(after)) / (1 + math.exp(min(before, 700.0))) for after, before in epsilons)


def _kept_weights(old: Plan, changed: Topology) -> str | float | Mapping[str, float]:
    """Returns the old plan's rule or, for weights given by silo, the weights of the silos that stay."""
    if old.weights_rule not in (DECLARED, BY_SILO):
        return old.weights_rule
    if changed.declared_weights is not None:
        return DECLARED
    before = dict(zip(old.federation.silo_names.tolist(), old.federation.shares.tolist(), strict=True))
    names = changed.silo_names.tolist()
    new = next((name for name in names if name not in before), None)
    if new is not None:
        raise PlanError("replan.weight-missing", silo=new)
    return {name: before[name] for name in names}


def _moved_silos(old: Topology, new: Topology) -> dict[str, str]:
    """Returns the silos in another region than before, with the earlier region of each."""
    before = regions_of(old)
    return {silo: before[silo] for silo, region in regions_of(new).items() if before.get(silo, region) != region}
