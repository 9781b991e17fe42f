"""Whether the roles can act on a plan: that its numbers are what recomputation gives, and that it has one tier.

>>> from fulcrum.planning.making import plan
>>> made = plan("isic-paper", rounds=2, epsilon=1.0)
>>> check_numbers(made, ExchangeError)
>>> check_one_tier(made)
"""

from fulcrum.errors import ExchangeError, FulcrumError
from fulcrum.planning.plan import Plan
from fulcrum.planning.plan_file import PlanFile
from fulcrum.planning.verifying import verify


def check_numbers(plan: Plan | PlanFile, error: type[FulcrumError]) -> None:
    """Raises `error` unless every number of a plan is what `fulcrum verify` recomputes."""
    for check in verify(plan):
        if not check.holds:
            raise error(f"the plan does not hold what it says: {check.name}, {check.detail}")


def check_aggregation(plan: Plan, aggregation: str) -> None:
    """Raises `ExchangeError` unless sums are added up as the plan counts on: by "trusted" aggregators, or "masked"."""
    if plan.aggregation != aggregation:
        raise ExchangeError(
            f"the plan is made for {plan.aggregation} sums, and these are {aggregation}. Plan with --aggregation "
            f"{aggregation}"
        )


def check_one_tier(plan: Plan) -> None:
    """Raises `ExchangeError` unless silos add the noise and report to regions that report to the server."""
    tiers = len(plan.federation.tiers)
    if tiers > 1 or plan.injection != "silo":
        met = f"{tiers} tiers" if tiers > 1 else f"injection {plan.injection!r}"
        raise ExchangeError(f"this aggregator runs plans of one tier in which silos add the noise, got {met}")
