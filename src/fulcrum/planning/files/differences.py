"""Two plans compared: what differs from one to the other, and for whom.

>>> from fulcrum.planning.planner import plan
>>> before, after = (plan("consortium", rounds=10, epsilon=epsilon) for epsilon in (1.0, 0.9))
>>> next(found.what for found in differences(before, after))
'epsilon at region'
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fulcrum.core.plan.plan_file import PlanFile
from fulcrum.core.plan.plan_reader import content_in
from fulcrum.core.topology import SILO
from fulcrum.planning.plan import Plan

NOISE_ON_SUM = "noise on the sum"
"""What a region's sum has of noise, over the clip norm. A noise multiplier is that of a silo, everywhere."""


KEY = "key of"
"""The kind of a difference between the keys that plans carry; its subject is the site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between two plans.

    Attributes:
        kind: What the subject is: a tier, "silo", `KEY` for a site whose key it is, or empty for the plan as a whole.
        subject: Whose: a part of the plan ("settings", "summary" and so on), a node, or a silo.
        what: Which figure.
        before: In the first plan, None where it has none.
        after: In the second.
    """

    kind: str
    subject: str
    what: str
    before: object
    after: object


def differences(before: str | Path | Plan | PlanFile, after: str | Path | Plan | PlanFile) -> tuple[Difference, ...]:
    """Returns what changed from one plan to another, and for whom: as a whole, node by node, silo by silo."""
    first, second = content_in(before), content_in(after)
    found = []
    for part in ("federation", "settings", "guarantee", "summary"):
        found += _between("", part, _fields(getattr(first, part)), _fields(getattr(second, part)))
    for tier in {**first.tiers, **second.tiers}:
        old_nodes = {node.name: node for node in first.tiers.get(tier, ())}
        new_nodes = {node.name: node for node in second.tiers.get(tier, ())}
        for name in {**old_nodes, **new_nodes}:
            found += _between(tier, name, _node_fields(old_nodes.get(name)), _node_fields(new_nodes.get(name)))
    for name in {**first.keys, **second.keys}:
        keys = ({"key": held.keys[name]} if name in held.keys else {} for held in (first, second))
        found += _between(KEY, name, *keys)
    old = {entry.silo: entry for entry in first.silos}
    new = {entry.silo: entry for entry in second.silos}
    for name in {**old, **new}:
        found += _between(SILO, name, _fields(old.get(name)), _fields(new.get(name)))
    return tuple(found)


def on_digests(before: str | Path | Plan | PlanFile, after: str | Path | Plan | PlanFile) -> str:
    """Returns why two plans have different digests where both promise the same; empty where that needs no word."""
    first, second = content_in(before), content_in(after)
    same = first.digest == second.digest or first.purpose != second.purpose
    if same or {found.kind for found in differences(first, second)} - {KEY}:
        return ""
    why = []
    if first.keys != second.keys:
        sites = sum(first.keys.get(name) != second.keys.get(name) for name in {**first.keys, **second.keys})
        added = "carries keys that the first does not" if not first.keys else "carries other keys"
        why.append(f"the second {added}, of {sites} site{'' if sites == 1 else 's'}")
    if first.made_by != second.made_by:
        why.append(f"the first was made by {first.made_by}, the second by {second.made_by}")
    return (
        f"Both promise the same, with the same noise. The digest is {second.digest[:12]} in place of "
        f"{first.digest[:12]} since {' and '.join(why) or 'their advice is worded differently'}."
    )


def _fields(entry: object) -> dict[str, object]:
    """The figures of one struct, its mappings flattened; empty where there is none."""
    found: dict[str, object] = {}
    for name in getattr(entry, "__struct_fields__", ()):
        value = getattr(entry, name)
        if isinstance(value, Mapping):
            found |= {f"{name} at {key}": item for key, item in value.items()}
        elif name not in ("silo", "name"):
            found[name] = value
    return found


def _node_fields(entry: object) -> dict[str, object]:
    """The figures of one node; the noise of its sum is not called by the name that the noise of a silo has."""
    return {NOISE_ON_SUM if name == "noise_multiplier" else name: value for name, value in _fields(entry).items()}


def _between(kind: str, subject: str, before: Mapping[str, object], after: Mapping[str, object]) -> list[Difference]:
    return [
        Difference(kind=kind, subject=subject, what=name, before=before.get(name), after=after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
