"""Checks that the roles can act on a plan: its sums are added up as they expect, and it has one tier.

>>> from fulcrum.planning.planner import plan
>>> made = plan("isic-paper", rounds=2, epsilon=1.0)
>>> check_aggregation(made, "trusted")
>>> check_one_tier(made)
"""

from fulcrum.core.plan.plan_data import PlanData
from fulcrum.errors import ExchangeError


def check_aggregation(plan: PlanData, aggregation: str) -> None:
    """Raises `ExchangeError` unless sums are added up as the plan counts on: by "trusted" aggregators, or "masked"."""
    if plan.aggregation != aggregation:
        raise ExchangeError("plan.aggregation-differs", plan_aggregation=plan.aggregation, aggregation=aggregation)


def check_one_tier(plan: PlanData) -> None:
    """Raises `ExchangeError` unless silos add the noise and report to regions that report to the server."""
    tiers = len(plan.federation.tiers)
    if tiers > 1 or plan.injection != "silo":
        met = f"{tiers} tiers" if tiers > 1 else f"injection {plan.injection!r}"
        raise ExchangeError("plan.form-unsupported", got=met)
