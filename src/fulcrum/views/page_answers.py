"""What the page that one plays with is told: a federation and settings in, figures and charts out; nothing is kept.

>>> from fulcrum.federation.profiles import profile
>>> answer = Answer.to(Question(federation=roster_of(profile("consortium")), settings=Settings()))
>>> answer.saving
'88.0%'
"""

from functools import cache
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from jinja2 import Environment

from fulcrum.csv_text import csv_text
from fulcrum.errors import FederationError, ParameterError, check_known
from fulcrum.federation.as_json import Roster, federation_of, roster_of
from fulcrum.federation.editing import MOST_SILOS, added, merged, removed, renamed, rescaled, resized, split
from fulcrum.federation.silo_table import checked_header
from fulcrum.federation.structure import SILO, Federation
from fulcrum.planning.making import plan
from fulcrum.planning.plan import Plan
from fulcrum.privacy.allocation import ALLOCATIONS
from fulcrum.views.chart_style import Row, Spec, percent
from fulcrum.views.html import environment, promise
from fulcrum.views.report import plan_drawings, silo_figures
from fulcrum.views.terminal import figure

MOST_ROUNDS = 100_000
"""Rounds that the page asks for at most."""

REGIONS_SHOWN = 60
"""Regions that can be edited in the page; the largest, where there are more."""

_TRADES = 9  # divisions between the observers: half of the report's, for the page to follow a slider

Text = Annotated[str, msgspec.Meta(max_length=500)]


class Settings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
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


class Edit(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A change by hand: its kind, the regions it concerns, and a new name or number where it needs one."""

    kind: Literal["merge", "split", "remove", "add", "rename", "silos", "records"]
    regions: Annotated[list[str], msgspec.Meta(max_length=2 * REGIONS_SHOWN)] = []
    name: Text = ""
    number: float = 0.0

    def of(self, federation: Federation) -> Federation:
        """Returns the federation after it."""
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


class Question(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the page asks: its federation, its settings, and an edit to be made first.

    `whole` asks for all that follows from the federation alone, too.
    """

    federation: Roster
    settings: Settings
    edit: Edit | None = None
    whole: bool = False

    def federated(self) -> Federation:
        """Returns the federation that is meant, edited where that is asked for."""
        if len(self.federation.silos) > MOST_SILOS:
            raise FederationError(too_many(len(self.federation.silos)))
        found = federation_of(self.federation)
        return found if self.edit is None else self.edit.of(found)


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
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
    columns: list[Row]
    regions: str | None = None
    federation: Roster | None = None

    @classmethod
    def to(cls, question: Question) -> "Answer":
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
    return _templates().get_template("serve_head.html").render(promise(made))


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
            "mean": f"{records[node] / silos[node]:.6g}",
            "records": f"{records[node]:,.6g}",
        }
        for node in shown.tolist()
    ]
    return (
        _templates()
        .get_template("serve_regions.html")
        .render(rows=rows, inner=inner.name, more=len(inner.nodes) - len(rows), most=MOST_SILOS)
    )


def federation_csv(federation: Federation) -> str:
    """Returns a federation as the CSV file that `fulcrum plan` reads back the same: a line for each silo.

    >>> print(federation_csv(Federation.from_sizes({"north": [120, 80.5], "south": [300]})).splitlines()[:3])
    ['silo,records,region', 'north-1,120,north', 'north-2,80.5,north']

    Raises:
        FederationError: No CSV file has such tiers: the innermost is not called "region".
    """
    roster = roster_of(federation)
    places = [*roster.tiers, *([roster.group] if roster.group else [])]
    columns: dict[str, list[Any]] = {"silo": roster.silos, "records": roster.records}
    columns |= {place.name: [place.nodes[code] for code in place.codes] for place in places}
    if roster.epsilon is not None:
        columns["epsilon"] = roster.epsilon  # nothing is written where a silo declares none
    try:
        checked_header(list(columns), "its header")
    except FederationError as error:
        raise FederationError(f"{federation.name} cannot be written as CSV: {error}") from None
    return csv_text([columns, *zip(*columns.values(), strict=True)])


def too_many(silos: int) -> str:
    """Returns why so many silos are refused."""
    return f"{silos:,} silos are more than the {MOST_SILOS:,} that the page takes. Use: fulcrum plan"


@cache
def _templates() -> Environment:
    return environment()
