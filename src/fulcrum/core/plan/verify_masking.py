"""Checks the masked groups of a plan file: the groups, and the number of silos that may be missing from a group.

>>> from fulcrum.planning.planner import plan
>>> content = plan("severe", rounds=10, epsilon=1.0, aggregation="masked").content()
>>> masking_problem(content, Recomputed(content))
''
"""

from collections import Counter
from collections.abc import Iterator

from fulcrum.core.plan.plan_file import PlanFile, key_bytes
from fulcrum.core.plan.recomputed import Recomputed, group_tier


def masking_problem(content: PlanFile, seen: Recomputed) -> str:
    """Returns the first group that cannot be masked as the settings say, or an empty string.

    A group of m silos unmasks a sum with t silos. The threshold t must be

    - above two thirds of m, and large enough for any two sets of t silos to share more silos than may collude:
      otherwise a server could unmask two different sums of a round, and subtract the sums;
    - above the number of silos that may collude or be missing;
    - at most the number of silos left without the missing silos.

    Where membership changes, the members of a group are the roster of the round, and every roster must meet this.

    Args:
        content: The plan file.
        seen: The figures of the file.
    """
    settings = content.settings
    if settings.injection != "silo":
        return "aggregators cannot add noise to sums that they do not see"
    if problem := _key_problem(content):
        return problem
    for group, sizes in _groups(content, seen):
        silos = sum(sizes)
        colluding = min(sum(min(max(1, settings.colluders), size) for size in sizes), silos - 1)
        missing = min(sum(min(settings.dropouts, size) for size in sizes), silos - 1)
        left = silos - missing
        if missing and (3 * left <= 2 * silos or 2 * left <= silos + colluding or left <= colluding + missing):
            return f"{group!r} of {silos} silos cannot be unmasked with {missing} missing and {colluding} colluding"
    return ""


def _groups(content: PlanFile, seen: Recomputed) -> Iterator[tuple[str, list[int]]]:
    """Yields every masked group of any round: its name, and the number of its silos in every region."""
    if seen.phases is not None:
        yield from ((region, [size]) for region, size in sorted(seen.phases.roster_sizes()))
        return
    parts = Counter(zip(seen.path[group_tier(content)], seen.region, strict=True))
    for group in sorted({group for group, _ in parts}):
        yield group, [size for (name, _), size in parts.items() if name == group]


def _key_problem(content: PlanFile) -> str:
    """Returns the silo whose text is no key, or the silos that share a key, or an empty string.

    The owner of a key that two silos share would count as two members of a group.
    """
    owners: dict[bytes, str] = {}
    for entry in content.silos:
        if (text := content.keys.get(entry.silo)) is None:
            continue
        if (key := key_bytes(text)) is None:
            return f"the key of silo {entry.silo!r} is not 32 bytes in base64"
        if key in owners:
            return f"silos {owners[key]!r} and {entry.silo!r} have one key"
        owners[key] = entry.silo
    return ""
