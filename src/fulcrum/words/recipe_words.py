"""Weights, clip norm and server rule of a plan in words.

>>> from fulcrum.planning.planner import plan
>>> recipe_words(plan("consortium", rounds=10, epsilon=1.0))[0]
'The weight of every silo is in proportion to its number of records.'
"""

from fulcrum.core.choices import BY_SILO, DECLARED
from fulcrum.planning.inputs.recipes import recipe_named
from fulcrum.planning.plan import Plan
from fulcrum.words.person_words import clip_norms, sensitivity_words, size_word


def recipe_name(plan: Plan) -> str:
    """Returns the name of a plan's recipe; words for a choice without a name."""
    clip = "auto" if plan.clip_share < 1 else plan.clip_norm
    name = recipe_named(
        weights=plan.weights_rule,
        clip_norm=clip,
        server=plan.server,
        shrink=plan.shrink,
        unit=plan.unit,
        one_group=plan.one_group,
    )
    return name or "none of those with a name"


def weights_name(plan: Plan) -> str:
    """Returns the rule for the weights of silos in a few words."""
    rule = plan.weights_rule
    inner = plan.federation.innermost.name
    names = {"sizes": f"by {share_rule(plan)}", "equal": f"equal within a {inner}", "least-noise": "least noise"}
    return names.get(rule, rule) if isinstance(rule, str) else f"{rule:g}, from 0 (sizes) to 1 (least noise)"


def recipe_words(plan: Plan) -> list[str]:
    """Returns sentences on weights, clip norm and server rule, in that order."""
    sentences = [_on_weights(plan)]
    if plan.least_influence:
        by = share_rule(plan)
        least = f"{plan.least_influence:.0%} of its influence by {by}"
        sentences.append(f"Every {plan.federation.innermost.name} keeps at least {least}{_other_influences(plan)}.")
    if plan.disputed_influence > plan.least_influence:
        sentences.append(_on_disputes(plan))
    if plan.unit.is_within_silo:
        sentences += _on_clip_of_persons(plan)
    elif plan.clip_share < 1:
        sentences.append(
            f"Updates are clipped at {clip_share_text(plan)} of the clip norm C, a share that follows from the plan's "
            f"noise, and scaled up to C; the sensitivity stays {plan.unit.sensitivity:g}C."
        )
    else:
        sentences.append("Updates are clipped at the clip norm C.")
    rule = plan.server_rule
    inner = plan.federation.innermost.name
    on_server = (rule.sentences or f"The server {rule.clause}.").format(inner=inner)
    if plan.one_group and not rule.adds_up:
        on_server = (
            f"The server applies the rule {plan.server} to the global sum, the only sum that any party sees: no "
            f"{inner} has a sum of its own, and influence is by the weights."
        )
    sentences.append(on_server)
    return [*sentences, *_on_prior(plan)]


def _other_influences(plan: Plan) -> str:
    """Returns words on least influence 0 and 1, for a plan whose server pools; empty for any other plan."""
    if plan.server_rule.adds_up:
        return ""
    inner = plan.federation.innermost.name
    return (
        f": at 0 large {inner}s would decide, with the least noise, and at 1 the influence by {share_rule(plan)} would "
        f"stay, with more noise, for {inner}s that may disagree about labels"
    )


def _on_disputes(plan: Plan) -> str:
    """Returns a sentence on the least influence while the sums show that regions oppose each other."""
    inner, least = plan.federation.innermost.name, f"{plan.disputed_influence:.0%} of its influence"
    return (
        f"While the sums of a softmax head show that the other {inner}s oppose the {inner} with the least noise, every "
        f"{inner} keeps at least {least} by {share_rule(plan)}."
    )


def _on_prior(plan: Plan) -> list[str]:
    """Returns a sentence on the server's prior and the origin of the variances that the prior reads."""
    if plan.spectrum is None:
        return []
    inputs = len(plan.spectrum.variances)
    from_where = f"data that the issuer declares public, {plan.spectrum.source}"
    if plan.spectrum.origin != "public":
        from_where = f"the pooled training split of {plan.spectrum.source}, outside every epsilon, for research alone"
    return [
        f"The server shrinks a softmax head by a prior that follows the variances of its {inputs} inputs; they come "
        f"from {from_where}."
    ]


def clip_share_text(plan: Plan) -> str:
    """Returns the share of the clip norm at which updates or gradients are clipped; a share below 1 never reads 1."""
    short = f"{plan.clip_share:.3g}"
    return f"{plan.clip_share:.4g}" if short == "1" else short


def share_rule(plan: Plan) -> str:
    """Returns the figure by which shares are compared: size, the number of patients, or the number of silos."""
    if not plan.federation.sizes_known:
        return "number of silos"
    return f"number of {size_word(plan.unit)}" if plan.unit.is_within_silo else "size"


def proviso(plan: Plan, inner: str) -> str:
    """Returns the condition of the plan's influence and noise budget, with a blank in front; empty without a condition.

    Args:
        plan: The plan, whose server rule has the condition.
        inner: The word for a region.
    """
    words = "" if plan.one_group and plan.server == "random-effects" else plan.server_rule.proviso.format(inner=inner)
    return f" {words}" if words else ""


def _on_clip_of_persons(plan: Plan) -> list[str]:
    """Returns sentences on the clip of one person's gradient, and on the largest sum of a silo."""
    noun = plan.unit.noun
    gradient = f"In each round a silo computes one gradient for every {noun}, clips each gradient at"
    if plan.clip_share < 1:
        clip = (
            f"{gradient} {clip_share_text(plan)} of the clip norm C, a share that follows from the plan's noise, "
            "scales the gradients up to C and sends the weighted sum"
        )
    else:
        clip = f"{gradient} the clip norm C and sends the weighted sum"
    declared = f"its declared number of {size_word(plan.unit)} times C"
    largest = f"{declared} long"
    if plan.silo_clip is not None:
        largest = f"{clip_norms(plan.silo_clip)} long, or {declared} if that is less"
    return [
        f"{clip}: {sensitivity_words(plan)}.",
        f"The sum of a silo is at most {largest}; a longer sum is scaled down.",
    ]


def _on_weights(plan: Plan) -> str:
    if plan.unit.is_within_silo:
        return _on_weights_of_persons(plan)
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


def _on_weights_of_persons(plan: Plan) -> str:
    """Returns a sentence on the weight of one person's gradient, and on the influence of a silo."""
    inner, rule, noun, many = plan.federation.innermost.name, plan.weights_rule, plan.unit.noun, size_word(plan.unit)
    divided = f"every {noun} of a silo has the same part of the silo's share"
    sentences = {
        "sizes": f"Every {noun} has the same weight, so the share of a silo is by its declared number of {many}.",
        "equal": f"Silos of the same {inner} have equal shares, and {inner}s shares by their number of "
        f"{many if plan.federation.sizes_known else 'silos'}; {divided}.",
        "least-noise": f"The shares of silos are those with which the promise needs the least noise; {divided}.",
        DECLARED: f"Every silo has the share that the federation declares; {divided}.",
        BY_SILO: f"Every silo has the share that was given for the silo; {divided}.",
    }
    if isinstance(rule, str):
        return sentences[rule]
    return f"The shares of silos lie between numbers of {many} (0) and least noise (1), at {rule:g}; {divided}."
