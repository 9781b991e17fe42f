"""The result of recomputing a part of a plan or a ledger.

>>> Check(name="epsilon", holds=True, detail="stated 1, recomputed 0.998").holds
True
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The comparison of a recomputed figure with the figure in a file.

    Attributes:
        name: The noun of the figure.
        holds: True if both figures agree.
        detail: Both figures, or the first place of a difference.
    """

    name: str
    holds: bool
    detail: str
