"""The graph of members that share masks: complete in small groups, the nearest neighbours on a circle in large groups.

>>> neighbour_count(60, colluders=1, dropouts=2)
59
>>> neighbour_count(500, colluders=1, dropouts=2)
102
>>> graph = HararyGraph("abcde", b"drawn anew in every round", 2)
>>> graph.neighbours("c"), graph.point("c", "b")
(('a', 'b'), 2)

In a complete graph a member expands n - 1 masks. In a Harary graph the n members stand on a circle, and a member shares
masks with the k/2 next members on both sides, so a member expands k masks (Bell et al. 2020, "Secure single-server
aggregation with (poly)logarithmic overhead"). The holders of a member are the member and its neighbours, h = k + 1
silos. Any t holders can restore a secret of the member.

Conditions, for c members that tell the server everything and d members that are missing:

- enough holders are left: t <= h - d, or the round has no result;
- two sets of t holders have more than c members in common, 2 t > h + c, and t > c + d. A server that reports different
  survivors to two halves of the holders then cannot get both secrets of a member, which would reveal the release;
- the honest members that are left form a connected graph. A masked sum then reveals the total of the connected members
  and nothing about a part of the total.

Guarantees for the plan's own c and d: all three conditions hold with certainty, for every order on the circle and every
choice of the c and the d members. Conditions 1 and 2 hold by the choice of t and k. Condition 3 holds because k > c +
d: to cut the circle, k/2 neighbouring members must be removed in two places, k members in all.

Margin beyond the plan's numbers: if a tenth of all members help the server and a second tenth are missing, both chosen
independently of the circle, a condition fails with probability at most 2^-40. Conditions 1 and 2 fail with the tail of
a hypergeometric distribution for every member, since the holders of a member are then a random set. Condition 3 fails
with at most n^2 times the probability that k/2 fixed members are all among the missing fifth. If no k below n - 1
suffices, and in groups of up to 64 members, the graph is complete.

The order on the circle follows from the keys of the round. A server that tries many keys for its colluders can choose
among as many circles. The choice makes the margin smaller; the guarantees for the plan's own numbers do not change.
"""

import hashlib
import math
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

from fulcrum.core.masking.masking_thresholds import threshold_for, tolerates
from fulcrum.errors import ParameterError

FAILURE = Fraction(1, 2**40)
"""Largest failure probability of a sparse graph if a tenth of its members help the server and a tenth are missing."""

COMPLETE = 64
"""The largest number of members of a complete graph.

In small groups a sparse graph saves a silo some milliseconds a round and tolerates fewer colluders beyond the plan's
numbers: in the complete graph t is above 2 n / 3, so a server with the help of up to a third of all members does not
get both secrets of a member.
"""

MARGIN = Fraction(1, 10)
"""The share of members that may collude, and the share that may be missing, within the margin."""


@lru_cache(maxsize=1024)
def neighbour_count(members: int, *, colluders: int, dropouts: int) -> int:
    """Returns k, the number of members with which a member shares masks.

    k is the least number at which colluders cannot unmask a member and dropouts cannot stop the sum, or n - 1, all
    other members, where no smaller number is enough.

    Raises:
        ParameterError: Not even the complete graph tolerates the numbers of colluders and dropouts.
    """
    limits = {"colluders": colluders, "dropouts": dropouts}
    if not tolerates(members, **limits):
        raise ParameterError("mask.group-too-small", members=members, dropouts=dropouts, colluders=colluders)
    for count in range(colluders + dropouts + 1, members - 1 if members > COMPLETE else 0):
        if count % 2 == 0 and _is_enough(members, count, **limits):  # k/2 members on both sides
            return count
    return members - 1


def _is_enough(members: int, count: int, *, colluders: int, dropouts: int) -> bool:
    """Returns True if k neighbours meet the conditions of the plan's numbers and keep the margin of 2^-40."""
    holders = count + 1
    if not tolerates(holders, colluders=colluders, dropouts=dropouts):
        return False
    threshold = threshold_for(holders, colluders=colluders, dropouts=dropouts)
    gone = math.ceil(MARGIN * members)
    # The union bound of the module's docstring, in exact fractions: no rounding error has to be bounded.
    both_secrets = members * _tail(members - 1, gone, count, 2 * threshold - holders)
    too_few_left = members * _tail(members - 1, gone, count, holders - threshold + 1)
    in_two = members**2 * _tail(members, 2 * gone, count // 2, count // 2)
    return both_secrets + too_few_left + in_two <= FAILURE


def _tail(members: int, gone: int, drawn: int, least: int) -> Fraction:
    """Returns the exact probability that at least `least` of `drawn` random members are among the `gone` members."""
    ways = sum(
        math.comb(gone, number) * math.comb(members - gone, drawn - number)
        for number in range(least, min(gone, drawn) + 1)
    )
    return Fraction(ways, math.comb(members, drawn))


class HararyGraph:
    """The members of a group on a circle, in a pseudorandom order, and the neighbours of every member.

    Args:
        members: All members of the group, the absent members included.
        seed: The seed of the order.
        count: k, the number of neighbours of a member.
    """

    def __init__(self, members: Iterable[str], seed: bytes, count: int) -> None:
        # By a hash with the seed, not by name: in a fixed order an adversary could choose colluders around a victim.
        order = sorted(members, key=lambda silo: hashlib.sha256(seed + silo.encode()).digest())
        self._order, self._count = tuple(order), count
        self._place = {silo: place for place, silo in enumerate(order)}

    def neighbours(self, member: str) -> tuple[str, ...]:
        """Returns the members with which a member shares masks, sorted."""
        size = len(self._order)
        if self._count >= size - 1:
            return tuple(sorted(set(self._order) - {member}))
        place, half = self._place[member], self._count // 2
        return tuple(sorted(self._order[(place + way) % size] for way in range(-half, half + 1) if way))

    def holders(self, member: str) -> tuple[str, ...]:
        """Returns the holders of a member's secrets: the member itself and its neighbours."""
        return (member, *self.neighbours(member))

    def point(self, owner: str, holder: str) -> int:
        """Returns the point of a holder's share of an owner's secret: 1 plus the distance on the circle."""
        return (self._place[holder] - self._place[owner]) % len(self._order) + 1
