"""Spellings of a name: capital letters, and the forms of a letter in Unicode, do not make another silo.

>>> other_spelling("Lyon", ["lille", "lyon"]), other_spelling("lyon", ["lille", "lyon"])
('lyon', None)
"""

import unicodedata
from collections.abc import Iterable


def other_spelling(name: str, names: Iterable[str]) -> str | None:
    """Returns the first of `names` that is another spelling of a name; None without such a name."""
    return next((other for other in names if other != name and _spelling(other) == _spelling(name)), None)


def _spelling(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
