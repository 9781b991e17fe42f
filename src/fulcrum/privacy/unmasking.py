"""How many shares unmask a masked sum, and how many silos a masked group can do without.

>>> [threshold_for(holders, colluders=1, dropouts=1) for holders in (1, 2, 3, 4, 20)]
[1, 2, 3, 3, 14]
>>> [tolerates(holders, colluders=1, dropouts=1) for holders in (1, 2, 3, 4, 20)]
[True, False, False, True, True]

A member's secrets are in shares with its holders, h of them, of whom t give a secret back. With c who tell the server
all they know and d who are missing: t > 2 h / 3; 2 t > h + c, so that two sets of t have an honest one in common;
t > c + d; and t <= h - d, or nothing is unmasked. All of it counts members by their keys, so that no two have one key.
"""

from collections.abc import Hashable, Mapping, Sequence


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
