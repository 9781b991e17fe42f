"""Recipes: a name for weights, clip norm and server rule chosen together.

>>> joint = RECIPES["joint"]
>>> joint.weights, joint.clip_norm, joint.server, joint.shrink, joint.least_influence, joint.disputed_influence
('equal', 'auto', 'random-effects', 'even-heads', 0.5, 1.0)

`paper` is the paper's recipe: weights by size, a clip at C, regional sums added up. `joint` needs less noise for the
same guarantee and lets the server use its knowledge of the noise. Every part is public, or a function of sums that an
observer has seen.
"""

from dataclasses import dataclass, replace

from fulcrum.core.choices import EVEN_HEADS, SHRINKS_OF_HEADS, ServerName, Shrink
from fulcrum.core.privacy_unit import SILO_UNIT, PrivacyUnit


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A choice of weights, clip and server.

    Attributes:
        weights: The weights of silos, as `weights_by` takes them.
        clip_norm: C, or "auto": C is 1, and the share of C at which updates are clipped follows from the noise.
        server: The server's rule.
        shrink: The models from which a pooling server removes the part that does not stand out of the noise.
        least_influence: The least influence of every region, as a share of its influence by size. 0 is the least noise,
            1 is influence by size; 0.5 helps small regions where a large region differs from them.
        disputed_influence: The same while the sums show that regions oppose each other.
    """

    weights: str | float = "sizes"
    clip_norm: float | str = 1.0
    server: ServerName = "sum"
    shrink: Shrink = False
    least_influence: float = 0.0
    disputed_influence: float = 0.0


RECIPES = {
    "paper": Recipe(),
    "joint": Recipe(
        weights="equal",
        clip_norm="auto",
        server="random-effects",
        shrink=EVEN_HEADS,
        least_influence=0.5,
        disputed_influence=1.0,
    ),
}
"""The recipes that have a name."""


def recipe_for(recipe: Recipe, unit: PrivacyUnit, *, one_group: bool = False) -> Recipe:
    """Returns a recipe with the weights that suit a unit of privacy, and the sums that the server gets.

    The noise of a region follows from its heaviest unit, so a region needs least noise if all its units count alike. If
    silos are protected, these are equal silos; if persons are protected, equal persons, and a silo counts by size. If
    all silos are masked as one group, the federation takes the place of the region: the weights of least noise are then
    equal for all silos with the same target.

    >>> recipe_for(RECIPES["joint"], PrivacyUnit(name="person")).weights
    'sizes'
    """
    if recipe.weights != "equal":
        return recipe
    if unit.is_within_silo:
        return replace(recipe, weights="sizes")
    return replace(recipe, weights="least-noise") if one_group else recipe


def recipe_named(
    *,
    weights: str | float,
    clip_norm: float | str,
    server: ServerName,
    shrink: Shrink,
    unit: PrivacyUnit = SILO_UNIT,
    one_group: bool = False,
) -> str | None:
    """Returns the name of the recipe with these parts, or None if no recipe has all of them.

    >>> recipe_named(weights="sizes", clip_norm=1.0, server="sum", shrink=False)
    'paper'
    """
    # A plan of the joint recipe shrinks heads by the spectrum prior where the plan has public input variances, and a
    # plan of earlier versions by the earlier shrinkage.
    shrink = EVEN_HEADS if shrink in SHRINKS_OF_HEADS else shrink
    wanted = Recipe(weights=weights, clip_norm=clip_norm, server=server, shrink=shrink)
    for name, recipe in RECIPES.items():  # whatever the least influence, which a plan states beside its recipe
        parts = recipe_for(recipe, unit, one_group=one_group)
        if replace(parts, least_influence=0.0, disputed_influence=0.0) == wanted:
            return name
    return None
