"""The questions and answers of the page of `fulcrum serve`: federation and settings in, figures and charts out.

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
from fulcrum.words.design_words import design_sentence
from fulcrum.words.numbers import figure, percent
from fulcrum.words.person_words import size_word

_TRADES = 9  # divisions between the observers: half of the report's, so that the page keeps up with a slider


class PageEdit(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A change by hand: its kind, its regions, and a new name or number."""

    kind: Literal["merge", "split", "remove", "add", "rename", "silos", "records", "design"]
    regions: Annotated[list[str], msgspec.Meta(max_length=2 * REGIONS_SHOWN)] = []
    name: Text = ""
    number: float = 0.0

    def apply(self, federation: Topology, settings: PageSettings) -> tuple[Topology, str]:
        """Returns the federation after the edit, and a sentence on silos that the edit moves, or an empty string."""
        if self.kind != "design":
            return self.of(federation), self.note(federation)
        if not self.number.is_integer():
            raise ParameterError("page.silos-not-whole", number=self.number)
        result = settings.design(federation, most=int(self.number))
        moved = len(result.moves)
        note = f"{moved:,} {'silo changes' if moved == 1 else 'silos change'} the {federation.innermost.name}."
        broken = f" Before, a limit was broken: {result.violation}." if result.violation else ""
        return result.federation, f"{note} {design_sentence(result)}{broken}"

    def note(self, federation: Topology) -> str:
        """Returns a sentence on silos that the edit moves to another outer node; empty without such silos."""
        if self.kind != "merge":
            return ""
        moved = [
            f"{move.silos:,} {'silo' if move.silos == 1 else 'silos'} of {move.region} moved from {move.left} to "
            f"{move.joined}"
            for move in moves_of_merge(federation, self.regions)
        ]
        return f"{'; '.join(moved)}." if moved else ""

    def of(self, federation: Topology) -> Topology:
        """Returns the federation after an edit that needs no settings."""
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
    """A question of the page: its federation, its settings, and an edit to apply first.

    With `whole` the answer repeats the parts that follow from the federation alone.
    """

    federation: Roster
    settings: PageSettings
    edit: PageEdit | None = None
    whole: bool = False

    def before(self) -> Topology:
        """Returns the federation of the page, before the edit."""
        if len(self.federation.silos) > MOST_SILOS:
            raise too_many_silos(len(self.federation.silos))
        return federation_of(self.federation)

    def federation_after(self) -> Topology:
        """Returns the federation after the edit, or unchanged without an edit."""
        return self.before() if self.edit is None else self.edit.apply(self.before(), self.settings)[0]


class PageAnswer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The content of the page; `head` and `regions` are HTML.

    Attributes:
        head: The claim, the figures and the warnings.
        saving: The saving against uniform, for a line beside an edit.
        budget: The noise, for the same line.
        charts: Specifications by key.
        columns: The columns of the table by silo that the plan decides.
        figures: Noise and influence of every region in the table.
        size_word: The things that sizes count: records, or persons by the word of the settings.
        note: A sentence on silos that an edit moved.
        regions: The table of regions to edit; None for an unchanged table.
        federation: The federation after an edit.
    """

    head: str
    saving: str
    budget: str
    charts: dict[str, Spec]
    columns: list[SiloColumn]
    figures: list[tuple[str, str]]
    size_word: str
    note: str = ""
    regions: str | None = None
    federation: Roster | None = None

    @classmethod
    def to(cls, question: PageQuestion) -> "PageAnswer":
        """Returns the answer to a question.

        Raises:
            FulcrumError: The federation, the edit or the settings are wrong, in one line.
        """
        federation, note = question.before(), ""
        if question.edit is not None:
            federation, note = question.edit.apply(federation, question.settings)
        plan = question.settings.plan(federation)
        edited = question.edit is not None
        return cls(
            head=head(plan),
            saving=percent(plan.model_saving),
            budget=figure(plan.model_noise),
            charts={
                key: spec for drawing in plan_drawings(plan, points=_TRADES) for key, spec in drawing.specs.items()
            },
            columns=silo_figures(plan),
            figures=region_figures(plan),
            size_word=size_word(plan.unit),
            note=note,
            regions=regions(plan) if edited or question.whole else None,
            federation=roster_of(federation) if edited else None,
        )


class LateAnswer(msgspec.Struct, kw_only=True):
    """The slow parts of the page, which the page asks for once a slider rests.

    Attributes:
        weights: The chart of noise against influence; None without a choice of weights.
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
        plan = question.settings.plan(question.federation_after())
        quick = question.settings.weighs_quickly(plan.federation)
        drawing = weights_drawing(plan, points=_number_of_weights(plan)) if quick else None
        return cls(weights=None if drawing is None else drawing.spec, advice=late_advice(plan))


def _number_of_weights(plan: Plan) -> int:
    """Returns the number of weights from sizes to least noise in the chart: fewer for federations that take longer."""
    several, silos = len(plan.requirement.multiplier) > 1, len(plan.federation)
    if several and silos > 200:
        return 2
    return 7 if silos <= 2_000 else 4


def too_many_silos(silos: int) -> FederationError:
    """Returns the error for a federation with more silos than the page takes."""
    return FederationError("page.silos-too-many", silos=silos, most=MOST_SILOS)
