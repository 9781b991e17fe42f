"""Checks of a plan before a role acts on the plan: the kind of sums, and a single tier.

>>> from fulcrum.planning.planner import plan
>>> sample = plan("isic-paper", rounds=2, epsilon=1.0)
>>> check_aggregation(sample, "trusted")
>>> check_one_tier(sample)
"""

from fulcrum.core.plan.plan_data import PlanData
from fulcrum.errors import ExchangeError


def check_aggregation(plan: PlanData, aggregation: str) -> None:
    """Raises `ExchangeError` unless the plan was made for this kind of sums, "trusted" or "masked"."""
    if plan.aggregation != aggregation:
        raise ExchangeError("plan.aggregation-differs", plan_aggregation=plan.aggregation, aggregation=aggregation)


def check_one_tier(plan: PlanData) -> None:
    """Raises `ExchangeError` unless silos add the noise, silos report to regions and regions report to the server."""
    tiers = len(plan.federation.tiers)
    if tiers > 1 or not plan.silos_draw_noise:
        form = f"{tiers} tiers" if tiers > 1 else f"injection {plan.injection!r}"
        raise ExchangeError("plan.form-unsupported", got=form)
