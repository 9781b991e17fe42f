"""Weights, clip and server of a plan in words: what silos count for, and what the server does with the sums.

>>> from fulcrum.planning.planner import plan
>>> recipe_words(plan("consortium", rounds=10, epsilon=1.0))[0]
'Every silo counts by its number of records.'
"""

from fulcrum.core.choices import BY_SILO, DECLARED
from fulcrum.planning.plan import Plan
from fulcrum.planning.recipes import recipe_named


def recipe_name(plan: Plan) -> str:
    """Returns the recipe that a plan keeps to, or that it keeps to none."""
    clip = "auto" if plan.clip_share < 1 else plan.clip_norm
    known = recipe_named(weights=plan.weights_rule, clip_norm=clip, server=plan.server, shrink=plan.shrink)
    return known or "none of those with a name"


def weights_name(plan: Plan) -> str:
    """Returns what silos count for, in a word or two."""
    rule = plan.weights_rule
    inner = plan.federation.innermost.name
    names = {"sizes": "by size", "equal": f"equal within a {inner}", "least-noise": "least noise"}
    return names.get(rule, rule) if isinstance(rule, str) else f"{rule:g}, from 0 (sizes) to 1 (least noise)"


def recipe_words(plan: Plan) -> list[str]:
    """Returns sentences on weights, clip and server, in this order."""
    said = [_on_weights(plan)]
    if plan.least_influence:
        said.append(f"Every {plan.federation.innermost.name} keeps at least {plan.least_influence:.0%} of its share.")
    if plan.clip_share < 1:
        said.append(
            f"Updates are clipped at {plan.clip_share:.3g} of the clip norm C and scaled up to C, by the plan's own "
            f"noise; the sensitivity stays {plan.unit.sensitivity:g}C."
        )
    else:
        said.append("Updates are clipped at the clip norm C.")
    rule = plan.server_rule
    return [*said, (rule.sentences or f"The server {rule.clause}.").format(inner=plan.federation.innermost.name)]


def proviso(plan: Plan, inner: str) -> str:
    """Returns the condition under which influence and noise budget are a plan's, to stand after the figure.

    Args:
        plan: Its server rule has the condition.
        inner: The word for a region.
    """
    words = plan.server_rule.proviso.format(inner=inner)
    return f" {words}" if words else ""


def _on_weights(plan: Plan) -> str:
    inner, rule = plan.federation.innermost.name, plan.weights_rule
    secret = not plan.federation.sizes_known and not plan.weights_given
    by = "records" if plan.federation.sizes_known else "silos; sizes stay secret" if secret else "silos"
    shows = "" if plan.federation.sizes_known else " Weights are public: in proportion to sizes they show the sizes."
    sentences = {
        "sizes": "Every silo counts by its number of records.",
        "equal": f"Silos of one {inner} count alike, {inner}s by their number of {by}.",
        "least-noise": "Silos count so that the promise needs the least noise.",
        DECLARED: f"Every silo counts as the federation declares.{shows}",
        BY_SILO: f"Every silo counts as was given for it.{shows}",
    }
    if isinstance(rule, str):
        return sentences[rule]
    return f"Silos count between their sizes (0) and least noise (1), at {rule:g}."
