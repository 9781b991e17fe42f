"""The columns of a table, wherever it is drawn."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a picture: its key in the rows, its heading, and whether it holds figures, or epsilons.

    Epsilons are rounded up: what is shown must be true. No figure is folded or cut.
    """

    key: str
    heading: str
    figures: bool = True
    epsilon: bool = False
