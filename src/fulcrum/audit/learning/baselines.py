"""Baseline plans: other plans for the same target and federation, to compare an attack on all of them.

>>> from fulcrum.planning.planner import plan
>>> joint = plan("isic-paper", rounds=2, epsilon=1.0)
>>> {name: (base.weights_rule, base.server) for name, base in baseline_plans(joint, parameters=34).items()}
{'optimal': ('sizes', 'sum'), 'uniform': ('sizes', 'sum'), 'joint': ('equal', 'random-effects')}
"""

from dataclasses import replace

from fulcrum.errors import ParameterError, UnreachableTargetError
from fulcrum.planning.comparisons.comparison import AS_ASKED, row_of
from fulcrum.planning.comparisons.variants import parts_of
from fulcrum.planning.content.plan_figures import with_uniform_noise
from fulcrum.planning.inputs.recipes import RECIPES
from fulcrum.planning.plan import Plan
from fulcrum.planning.planner import variant


def baseline_plans(plan: Plan, *, parameters: int) -> dict[str, Plan]:
    """Returns a plan, its variant with a single multiplier for all silos, and the other recipe's plan, by name.

    Every plan keeps the least influence that the first plan promises to regions. A recipe that cannot keep the target
    is omitted. All baselines are omitted if aggregators inject the noise, or if silos released before: earlier releases
    were charged under other weights.

    Args:
        plan: The plan, first in the result.
        parameters: Parameters of the attacked model, for a plan without a number.
    """
    plans = {row_of(plan, least_influence=plan.least_influence) or AS_ASKED: plan}
    if not plan.silos_draw_noise or plan.continues_previous_plan:
        return plans
    plans.setdefault("uniform", with_uniform_noise(plan))
    # The attack draws noise in floating point, so the plan needs no reserve for a lattice.
    target = replace(plan.target, parameters=plan.parameters or parameters, reserve=0.0)
    for name, recipe in {"optimal": RECIPES["paper"], "joint": RECIPES["joint"]}.items():
        try:
            baseline = variant(plan, target=target, allocation="optimal", purpose="research", **parts_of(recipe, plan))
            plans.setdefault(name, baseline)
        except (ParameterError, UnreachableTargetError):
            continue
    return plans
