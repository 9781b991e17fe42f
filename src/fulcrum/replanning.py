"""A plan for the rounds that are left, from the budget that each silo has left, when silos join, leave or resize.

What a silo has spent is read from its ledger. The promise stays: every silo's epsilon over everything it ever
released is at most the old target, so a silo that has spent more needs more noise from now on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fulcrum.errors import PlanError, UnreachableTargetError
from fulcrum.federation import SILO
from fulcrum.ledger import Ledger
from fulcrum.planning import plan
from fulcrum.plans import Plan
from fulcrum.readers import read_federation


def replan(old: Plan, federation: Any, ledgers: str | Path | Mapping[str, str | Path]) -> Plan:
    """Returns a plan of the remaining rounds for a changed federation.

    Fails closed: a silo of the old plan that stays must show its ledger, since nobody else knows what it has spent.

    Args:
        old: The plan in force, with targets in epsilon.
        federation: The federation from now on: a `Federation`, or anything `read_federation` takes.
        ledgers: The ledger files by silo name, or the folder that holds NAME.ledger for each.
    """
    if not old.epsilon_target:
        raise PlanError("a plan is replanned by its epsilon targets, and this one has none")
    if old.target.information is not None or old.floor is not None or old.target.budget is not None:
        raise PlanError(
            "a plan with an information bound, a floor or a budget cannot be replanned: only epsilon adds up"
        )
    changed = read_federation(federation)
    inner = changed.innermost.name
    known = set(old.federation.silo_names.tolist())
    above, inside, done = np.zeros(len(changed)), np.zeros(len(changed)), 0
    for index, name in enumerate(changed.silo_names.tolist()):
        path = Path(ledgers) / f"{name}.ledger" if isinstance(ledgers, (str, Path)) else Path(ledgers.get(name, ""))
        if not path.is_file():
            if name in known:
                raise PlanError(f"silo {name!r} was in the old plan and shows no ledger ({path}). Ask it for one")
            continue
        with Ledger.read(path) as ledger:
            if ledger.silo != name:
                raise PlanError(f"{path} is the ledger of silo {ledger.silo!r}, not of {name!r}")
            failed = next((check for check in ledger.checks() if not check.holds), None)
            if failed is not None:
                raise PlanError(f"{path} cannot be trusted: {failed.name}, {failed.detail}")
            above[index], inside[index] = ledger.spent.shift_above, ledger.spent.shift_inside
            rounds = [entry.round_number for entry in ledger.entries() if entry.plan_digest == old.digest]
        done = max([done, *rounds])
    remaining = old.rounds - done
    if remaining < 1:
        raise UnreachableTargetError(f"all {old.rounds} rounds of the plan are done. Make a new plan")
    return plan(
        changed,
        rounds=remaining,
        delta=old.delta,
        epsilon=dict(old.epsilon_target),
        accountant=old.accountant,
        allocation=old.allocation,
        clip_norm=old.clip_norm,
        parameters=old.parameters,
        colluders=old.colluders,
        injection=old.injection,
        purpose=old.purpose,
        keys=old.keys,
        seed=old.seed,
        spent={inner: above, SILO: inside},
        reserved=old.target.reserve,
    )
