"""What was recomputed of a plan or a ledger, and whether it agrees.

>>> Check(name="epsilon", holds=True, detail="stated 1, recomputed 0.998").holds
True
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was recomputed.

    Attributes:
        name: What was checked.
        holds: Whether the file agrees.
        detail: The figures, or where they part.
    """

    name: str
    holds: bool
    detail: str
