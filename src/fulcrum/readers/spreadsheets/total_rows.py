"""Rows of a spreadsheet with sums of rows above: no silos, and a federation must not contain them.

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
    """Returns True if a name is a word for a sum, with no further word."""
    return fold_name(name) in _WORDS


def called_total(name: str) -> bool:
    """Returns True if a name begins or ends with a word for a sum: "Total Nord", "Nord Ergebnis"."""
    words = [fold_name(word) for word in re.split(r"[\W_]+", name) if word]
    return is_total(name) or any(word in _WORDS for word in (*words[:1], *words[-1:]))


def silent_sums(names: Sequence[str], records: Sequence[float], regions: Sequence[str]) -> list[str]:
    """Returns silos that may be sums although the name has no word for a sum, by records and place.

    Two kinds of silos may be sums, each after two silos or more:

    - a silo with the name of its region and as many records as all silos before it in the region;
    - the last silo of the table, alone in a region, with as many records as all silos before it.

    >>> silent_sums(["a", "b", "Nord", "c"], [10, 20, 30, 7], ["Nord", "Nord", "Nord", "Süd"])
    ['Nord']
    >>> silent_sums(["a", "b", "everyone"], [10, 20, 30], ["Nord", "Nord", "all"])
    ['everyone']
    """
    silent: list[str] = []
    before: dict[str, list[float]] = {}
    for name, size, region in zip(names, records, regions, strict=True):
        sizes = before.setdefault(region, [])
        if len(sizes) > 1 and fold_name(name) == fold_name(region) and sum(sizes) == size:
            silent.append(name)
        sizes.append(size)
    if len(names) > 2 and len(before[regions[-1]]) == 1 and sum(records[:-1]) == records[-1]:
        silent.append(names[-1])
    return silent


def summed_silo(names: Sequence[str], records: Sequence[float]) -> str | None:
    """Returns the first silo with a word for a sum and as many records as a run of silos right before the silo."""
    above = 0.0
    sums = {above}  # running sums: the difference of two is the sum of a run of silos, found in O(1)
    for name, size in zip(names, records, strict=True):
        if above - size in sums and called_total(name):
            return name
        above += size
        sums.add(above)
    return None
