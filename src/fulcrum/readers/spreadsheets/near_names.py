"""Notes on names that look like mistakes: near a second name, in a wrong alphabet, or a word for "missing".

>>> from fulcrum.core.topology import Topology
>>> from fulcrum.readers.federation import Federation
>>> print(*remarks_on(Federation.from_sizes({"nord": {"a": 5}, "Nord": {"b": 7}})))
regions 'nord' and 'Nord' differ in capitals alone and are read as two. If they are one, write them alike
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator

from fulcrum.core.topology import SILO, Topology

MOST_NAMES = 20_000
"""The largest number of names of a kind that are compared: nobody would read notes on more."""

_NOTES_OF_A_KIND = 3
_NOTHING = frozenset({"na", "n/a", "#n/a", "#nv", "nan", "null", "none", "-", "?", "unknown", "unbekannt", "inconnu"})
_ALPHABETS = frozenset({"LATIN", "GREEK", "CYRILLIC"})
_BROKEN = re.compile("\ufffd|[ÂÃ][\u0080-\u00bf\u0152-\u2122]")


def remarks_on(federation: Topology) -> list[str]:
    """Returns sentences on doubtful names of silos, regions, tiers and groups, a few of every kind."""
    group = [federation.group] if federation.group is not None else []
    kinds: list[tuple[str, Iterable[str], int]] = [
        (tier.name, tier.nodes, len(tier.nodes)) for tier in (*federation.tiers, *group)
    ]
    if federation.declared_names is not None:
        kinds.append((SILO, federation.declared_names, len(federation)))
    remarks: list[str] = []
    for kind, names, count in kinds:
        if count <= MOST_NAMES:
            listed = [str(name) for name in names]
            for check in (_near_names, _broken_letters, _mixed_alphabets, _words_for_missing):
                remarks += list(check(kind, listed))[:_NOTES_OF_A_KIND]
    return remarks


def _near_names(kind: str, names: Iterable[str]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(_key(name), name)
        if first != name and _key(name):
            yield (
                f"{kind}s {first!r} and {name!r} differ in {_difference(first, name)} alone and are read as two. "
                "If they are one, write them alike"
            )


def _key(name: str) -> str:
    """Returns a name without capitals, accents, space and signs; signs between digits stay: 1-11 is not 11-1."""
    letters = unicodedata.normalize("NFKD", name).casefold()
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return re.sub(r"(?<![0-9])[\W_]+|[\W_]+(?![0-9])", "", plain)


def _difference(first: str, second: str) -> str:
    if unicodedata.normalize("NFKC", first) == unicodedata.normalize("NFKC", second):
        return "how Unicode writes their letters"
    if first.casefold() == second.casefold():
        return "capitals"
    if re.sub(r"[\W_]+", "", first) == re.sub(r"[\W_]+", "", second):
        return "spaces and signs"
    return "capitals, accents, spaces and signs"


def _broken_letters(kind: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if _BROKEN.search(name):
            yield f"{kind} {name!r} holds letters of a wrong alphabet. Export the file again, as UTF-8"


def _mixed_alphabets(kind: str, names: Iterable[str]) -> Iterator[str]:
    """Yields notes on names with letters of two alphabets: "Nord" with a Cyrillic o is a region of its own."""
    for name in names:
        if not name.isascii():
            used = {unicodedata.name(letter, "").split(" ")[0] for letter in name if letter.isalpha()}
            if len(mixed := sorted(used & _ALPHABETS)) > 1:
                both = " and ".join(map(str.title, mixed))
                yield f"{kind} {name!r} has letters of two alphabets, {both}. Write it in one"


def _words_for_missing(kind: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if name.casefold() in _NOTHING:
            yield f"{kind} {name!r} is read as a name. If it says that there is none, give the right one"
