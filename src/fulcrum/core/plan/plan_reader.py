"""The content of plan files, read: format, digest, and the form of every name and number.

A content of the right form may still state figures that are false: `fulcrum.core.plan.verification` recomputes them.
"""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.choices import SMALLEST
from fulcrum.core.plan.plan_file import FORMAT, PlanFile, Required, content_digest
from fulcrum.core.privacy_unit import SILO_UNIT, UNITS
from fulcrum.core.topology import ROOT, SILO, Tier, Topology, name_problem
from fulcrum.errors import FulcrumError, PlanError
from fulcrum.parsing import check_unique_keys

_OUTDATED = {
    "fulcrum.plan/1": "said less than it must of who the observers are, and let dropouts use up colluders; in "
    "deployment its lattices differed by region"
}
"""Formats whose plans are not read, and why."""


class SupportsContent(Protocol):
    """A plan in memory that states all that its file would hold."""

    def content(self) -> PlanFile:
        """Returns the content of the plan's file."""


def content_in(plan: str | Path | SupportsContent | PlanFile) -> PlanFile:
    """Returns the content of a plan, checked for its form: read from a file, or taken from memory.

    A content in memory is written as JSON and read back. Python holds values that no file holds, such as a negative
    multiplier, NaN or a tier that is missing in one entry; they are refused here, as they are in a file.

    Raises:
        PlanError: The content is not one that a plan file can have.
    """
    if isinstance(plan, str | Path):
        return read_content(plan)
    content = plan if isinstance(plan, PlanFile) else plan.content()
    try:
        data = msgspec.json.encode(content)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PlanError("plan.not-encodable", reason=str(error)) from None
    decoded = _decoded(data, "the plan")
    _check_form(decoded, "the plan")
    return decoded


def read_content(path: str | Path) -> PlanFile:
    """Reads a plan file and checks its format, its digest and its form."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise PlanError("plan.file-unreadable", file=path, reason=error.strerror) from None
    content = _decoded(data, str(path))
    try:
        check_unique_keys(data)
    except ValueError as error:
        raise PlanError("plan.field-repeated", file=path, reason=str(error)) from None
    if content.digest != content_digest(content):
        raise PlanError("plan.digest-changed", file=path, digest=content.digest, expected=content_digest(content))
    _check_form(content, str(path))
    return content


def _decoded(data: bytes, source: str) -> PlanFile:
    """Returns the content that JSON holds, where it has the format and the types of a plan."""
    try:
        header = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanError("plan.not-json", source=source, reason=str(error)) from None
    if not isinstance(header, dict):
        kind = {list: "a list", str: "a text", type(None): "null", bool: "true or false"}.get(type(header), "a number")
        raise PlanError("plan.not-an-object", source=source, kind=kind)
    found = header.get("format")
    if isinstance(found, str) and found in _OUTDATED:
        raise PlanError("plan.format-outdated", source=source, format=found, reason=_OUTDATED[found])
    if found != FORMAT:
        raise PlanError("plan.format-unknown", source=source, expected=FORMAT, format=found)
    try:
        return msgspec.convert(header, PlanFile)
    except msgspec.ValidationError as error:
        raise PlanError("plan.field-invalid", source=source, reason=str(error)) from None


def _check_form(content: PlanFile, source: str) -> None:
    """Raises `PlanError` with the first of `_problems`."""
    problem = next(_problems(content), None)
    if problem is not None:
        raise PlanError("plan.inconsistent", source=source, problem=problem)


def federation_in(content: PlanFile) -> Topology:
    """Returns the topology that a plan file's roster describes, checked against its digest."""
    tiers = content.federation.tiers
    names = [entry.silo for entry in content.silos]
    nodes = {tier: [node.name for node in content.tiers[tier]] for tier in tiers}
    for name in (*names, *(node for tier in tiers for node in nodes[tier])):
        if problem := name_problem(name):
            raise PlanError("plan.name-invalid", rule=problem, name=name)
    for kind, given in (("silo", names), *nodes.items()):
        if len(set(given)) < len(given):
            twice = next(name for name, count in Counter(given).items() if count > 1)
            raise PlanError("plan.name-repeated", noun=kind, name=twice)
    parents = [[entry.node for entry in content.silos]]
    parents += [[node.parent or "" for node in content.tiers[tier]] for tier in tiers[:-1]]
    preferences = np.array([math.nan if entry.preference is None else entry.preference for entry in content.silos])
    sizes = all_or_none([entry.records for entry in content.silos])
    topology = Topology(
        name=content.federation.name,
        sizes=np.ones(len(names)) if sizes is None else sizes,
        tiers=tuple(_tier(tier, nodes[tier], children) for tier, children in zip(tiers, parents, strict=True)),
        preferences=preferences,
        group=None
        if content.silos[0].group is None
        else Tier.from_labels("group", (entry.group or "" for entry in content.silos)),
        declared_names=np.array(names, dtype=np.dtypes.StringDType()),
        sizes_known=sizes is not None,
        declared_weights=all_or_none([entry.declared_weight for entry in content.silos]),
    )
    if topology.digest != content.federation.digest:
        raise PlanError("plan.roster-differs", digest=topology.digest, expected=content.federation.digest)
    if content.silos[0].weight is None:
        return topology
    return topology.with_weights(np.array([entry.weight or 0.0 for entry in content.silos]))


def _tier(name: str, nodes: list[str], parents: list[str]) -> Tier:
    """Returns a tier, given the node of each child."""
    place = {node: index for index, node in enumerate(nodes)}
    return Tier(name=name, nodes=tuple(nodes), parent_of=np.array([place[parent] for parent in parents], np.intp))


def all_or_none(values: list[float | None]) -> FloatArray | None:
    """Returns a column of a table, or None where its first row has no value; `_problems` refuses what is mixed."""
    return None if values[0] is None else np.array([math.nan if v is None else v for v in values], dtype=np.float64)


def _problems(content: PlanFile) -> Iterator[str]:
    """Yields what keeps a file of the right shape from being a plan; later checks rest on earlier ones."""
    yield from _problems_of_tree(content)
    yield from _problems_of_silos(content)
    yield from _problems_of_settings(content)
    if not content.federation.name.isprintable():
        yield "the federation's name is not printable"
    try:
        federation_in(content)
    except FulcrumError as error:
        yield str(error)


def _problems_of_tree(content: PlanFile) -> Iterator[str]:
    """Yields where the tree of silos and nodes does not hold together."""
    tiers, silos = content.federation.tiers, content.silos
    if not silos or not tiers:
        yield "it has no silos or no tiers"
    if content.federation.silos != len(silos):
        yield f"it counts {content.federation.silos} silos and lists {len(silos)}"
    if list(content.tiers) != tiers:
        yield f"it describes the tiers {list(content.tiers)} and names {tiers}"
    for inner, outer in pairwise([*tiers, None]):
        above = {node.name for node in content.tiers[outer]} if outer else {None}
        for node in content.tiers[inner or ""]:
            if node.parent not in above:
                yield f"{inner} {node.name!r} has the parent {node.parent!r}, which is not there"
            if not _can_be_squared(node.noise_multiplier):
                yield f"{inner} {node.name!r} has the noise multiplier {node.noise_multiplier}"
    stepped = {tier for tier in tiers for node in content.tiers[tier] if node.lattice_step is not None}
    if not stepped <= ({tiers[0]} if content.purpose == "deployment" else set()):
        yield "steps of a lattice stand elsewhere than with the innermost nodes of a deployment"
    mixed = [(tier, node.rule_weight) for tier in tiers for node in content.tiers[tier]]
    if any((weight is not None) != (tier == tiers[0] and content.settings.influence_mix > 0) for tier, weight in mixed):
        yield "weights by the rule alone stand elsewhere than with the innermost nodes of a plan that mixes in shares"


def _problems_of_silos(content: PlanFile) -> Iterator[str]:
    """Yields names of silos' entries that lead nowhere, and numbers out of range."""
    tiers, silos = content.federation.tiers, content.silos
    observers = [SILO, *tiers, ROOT]
    nodes = {node.name for node in content.tiers[tiers[0]]}
    for entry in silos:
        if entry.node not in nodes:
            yield f"silo {entry.silo!r} is in {tiers[0]} {entry.node!r}, which is not there"
        if list(entry.epsilon) != observers:
            yield f"silo {entry.silo!r} has epsilons against {list(entry.epsilon)}, expected {observers}"
        if not _can_be_squared(entry.noise_multiplier):
            yield f"silo {entry.silo!r} has the noise multiplier {entry.noise_multiplier}"
    for what, values in (
        ("records", [entry.records for entry in silos]),
        ("weight", [entry.weight for entry in silos]),
        ("declared_weight", [entry.declared_weight for entry in silos]),
    ):
        if len({value is None for value in values}) > 1:
            yield f"{what} must be given for every silo, or for none"
    by_size = content.settings.weights == "sizes" and silos[0].records is not None
    if silos[0].weight is None and not (by_size and silos[0].declared_weight is None):
        yield "weights must be given for every silo unless they are by size"
    spent = {None if entry.spent is None else tuple(entry.spent) for entry in silos}
    if spent != {None} and spent != {tuple(observers)}:
        yield "what was spent before is not told for every silo and tier"
    if spent == {None} and any(entry.moved_from is not None for entry in silos):
        yield "a silo moved since a plan before, and there was none"
    if any(entry.moved_from == entry.node for entry in silos):
        yield "a silo moved from the place where it is"


def _problems_of_settings(content: PlanFile) -> Iterator[str]:
    """Yields settings that are not known, out of range, or of another federation."""
    settings, silos = content.settings, len(content.silos)
    required = settings.required_multiplier
    inner = content.federation.tiers[0]
    drawn = content.silos if settings.injection == "silo" else content.tiers[inner]
    if not any(entry.noise_multiplier for entry in drawn):
        yield "nobody draws any noise"
    if any(isinstance(values, list) and len(values) != silos for values in (settings.floor, *required.values())):
        yield "a list by silo has another length than the roster"
    asked = [each for values in required.values() for each in _each(values)]
    if not all(map(_can_be_squared, asked)):
        yield "a required multiplier is out of its range"
    if not required or not required.keys() | settings.epsilon.keys() <= {SILO, *content.federation.tiers, ROOT}:
        yield "its targets are not on its tiers"
    if not any(asked):
        yield "its targets ask for no noise"
    if not settings.allocation.isprintable():
        yield "the allocation's name is not printable"
    if settings.aggregation == "masked" and settings.injection != "silo":
        yield "it masks sums to which aggregators add the noise"
    if content.purpose == "deployment" and (settings.parameters is None or settings.injection != "silo"):
        yield "it is a deployment of unknown size, or one in which silos do not draw the noise"
    if settings.unit not in UNITS:
        yield f"its unit of privacy, {settings.unit!r}, is none of {', '.join(UNITS)}"
    if settings.unit != SILO_UNIT.name and (settings.information is not None or settings.floor is not None):
        yield f"it bounds what is learned of a silo, and its unit of privacy is the {settings.unit}"
    if settings.reserve >= settings.delta:
        yield "lattice noise costs all of delta"


def _each(value: Required) -> list[float]:
    """One number, or one by silo, as a list."""
    return value if isinstance(value, list) else [value]


def _can_be_squared(multiplier: float) -> bool:
    """Returns True where a multiplier is 0, or its square is above 0; `Multiplier` bounds it from above."""
    return multiplier == 0 or multiplier >= SMALLEST
