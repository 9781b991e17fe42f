"""The noise of a plan in words: the unit C², and the number of parameters for training at this noise.

>>> from fulcrum.planning.planner import plan
>>> trained_words(plan("tcga-brca", rounds=10, epsilon=1.0))
'At this noise at most about 42 parameters can be trained over 10 rounds. Give the number with --parameters.'
"""

import math
from collections.abc import Iterable

from fulcrum.planning.content.learning_signal import WEAK_SIGNAL, most_parameters, signal_to_noise
from fulcrum.planning.content.plan_facts import Advice
from fulcrum.planning.plan import Plan
from fulcrum.words.numbers import figure
from fulcrum.words.recipe_words import proviso


def noise_unit_words(plan: Plan) -> str:
    """Returns a sentence on C², the unit of the noise budget."""
    clipped = f"gradient of one {plan.unit.noun}" if plan.unit.is_within_silo else "update of a silo"
    deviation = f"{figure(math.sqrt(plan.model_noise))} C{proviso(plan, plan.federation.innermost.name)}"
    return (
        f"C is the clip norm, the largest length of the {clipped}. In each round the weighted mean is at most C long, "
        f"and noise with standard deviation {deviation} is added to each of its coordinates."
    )


def trained_words(plan: Plan, *, control: str = "--parameters") -> str:
    """Returns sentences on the number of parameters that the noise can carry, and on the plan's own number.

    The number is the largest at which the best signal to noise over all rounds is not below `WEAK_SIGNAL`.

    Args:
        plan: The plan.
        control: The place to give the number of parameters: an option, or a control of the page.
    """
    rounds = "1 round" if plan.rounds == 1 else f"{plan.rounds:,} rounds"
    most = most_parameters(plan)
    counted = "1 parameter" if most == 1 else f"{most:,} parameters"
    start = f"At this noise{proviso(plan, plan.federation.innermost.name)} at most about {counted} can be trained over "
    if plan.parameters is None:
        return f"{start}{rounds}. Give the number with {control}."
    own = "1 parameter" if plan.parameters == 1 else f"{plan.parameters:,} parameters"
    if signal_to_noise(plan, plan.parameters) < WEAK_SIGNAL:
        return f"{start}{rounds}. This plan has {own}: the model will not train."
    return f"{start}{rounds}. This plan has {own}."


def levers_by_promise(advice: Iterable[Advice]) -> dict[str, list[str]]:
    """Returns the sentences on levers below two headings: the same promise, another promise; no heading stands alone.

    Args:
        advice: The advice on a plan, in the order of `advice_on`.
    """
    same, other = "Less noise for the same targets, the largest saving first", "Less noise for another promise"
    headings: dict[str, list[str]] = {}
    for piece in advice:
        if piece.saving is not None or piece.changes_promise:
            headings.setdefault(other if piece.changes_promise else same, []).append(piece.text)
    return headings
