"""Columns of figures with all decimal points below each other.

>>> [text.replace(DIGIT, "_").replace(POINT, ",") for text in align_figures(["3", "23.89", "0.3207", "none"])]
['3,____', '23.89__', '0.3207', 'none']

Blanks as wide as a digit or a point fill a figure up. Zeros would claim a precision that the figure does not have.
"""

import re
from collections.abc import Sequence

DIGIT, POINT = "\u2007", "\u2008"
"""Blanks as wide as a digit and as a decimal point."""

_FIGURE = re.compile(r"[+-]?[\d,]*\d(?:\.(?P<decimals>\d+))?")


def decimals(text: str) -> int | None:
    """Returns the number of digits of a figure after the point; None for a text that is no plain figure."""
    figure = _FIGURE.fullmatch(text)
    return None if figure is None else len(figure["decimals"] or "")


def align_figures(texts: Sequence[str], *, places: int | None = None) -> list[str]:
    """Returns figures with blanks on the right up to the same number of decimals; other texts stay unchanged.

    Args:
        texts: A column.
        places: Digits after the point to make room for; by default the most digits of any figure.
    """
    counts = [decimals(text) for text in texts]
    room = max((count for count in counts if count is not None), default=0) if places is None else places
    return [
        text if count is None or count >= room else text + ("" if count else POINT) + (room - count) * DIGIT
        for text, count in zip(texts, counts, strict=True)
    ]
