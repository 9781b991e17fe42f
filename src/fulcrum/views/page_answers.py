"""What the page of `fulcrum serve` asks and is answered: a federation and settings in, figures and charts out.

>>> from fulcrum.federation.profiles import profile
>>> answer = PageAnswer.to(PageQuestion(federation=roster_of(profile("consortium")), settings=PageSettings()))
>>> answer.saving
'88.0%'
"""

from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from fulcrum.errors import FederationError, ParameterError, check_known
from fulcrum.federation.as_json import Roster, federation_of, roster_of
from fulcrum.federation.editing import MOST_SILOS, added, merged, removed, renamed, rescaled, resized, split
from fulcrum.federation.structure import SILO, Federation
from fulcrum.planning.making import plan
from fulcrum.planning.plan import Plan
from fulcrum.privacy.allocation import ALLOCATIONS
from fulcrum.views.chart_style import Spec
from fulcrum.views.drawings import plan_drawings
from fulcrum.views.html import promise, rendered
from fulcrum.views.numbers import figure, percent
from fulcrum.views.silo_columns import SiloColumn, silo_figures

MOST_ROUNDS = 100_000
"""Rounds that the page asks for at most."""

REGIONS_SHOWN = 60
"""Regions that can be edited in the page; the largest, where there are more."""

_TRADES = 9  # divisions between the observers: half of the report's, for the page to follow a slider

Text = Annotated[str, msgspec.Meta(max_length=500)]


class PageSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the sliders and choices say."""

    rounds: int = 10
    epsilon: float = 1.0
    delta: float = 1e-5
    epsilon_inside: float | None = None
    colluders: int = 0
    dropouts: int = 0
    allocation: Text = "optimal"
    accountant: Text = "exact"

    def plan(self, federation: Federation) -> Plan:
        """Returns the plan that meets these settings."""
        check_known("allocation", self.allocation, ALLOCATIONS)  # "module:function" would run what it names
        limits = {"rounds": (1, MOST_ROUNDS), "colluders": (0, MOST_SILOS), "dropouts": (0, MOST_SILOS)}
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise ParameterError(f"{name} must be from {low} to {high:,}")
        epsilon = {federation.innermost.name: self.epsilon}
        if self.epsilon_inside is not None:
            epsilon[SILO] = self.epsilon_inside
        return plan(
            federation,
            rounds=self.rounds,
            delta=self.delta,
            epsilon=epsilon,
            colluders=self.colluders,
            dropouts=self.dropouts,
            allocation=self.allocation,
            accountant=self.accountant,
        )


class PageEdit(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A change by hand: its kind, the regions it concerns, and a new name or number where it needs one."""

    kind: Literal["merge", "split", "remove", "add", "rename", "silos", "records"]
    regions: Annotated[list[str], msgspec.Meta(max_length=2 * REGIONS_SHOWN)] = []
    name: Text = ""
    number: float = 0.0

    def of(self, federation: Federation) -> Federation:
        """Returns the federation after this edit."""
        if self.kind == "merge":
            return merged(federation, self.regions)
        if self.kind == "add":
            return added(federation)
        if len(self.regions) != 1:
            raise ParameterError(f"an edit of the kind {self.kind!r} concerns one region, got {len(self.regions)}")
        [region] = self.regions
        if self.kind == "split":
            return split(federation, region)
        if self.kind == "remove":
            return removed(federation, region)
        if self.kind == "rename":
            return renamed(federation, region, self.name)
        if self.kind == "records":
            return rescaled(federation, region, mean=self.number)
        if not self.number.is_integer():
            raise ParameterError(f"the number of silos must be whole, got {self.number:g}")
        return resized(federation, region, silos=int(self.number))


class PageQuestion(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the page asks: its federation, its settings, and an edit to be made first.

    `whole` asks for all that follows from the federation alone, too.
    """

    federation: Roster
    settings: PageSettings
    edit: PageEdit | None = None
    whole: bool = False

    def federated(self) -> Federation:
        """Returns the federation asked about, after the edit if there is one."""
        if len(self.federation.silos) > MOST_SILOS:
            raise FederationError(too_many(len(self.federation.silos)))
        found = federation_of(self.federation)
        return found if self.edit is None else self.edit.of(found)


class PageAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the page shows; `head` and `regions` are HTML.

    Attributes:
        head: The claim, the figures and the warnings.
        saving: Against uniform, for a line beside an edit.
        budget: The noise, for the same line.
        charts: Specifications by key.
        columns: By silo, what the plan decides.
        regions: The table of regions to edit, where it may have changed.
        federation: The federation after an edit.
    """

    head: str
    saving: str
    budget: str
    charts: dict[str, Spec]
    columns: list[SiloColumn]
    regions: str | None = None
    federation: Roster | None = None

    @classmethod
    def to(cls, question: PageQuestion) -> "PageAnswer":
        """Returns the answer to a question.

        Raises:
            FulcrumError: The federation, the edit or the settings are wrong, in one line.
        """
        federation = question.federated()
        made = question.settings.plan(federation)
        edited = question.edit is not None
        return cls(
            head=head(made),
            saving=percent(made.saving),
            budget=figure(made.noise_budget),
            charts={drawing.key: drawing.spec for drawing in plan_drawings(made, points=_TRADES)},
            columns=silo_figures(made),
            regions=regions(federation) if edited or question.whole else None,
            federation=roster_of(federation) if edited else None,
        )


def head(made: Plan) -> str:
    """Returns the first screen as HTML: the claim, both epsilons, saving, dispersion, and what to think about."""
    return rendered("serve_head.html", **promise(made))


def regions(federation: Federation) -> str:
    """Returns the table of regions to edit as HTML, the largest where there are many."""
    inner = federation.innermost
    silos = np.bincount(inner.parent_of)
    records = np.bincount(inner.parent_of, weights=federation.sizes)
    shown = np.sort(np.argsort(-silos, kind="stable")[:REGIONS_SHOWN])
    rows: list[dict[str, Any]] = [
        {
            "name": inner.nodes[node],
            "silos": int(silos[node]),
            "mean": f"{records[node] / silos[node]:.6g}" if federation.sizes_known else "",
            "records": f"{records[node]:,.6g}" if federation.sizes_known else "secret",
        }
        for node in shown.tolist()
    ]
    more = len(inner.nodes) - len(rows)
    return rendered("serve_regions.html", rows=rows, inner=inner.name, more=more, most=MOST_SILOS)


def too_many(silos: int) -> str:
    """Returns why so many silos are refused."""
    return f"{silos:,} silos are more than the {MOST_SILOS:,} that the page takes. Use: fulcrum plan"
