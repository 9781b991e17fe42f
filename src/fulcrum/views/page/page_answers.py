"""What the page of `fulcrum serve` asks and is answered: a federation and settings in, figures and charts out.

>>> from fulcrum.readers.profiles import profile
>>> answer = PageAnswer.to(PageQuestion(federation=roster_of(profile("consortium")), settings=PageSettings()))
>>> answer.saving
'88.0%'
"""

from typing import Annotated, Literal

import msgspec

from fulcrum.core.topology import Topology
from fulcrum.errors import FederationError, ParameterError
from fulcrum.planning.plan import Plan
from fulcrum.readers.editing import (
    MOST_SILOS,
    add_region,
    merge_regions,
    moves_of_merge,
    remove_region,
    rename_region,
    rescale_region,
    resize_region,
    split_region,
)
from fulcrum.readers.federation_json import Roster, federation_of, roster_of
from fulcrum.views.charts.chart_style import Spec
from fulcrum.views.charts.drawings import plan_drawings, weights_drawing
from fulcrum.views.page.page_head import head, late_advice
from fulcrum.views.page.page_regions import REGIONS_SHOWN, region_figures, regions
from fulcrum.views.page.page_settings import PageSettings, Text
from fulcrum.views.terminal.silo_columns import SiloColumn, silo_figures
from fulcrum.words.numbers import figure, percent

_TRADES = 9  # divisions between the observers: half of the report's, for the page to follow a slider


class PageEdit(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A change by hand: its kind, the regions it concerns, and a new name or number where it needs one."""

    kind: Literal["merge", "split", "remove", "add", "rename", "silos", "records"]
    regions: Annotated[list[str], msgspec.Meta(max_length=2 * REGIONS_SHOWN)] = []
    name: Text = ""
    number: float = 0.0

    def note(self, federation: Topology) -> str:
        """Returns whom this edit of a federation moves to another outer node, in a sentence; mostly nothing."""
        if self.kind != "merge":
            return ""
        told = [
            f"{move.silos:,} {'silo' if move.silos == 1 else 'silos'} of {move.region} moved from {move.left} to "
            f"{move.joined}"
            for move in moves_of_merge(federation, self.regions)
        ]
        return f"{'; '.join(told)}." if told else ""

    def of(self, federation: Topology) -> Topology:
        """Returns the federation after this edit."""
        if self.kind == "merge":
            return merge_regions(federation, self.regions)
        if self.kind == "add":
            return add_region(federation)
        if len(self.regions) != 1:
            raise ParameterError("page.edit-regions", kind=self.kind, regions=len(self.regions))
        [region] = self.regions
        if self.kind == "split":
            return split_region(federation, region)
        if self.kind == "remove":
            return remove_region(federation, region)
        if self.kind == "rename":
            return rename_region(federation, region, self.name)
        if self.kind == "records":
            return rescale_region(federation, region, mean=self.number)
        if not self.number.is_integer():
            raise ParameterError("page.silos-not-whole", number=self.number)
        return resize_region(federation, region, silos=int(self.number))


class PageQuestion(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What the page asks: its federation, its settings, and an edit to be made first.

    `whole` asks for all that follows from the federation alone, too.
    """

    federation: Roster
    settings: PageSettings
    edit: PageEdit | None = None
    whole: bool = False

    def before(self) -> Topology:
        """Returns the federation that the page holds."""
        if len(self.federation.silos) > MOST_SILOS:
            raise too_many_silos(len(self.federation.silos))
        return federation_of(self.federation)

    def federated(self) -> Topology:
        """Returns the federation asked about, after the edit if there is one."""
        return self.before() if self.edit is None else self.edit.of(self.before())


class PageAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the page shows; `head` and `regions` are HTML.

    Attributes:
        head: The claim, the figures and the warnings.
        saving: Against uniform, for a line beside an edit.
        budget: The noise, for the same line.
        charts: Specifications by key.
        columns: By silo, what the plan decides.
        figures: By region of the table, its noise and its share of the model.
        note: Whom an edit moved.
        regions: The table of regions to edit, where it may have changed.
        federation: The federation after an edit.
    """

    head: str
    saving: str
    budget: str
    charts: dict[str, Spec]
    columns: list[SiloColumn]
    figures: list[tuple[str, str]]
    note: str = ""
    regions: str | None = None
    federation: Roster | None = None

    @classmethod
    def to(cls, question: PageQuestion) -> "PageAnswer":
        """Returns the answer to a question.

        Raises:
            FulcrumError: The federation, the edit or the settings are wrong, in one line.
        """
        before = question.before()
        federation = before if question.edit is None else question.edit.of(before)
        made = question.settings.plan(federation)
        edited = question.edit is not None
        return cls(
            head=head(made),
            saving=percent(made.model_saving),
            budget=figure(made.model_noise),
            charts={
                key: spec for drawing in plan_drawings(made, points=_TRADES) for key, spec in drawing.specs.items()
            },
            columns=silo_figures(made),
            figures=region_figures(made),
            note="" if question.edit is None else question.edit.note(before),
            regions=regions(made) if edited or question.whole else None,
            federation=roster_of(federation) if edited else None,
        )


class LateAnswer(msgspec.Struct, kw_only=True):
    """What the page asks for once a slider rests, since it takes longer than a slider may.

    Attributes:
        weights: Noise against voice as a specification; None where there is nothing to choose.
        advice: Items for the list of advice, as HTML.
    """

    weights: Spec | None
    advice: str

    @classmethod
    def to(cls, question: PageQuestion) -> "LateAnswer":
        """Returns the answer to a question.

        Raises:
            FulcrumError: The federation or the settings are wrong, in one line.
        """
        made = question.settings.plan(question.federated())
        quick = question.settings.weighs_quickly(made.federation)
        drawing = weights_drawing(made, points=_weights_shown(made)) if quick else None
        return cls(weights=None if drawing is None else drawing.spec, advice=late_advice(made))


def _weights_shown(made: Plan) -> int:
    """Returns how many weights from sizes to least noise are worked out: fewer where each takes longer."""
    several, silos = len(made.requirement.multiplier) > 1, len(made.federation)
    if several and silos > 200:
        return 2
    return 7 if silos <= 2_000 else 4


def too_many_silos(silos: int) -> FederationError:
    """Returns the error for a federation with more silos than the page takes."""
    return FederationError("page.silos-too-many", silos=silos, most=MOST_SILOS)
