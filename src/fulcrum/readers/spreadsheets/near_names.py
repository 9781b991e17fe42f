"""Names that look like mistakes of writing: almost those of others, in a wrong alphabet, or words for nothing.

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
"""Names of one kind that are held against each other; beyond, nobody would read them."""

_SHOWN = 3
_NOTHING = frozenset({"na", "n/a", "#n/a", "#nv", "nan", "null", "none", "-", "?", "unknown", "unbekannt", "inconnu"})
_ALPHABETS = frozenset({"LATIN", "GREEK", "CYRILLIC"})
_BROKEN = re.compile("\ufffd|[ÂÃ][\u0080-\u00bf\u0152-\u2122]")


def remarks_on(federation: Topology) -> list[str]:
    """Returns a sentence for each few names of silos, regions, tiers or groups that should be looked at."""
    group = [federation.group] if federation.group is not None else []
    kinds: list[tuple[str, Iterable[str], int]] = [
        (tier.name, tier.nodes, len(tier.nodes)) for tier in (*federation.tiers, *group)
    ]
    if federation.declared_names is not None:
        kinds.append((SILO, federation.declared_names, len(federation)))
    found: list[str] = []
    for kind, names, count in kinds:
        if count <= MOST_NAMES:
            listed = [str(name) for name in names]
            for remarks in (_near(kind, listed), _broken(kind, listed), _mixed(kind, listed), _nothing(kind, listed)):
                found += list(remarks)[:_SHOWN]
    return found


def _near(kind: str, names: Iterable[str]) -> Iterator[str]:
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(_key(name), name)
        if first != name and _key(name):
            yield (
                f"{kind}s {first!r} and {name!r} differ in {_difference(first, name)} alone and are read as two. "
                "If they are one, write them alike"
            )


def _key(name: str) -> str:
    """Returns a name without capitals, accents, space and signs, save those between digits: 1-11 is not 11-1."""
    plain = "".join(one for one in unicodedata.normalize("NFKD", name).casefold() if not unicodedata.combining(one))
    return re.sub(r"(?<![0-9])[\W_]+|[\W_]+(?![0-9])", "", plain)


def _difference(one: str, other: str) -> str:
    if unicodedata.normalize("NFKC", one) == unicodedata.normalize("NFKC", other):
        return "how Unicode writes their letters"
    if one.casefold() == other.casefold():
        return "capitals"
    if re.sub(r"[\W_]+", "", one) == re.sub(r"[\W_]+", "", other):
        return "spaces and signs"
    return "capitals, accents, spaces and signs"


def _broken(kind: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if _BROKEN.search(name):
            yield f"{kind} {name!r} holds letters of a wrong alphabet. Export the file again, as UTF-8"


def _mixed(kind: str, names: Iterable[str]) -> Iterator[str]:
    """Yields names whose letters look alike in two alphabets: a Cyrillic o makes another region of Nord."""
    for name in names:
        if not name.isascii():
            used = {unicodedata.name(letter, "").split(" ")[0] for letter in name if letter.isalpha()}
            if len(mixed := sorted(used & _ALPHABETS)) > 1:
                both = " and ".join(map(str.title, mixed))
                yield f"{kind} {name!r} has letters of two alphabets, {both}. Write it in one"


def _nothing(kind: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if name.casefold() in _NOTHING:
            yield f"{kind} {name!r} is read as a name. If it says that there is none, give the right one"
