"""The meanings of the columns of a table: by name, by words of several languages, or as the user declares.

>>> meaning = meaning_of(["KLINIK", "Anzahl Fälle", "Bundesland", "Telefon"], "sites.csv", {"ignore": "Telefon"})
>>> meaning.names
('silo', 'records', 'region', None)
>>> meaning.notes[0]
"columns are read as: silo from 'KLINIK', records from 'Anzahl Fälle', region from 'Bundesland'"

A word is read as a meaning if a single column fits the meaning. If two columns fit, the table is refused.
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
"""The meaning of a column to leave out."""

SITE = "site"
"""The technical name of a silo's site, in a table with a column of silos; else a word for silo."""

MOST_COLUMNS = 100
"""The largest number of columns without ignored columns: far more than any tree has tiers."""

MOST_LETTERS = 1_000
"""The largest number of letters of a name: far more than people read."""

Columns: TypeAlias = Mapping[str, str | Sequence[str]]
"""By meaning the name of the column, such as {"silo": "hospital"}; "ignore" may have several names."""


def fold_name(name: str) -> str:
    """Returns a name without capitals, accents, space and signs.

    >>> fold_name("Hôpital "), fold_name("FÄLLE"), fold_name("Faelle")
    ('hopital', 'falle', 'falle')
    """
    plain = unicodedata.normalize("NFKD", name).casefold()
    letters = "".join(letter for letter in plain if letter.isalnum())
    return re.sub("(?<=[aou])e", "", letters)  # people also write ä, ö and ü as ae, oe and ue


def fold_words(listed: str) -> frozenset[str]:
    """Returns the words of a text, folded by `fold_name`."""
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
        krankenhaus klinik klinikum haus klinikname standort spital einrichtung teilnehmer
        hôpital clinique établissement centre
        clínica centro sede
        ospedale struttura presidio ziekenhuis"""
    ),
    "records": fold_words(
        """records size count samples examples rows patients cases n
        patienten fälle fallzahl fallzahlen patientenzahl patientenzahlen behandlungsfälle datensätze anzahl
        cas dossiers effectif effectifs enregistrements échantillons
        pacientes casos registros muestras
        pazienti casi ricoveri patiënten"""
    ),
    "region": fold_words(
        """region cluster area zone edge hub aggregator station
        bundesland gebiet bezirk kanton
        région département canton secteur
        región zona comunidad comunidadautónoma provincia
        regione regio"""
    ),
    "epsilon": fold_words("epsilon eps ε"),
    "group": fold_words("group gruppe groupe grupo gruppo groep"),
    "weight": fold_words("weight gewicht poids peso"),
    "from": fold_words("from"),
    "until": fold_words("until"),
    "every": fold_words("every"),
}
"""By meaning the words for it: English, German, French, Spanish, and a few words of neighbouring languages."""

_SECOND_CHOICE = {
    SILO: fold_words("name id nom nombre bezeichnung"),
    "region": fold_words("country state province land staat pays país estado"),
}
"""Further words by meaning, read if no column has a word of the first choice."""

_TIERS = fold_words(
    """country state province land staat pays país estado
    continent kontinent continente network netzwerk réseau red trust"""
)
"""Usual names of outer tiers."""

_FILLERS = fold_words(
    """number of the no nr num name id code anzahl der die das des von
    nombre de du la le les l d nom número del los las el
    numero nome di dei degli delle della dell
    p a pa per annum pro je jahr jährlich year yearly annual par an annuel annuels año anual anno"""
)
"""Words to skip in a heading: "Number of patients", "Nom de l'hôpital", "Fälle p. a."."""

_NUMBERING = fold_words("nr no lfdnr index row rows unnamed0 zeile ligne fila x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The meanings of all columns of a table.

    Attributes:
        names: By column the meaning; the name itself for an outer tier, None for an ignored column.
        declared: The meanings that the user declared.
        notes: Sentences on how the header was read.
    """

    names: tuple[str | None, ...]
    declared: frozenset[str]
    notes: tuple[str, ...]


def meaning_of(
    header: Sequence[str],
    where: str,
    columns: Columns | None = None,
    *,
    finest: Callable[[Sequence[int]], int | None] = lambda _: None,
) -> Meaning:
    """Returns the meanings of the columns of a header.

    Args:
        header: The names of the columns.
        where: The place of the header, for messages.
        columns: By meaning the name of a column.
        finest: Returns the column that refines the other columns of a list, such as states within countries; None if no
            column does. Of several columns for regions the finest is the region, and the others are outer tiers.

    Raises:
        FederationError: Two columns fit a meaning, or `columns` does not fit the header.
    """
    headings = [name.strip() for name in header]
    _check_size(headings, where, columns or {})
    declared = _declared_meanings(headings, where, columns or {})
    names: list[str | None] = [declared.get(place, name) for place, name in enumerate(headings)]
    names = [None if place in declared and name == IGNORE else name for place, name in enumerate(names)]
    known_names, further = (*KNOWN_COLUMNS, "region", *([SITE] if SILO in names else [])), list[str]()
    for choice in (_FIRST_CHOICE, _SECOND_CHOICE):
        for column, words in choice.items():
            meant = [
                place
                for place, name in enumerate(names)
                if name and place not in declared and name not in known_names and _is_word(name, words)
            ]
            if column in names or not meant:
                continue
            if len({headings[place] for place in meant}) < len(meant):
                raise FederationError("sheet.column-repeated", place=where, column=headings[meant[0]])
            refining = finest(meant) if len(meant) > 1 and column == "region" else None
            if refining is not None:
                names[refining] = column
                coarse = next(place for place in meant if place != refining)
                coarser = listing(repr(headings[place]) for place in meant if place != refining)
                further.append(
                    f"{headings[refining]!r} is the region, as it refines {coarser}. If not: "
                    f"{column_option(column, headings[coarse])} {column_option(IGNORE, headings[refining])}"
                )
                continue
            if len(meant) > 1:
                raise FederationError(
                    "sheet.column-ambiguous",
                    place=where,
                    candidates=" and ".join(repr(headings[place]) for place in meant[:2]),
                    meaning=column,
                    option=column_option(column, headings[meant[0]]),
                )
            names[meant[0]] = column
    renamed = [
        f"{name} from {headings[place]!r}"
        for place, name in enumerate(names)
        if name in known_names and name != headings[place]
    ]
    notes = (f"columns are read as: {', '.join(renamed)}",) if renamed else ()
    return Meaning(names=tuple(names), declared=frozenset(declared.values()), notes=(*notes, *further))


def _check_size(headings: Sequence[str], where: str, columns: Columns) -> None:
    """Refuses a header with more columns or letters than `meaning_of` can match in seconds."""
    ignored = columns.get(IGNORE, ())
    count = sum(map(bool, headings)) - (1 if isinstance(ignored, str) else len(ignored))
    if count > MOST_COLUMNS:
        raise FederationError("sheet.columns-too-many", place=where, columns=count, most=MOST_COLUMNS)
    check_letters(headings, lambda _: where)


def check_letters(names: Sequence[str], locate: Callable[[int], str]) -> None:
    """Refuses names of more than `MOST_LETTERS` letters; `locate` returns the place of a name for the message."""
    longest = max(map(len, names), default=0)
    if longest > MOST_LETTERS:
        place = next(place for place, name in enumerate(names) if len(name) > MOST_LETTERS)
        raise FederationError("sheet.name-too-long", place=locate(place), letters=len(names[place]), most=MOST_LETTERS)


def _declared_meanings(headings: Sequence[str], where: str, columns: Columns) -> dict[int, str]:
    """Returns the meanings of columns, such as "silo" or "region", that the user declared, by index of the column.

    Args:
        headings: The names in the header of the table.
        where: The place of the header, for messages.
        columns: The user's declarations: by meaning the name of the column.
    """
    declared: dict[int, str] = {}
    for meaning, named in columns.items():
        for name in [named] if isinstance(named, str) else named:
            exact = [place for place, heading in enumerate(headings) if heading == name.strip()]
            places = exact or [
                place for place, heading in enumerate(headings) if heading and fold_name(heading) == fold_name(name)
            ]
            if not places:
                raise FederationError(
                    "sheet.column-not-found",
                    place=where,
                    column=name,
                    meaning=meaning,
                    known=in_one_line(listing(filter(None, headings))),
                    suggestion=suggestion(name, headings),
                )
            if len(places) > 1:
                raise FederationError("sheet.column-repeated", place=where, column=name)
            if places[0] in declared:
                raise FederationError(
                    "sheet.column-two-meanings", place=where, column=name, first=declared[places[0]], second=meaning
                )
            declared[places[0]] = meaning
    return declared


def _is_word(name: str, words: frozenset[str]) -> bool:
    """Returns True if a heading is among `words`, alone or with fillers and years: "Fälle 2025"."""
    if fold_name(name) in words:
        return True
    parts = [fold_name(part) for part in re.split(r"[\W_]+", name) if part]
    left = [part for part in parts if part not in _FILLERS and not re.fullmatch("(19|20)[0-9]{2}", part)]
    return len(left) == 1 and left[0] in words


def stands_for(name: str, column: str) -> bool:
    """Returns True if a heading is a word for the meaning `column`.

    >>> stands_for("Nombre de patients", "records"), stands_for("Betten", "records")
    (True, False)
    """
    return any(_is_word(name, choice.get(column, frozenset())) for choice in (_FIRST_CHOICE, _SECOND_CHOICE))


def numbers_rows(name: str) -> bool:
    """Returns True if a first column called `name` may only number the rows.

    >>> numbers_rows(""), numbers_rows("lfd. Nr."), numbers_rows("Klinik")
    (True, True, False)
    """
    return not name or name == "#" or fold_name(name) in _NUMBERING


def expected_tier(name: str) -> bool:
    """Returns True for a usual name of an outer tier.

    >>> expected_tier("Land"), expected_tier("tier-2"), expected_tier("Telefon")
    (True, True, False)
    """
    return fold_name(name) in _TIERS or stands_for(name, "region") or re.fullmatch(r"tier-\d+", name) is not None


def parse_column_options(options: Sequence[str]) -> dict[str, list[str]]:
    """Returns the names of columns by meaning, from options such as "silo=hospital"; "ignore" may be repeated.

    >>> parse_column_options(["silo=hospital", "ignore=phone", "ignore=remarks"])
    {'silo': ['hospital'], 'ignore': ['phone', 'remarks']}

    Raises:
        ParameterError: An option lacks the form meaning=name, or two columns have the same meaning.
    """
    columns: dict[str, list[str]] = {}
    for option in options:
        meaning, _, name = (part.strip() for part in option.partition("="))
        if not (meaning and name):
            raise ParameterError("sheet.option-malformed", option=option)
        if meaning in columns and meaning != IGNORE:
            raise ParameterError("sheet.option-repeated", meaning=meaning, first=columns[meaning][0], second=name)
        columns.setdefault(meaning, []).append(name)
    return columns


def column_option(meaning: str, name: str) -> str:
    """Returns the command-line option that declares a column, quoted for the shell.

    >>> column_option("ignore", "Phone number")
    "--column 'ignore=Phone number'"
    """
    return f"--column {shlex.quote(in_one_line(f'{meaning}={name}'))}"
