"""Thresholds of a masked group: the number of shares that unmask a sum, and the number of silos that may be missing.

>>> [threshold_for(holders, colluders=1, dropouts=1) for holders in (1, 2, 3, 4, 20)]
[1, 2, 3, 3, 14]
>>> [tolerates(holders, colluders=1, dropouts=1) for holders in (1, 2, 3, 4, 20)]
[True, False, False, True, True]

A member shares its secrets among h holders, and any t holders restore a secret. With c colluders, who tell the server
everything, and d dropouts, the threshold t meets:

- t > 2 h / 3;
- 2 t > h + c: two sets of t holders have an honest holder in common, so no server gets both secrets of a member;
- t > c + d: more than d honest members unmask a sum and answer no further attempt, and an attempt needs all members but
  d, so a round has a single sum;
- t <= h - d: otherwise no sum is unmasked.

All numbers count members by key, so no two members may have the same key.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

import numpy as np

from fulcrum.core.messages.membership import group_name_of, members_of, regions_of
from fulcrum.core.plan.plan_data import PlanData


def threshold_for(holders: int, *, colluders: int, dropouts: int) -> int:
    """Returns t, the number of holders of a member that restore a secret."""
    colluders, dropouts = min(colluders, holders - 1), min(dropouts, holders - 1)
    least = max(2 * holders // 3, (holders + colluders) // 2, min(colluders + dropouts, holders - 1)) + 1
    return min(least, holders)


def tolerates(holders: int, *, colluders: int, dropouts: int) -> bool:
    """Returns True if `holders` minus the dropouts are still enough to restore a secret."""
    left = holders - min(dropouts, holders - 1)
    return threshold_for(holders, colluders=colluders, dropouts=dropouts) <= left


def silos_of_one_key(silos: Sequence[str], keys: Mapping[str, Hashable]) -> tuple[str, str] | None:
    """Returns two silos with the same key, or None. The owner of a shared key would count as two members of a group."""
    owner: dict[Hashable, str] = {}
    for silo in silos:
        if silo in keys and (other := owner.setdefault(keys[silo], silo)) != silo:
            return other, silo
    return None


def expected_absences(plan: PlanData, regions: Collection[str]) -> tuple[int, int]:
    """Returns the number of members of a group that may help the server, and the number that may be missing.

    Args:
        plan: The plan, with colluders and dropouts by region.
        regions: The region of every member.
    """
    colluders = of_all_regions(max(1, plan.colluders), regions)  # as many as the plan's observer inside
    most = len(regions) - 1
    return min(colluders, most), min(of_all_regions(plan.dropouts, regions), most)


def of_all_regions(per_region: int, regions: Iterable[str]) -> int:
    """Returns the total over all regions of `per_region` silos, or of the whole region if the region is smaller.

    Args:
        per_region: The number of silos of a region.
        regions: The region of every member.
    """
    return sum(min(per_region, size) for size in Counter(regions).values())


def largest_minimum(plan: PlanData, silo: str) -> int:
    """Returns the largest number of silos in a sum on which a silo can insist.

    A silo sends its masked input before the survivors are known. The remaining members unmask a sum of s members
    against the will of a single member if the plan allows the absences and the s - 1 remaining members are a quorum. So
    a larger minimum of a policy would promise more than the silo can enforce.
    """
    places, rosters = regions_of(plan.federation), plan.federation.rosters
    members = members_of(plan, group_name_of(plan, silo))
    groups = [[places[other] for other in members]]
    if rosters is not None:  # the silo insists on its minimum in all of its rounds; the group is one region
        there = rosters.present[rosters.present[:, members[silo]]][:, list(members.values())]
        groups = [groups[0][:size] for size in np.unique(there.sum(axis=1)).tolist()]
    return min(_largest_minimum_of(plan, regions) for regions in groups)


def _largest_minimum_of(plan: PlanData, regions: Collection[str]) -> int:
    """Returns the largest number of silos in a sum on which a member of a group can insist.

    Args:
        plan: The plan, with colluders and dropouts by region.
        regions: The region of every member of the group.
    """
    colluders, dropouts = expected_absences(plan, regions)
    quorum = threshold_for(len(regions), colluders=colluders, dropouts=dropouts)
    return min(len(regions), max(len(regions) - dropouts, quorum + 1))
