"""The columns of tables in terminal and report."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        key: The key of the column in the rows.
        heading: The heading.
        figures: True for numbers, which are aligned right and never folded or cut.
        epsilon: True for epsilons, which are rounded up so that a printed guarantee is true.
    """

    key: str
    heading: str
    figures: bool = True
    epsilon: bool = False
