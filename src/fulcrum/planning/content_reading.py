"""The content of plan files, read: format, digest, and the form of every name and number.

A content of the right form may still state figures that are false: `fulcrum.planning.verifying` recomputes them.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import FulcrumError, PlanError, listing
from fulcrum.federation.structure import ROOT, SILO, Federation
from fulcrum.parsing import check_unique_keys
from fulcrum.planning.plan import Plan
from fulcrum.planning.plan_file import (
    AGGREGATIONS,
    FORMAT,
    INJECTIONS,
    PURPOSES,
    PlanFile,
    Required,
    content_digest,
)
from fulcrum.planning.recipes import SERVERS, SHRINKS, WEIGHTS_NAMED
from fulcrum.privacy.accounting import ACCOUNTANTS, MOST_ROUNDS
from fulcrum.privacy.leakage import BOUNDS

_OUTDATED = {
    "fulcrum.plan/1": "said less than it must of who the observers are, and let dropouts use up colluders; in "
    "deployment its lattices differed by region"
}
"""Formats whose plans are not read, and why."""

_AGAIN = "Make the plan again with: fulcrum plan"
_LARGEST = 1e100
_SMALLEST = 1e-100  # a multiplier below would underflow when squared


def content_in(plan: str | Path | Plan | PlanFile) -> PlanFile:
    """Returns the content of a plan, checked for its form: read from a file, or taken from memory.

    A content in memory is written as JSON and read back. Python holds values that no file holds, such as a negative
    multiplier, NaN or a tier that is missing in one entry; they are refused here, as they are in a file.

    Raises:
        PlanError: The content is not one that a plan file can have.
    """
    if isinstance(plan, str | Path):
        return read_content(plan)
    content = plan.content() if isinstance(plan, Plan) else plan
    try:
        data = msgspec.json.encode(content)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PlanError(f"the plan cannot be written as JSON: {error}. {_AGAIN}") from None
    decoded = _decoded(data, "the plan")
    _check_form(decoded, "the plan")
    return decoded


def read_content(path: str | Path) -> PlanFile:
    """Reads a plan file and checks its format, its digest and its form."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise PlanError(
            f"{path} cannot be read: {error.strerror}. Give a plan; make one with: fulcrum plan FEDERATION -o plan.json"
        ) from None
    content = _decoded(data, str(path))
    try:
        check_unique_keys(data)
    except ValueError as error:
        raise PlanError(f"{path} is not as Fulcrum writes plans: {error}. {_AGAIN}") from None
    if content.digest != content_digest(content):
        raise PlanError(
            f"{path} was changed after it was made (digest {content.digest[:4]}.., expected "
            f"{content_digest(content)[:4]}..). {_AGAIN}"
        )
    _check_form(content, str(path))
    return content


def _decoded(data: bytes, source: str) -> PlanFile:
    """Returns the content that JSON holds, where it has the format and the types of a plan."""
    try:
        header = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanError(
            f"{source} is not a plan, for it is not JSON: {error}. Make one with: fulcrum plan FEDERATION -o plan.json"
        ) from None
    if not isinstance(header, dict):
        kind = {list: "a list", str: "a text", type(None): "null", bool: "true or false"}.get(type(header), "a number")
        raise PlanError(f"{source} is not a plan: it holds {kind}, not an object. Make one with: fulcrum plan")
    found = header.get("format")
    if isinstance(found, str) and found in _OUTDATED:
        raise PlanError(f"{source} is of format {found}, which {_OUTDATED[found]}. {_AGAIN}")
    if found != FORMAT:
        raise PlanError(f"{source} is not a plan of format {FORMAT}, got {found!r}. Make one with: fulcrum plan")
    try:
        return msgspec.convert(header, PlanFile)
    except msgspec.ValidationError as error:
        raise PlanError(f"{source}: {error}. {_AGAIN}") from None


def _check_form(content: PlanFile, source: str) -> None:
    """Raises `PlanError` with the first of `_problems`."""
    problem = next(_problems(content), None)
    if problem is not None:
        raise PlanError(f"{source} does not hold together: {problem}. {_AGAIN}")


def federation_in(content: PlanFile) -> Federation:
    """Returns the federation that a plan file's roster describes, checked against its digest."""
    names = content.federation.tiers
    labels = [entry.node for entry in content.silos]
    columns: dict[str, list[str]] = {names[0]: labels}
    for inner, outer in pairwise(names):
        parents = {entry.name: entry.parent for entry in content.tiers[inner]}
        labels = [parents[label] or "" for label in labels]
        columns[outer] = labels
    preferences = np.array([math.nan if entry.preference is None else entry.preference for entry in content.silos])
    federation = Federation.from_columns(
        silo=[entry.silo for entry in content.silos],
        records=all_or_none([entry.records for entry in content.silos]),
        tiers=columns,
        epsilon=preferences,
        group=None if content.silos[0].group is None else [entry.group or "" for entry in content.silos],
        weight=all_or_none([entry.declared_weight for entry in content.silos]),
        name=content.federation.name,
        locate=lambda row: f"silo {row + 1} of the roster",
    )
    if federation.digest != content.federation.digest:
        raise PlanError(
            f"the roster has digest {federation.digest[:4]}.., the file names {content.federation.digest[:4]}.."
        )
    if content.silos[0].weight is None:
        return federation
    return federation.weighted(np.array([entry.weight or 0.0 for entry in content.silos]))


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
            if not _no_or_some(node.noise_multiplier):
                yield f"{inner} {node.name!r} has the noise multiplier {node.noise_multiplier}"
    stepped = {tier for tier in tiers for node in content.tiers[tier] if node.lattice_step is not None}
    if not stepped <= ({tiers[0]} if content.purpose == "deployment" else set()):
        yield "steps of a lattice stand elsewhere than with the innermost nodes of a deployment"
    mixed = [(tier, node.rule_weight) for tier in tiers for node in content.tiers[tier]]
    if any((weight is not None) != (tier == tiers[0] and content.settings.influence_mix > 0) for tier, weight in mixed):
        yield "weights by the rule alone stand elsewhere than with the innermost nodes of a plan that mixes in shares"
    if any(weight is not None and not 0 < weight <= 1 for _, weight in mixed):
        yield f"a {tiers[0]} has a weight by the rule alone that is no share"


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
        if not _no_or_some(entry.noise_multiplier):
            yield f"silo {entry.silo!r} has the noise multiplier {entry.noise_multiplier}"
        if entry.records is not None and not 0 < entry.records <= _LARGEST:
            yield f"silo {entry.silo!r} has {entry.records} records"
        if entry.weight is not None and not 0 < entry.weight <= 1:
            yield f"silo {entry.silo!r} counts for {entry.weight}"
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
    if any(not 0 <= value < math.inf for entry in silos for value in (entry.spent or {}).values()):
        yield "what was spent before is not a number of at least 0"
    if any(entry.moved_from in ("", entry.node) for entry in silos):
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
    if not all(0 <= each <= _LARGEST for each in _each(settings.floor or 0.0)):
        yield "a floor is out of its range"
    asked = [each for values in required.values() for each in _each(values)]
    if not all(map(_no_or_some, asked)):
        yield "a required multiplier is out of its range"
    if not required or not required.keys() | settings.epsilon.keys() <= {SILO, *content.federation.tiers, ROOT}:
        yield "its targets are not on its tiers"
    if not any(asked):
        yield "its targets ask for no noise"
    if not settings.allocation.isprintable():
        yield "the allocation's name is not printable"
    if isinstance(settings.weights, str) and settings.weights not in WEIGHTS_NAMED:
        yield f"it names weights {settings.weights!r}, known are {listing(WEIGHTS_NAMED)} and numbers from 0 to 1"
    if settings.accountant not in ACCOUNTANTS or settings.bound not in BOUNDS or settings.injection not in INJECTIONS:
        yield "it names an accountant, bound or injection that is not known"
    if settings.aggregation not in AGGREGATIONS or (settings.aggregation == "masked" and settings.injection != "silo"):
        yield "its aggregation is not known, or masks sums to which aggregators add the noise"
    deployed = content.purpose == "deployment"
    if content.purpose not in PURPOSES or (deployed and (settings.parameters is None or settings.injection != "silo")):
        yield "it is marked neither for research nor for a deployment of known size in which silos draw the noise"
    if not (
        1 <= settings.rounds <= MOST_ROUNDS
        and 0 < settings.delta < 1
        and 1 / _LARGEST <= settings.clip_norm <= _LARGEST
        and 0 <= settings.reserve < settings.delta
        and settings.colluders >= 0
        and settings.dropouts >= 0
        and _SMALLEST <= settings.clip_share <= 1
        and 0 <= settings.least_influence <= 1
        and 0 <= settings.influence_mix <= 1
        and settings.server in SERVERS
        and settings.shrink in SHRINKS
        and (isinstance(settings.weights, str) or 0 <= settings.weights <= 1)
        and settings.seed >= 0
        and (settings.parameters is None or settings.parameters >= 1)
        and (settings.coupling is None or 0 < settings.coupling <= _LARGEST)
    ):
        yield "a setting is out of its range"


def _each(value: Required) -> list[float]:
    """One number, or one by silo, as a list."""
    return value if isinstance(value, list) else [value]


def _no_or_some(multiplier: float) -> bool:
    """Whether a multiplier is 0, or one whose square is a number."""
    return multiplier == 0 or _SMALLEST <= multiplier <= _LARGEST
