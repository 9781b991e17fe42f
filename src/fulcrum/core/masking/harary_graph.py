"""Who shares masks with whom: everybody with everybody in small groups, with the nearest on a circle in large ones.

>>> neighbour_count(60, colluders=1, dropouts=2)
59
>>> neighbour_count(500, colluders=1, dropouts=2)
102
>>> circle = Circle("abcde", b"drawn anew in every round", 2)
>>> circle.neighbours("c"), circle.point("c", "b")
(('a', 'b'), 2)

A member of a complete graph expands one mask for every other member; on a circle of n members in which each is joined
to the k/2 next ones on either side, k of them (the Harary graph of Bell et al. 2020, "Secure single-server aggregation
with (poly)logarithmic overhead"). What a member's secrets rest on are its holders, itself and its neighbours, h = k + 1
of them, of whom t give a secret back.

What must hold, for c members who tell the server all they know and d who are missing:

- enough holders are left, t <= h - d, or the round has no result;
- two sets of t holders have more than c in common, 2 t > h + c, so that no server that tells one half another story
  than the other half gets both secrets of a member, however it divides them; and t > c + d;
- the members left, honest and not missing, hang together: a masked sum then tells their total and nothing of a part.

For the plan's own c and d all three hold with certainty, however the members stand on the circle and whoever the c and
the d are. The first two by the choice of t and k; the third since the circle stays in one piece unless k members are
taken away, k/2 side by side in each of two places, and k > c + d.

Beyond the plan's numbers k leaves a margin: where a tenth of all members help the server and another tenth are missing,
chosen without regard to the circle, one of the three fails with a chance of at most 2^-40. The first two are tails of
a hypergeometric distribution, once for every member, since the holders of a member are then a random set; the third is
at most n^2 times the chance that k/2 given members are all among the fifth that is gone. Where no k below n - 1 does
that, and up to 64 members, the graph is complete. The order on the circle follows from the keys of the round: a server
that tries many keys for its colluders has its choice among as many circles, which makes the margin smaller and leaves
what holds for the plan's own numbers as it is.
"""

import hashlib
import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

from fulcrum.core.masking.masking_thresholds import threshold_for, tolerates
from fulcrum.errors import ParameterError

FAILURE = Fraction(1, 2**40)
"""How likely a sparse graph may fail where a tenth of its members help the server and another tenth are missing."""

COMPLETE = 64
"""Members up to which everybody shares masks with everybody.

There a sparse graph saves a silo some milliseconds a round, and stands less beyond the plan's numbers: in the complete
graph t is above 2 n / 3, so no server that up to a third of all members help gets both secrets of a member, whoever
they are.
"""

MARGIN = Fraction(1, 10)
"""The share of members that the margin is for."""


@lru_cache(maxsize=1024)
def neighbour_count(members: int, *, colluders: int, dropouts: int) -> int:
    """Returns k, the number of each member's neighbours: the least that is enough, or all others.

    Raises:
        ParameterError: Not even the complete graph can do without so many.
    """
    limits = {"colluders": colluders, "dropouts": dropouts}
    if not tolerates(members, **limits):
        raise ParameterError("mask.group-too-small", members=members, dropouts=dropouts, colluders=colluders)
    for count in range(colluders + dropouts + 1, members - 1 if members > COMPLETE else 0):
        if count % 2 == 0 and _is_enough(members, count, **limits):  # as many on either side
            return count
    return members - 1


def _is_enough(members: int, count: int, *, colluders: int, dropouts: int) -> bool:
    holders = count + 1
    if not tolerates(holders, colluders=colluders, dropouts=dropouts):
        return False
    threshold = threshold_for(holders, colluders=colluders, dropouts=dropouts)
    gone = math.ceil(MARGIN * members)
    both_secrets = members * _tail(members - 1, gone, count, 2 * threshold - holders)
    too_few_left = members * _tail(members - 1, gone, count, holders - threshold + 1)
    in_two = members**2 * _tail(members, 2 * gone, count // 2, count // 2)
    return both_secrets + too_few_left + in_two <= FAILURE


def _tail(members: int, gone: int, drawn: int, least: int) -> Fraction:
    """The chance that `least` or more of those drawn without regard to who is gone are gone, exactly."""
    ways = sum(
        math.comb(gone, number) * math.comb(members - gone, drawn - number)
        for number in range(least, min(gone, drawn) + 1)
    )
    return Fraction(ways, math.comb(members, drawn))


class Circle:
    """The members of a group in an order that depends on a seed as if it were drawn, and who is near whom.

    Args:
        members: All members of the group, whether they take part or not.
        seed: What the order follows from.
        count: k, the neighbours of each member.
    """

    def __init__(self, members: Iterable[str], seed: bytes, count: int) -> None:
        order = sorted(members, key=lambda silo: hashlib.sha256(seed + silo.encode()).digest())
        self._order, self._count = tuple(order), count
        self._place = {silo: place for place, silo in enumerate(order)}

    def neighbours(self, member: str) -> tuple[str, ...]:
        """Returns those whom a member shares masks with, sorted."""
        size = len(self._order)
        if self._count >= size - 1:
            return tuple(sorted(set(self._order) - {member}))
        place, half = self._place[member], self._count // 2
        return tuple(sorted(self._order[(place + way) % size] for way in range(-half, half + 1) if way))

    def holders(self, member: str) -> tuple[str, ...]:
        """Returns those who hold shares of a member's secrets: itself and its neighbours."""
        return (member, *self.neighbours(member))

    def point(self, owner: str, holder: str) -> int:
        """Returns at which point a holder's share of an owner's secret is taken: how far on it stands, from 1."""
        return (self._place[holder] - self._place[owner]) % len(self._order) + 1
