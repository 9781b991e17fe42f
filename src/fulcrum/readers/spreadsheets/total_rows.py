"""Rows that are sums of other rows, which a spreadsheet has and a federation does not.

>>> called_total("GESAMT:"), called_total("Summe Nord"), called_total("Totana")
(True, True, False)
>>> summed_silo(["Lille", "Lyon", "Total"], [800, 1200, 2000])
'Total'
"""

import re
from collections.abc import Sequence

from fulcrum.readers.spreadsheets.column_names import fold_name, fold_words

_WORDS = fold_words(
    """total totals subtotal sum grandtotal
    summe gesamt gesamtsumme gesamtergebnis ergebnis insgesamt zwischensumme
    somme totalgénéral soustotal ensemble
    suma totalgeneral totale totaal"""
)


def is_total(name: str) -> bool:
    """Says whether a name is a word for a sum and nothing else."""
    return fold_name(name) in _WORDS


def called_total(name: str) -> bool:
    """Says whether a name begins or ends with a word for a sum: "Total Nord", "Nord Ergebnis"."""
    words = [fold_name(word) for word in re.split(r"[\W_]+", name) if word]
    return is_total(name) or any(word in _WORDS for word in (*words[:1], *words[-1:]))


def silent_sums(names: Sequence[str], records: Sequence[float], regions: Sequence[str]) -> list[str]:
    """Returns the silos that may be sums although no word says so, by their records and where they stand.

    A silo that is called like its region and has as many records as all before it there; or the last one, alone in its
    region, with as many as all before it. Two silos or more are before it.

    >>> silent_sums(["a", "b", "Nord", "c"], [10, 20, 30, 7], ["Nord", "Nord", "Nord", "Süd"])
    ['Nord']
    >>> silent_sums(["a", "b", "everyone"], [10, 20, 30], ["Nord", "Nord", "all"])
    ['everyone']
    """
    found: list[str] = []
    before: dict[str, list[float]] = {}
    for name, size, region in zip(names, records, regions, strict=True):
        there = before.setdefault(region, [])
        if len(there) > 1 and fold_name(name) == fold_name(region) and sum(there) == size:
            found.append(name)
        there.append(size)
    if len(names) > 2 and len(before[regions[-1]]) == 1 and sum(records[:-1]) == records[-1]:
        found.append(names[-1])
    return found


def summed_silo(names: Sequence[str], records: Sequence[float]) -> str | None:
    """Returns the first silo that is called a sum and has as many records as some silos right before it."""
    above = 0.0
    sums = {above}  # of all silos up to each one, so that their differences are the sums of silos next to each other
    for name, size in zip(names, records, strict=True):
        if above - size in sums and called_total(name):
            return name
        above += size
        sums.add(above)
    return None
