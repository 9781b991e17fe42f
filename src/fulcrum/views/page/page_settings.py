"""The settings of the page's sliders and choices, and the plan for them.

>>> from fulcrum.readers.profiles import profile
>>> plan = PageSettings(weights="least-noise").plan(profile("severe"))
>>> round(plan.noise_budget, 2), plan.weights_rule
(0.14, 'least-noise')
"""

from typing import Annotated, Any

import msgspec

from fulcrum.core.choices import Accountant, Neighbours, Purpose, ServerName, UnitName
from fulcrum.core.topology import Topology
from fulcrum.errors import ParameterError, check_known
from fulcrum.planning.comparisons.weight_tradeoff import MOST_SILOS_BETWEEN, different_needs
from fulcrum.planning.inputs.inside_observer import inside_observer
from fulcrum.planning.inputs.recipes import RECIPES
from fulcrum.planning.plan import Plan
from fulcrum.planning.planner import draft_plan
from fulcrum.planning.regions.region_design import RegionDesign, design_regions
from fulcrum.planning.regions.region_limits import RegionLimits
from fulcrum.planning.theory.allocation import ALLOCATIONS
from fulcrum.readers.editing import MOST_SILOS

MOST_ROUNDS = 100_000
"""The most rounds of a question."""

_SECONDS_OF_DESIGN = 4.0  # of the time that a question has

Text = Annotated[str, msgspec.Meta(max_length=500)]


class PageSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The values of sliders and choices; None leaves the value to the recipe, and the accountant to the purpose."""

    rounds: int = 10
    epsilon: float = 1.0
    delta: float = 1e-5
    epsilon_inside: float | None = None
    colluders: int = 0
    dropouts: int = 0
    allocation: Text = "optimal"
    accountant: Accountant | None = None
    recipe: Text = "paper"
    weights: Text | float | None = None
    clip_norm: Text | float | None = None
    server: ServerName | None = None
    least_influence: float | None = None
    parameters: int | None = None
    purpose: Purpose = "research"
    unit: UnitName = "silo"
    unit_name: Text = ""
    neighbours: Neighbours = "replace"
    silos_per_person: int = 1
    persons_per_silo: float | None = None
    silo_epsilon: float | None = None

    def plan(self, federation: Topology) -> Plan:
        """Returns the plan for the settings.

        Raises:
            ParameterError: A setting is wrong, or the plan would take minutes.
        """
        self._check(federation)
        return draft_plan(federation, **self._arguments(federation))

    def design(self, federation: Topology, *, most: int) -> RegionDesign:
        """Returns the regions of least noise with at most `most` silos, for the settings.

        Raises:
            ParameterError: A setting is wrong, the plan would take minutes, or no regions keep the limit.
        """
        self._check(federation)
        limits = RegionLimits(most=most)
        return design_regions(federation, limits, self._arguments(federation), seconds=_SECONDS_OF_DESIGN)

    def _arguments(self, federation: Topology) -> dict[str, Any]:
        """Returns the keyword arguments of a plan."""
        epsilon = {federation.innermost.name: self.epsilon}
        if self.epsilon_inside is not None:
            epsilon[inside_observer(federation, "trusted")] = self.epsilon_inside
        names = [name for name in self.__struct_fields__ if name not in ("epsilon", "epsilon_inside")]
        return {"epsilon": epsilon} | {name: getattr(self, name) for name in names}

    def _check(self, federation: Topology) -> None:
        check_known("allocation", self.allocation, ALLOCATIONS)  # "module:function" would let a request run any code
        check_known("recipe", self.recipe, RECIPES)
        limits = {"rounds": (1, MOST_ROUNDS), "colluders": (0, MOST_SILOS), "dropouts": (0, MOST_SILOS)}
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise ParameterError("page.setting-range", name=name, low=low, high=high)
        clip_norm = RECIPES[self.recipe].clip_norm if self.clip_norm is None else self.clip_norm
        if self.parameters is None and clip_norm == "auto":
            reason = f"the recipe {self.recipe!r} clips by the noise" if self.clip_norm is None else "clip norm 'auto'"
            raise ParameterError("page.clip-norm-needs-parameters", reason=reason)
        if self.parameters is None and self.purpose == "deployment":
            raise ParameterError("page.deployment-needs-parameters")
        if self.epsilon_inside is None:
            return
        if isinstance(self.weights, (int, float)) and len(federation) > MOST_SILOS_BETWEEN:
            raise ParameterError("page.weights-between-slow", most=MOST_SILOS_BETWEEN)
        if self.weights == "least-noise" and not self.weighs_quickly(federation):
            raise ParameterError("page.weights-least-noise-slow", most=MOST_SILOS_BETWEEN)

    def weighs_quickly(self, federation: Topology) -> bool:
        """Checks that weights of least noise take seconds, not minutes."""
        if self.epsilon_inside is None:
            return True
        return different_needs(federation, most=max(self.epsilon, self.epsilon_inside)) <= MOST_SILOS_BETWEEN
