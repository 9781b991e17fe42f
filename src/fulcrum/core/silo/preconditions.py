"""Checks of a plan before a role acts on the plan: the kind of sums, and the silos as the source of noise.

>>> from fulcrum.planning.planner import plan
>>> sample = plan("isic-paper", rounds=2, epsilon=1.0)
>>> check_aggregation(sample, "trusted")
>>> check_silos_draw_noise(sample)
"""

from fulcrum.core.plan.figures import unmet_tiers
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.errors import ExchangeError


def check_aggregation(plan: PlanData, aggregation: str, *, sealed: bool = False) -> None:
    """Raises `ExchangeError` unless the plan was made for this kind of sums, "trusted" or "masked", and they keep it.

    Args:
        plan: The plan.
        aggregation: The kind of sums of the role.
        sealed: True for a role whose engine has aggregators, to which silos seal their answers. Without the seal a
            server reads the answers that unmask the sum of a region, and breaks every target on an outer tier.
    """
    if plan.aggregation != aggregation:
        raise ExchangeError("plan.aggregation-differs", plan_aggregation=plan.aggregation, aggregation=aggregation)
    if aggregation == "masked" and not sealed and (tiers := unmet_tiers(plan)):
        raise ExchangeError("plan.tiers-unmet", tiers=", ".join(tiers))


def check_silos_draw_noise(plan: PlanData) -> None:
    """Raises `ExchangeError` unless silos add the noise: no aggregator of a real federation draws any."""
    if not plan.silos_draw_noise:
        raise ExchangeError("plan.form-unsupported", injection=plan.injection)
