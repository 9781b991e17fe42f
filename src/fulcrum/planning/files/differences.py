"""Two plans compared: the figures that differ, by part of the plan, node and silo.

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
"""The noise of a region's sum, over the clip norm. The words noise multiplier are for silos alone."""


KEY = "key of"
"""The kind of a difference between the keys of two plans; the subject is the site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference between two plans.

    Attributes:
        kind: The kind of the subject: a tier, "silo", `KEY` for a site with a key, or empty for the plan as a whole.
        subject: A part of the plan ("settings", "summary" and so on), a node, or a silo.
        what: The name of the figure.
        before: The figure in the first plan; None if the plan has no such figure.
        after: The figure in the second plan.
    """

    kind: str
    subject: str
    what: str
    before: object
    after: object


def differences(before: str | Path | Plan | PlanFile, after: str | Path | Plan | PlanFile) -> tuple[Difference, ...]:
    """Returns the differences between two plans: of the plan as a whole, then node by node, then silo by silo."""
    first, second = content_in(before), content_in(after)
    changes = []
    for part in ("federation", "settings", "guarantee", "summary"):
        changes += _between("", part, _fields(getattr(first, part)), _fields(getattr(second, part)))
    for tier in {**first.tiers, **second.tiers}:
        old_nodes = {node.name: node for node in first.tiers.get(tier, ())}
        new_nodes = {node.name: node for node in second.tiers.get(tier, ())}
        for name in {**old_nodes, **new_nodes}:
            changes += _between(tier, name, _node_fields(old_nodes.get(name)), _node_fields(new_nodes.get(name)))
    for name in {**first.keys, **second.keys}:
        keys = ({"key": held.keys[name]} if name in held.keys else {} for held in (first, second))
        changes += _between(KEY, name, *keys)
    old = {entry.silo: entry for entry in first.silos}
    new = {entry.silo: entry for entry in second.silos}
    for name in {**old, **new}:
        changes += _between(SILO, name, _fields(old.get(name)), _fields(new.get(name)))
    return tuple(changes)


def on_digests(before: str | Path | Plan | PlanFile, after: str | Path | Plan | PlanFile) -> str:
    """Returns the reason for different digests of two plans with the same promise; empty if no reason is needed."""
    first, second = content_in(before), content_in(after)
    same = first.digest == second.digest or first.purpose != second.purpose
    if same or {change.kind for change in differences(first, second)} - {KEY}:
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
    """Returns the fields of a struct by name, except names of silos and nodes; an empty dict for None.

    A field that is a mapping becomes one entry for each key, named "field at key".
    """
    figures: dict[str, object] = {}
    for name in getattr(entry, "__struct_fields__", ()):
        value = getattr(entry, name)
        if isinstance(value, Mapping):
            figures |= {f"{name} at {key}": item for key, item in value.items()}
        elif name not in ("silo", "name"):
            figures[name] = value
    return figures


def _node_fields(entry: object) -> dict[str, object]:
    """Returns the figures of a node; the noise of a sum has another name than the noise of a silo."""
    return {NOISE_ON_SUM if name == "noise_multiplier" else name: value for name, value in _fields(entry).items()}


def _between(kind: str, subject: str, before: Mapping[str, object], after: Mapping[str, object]) -> list[Difference]:
    return [
        Difference(kind=kind, subject=subject, what=name, before=before.get(name), after=after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
