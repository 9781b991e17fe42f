"""Weights, clip norm and server rule of a plan in words.

>>> from fulcrum.planning.planner import plan
>>> recipe_words(plan("consortium", rounds=10, epsilon=1.0))[0]
'The weight of every silo is in proportion to its number of records.'
"""

from fulcrum.core.choices import BY_SILO, DECLARED
from fulcrum.planning.plan import Plan
from fulcrum.planning.recipes import recipe_named


def recipe_name(plan: Plan) -> str:
    """Returns the name of a plan's recipe; words for a choice without a name."""
    clip = "auto" if plan.clip_share < 1 else plan.clip_norm
    name = recipe_named(weights=plan.weights_rule, clip_norm=clip, server=plan.server, shrink=plan.shrink)
    return name or "none of those with a name"


def weights_name(plan: Plan) -> str:
    """Returns the rule for the weights of silos in a few words."""
    rule = plan.weights_rule
    inner = plan.federation.innermost.name
    names = {"sizes": "by size", "equal": f"equal within a {inner}", "least-noise": "least noise"}
    return names.get(rule, rule) if isinstance(rule, str) else f"{rule:g}, from 0 (sizes) to 1 (least noise)"


def recipe_words(plan: Plan) -> list[str]:
    """Returns sentences on weights, clip norm and server rule, in that order."""
    sentences = [_on_weights(plan)]
    if plan.least_influence:
        by = "size" if plan.federation.sizes_known else "number of silos"
        least = f"{plan.least_influence:.0%} of its influence by {by}"
        sentences.append(f"Every {plan.federation.innermost.name} keeps at least {least}.")
    if plan.clip_share < 1:
        sentences.append(
            f"Updates are clipped at {plan.clip_share:.3g} of the clip norm C, a share that follows from the plan's "
            f"noise, and scaled up to C; the sensitivity stays {plan.unit.sensitivity:g}C."
        )
    else:
        sentences.append("Updates are clipped at the clip norm C.")
    rule = plan.server_rule
    return [*sentences, (rule.sentences or f"The server {rule.clause}.").format(inner=plan.federation.innermost.name)]


def proviso(plan: Plan, inner: str) -> str:
    """Returns the condition of the plan's influence and noise budget, with a blank in front; empty without a condition.

    Args:
        plan: The plan, whose server rule has the condition.
        inner: The word for a region.
    """
    words = plan.server_rule.proviso.format(inner=inner)
    return f" {words}" if words else ""


def _on_weights(plan: Plan) -> str:
    inner, rule = plan.federation.innermost.name, plan.weights_rule
    secret = not plan.federation.sizes_known and not plan.weights_given
    by = "records" if plan.federation.sizes_known else "silos; sizes stay secret" if secret else "silos"
    shows = (
        "" if plan.federation.sizes_known else " Weights are public: weights in proportion to sizes reveal the sizes."
    )
    sentences = {
        "sizes": "The weight of every silo is in proportion to its number of records.",
        "equal": f"Silos of the same {inner} have equal weights, and {inner}s weights by their number of {by}.",
        "least-noise": "The weights are those with which the promise needs the least noise.",
        DECLARED: f"Every silo has the weight that the federation declares.{shows}",
        BY_SILO: f"Every silo has the weight that was given for the silo.{shows}",
    }
    if isinstance(rule, str):
        return sentences[rule]
    return f"The weights lie between sizes (0) and least noise (1), at {rule:g}."
