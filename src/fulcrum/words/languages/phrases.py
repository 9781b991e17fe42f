"""The phrases of German and French, with decimal commas.

>>> german = phrases_of("de")
>>> str(german.phrase("over", 10, rounds=10)), german.number("1,234.5")
('Über 10 Runden', '1\u202f234,5')

A phrase with a count has two forms: `over_one` for a count of 1, and `over_many`.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal, TypeAlias

from markupsafe import Markup

from fulcrum.errors import check_known

Language: TypeAlias = Literal["en", "de", "fr"]

LANGUAGES = ("en", "de", "fr")
"""The languages of a report's first page; all further pages are English."""

_TABLES = {"de": "german.toml", "fr": "french.toml"}

_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")

_BOUND_BLANK = re.compile(r"(?<=«) | (?=[;:?!»])")  # French has a blank there, at which no line may break

_KNOWN_TIERS = ("region", "country")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrases:
    """The phrases of a language.

    Attributes:
        language: The code of the language.
        texts: Phrases by name, with marks of emphasis.
        tiers: Forms of the word for a node by tier; "other" is for all further tiers.
    """

    language: str
    texts: dict[str, str]
    tiers: dict[str, dict[str, str]]

    def phrase(self, name: str, count: int | None = None, **values: Any) -> Markup:
        """Returns a phrase with escaped values.

        Args:
            name: The name of the phrase.
            count: The number of things, for the choice between two forms.
            **values: The values of the phrase.
        """
        form = "" if count is None else "_one" if count == 1 else "_many"
        return Markup(self.texts[f"{name}{form}"]).format(**values)  # noqa: S704, the phrases are ours

    def node(self, tier: str, form: str) -> Markup:
        """Returns a form of the word for a node of a tier, such as "jeder Region"."""
        return Markup(self.tiers[tier if tier in _KNOWN_TIERS else "other"][form]).format(tier=tier)  # noqa: S704

    def number(self, text: str) -> str:
        """Returns a text with decimal commas in numbers, and narrow blanks between thousands."""
        return _NUMBER.sub(lambda match: match[0].replace(",", "\u202f").replace(".", ","), text)


@cache
def phrases_of(language: str) -> Phrases:
    """Returns the phrases of a language other than English."""
    check_known("language", language, LANGUAGES[1:])
    table = resources.files("fulcrum.words.languages").joinpath(_TABLES[language]).read_text(encoding="utf-8")
    read = tomllib.loads(_BOUND_BLANK.sub("\u00a0", table))
    return Phrases(language=language, texts=read["texts"], tiers=read["tiers"])
