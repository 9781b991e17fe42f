"""Reads the content of plan files: format, digest, and the form of every name and number.

A content of the right form may still state false figures: `fulcrum.core.plan.verification` recomputes the figures.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.choices import SMALLEST
from fulcrum.core.plan.plan_file import FORMAT, PlanFile, PlanSettings, content_digest, values_by_silo
from fulcrum.core.privacy_unit import PrivacyUnit
from fulcrum.core.rosters import MOST_CELLS, MOST_LOST, Rosters
from fulcrum.core.topology import ROOT, SILO, Tier, Topology, name_problem
from fulcrum.errors import FulcrumError, PlanError
from fulcrum.parsing import check_unique_keys

_OUTDATED = {
    "fulcrum.plan/1": "said less than it must of who the observers are, and let dropouts use up colluders; in "
    "deployment its lattices differed by region"
}
"""Formats whose plans are not read, with the reason."""


class SupportsContent(Protocol):
    """A plan in memory with the content of a plan file."""

    def content(self) -> PlanFile:
        """Returns the content of the plan's file."""


def content_in(plan: str | Path | SupportsContent | PlanFile) -> PlanFile:
    """Returns the content of a plan after the checks of its form: read from a file, or taken from memory.

    A content in memory is written as JSON and read back. Python objects can hold values that no file holds, such as a
    negative multiplier, NaN, or an entry without a tier: the reading refuses these values as in a file. The copy also
    means that a change of the caller's object during the checks has no effect.

    Raises:
        PlanError: No plan file can have the content.
    """
    if isinstance(plan, str | Path):
        return read_content(plan)
    content = plan if isinstance(plan, PlanFile) else plan.content()
    try:
        data = msgspec.json.encode(content)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PlanError("plan.not-encodable", reason=str(error)) from None
    decoded = _decode(data, "the plan")
    _check_form(decoded, "the plan")
    return decoded


def read_content(path: str | Path) -> PlanFile:
    """Reads a plan file and checks format, digest and form.

    Guarantees for the returned content:

    - no object of the file has a repeated key: a person would read the first value, a parser the last;
    - the digest covers every other byte of the content;
    - all names, lists and numbers have the form of a plan. The figures may still be false.

    Raises:
        PlanError: The file cannot be read, was changed, or has another form.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise PlanError("plan.file-unreadable", file=path, reason=error.strerror) from None
    content = _decode(data, str(path))
    try:
        check_unique_keys(data)
    except ValueError as error:
        raise PlanError("plan.field-repeated", file=path, reason=str(error)) from None
    if content.digest != content_digest(content):
        raise PlanError("plan.digest-changed", file=path, digest=content.digest, expected=content_digest(content))
    _check_form(content, str(path))
    return content


def _decode(data: bytes, source: str) -> PlanFile:
    """Returns the content in JSON, or raises `PlanError` for another format or for types that no plan has."""
    try:
        header = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanError("plan.not-json", source=source, reason=str(error)) from None
    if not isinstance(header, dict):
        kind = {list: "a list", str: "a text", type(None): "null", bool: "true or false"}.get(type(header), "a number")
        raise PlanError("plan.not-an-object", source=source, kind=kind)
    version = header.get("format")
    if isinstance(version, str) and version in _OUTDATED:
        raise PlanError("plan.format-outdated", source=source, format=version, reason=_OUTDATED[version])
    if version != FORMAT:
        raise PlanError("plan.format-unknown", source=source, expected=FORMAT, format=version)
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
    """Returns the topology of a plan file's roster, or raises `PlanError` for an invalid name or another digest."""
    tiers = content.federation.tiers
    names = [entry.silo for entry in content.silos]
    nodes = {tier: [node.name for node in content.tiers[tier]] for tier in tiers}
    for name in (*names, *(node for tier in tiers for node in nodes[tier])):
        if rule := name_problem(name):
            raise PlanError("plan.name-invalid", rule=rule, name=name)
    for noun, members in (("silo", names), *nodes.items()):
        if repeated := [name for name, count in Counter(members).items() if count > 1]:
            raise PlanError("plan.name-repeated", noun=noun, name=repeated[0])
    parents = [[entry.node for entry in content.silos]]
    parents += [[node.parent or "" for node in content.tiers[tier]] for tier in tiers[:-1]]
    sizes, groups = all_or_none([entry.records for entry in content.silos]), [entry.group for entry in content.silos]
    sites = [entry.site for entry in content.silos]
    topology = Topology(
        name=content.federation.name,
        sizes=np.ones(len(names)) if sizes is None else sizes,
        tiers=tuple(_tier(tier, nodes[tier], children) for tier, children in zip(tiers, parents, strict=True)),
        preferences=np.array([math.nan if entry.preference is None else entry.preference for entry in content.silos]),
        group=None if groups[0] is None else Tier.from_labels("group", (group or "" for group in groups)),
        declared_names=np.array(names, dtype=np.dtypes.StringDType()),
        sizes_known=sizes is not None,
        declared_weights=all_or_none([entry.declared_weight for entry in content.silos]),
        declared_sites=np.array(sites, dtype=np.dtypes.StringDType()) if any(sites) else None,
        rosters=_rosters_in(content),
    )
    if topology.digest != content.federation.digest:
        raise PlanError("plan.roster-differs", digest=topology.digest, expected=content.federation.digest)
    if content.silos[0].weight is None:
        return topology
    topology = topology.with_weights(np.array([entry.weight or 0.0 for entry in content.silos]))
    if content.settings.unit == "silo":
        return topology
    return replace(topology, persons=np.array(persons_in(content)))


def _rosters_in(content: PlanFile) -> Rosters | None:
    """Returns the rosters of a plan file; None where all silos take part in all rounds."""
    if content.silos[0].rounds is None:
        return None
    return Rosters.of_stays([entry.rounds or [] for entry in content.silos], content.settings.rounds)


def unit_in(content: PlanFile) -> PrivacyUnit:
    """Returns the unit of privacy of a plan file."""
    settings = content.settings
    return PrivacyUnit(
        name=settings.unit,
        neighbours=settings.neighbours,
        silos_per_person=settings.silos_per_person,
        label=settings.unit_name,
        is_cut=content.purpose == "deployment" and settings.unit != "silo",
    )


def persons_in(content: PlanFile) -> list[float]:
    """Returns by silo the declared number of persons; 1 for a plan that protects silos."""
    settings = content.settings
    if settings.unit == "silo":
        return [1.0] * len(content.silos)
    return [float(entry.records or settings.persons_per_silo or math.nan) for entry in content.silos]


def _tier(name: str, nodes: list[str], parents: list[str]) -> Tier:
    """Returns a tier from the names of nodes and, by child, the name of the child's node."""
    place = {node: index for index, node in enumerate(nodes)}
    return Tier(name=name, nodes=tuple(nodes), parent_of=np.array([place[parent] for parent in parents], np.intp))


def all_or_none(values: list[float | None]) -> FloatArray | None:
    """Returns a column of a table, or None where the first row has no value; `_problems` refuses mixed columns."""
    return None if values[0] is None else np.array([math.nan if v is None else v for v in values], dtype=np.float64)


def _problems(content: PlanFile) -> Iterator[str]:
    """Yields the reasons for which a file of the right types is no plan.

    Readers take the first reason. Later checks rest on earlier checks, so no check runs after a failed check.
    """
    yield from _problems_of_tree(content)
    yield from _problems_of_silos(content)
    yield from _problems_of_settings(content)
    yield from _problems_of_schedule(content)
    try:
        unit_in(content)
        rosters = federation_in(content).rosters
    except FulcrumError as error:
        yield str(error)
    else:
        yield from _problems_of_phases(content, rosters)


def _problems_of_tree(content: PlanFile) -> Iterator[str]:
    """Yields contradictions in the tree of silos and nodes."""
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
    nodes = [(tier == tiers[0], node) for tier in tiers for node in content.tiers[tier]]
    deployed, mixes = content.purpose == "deployment", content.settings.influence_mix > 0
    if any(node.lattice_step is not None and not (innermost and deployed) for innermost, node in nodes):
        yield "steps of a lattice stand elsewhere than with the innermost nodes of a deployment"
    if any((node.rule_weight is not None) != (innermost and mixes) for innermost, node in nodes):
        yield "weights by the rule alone stand elsewhere than with the innermost nodes of a plan that mixes in shares"


def _problems_of_silos(content: PlanFile) -> Iterator[str]:
    """Yields names in silos' entries without a node or tier of that name, columns with gaps, and numbers out of range.

    A column is complete or absent: a gap would let a reader take the missing value for 0.
    """
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
    for column in ("records", "weight", "declared_weight", "rounds", "price", "inside_price"):
        if len({getattr(entry, column) is None for entry in silos}) > 1:
            yield f"{column} must be given for every silo, or for none"
    by_size = content.settings.weights == "sizes" and silos[0].records is not None
    spent = {None if entry.spent is None else tuple(entry.spent) for entry in silos}
    yield from _applicable(
        {
            "weights must be given for every silo unless they are by size": silos[0].weight is None
            and not (by_size and silos[0].declared_weight is None),
            "what was spent before is not told for every silo and tier": spent not in ({None}, {tuple(observers)}),
            "a silo moved since a plan before, and there was none": spent == {None}
            and any(entry.moved_from is not None for entry in silos),
            "a silo moved from the place where it is": any(entry.moved_from == entry.node for entry in silos),
        }
    )


def _problems_of_settings(content: PlanFile) -> Iterator[str]:
    """Yields settings that are unknown, out of range, or of another federation."""
    settings, tiers = content.settings, content.federation.tiers
    required = settings.required_multiplier
    multipliers = [multiplier for values in required.values() for multiplier in values_by_silo(values, 1)]
    by_silo = [values for values in (settings.floor, *required.values()) if isinstance(values, list)]
    noisy = content.silos if settings.injection == "silo" else content.tiers[tiers[0]]
    aggregators_draw = settings.injection != "silo"
    bounds_silos = settings.information is not None or settings.floor is not None
    within_silos = settings.unit != "silo"
    of_persons = (settings.persons_per_silo, settings.silo_clip, settings.silo_epsilon)
    yield from _applicable(
        {
            "nobody draws any noise": not any(entry.noise_multiplier for entry in noisy),
            "a list by silo has another length than the roster": any(
                len(values) != len(content.silos) for values in by_silo
            ),
            "a required multiplier is out of its range": not all(map(_can_be_squared, multipliers)),
            "its targets are not on its tiers": not required
            or not required.keys() | settings.epsilon.keys() <= {SILO, *tiers, ROOT},
            "its targets ask for no noise": not any(multipliers),
            "the allocation's name is not printable": not settings.allocation.isprintable(),
            "it masks sums to which aggregators add the noise": settings.aggregation == "masked" and aggregators_draw,
            "it is a deployment of unknown size, or one in which silos do not draw the noise": (
                content.purpose == "deployment" and (settings.parameters is None or aggregators_draw)
            ),
            f"it bounds what is learned of a silo, and its unit of privacy is the {settings.unit}": (
                within_silos and bounds_silos
            ),
            "it protects silos, and has settings of persons": not within_silos and any(of_persons),
            "it protects persons, and does not declare how many": within_silos
            and (content.silos[0].records is None) == (settings.persons_per_silo is None),
            "a silo declares less than one person": within_silos
            and any(entry.records is not None and entry.records < 1 for entry in content.silos),
            "its summary does not state the further epsilons that its unit of privacy asks for": (
                {name for name, value in _further_epsilons(content) if value is not msgspec.UNSET}
                != _expected_epsilons(content)
            ),
            "weights must be given for every silo where persons are protected": within_silos
            and content.silos[0].weight is None,
            "lattice noise costs all of delta": settings.reserve >= settings.delta,
            "the federation's name is not printable": not content.federation.name.isprintable(),
        }
    )


def _problems_of_schedule(content: PlanFile) -> Iterator[str]:
    """Yields contradictions in the rounds of silos, and settings that no plan with changing membership has."""
    settings, inner = content.settings, content.federation.tiers[0]
    by_phase = [node.phase_multipliers for node in content.tiers[inner]]
    outer = [node for tier in content.federation.tiers[1:] for node in content.tiers[tier]]
    if any(node.phase_multipliers is not None for node in outer) or len({values is None for values in by_phase}) > 1:
        yield "noise by phase stands elsewhere than with all innermost nodes"
    if len({content.silos[0].rounds is None, content.silos[0].price is None, by_phase[0] is None}) > 1:
        yield "rounds of silos, prices and noise by phase do not stand together"
    inside = content.silos[0].rounds is not None and SILO in settings.required_multiplier
    if (content.silos[0].inside_price is not None) != inside:
        yield "prices of a target inside stand elsewhere than with such a target under changing membership"
    if content.silos[0].rounds is None:
        return
    if unsupported := next((name for name, value in usual_with_schedule(settings, inner).items() if not value), ""):
        yield f"membership changes, and it has a setting of {unsupported} for which no proof is known"
    if sum(len(entry.rounds or []) for entry in content.silos) > MOST_CELLS:
        yield "it lists more stays of silos than any plan"


def _problems_of_phases(content: PlanFile, rosters: Rosters | None) -> Iterator[str]:
    """Yields noise by phase that does not fit the rosters."""
    by_phase = [node.phase_multipliers for node in content.tiers[content.federation.tiers[0]]]
    phases = 0 if rosters is None else len(rosters.present)
    if any(len(values or []) != phases for values in by_phase):
        yield f"it has noise by phase for another number of phases than {phases}"
    if not all(value > 0 and _can_be_squared(value) for values in by_phase for value in values or []):
        yield "a multiplier of a phase is out of its range"


def usual_with_schedule(settings: PlanSettings, inner: str) -> dict[str, bool]:
    """Returns by setting True if its value may stand in a plan whose membership changes.

    Every other value would need a proof of its own: targets further out bind several regions at once, and rules of
    weights and clip assume one roster.
    """
    return {
        "targets": {*settings.required_multiplier, *settings.epsilon} <= {SILO, inner},
        "unit": settings.unit == "silo",
        "colluders": settings.colluders + settings.dropouts <= MOST_LOST,
        "injection": settings.injection == "silo",
        "information": settings.information is None and settings.floor is None,
        "budget": settings.budget is None,
        "weights": settings.weights in ("sizes", "equal", "declared", "by-silo")
        and not (settings.influence_mix or settings.least_influence),
        "clip_norm": settings.clip_share == 1,
        "server": settings.server == "sum",
        "allocation": settings.allocation in ("optimal", "uniform"),
    }


def _further_epsilons(content: PlanFile) -> Iterator[tuple[str, object]]:
    """Yields name and value of the epsilons in a summary that plans for persons state."""
    for field in msgspec.structs.fields(content.summary):
        if field.default is msgspec.UNSET:
            yield field.name, getattr(content.summary, field.name)


def _expected_epsilons(content: PlanFile) -> set[str]:
    """Returns the names of the further epsilons that the settings of a plan file ask for."""
    settings = content.settings
    if settings.unit == "silo":
        return set()
    pair = {"two_silos_above"} if settings.silos_per_person == 1 and len(content.silos) > 1 else set()
    return {"other_neighbours_above", "other_neighbours_inside", "whole_silo_above"} | pair


def _applicable(problems: dict[str, bool]) -> Iterator[str]:
    """Yields the problems whose condition is true, in order."""
    return (problem for problem, is_true in problems.items() if is_true)


def _can_be_squared(multiplier: float) -> bool:
    """Returns True where a multiplier is 0, or the square of the multiplier is above 0.

    A square that underflows to 0 would turn noise into no noise. `Multiplier` bounds the square from above.
    """
    return multiplier == 0 or multiplier >= SMALLEST
