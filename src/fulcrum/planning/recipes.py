"""What silos count for, how updates are clipped, and what the server does with the sums: chosen together, by one word.

>>> RECIPES["joint"]
Recipe(weights='equal', clip_norm='auto', server='random-effects', shrink='heads')

`paper` is the paper's: weights by size, a clip at C, regional sums added up. `joint` needs less noise for the same
guarantee and lets the server use what it knows of the noise. All of it is public, or a function of sums that an
observer has seen.
"""

from dataclasses import dataclass

from fulcrum.estimation.server import HEADS
from fulcrum.privacy.weights import WEIGHTS

SERVERS = ("sum", "random-effects")
"""What the server does with regional sums: adds them up, or pools them over all rounds so far (`estimation`)."""

DECLARED, BY_SILO = "declared", "by-silo"
"""What silos count for where nobody chose a rule: what the federation declares, or weights given by silo."""

WEIGHTS_NAMED = (*WEIGHTS, DECLARED, BY_SILO)
"""All that a plan may name beside a number from 0 to 1."""

SHRINKS = (True, False, HEADS)
"""Whether a server that pools shrinks its estimate: whatever the model, never, or for softmax heads alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One choice of weights, clip and server.

    Attributes:
        weights: What silos count for, as `weights_by` takes it.
        clip_norm: C, or "auto": C is 1, and the share of it at which updates are clipped follows from the noise.
        server: One of `SERVERS`.
        shrink: Whether a server that pools takes off what does not stand out of the noise; one of `SHRINKS`.
    """

    weights: str | float = "sizes"
    clip_norm: float | str = 1.0
    server: str = "sum"
    shrink: bool | str = False


RECIPES = {
    "paper": Recipe(),
    "joint": Recipe(weights="equal", clip_norm="auto", server="random-effects", shrink=HEADS),
}
"""The recipes that have a name."""


def recipe_named(*, weights: str | float, clip_norm: float | str, server: str, shrink: bool | str) -> str | None:
    """Returns the name of the recipe that these parts make up, or None where no recipe has all of them.

    >>> recipe_named(weights="sizes", clip_norm=1.0, server="sum", shrink=False)
    'paper'
    """
    asked = Recipe(weights=weights, clip_norm=clip_norm, server=server, shrink=shrink)
    return next((name for name, recipe in RECIPES.items() if recipe == asked), None)
