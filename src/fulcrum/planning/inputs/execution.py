"""The settings of a plan beside the promise: distribution of noise, clip, weights, server, purpose.

>>> Execution(weights="equal").server
'sum'

A setting without a value comes from the recipe. Weights without a rule come from the federation, if declared there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from msgspec import structs

from fulcrum.core.choices import DECLARED, EVEN_SCALE, INJECTIONS, PURPOSES, Injection, Purpose, ServerName, Shrink
from fulcrum.core.lattice import check_parameters
from fulcrum.core.plan.plan_file import Spectrum
from fulcrum.core.privacy_unit import PrivacyUnit
from fulcrum.core.topology import Topology
from fulcrum.errors import ParameterError, check_known
from fulcrum.planning.inputs.recipes import RECIPES, recipe_for
from fulcrum.planning.inputs.settings import Settings
from fulcrum.planning.theory.allocation import AllocationRule

_LARGEST_CLIP_NORM = 1e50
_MOST_PARAMETERS = 10**15


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The settings of a plan beside the promise.

    Attributes:
        allocation: The distribution of noise: from `ALLOCATIONS`, "module:function", or a callable.
        seed: For "misallocated".
        clip_norm: C, or "auto": C is 1, and updates are clipped at a share of C by the noise.
        weights: The weights of silos, as `weights_by` takes them.
        least_influence: From 0 to 1, the least influence of every region as a share of its influence by size.
        disputed_influence: The same for "random-effects" while the sums show that regions oppose each other.
        server: A rule of `fulcrum.rules.rule_registry`.
        shrink: From `SHRINKS`: True if a pooling server removes all parts that do not stand out of the noise.
        spectrum: The input variances of the spectrum prior; used by `PRIORS` alone.
        injection: From `INJECTIONS`.
        purpose: From `PURPOSES`.
        keys: Public keys by silo and region name, for the plan to carry.
    """

    allocation: str | AllocationRule = "optimal"
    seed: int = 0
    clip_norm: float | str = 1.0
    weights: str | float | Mapping[str, float] = "sizes"
    least_influence: float = 0.0
    disputed_influence: float = 0.0
    server: ServerName = "sum"
    shrink: Shrink = False
    spectrum: Spectrum | None = None
    injection: Injection = "silo"
    purpose: Purpose = "research"
    keys: Mapping[str, str] = field(default_factory=dict)


def execution_of(federation: Topology, settings: Settings) -> Execution:
    """Returns the settings beside the target; defaults come from the recipe and the federation's declared weights."""
    check_known("recipe", settings.recipe, RECIPES)
    recipe = recipe_for(RECIPES[settings.recipe], unit_of(settings))
    spectrum = settings.public
    if spectrum is not None and settings.embedding:
        spectrum = structs.replace(spectrum, embedding=True)
    shrink = recipe.shrink if spectrum is None else EVEN_SCALE
    disputed = recipe.disputed_influence if settings.disputed_influence is None else settings.disputed_influence
    own_weights = recipe.weights if federation.declared_weights is None else DECLARED
    return Execution(
        allocation=settings.allocation,
        seed=settings.seed,
        clip_norm=recipe.clip_norm if settings.clip_norm is None else settings.clip_norm,
        weights=own_weights if settings.weights is None else settings.weights,
        least_influence=recipe.least_influence if settings.least_influence is None else settings.least_influence,
        disputed_influence=disputed,
        server=recipe.server if settings.server is None else settings.server,
        shrink=shrink if settings.shrink is None else settings.shrink,
        spectrum=spectrum,
        injection=settings.injection,
        purpose=settings.purpose,
        keys=settings.keys or {},
    )


def unit_of(settings: Settings) -> PrivacyUnit:
    """Returns the unit of privacy of settings."""
    return PrivacyUnit(
        name=settings.unit,
        neighbours=settings.neighbours,
        silos_per_person=settings.silos_per_person,
        label=settings.unit_name,
        is_cut=settings.purpose == "deployment" and settings.unit != "silo",
    )


def check_execution(execution: Execution, parameters: int | None) -> None:
    """Raises `ParameterError` if a setting is out of its range, or unfit for the purpose."""
    clip_norm, seed = execution.clip_norm, execution.seed
    if clip_norm != "auto" and not (
        isinstance(clip_norm, (int, float, np.number)) and 1 / _LARGEST_CLIP_NORM <= clip_norm <= _LARGEST_CLIP_NORM
    ):
        raise ParameterError(
            "plan.clip-norm-range", least=1 / _LARGEST_CLIP_NORM, most=_LARGEST_CLIP_NORM, clip_norm=clip_norm
        )
    whole = isinstance(parameters, (int, np.integer)) and not isinstance(parameters, bool)
    if parameters is not None and not (whole and 1 <= parameters <= _MOST_PARAMETERS):
        raise ParameterError("plan.parameters-range", most=_MOST_PARAMETERS, parameters=parameters)
    check_known("injection", execution.injection, INJECTIONS)
    if not _is_share(execution.least_influence):
        raise ParameterError("plan.least-influence-range", least_influence=execution.least_influence)
    if not _is_share(execution.disputed_influence):
        raise ParameterError("plan.disputed-influence-range", disputed_influence=execution.disputed_influence)
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ParameterError("number.whole-range", name="seed", least=0, value=seed)
    check_known("purpose", execution.purpose, PURPOSES)
    if execution.purpose == "deployment":
        check_parameters(parameters)
        if execution.injection != "silo":
            raise ParameterError("plan.deployment-injection")


def _is_share(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float, np.number)) and bool(0 <= value <= 1)
