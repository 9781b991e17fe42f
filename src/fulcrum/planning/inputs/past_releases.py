"""The releases of silos before a plan, and the spending: the promise of the plan includes both.

>>> Past().spent
{}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.topology import SILO, Topology
from fulcrum.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Past:
    """The releases of silos before a plan, included in the promise; empty for a first plan.

    Attributes:
        spent: By tier, the squared shift (mu²) spent by every silo; the innermost tier and "silo" at least.
        reserve: The cost of the lattice noise of earlier rounds in delta.
        moved: By silo with a changed region since the previous plan, the earlier region.
    """

    spent: Mapping[str, FloatArray] = field(default_factory=dict)
    reserve: float = 0.0
    moved: Mapping[str, str] = field(default_factory=dict)


def spent_everywhere(federation: Topology, spent: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Returns the spending at every tier.

    Observers further out met more noise, so the spending at the innermost tier bounds a missing figure.
    """
    if not spent:
        return {}
    inner = federation.innermost.name
    if not {inner, SILO} <= set(spent):
        raise ParameterError("plan.spent-tiers-missing", tier=inner)
    spending = {tier: np.asarray(spent.get(tier, spent[inner]), dtype=np.float64) for tier in federation.tier_names}
    for tier, values in spending.items():
        if values.shape != (len(federation),) or not ((values >= 0) & np.isfinite(values)).all():
            raise ParameterError("plan.spent-range", tier=tier)
    return spending


def check_moved(federation: Topology, past: Past) -> None:
    """Raises unless every moved silo has a new region, and the earlier releases are counted."""
    if not past.moved:
        return
    inner = federation.innermost
    now = dict(zip(federation.silo_names.tolist(), (inner.nodes[code] for code in inner.parent_of), strict=True))
    wrong = next((silo for silo, before in past.moved.items() if before in ("", now.get(silo, before))), None)
    if wrong is not None or not past.spent:
        raise ParameterError("plan.moved-invalid", tier=inner.name, moved=wrong or "no spent")
