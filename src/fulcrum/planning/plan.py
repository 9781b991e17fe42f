"""The plan that `fulcrum.plan` returns: data, figures, and the content of its file; immutable."""

import importlib
import warnings
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fulcrum.core.plan.plan_file import PlanFile, content_digest, to_json
from fulcrum.core.plan.verified_plan import verified_plan
from fulcrum.core.store.durable_files import write_whole
from fulcrum.core.topology import SILO, Topology
from fulcrum.errors import ForeignPlanError
from fulcrum.notebook_display import NotebookDisplay
from fulcrum.planning.content.plan_document import document_of
from fulcrum.planning.content.plan_figures import PlanFigures, changed_copy
from fulcrum.planning.inputs.inside_observer import inside_observer
from fulcrum.planning.theory.scheduling import with_rosters

_DOCUMENT = "planning.content.plan_document"

_MOVED = {
    "advice": ("planning.content.advice:advice_on", "fulcrum.advice_on(plan)"),
    "adjacency": (f"{_DOCUMENT}:guarantee_of.adjacency", "fulcrum.guarantee_of(plan).adjacency"),
    "assumptions": (f"{_DOCUMENT}:guarantee_of.assumptions", "fulcrum.guarantee_of(plan).assumptions"),
    "changed": ("planning.plan:is_changed", "fulcrum.verified_plan(plan)"),
    "check_federation": ("planning.plan:check_federation", "fulcrum verify --federation"),
    "cost": ("planning.plan:release_cost", "fulcrum.verified_plan(plan).release_cost(name)"),
    "file_digest": (":digest", "plan.digest"),
    "follows": (":continues_previous_plan", "plan.continues_previous_plan"),
    "promise": (f"{_DOCUMENT}:guarantee_of.promise", "fulcrum.guarantee_of(plan).promise"),
    "save": ("planning.plan:save_plan", "fulcrum.save_plan(plan, path)"),
    "statement": (f"{_DOCUMENT}:guarantee_of.statement", "fulcrum.guarantee_of(plan).statement"),
    "uniform": ("planning.content.plan_figures:with_uniform_noise", "fulcrum.plan(..., allocation='uniform')"),
    "with_noise": ("planning.content.plan_figures:with_noise", "fulcrum.plan(..., allocation=your_function)"),
    "whom": (f"{_DOCUMENT}:guarantee_of.describe_observer", "fulcrum.guarantee_of(plan).describe_observer"),
}
"""Earlier attributes of a plan: the function or attribute in the place of each, and the call."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(NotebookDisplay, PlanFigures):
    """Noise for every silo, and the epsilon of the noise against every observer.

    A plan is data: `PlanData` lists the fields, `PlanFigures` the figures. Functions make a plan (`fulcrum.plan`),
    describe a plan (`guarantee_of`, `advice_on`), verify a plan (`verified_plan`) and write a plan (`save_plan`).

    Attributes:
        document: The content of the file that the plan was read from; None for a plan made in memory. A changed copy
            (`dataclasses.replace`) has no file.
    """

    document: PlanFile | None = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        """Returns the plan in a line: data alone, no computed figure."""
        federation, inner = self.federation, self.federation.innermost
        inside = inside_observer(federation, self.aggregation)
        targets = [
            f"epsilon {inside if tier == SILO else tier}={value:g}" for tier, value in self.epsilon_target.items()
        ]
        targets += [] if self.information is None else [f"information {self.information:g}"]
        targets += [] if self.budget is None else [f"budget {self.budget:g}"]
        return (
            f"<{type(self).__name__} of {federation.name!r}: {len(federation):,} silos in {len(inner.nodes):,} "
            f"{inner.name}s, {', '.join([*targets, f'{self.rounds} rounds'])}, allocation {self.allocation}, for "
            f"{self.purpose}>"
        )

    def content(self) -> PlanFile:
        """Returns the content of the plan's file: as read, or as it would be written for a plan made in memory."""
        return self._made_document if self.document is None else self.document

    @cached_property
    def _made_document(self) -> PlanFile:
        return document_of(self)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 over the whole content of the plan's file."""
        return content_digest(self.content())

    def __getattr__(self, name: str) -> Any:
        """Returns the function in the place of an earlier attribute, with a warning."""
        if name not in _MOVED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        place, instead = _MOVED[name]
        warnings.warn(f"Plan.{name} goes with version 0.3. Use {instead}", DeprecationWarning, stacklevel=2)
        module, _, member = place.partition(":")
        if not module:
            return getattr(self, member)
        function, _, member = member.partition(".")
        called = getattr(importlib.import_module(f"fulcrum.{module}"), function)
        if member:
            return getattr(called(self), member)
        return called(self) if name in ("advice", "changed") else partial(called, self)


def save_plan(plan: Plan, path: str | Path) -> None:
    """Writes a plan file; an existing file stays until the new file is whole."""
    write_whole(path, to_json(plan.content()))


def is_changed(plan: Plan) -> bool:
    """Returns True if a plan's fields do not give the digest of its content, for example after a change in memory."""
    return content_digest(document_of(changed_copy(plan))) != plan.digest  # a copy has cached nothing


def release_cost(plan: Plan, silo: int) -> dict[str, float]:
    """Returns the squared shift (mu²) of a release of the silo at a place in the roster, by observer."""
    return verified_plan(plan).release_cost(str(plan.federation.silo_names[silo]))


def check_federation(plan: PlanFigures, federation: Topology, *, source: str = "") -> None:
    """Raises `ForeignPlanError` unless a plan was made for this federation, read from `source`."""
    check_same_federation(plan.federation, with_rosters(federation, plan.rounds), source=source)


def check_same_federation(planned: Topology, federation: Topology, *, source: str = "") -> None:
    """Raises `ForeignPlanError` unless the federation of a plan is this federation, read from `source`."""
    mine, theirs = planned.digest, federation.digest
    if mine != theirs:
        raise ForeignPlanError(
            "plan.federation-foreign", digest=mine, expected=theirs, source=source or federation.name
        )
