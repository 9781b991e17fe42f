"""Plans that keep one target on one federation in other ways, so that an attack on one stands beside the others.

>>> from fulcrum.planning.planner import plan
>>> made = plan("isic-paper", rounds=2, epsilon=1.0)
>>> {name: (one.weights_rule, one.server) for name, one in plans_beside(made, parameters=34).items()}
{'optimal': ('sizes', 'sum'), 'uniform': ('sizes', 'sum'), 'joint': ('equal', 'random-effects')}
"""

from dataclasses import replace

from fulcrum.errors import ParameterError, UnreachableTargetError
from fulcrum.planning.comparison import AS_ASKED, row_of
from fulcrum.planning.plan import Plan
from fulcrum.planning.plan_figures import with_uniform_noise
from fulcrum.planning.planner import variant
from fulcrum.planning.recipes import RECIPES
from fulcrum.planning.variants import parts_of


def plans_beside(plan: Plan, *, parameters: int) -> dict[str, Plan]:
    """Returns a plan, the same with one multiplier for all, and the recipe that it does not follow, by name.

    Every plan keeps the least influence that the first one promises to regions. A recipe that cannot keep the target is
    left out, and so is all of it where aggregators inject, or where silos released before: what they spent was spent
    under other weights.

    Args:
        plan: The plan, which comes first.
        parameters: Of the model that is attacked, where the plan says none.
    """
    found = {row_of(plan, least_influence=plan.least_influence) or AS_ASKED: plan}
    if plan.injection != "silo" or plan.continues_previous_plan:
        return found
    found.setdefault("uniform", with_uniform_noise(plan))
    # What is attacked is drawn in floating point, so that no lattice must be paid for.
    target = replace(plan.target, parameters=plan.parameters or parameters, reserve=0.0)
    for name, recipe in {"optimal": RECIPES["paper"], "joint": RECIPES["joint"]}.items():
        try:
            made = variant(plan, target=target, allocation="optimal", purpose="research", **parts_of(recipe, plan))
            found.setdefault(name, made)
        except (ParameterError, UnreachableTargetError):
            continue
    return found
