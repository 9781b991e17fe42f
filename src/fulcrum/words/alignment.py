"""Columns of figures whose decimal points stand below each other.

>>> [text.replace(DIGIT, "_").replace(POINT, ",") for text in aligned(["3", "23.89", "0.3207", "none"])]
['3,____', '23.89__', '0.3207', 'none']

A figure is not given digits that it does not have: blanks as wide as a digit, and as a point, stand in their place.
"""

import re
from collections.abc import Sequence

DIGIT, POINT = "\u2007", "\u2008"
"""Blanks as wide as a digit and as a decimal point."""

_FIGURE = re.compile(r"[+-]?[\d,]*\d(?:\.(?P<decimals>\d+))?")


def decimals(text: str) -> int | None:
    """Returns how many digits a figure has after its point; None where a text is no plain figure."""
    found = _FIGURE.fullmatch(text)
    return None if found is None else len(found["decimals"] or "")


def aligned(texts: Sequence[str], *, places: int | None = None) -> list[str]:
    """Returns figures filled up with blanks on the right; what is no figure stays.

    Args:
        texts: A column.
        places: Digits after the point to make room for; by default as many as any of the figures has.
    """
    known = [decimals(text) for text in texts]
    room = max((count for count in known if count is not None), default=0) if places is None else places
    return [
        text if count is None or count >= room else text + ("" if count else POINT) + (room - count) * DIGIT
        for text, count in zip(texts, known, strict=True)
    ]
