"""How many shares unmask a masked sum, and how many silos a masked group can do without.

>>> [threshold_for(holders, colluders=1, dropouts=1) for holders in (1, 2, 3, 4, 20)]
[1, 2, 3, 3, 14]
>>> [tolerates(holders, colluders=1, dropouts=1) for holders in (1, 2, 3, 4, 20)]
[True, False, False, True, True]

A member's secrets are in shares with its holders, h of them, of whom t give a secret back. With c who tell the server
all they know and d who are missing: t > 2 h / 3; 2 t > h + c, so that two sets of t have an honest one in common;
t > c + d; and t <= h - d, or nothing is unmasked. All of it counts members by their keys, so that no two have one key.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from fulcrum.core.messages.membership import group_name_of, members_of, regions_of
from fulcrum.core.plan.plan_data import PlanData


def threshold_for(holders: int, *, colluders: int, dropouts: int) -> int:
    """Returns t, how many of a member's holders give its secret back."""
    colluders, dropouts = min(colluders, holders - 1), min(dropouts, holders - 1)
    least = max(2 * holders // 3, (holders + colluders) // 2, min(colluders + dropouts, holders - 1)) + 1
    return min(least, holders)


def tolerates(holders: int, *, colluders: int, dropouts: int) -> bool:
    """Returns whether so many holders can lose so many and still give a secret back."""
    left = holders - min(dropouts, holders - 1)
    return threshold_for(holders, colluders=colluders, dropouts=dropouts) <= left


def silos_of_one_key(silos: Sequence[str], keys: Mapping[str, Hashable]) -> tuple[str, str] | None:
    """Returns two silos with one key, if there are any: whoever holds it would be two members of a group."""
    owner: dict[Hashable, str] = {}
    for silo in silos:
        if silo in keys and (other := owner.setdefault(keys[silo], silo)) != silo:
            return other, silo
    return None


def expected_absences(plan: PlanData, regions: Collection[str]) -> tuple[int, int]:
    """Returns the number of members of a group that may help the server, and of those that may be missing.

    Args:
        plan: The plan, with colluders and dropouts by region.
        regions: The region of every member.
    """
    colluders = of_all_regions(max(1, plan.colluders), regions)  # as the plan's observer inside
    most = len(regions) - 1
    return min(colluders, most), min(of_all_regions(plan.dropouts, regions), most)


def of_all_regions(each: int, regions: Iterable[str]) -> int:
    """Returns the number of members that `each` silos of every region are in all, given the region of every member."""
    return sum(min(each, size) for size in Counter(regions).values())


def largest_minimum(plan: PlanData, silo: str) -> int:
    """Returns the largest number of silos in a sum that a silo can insist on.

    Others unmask a sum of s members that one member refuses where the plan allows for those missing, and where the
    s - 1 others are a quorum: the masked input has left before anybody knows who survives.
    """
    places = regions_of(plan.federation)
    regions = [places[other] for other in members_of(plan, group_name_of(plan, silo))]
    colluders, dropouts = expected_absences(plan, regions)
    quorum = threshold_for(len(regions), colluders=colluders, dropouts=dropouts)
    return min(len(regions), max(len(regions) - dropouts, quorum + 1))
