"""What the columns of a table mean: by their own names, by the words of other languages, or as somebody says.

>>> found = meaning_of(["KLINIK", "Anzahl Fälle", "Bundesland", "Telefon"], "sites.csv", {"ignore": "Telefon"})
>>> found.names
('silo', 'records', 'region', None)
>>> found.notes[0]
"columns are read as: silo from 'KLINIK', records from 'Anzahl Fälle', region from 'Bundesland'"

A word stands for a column where one column alone can be meant. Where two can, the table is refused.
"""

import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fulcrum.core.topology import KNOWN_COLUMNS, SILO
from fulcrum.errors import FederationError, ParameterError, in_one_line, listing, suggestion

IGNORE = "ignore"
"""The meaning of a column that is left out."""

MOST_COLUMNS = 100
"""Columns that a table may have beside those that are left out: far more than any tree has tiers."""

MOST_LETTERS = 1_000
"""Letters that a name may have: far more than anybody reads."""

Columns: TypeAlias = Mapping[str, str | Sequence[str]]
"""By meaning the column that has it, such as {"silo": "hospital"}; "ignore" may have several."""


def fold_name(name: str) -> str:
    """Returns a name without capitals, accents, space and signs.

    >>> fold_name("Hôpital "), fold_name("FÄLLE"), fold_name("Faelle")
    ('hopital', 'falle', 'falle')
    """
    plain = unicodedata.normalize("NFKD", name).casefold()
    letters = "".join(letter for letter in plain if letter.isalnum())
    return re.sub("(?<=[aou])e", "", letters)  # ä, ö and ü are written ae, oe and ue too


def fold_words(listed: str) -> frozenset[str]:
    """Returns the words of a text, each folded."""
    return frozenset(map(fold_name, listed.split()))


def without_accents(name: str) -> str:
    """Returns a name without capitals and accents.

    >>> without_accents("Région"), without_accents("tier-2")
    ('region', 'tier-2')
    """
    letters = unicodedata.normalize("NFKD", name).casefold()
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


_FIRST_CHOICE = {
    SILO: fold_words(
        """silo client site hospital clinic device participant organisation organization institution bank
        krankenhaus klinik klinikum standort spital einrichtung teilnehmer
        hôpital clinique établissement centre
        clínica centro sede
        ospedale ziekenhuis"""
    ),
    "records": fold_words(
        """records size count samples examples rows patients cases n
        patienten fälle fallzahl fallzahlen datensätze anzahl
        cas dossiers effectif effectifs enregistrements échantillons
        pacientes casos registros muestras
        pazienti casi patiënten"""
    ),
    "region": fold_words(
        """region cluster area zone edge hub aggregator station
        bundesland gebiet bezirk kanton
        région département canton secteur
        región zona comunidad provincia
        regione regio"""
    ),
    "epsilon": fold_words("epsilon eps ε"),
    "group": fold_words("group gruppe groupe grupo gruppo groep"),
    "weight": fold_words("weight gewicht poids peso"),
}
"""By column the words that stand for it: English, German, French, Spanish, and a few of their neighbours."""

_SECOND_CHOICE = {
    SILO: fold_words("name id nom nombre bezeichnung"),
    "region": fold_words("country state province land staat pays país estado"),
}
"""Words that stand for a column where no column has a word of the first choice."""

_TIERS = fold_words(
    """country state province land staat pays país estado
    continent kontinent continente network netzwerk réseau red trust"""
)
"""Words that one expects as names of outer tiers."""

_FILLERS = fold_words(
    """number of the no nr num name id code anzahl der die das des von
    nombre de du la le les l d nom número del los las el"""
)
"""Words around the one that counts: "Number of patients", "Nom de l'hôpital"."""

_NUMBERING = fold_words("nr no lfdnr index row rows unnamed0 zeile ligne fila x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What every column of a table is.

    Attributes:
        names: By column its meaning, which is its name where it is an outer tier; None where it is ignored.
        said: The meanings that somebody gave.
        notes: How the header was read.
    """

    names: tuple[str | None, ...]
    said: frozenset[str]
    notes: tuple[str, ...]


def meaning_of(header: Sequence[str], where: str, columns: Columns | None = None) -> Meaning:
    """Returns what the columns of a header mean.

    Raises:
        FederationError: Two columns can be meant, or `columns` does not fit the header.
    """
    given = [name.strip() for name in header]
    _check_size(given, where, columns or {})
    said = _said(given, where, columns or {})
    names: list[str | None] = [said.get(place, name) for place, name in enumerate(given)]
    names = [None if place in said and name == IGNORE else name for place, name in enumerate(names)]
    known = (*KNOWN_COLUMNS, "region")
    for choice in (_FIRST_CHOICE, _SECOND_CHOICE):
        for column, words in choice.items():
            meant = [
                place
                for place, name in enumerate(names)
                if name and place not in said and name not in known and _says(name, words)
            ]
            if column in names or not meant:
                continue
            if len({given[place] for place in meant}) < len(meant):
                raise FederationError("sheet.column-repeated", place=where, column=given[meant[0]])
            if len(meant) > 1:
                raise FederationError(
                    "sheet.column-ambiguous",
                    place=where,
                    candidates=" and ".join(repr(given[place]) for place in meant[:2]),
                    meaning=column,
                    option=column_option(column, given[meant[0]]),
                )
            names[meant[0]] = column
    renamed = [
        f"{name} from {given[place]!r}" for place, name in enumerate(names) if name in known and name != given[place]
    ]
    notes = (f"columns are read as: {', '.join(renamed)}",) if renamed else ()
    return Meaning(names=tuple(names), said=frozenset(said.values()), notes=notes)


def _check_size(given: Sequence[str], where: str, columns: Columns) -> None:
    """Refuses a header that would take minutes to make sense of."""
    ignored = columns.get(IGNORE, ())
    kept = sum(map(bool, given)) - (1 if isinstance(ignored, str) else len(ignored))
    if kept > MOST_COLUMNS:
        raise FederationError("sheet.columns-too-many", place=where, columns=kept, most=MOST_COLUMNS)
    check_letters(given, lambda _: where)


def check_letters(names: Sequence[str], locate: Callable[[int], str]) -> None:
    """Refuses names that are too long; `locate` says where the one at a place stands."""
    longest = max(map(len, names), default=0)
    if longest > MOST_LETTERS:
        place = next(place for place, name in enumerate(names) if len(name) > MOST_LETTERS)
        raise FederationError("sheet.name-too-long", place=locate(place), letters=len(names[place]), most=MOST_LETTERS)


def _said(given: Sequence[str], where: str, columns: Columns) -> dict[int, str]:
    """Returns by place the meanings that somebody gave."""
    said: dict[int, str] = {}
    for meaning, named in columns.items():
        for name in [named] if isinstance(named, str) else named:
            exact = [place for place, one in enumerate(given) if one == name.strip()]
            found = exact or [place for place, one in enumerate(given) if one and fold_name(one) == fold_name(name)]
            if not found:
                raise FederationError(
                    "sheet.column-not-found",
                    place=where,
                    column=name,
                    meaning=meaning,
                    known=in_one_line(listing(filter(None, given))),
                    suggestion=suggestion(name, given),
                )
            if len(found) > 1:
                raise FederationError("sheet.column-repeated", place=where, column=name)
            if found[0] in said:
                raise FederationError(
                    "sheet.column-two-meanings", place=where, column=name, first=said[found[0]], second=meaning
                )
            said[found[0]] = meaning
    return said


def _says(name: str, words: frozenset[str]) -> bool:
    """Says whether a header is one of the words, by itself or among fillers and years: "Fälle 2025"."""
    if fold_name(name) in words:
        return True
    parts = [fold_name(part) for part in re.split(r"[\W_]+", name) if part]
    left = [part for part in parts if part not in _FILLERS and not re.fullmatch("(19|20)[0-9]{2}", part)]
    return len(left) == 1 and left[0] in words


def stands_for(name: str, column: str) -> bool:
    """Says whether a header is a word for that column.

    >>> stands_for("Nombre de patients", "records"), stands_for("Betten", "records")
    (True, False)
    """
    return any(_says(name, choice.get(column, frozenset())) for choice in (_FIRST_CHOICE, _SECOND_CHOICE))


def numbers_rows(name: str) -> bool:
    """Says whether a first column of this name may number the rows and say nothing else.

    >>> numbers_rows(""), numbers_rows("lfd. Nr."), numbers_rows("Klinik")
    (True, True, False)
    """
    return not name or name == "#" or fold_name(name) in _NUMBERING


def expected_tier(name: str) -> bool:
    """Says whether one expects an outer tier to be called so.

    >>> expected_tier("Land"), expected_tier("tier-2"), expected_tier("Telefon")
    (True, True, False)
    """
    return fold_name(name) in _TIERS or stands_for(name, "region") or re.fullmatch(r"tier-\d+", name) is not None


def parse_column_options(options: Sequence[str]) -> dict[str, list[str]]:
    """Returns by meaning the columns that have it, said as "silo=hospital"; "ignore" may be said several times.

    >>> parse_column_options(["silo=hospital", "ignore=phone", "ignore=remarks"])
    {'silo': ['hospital'], 'ignore': ['phone', 'remarks']}

    Raises:
        ParameterError: It is not said so, or two columns have one meaning.
    """
    columns: dict[str, list[str]] = {}
    for given in options:
        meaning, _, name = (part.strip() for part in given.partition("="))
        if not (meaning and name):
            raise ParameterError("sheet.option-malformed", option=given)
        if meaning in columns and meaning != IGNORE:
            raise ParameterError("sheet.option-repeated", meaning=meaning, first=columns[meaning][0], second=name)
        columns.setdefault(meaning, []).append(name)
    return columns


def column_option(meaning: str, name: str) -> str:
    """Returns the option that says what a column is, as one pastes it.

    >>> column_option("ignore", "Phone number")
    "--column 'ignore=Phone number'"
    """
    return f"--column {shlex.quote(in_one_line(f'{meaning}={name}'))}"
