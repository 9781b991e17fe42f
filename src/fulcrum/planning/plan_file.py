"""The file format of a plan, `fulcrum.plan/2`: versioned JSON that says what was promised, to whom, against whom.

The schema is the types below; an epsilon of null means that there is no guarantee (infinite). Epsilons are rounded
up, never down; noise multipliers are written in full. The digest covers every other byte, so a changed file is noticed.

>>> epsilon_entry(0.9900001), epsilon_entry(math.inf)
(0.990001, None)
"""

import hashlib
import math
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import FulcrumError, PlanError
from fulcrum.federation.structure import ROOT, SILO, Federation
from fulcrum.planning.guarantee import ADJACENCY
from fulcrum.privacy.accounting import ACCOUNTANTS, rounded_up
from fulcrum.privacy.exposure import exposure_of
from fulcrum.privacy.leakage import BOUNDS

if TYPE_CHECKING:
    from fulcrum.planning.plan import Plan

FORMAT = "fulcrum.plan/2"

_OUTDATED = {
    "fulcrum.plan/1": "said less than it must of who the observers are, and let dropouts use up colluders; in "
    "deployment its lattices differed by region"
}
"""Formats whose plans are not read, and why."""

_LARGEST = 1e100

PURPOSES = ("research", "deployment")
"""Research draws seeded noise and deploys nothing; deployment draws secure noise on a lattice, through a ledger."""

INJECTIONS = ("silo", "aggregator")
"""Who draws the noise: every silo its own, or once a trusted regional aggregator."""

Epsilon: TypeAlias = float | None
Required: TypeAlias = float | list[float]


class FederationEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which federation the plan is for."""

    name: str
    digest: str
    silos: int
    tiers: list[str]


class Settings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What was asked for; `required_multiplier` is what it means by tier, one number or one by silo."""

    rounds: int
    delta: float
    reserve: float
    clip_norm: float
    accountant: str
    allocation: str
    seed: int
    injection: str
    colluders: int
    dropouts: int
    parameters: int | None
    epsilon: dict[str, float]
    information: float | None
    bound: str
    floor: float | list[float] | None
    coupling: float | None
    budget: float | None
    required_multiplier: dict[str, Required]


class Guarantee(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What holds, in words: the statement, the neighbours it compares, and everything it rests on."""

    statement: str
    adjacency: str
    sensitivity: float
    assumptions: list[str]


class Summary(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The figures a reader looks for first; both observers, always."""

    noise_budget: float
    uniform_noise_budget: float
    saving: float
    dispersion: float
    epsilon_above_worst: Epsilon
    epsilon_above_mean: Epsilon
    epsilon_inside_worst: Epsilon
    epsilon_inside_mean: Epsilon


class NodeEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One sum that an observer of a tier sees; `noise_multiplier` is the noise in it over the clip norm.

    In deployment the innermost nodes carry the step of the lattice that their silos release on.
    """

    name: str
    parent: str | None
    silos: int
    exposure: float
    noise_multiplier: float
    epsilon_worst: Epsilon
    lattice_step: float | None = None


class SiloEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One silo: its place, its noise, and its epsilon against an observer of each tier.

    `spent` is the squared shift (mu²) by tier that it had spent before this plan, which its epsilons include;
    `moved_from` is its region in the plan before, where that was another one.
    """

    silo: str
    records: int | float
    node: str
    noise_multiplier: float
    epsilon: dict[str, Epsilon]
    preference: float | None = None
    group: str | None = None
    spent: dict[str, float] | None = None
    moved_from: str | None = None


class PlanFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A whole plan."""

    format: str
    made_by: str
    purpose: str
    federation: FederationEntry
    settings: Settings
    guarantee: Guarantee
    summary: Summary
    tiers: dict[str, list[NodeEntry]]
    silos: list[SiloEntry]
    advice: list[str]
    keys: dict[str, str] = {}
    digest: str = ""


def content_of(plan: "Plan") -> PlanFile:
    """Returns the plan as its file holds it."""
    federation, target = plan.federation, plan.target
    epsilon = {tier: epsilon_entries(plan.epsilon(tier)) for tier in federation.tier_names}
    floor = target.floor
    regions = federation.innermost
    nodes = [regions.nodes[code] for code in regions.parent_of.tolist()]
    groups = federation.group
    preferences = federation.preferences
    return PlanFile(
        format=FORMAT,
        made_by=f"fulcrum {package_version()}",
        purpose=plan.purpose,
        federation=FederationEntry(
            name=federation.name,
            digest=federation.digest,
            silos=len(federation),
            tiers=[tier.name for tier in federation.tiers],
        ),
        settings=Settings(
            rounds=plan.rounds,
            delta=plan.delta,
            reserve=target.reserve,
            clip_norm=plan.clip_norm,
            accountant=plan.accountant,
            allocation=plan.allocation,
            seed=plan.seed,
            injection=plan.injection,
            colluders=plan.colluders,
            dropouts=plan.dropouts,
            parameters=plan.parameters,
            epsilon=dict(target.epsilon),
            information=target.information,
            bound=target.bound,
            floor=_number_or_list(floor),
            coupling=plan.coupling,
            budget=target.budget,
            required_multiplier={
                tier: _number_or_list(np.asarray(asked)) or 0.0 for tier, asked in plan.requirement.multiplier.items()
            },
        ),
        guarantee=Guarantee(
            statement=plan.statement,
            adjacency=ADJACENCY,
            sensitivity=2 * plan.clip_norm,
            assumptions=list(plan.assumptions),
        ),
        summary=Summary(
            noise_budget=plan.noise_budget,
            uniform_noise_budget=plan.uniform_noise_budget,
            saving=plan.saving,
            dispersion=plan.dispersion,
            epsilon_above_worst=epsilon_entry(float(plan.epsilon_above.max())),
            epsilon_above_mean=epsilon_entry(float(plan.epsilon_above.mean())),
            epsilon_inside_worst=epsilon_entry(float(plan.epsilon_inside.max())),
            epsilon_inside_mean=epsilon_entry(float(plan.epsilon_inside.mean())),
        ),
        tiers={tier.name: _node_entries(plan, depth) for depth, tier in enumerate(federation.tiers)},
        silos=[
            SiloEntry(
                silo=name,
                records=int(records) if records.is_integer() else records,
                node=nodes[index],
                noise_multiplier=multiplier,
                epsilon={tier: values[index] for tier, values in epsilon.items()},
                preference=None if preferences is None or math.isnan(preferences[index]) else float(preferences[index]),
                group=None if groups is None else groups.nodes[groups.parent_of[index]],
                spent={tier: float(spent[index]) for tier, spent in target.spent.items()} or None,
                moved_from=plan.moved.get(name),
            )
            for index, (name, records, multiplier) in enumerate(
                zip(
                    federation.silo_names.tolist(),
                    federation.sizes.tolist(),
                    plan.noise_multiplier.tolist(),
                    strict=True,
                )
            )
        ],
        advice=[advice.text for advice in plan.advice],
        keys=dict(plan.keys),
    )


def federation_of(content: PlanFile) -> Federation:
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
        records=np.array([entry.records for entry in content.silos], dtype=np.float64),
        tiers=columns,
        epsilon=preferences,
        group=None if content.silos[0].group is None else [entry.group or "" for entry in content.silos],
        name=content.federation.name,
        locate=lambda row: f"silo {row + 1} of the roster",
    )
    if federation.digest != content.federation.digest:
        raise PlanError(
            f"the roster has digest {federation.digest[:4]}.., the file names {content.federation.digest[:4]}.."
        )
    return federation


def content_digest(content: PlanFile) -> str:
    """Returns the SHA-256 of the plan without its own digest."""
    bare = msgspec.structs.replace(content, digest="")
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()


def to_json(content: PlanFile) -> bytes:
    """Returns the file's bytes, the digest filled in."""
    sealed = msgspec.structs.replace(content, digest=content_digest(content))
    return msgspec.json.format(msgspec.json.encode(sealed), indent=1) + b"\n"


def read_content(path: str | Path) -> PlanFile:
    """Reads a plan file and checks its format and digest."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise PlanError(f"{path} cannot be read: {error.strerror}") from None
    try:
        header = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanError(f"{path} is not JSON: {error}. Make a plan with: fulcrum plan FEDERATION -o {path}") from None
    found = header.get("format") if isinstance(header, dict) else None
    if isinstance(found, str) and found in _OUTDATED:
        raise PlanError(
            f"{path} is of format {found}, which {_OUTDATED[found]}. Make the plan again with: fulcrum plan"
        )
    if found != FORMAT:
        raise PlanError(f"{path} is not a plan of format {FORMAT}, got {found!r}. Make one with: fulcrum plan")
    try:
        content = msgspec.convert(header, PlanFile)
    except msgspec.ValidationError as error:
        raise PlanError(f"{path}: {error}. Make the plan again with: fulcrum plan") from None
    if content.digest != content_digest(content):
        raise PlanError(
            f"{path} was changed after it was made (digest {content.digest[:4]}.., expected "
            f"{content_digest(content)[:4]}..). Make the plan again with: fulcrum plan"
        )
    problem = next(_problems(content), None)
    if problem is not None:
        raise PlanError(f"{path} does not hold together: {problem}. Make the plan again with: fulcrum plan")
    return content


def _problems(content: PlanFile) -> Iterator[str]:
    """Yields what keeps a file of the right shape from being a plan: names that lead nowhere, numbers out of range."""
    settings, tiers, silos = content.settings, content.federation.tiers, content.silos
    observers = [SILO, *tiers, ROOT]
    if not silos or not tiers:
        yield "it has no silos or no tiers"
        return
    if content.federation.silos != len(silos):
        yield f"it counts {content.federation.silos} silos and lists {len(silos)}"
    if list(content.tiers) != tiers:
        yield f"it describes the tiers {list(content.tiers)} and names {tiers}"
        return
    for inner, outer in pairwise([*tiers, None]):
        above = {node.name for node in content.tiers[outer]} if outer else {None}
        for node in content.tiers[inner or ""]:
            if node.parent not in above:
                yield f"{inner} {node.name!r} has the parent {node.parent!r}, which is not there"
            if not 0 <= node.noise_multiplier <= _LARGEST:
                yield f"{inner} {node.name!r} has the noise multiplier {node.noise_multiplier}"
    nodes = {node.name for node in content.tiers[tiers[0]]}
    for entry in silos:
        if entry.node not in nodes:
            yield f"silo {entry.silo!r} is in {tiers[0]} {entry.node!r}, which is not there"
        if list(entry.epsilon) != observers:
            yield f"silo {entry.silo!r} has epsilons against {list(entry.epsilon)}, expected {observers}"
        if not 0 <= entry.noise_multiplier <= _LARGEST:
            yield f"silo {entry.silo!r} has the noise multiplier {entry.noise_multiplier}"
        if not 0 < entry.records <= _LARGEST:
            yield f"silo {entry.silo!r} has {entry.records} records"
    lists = [settings.floor, *settings.required_multiplier.values()]
    if any(isinstance(values, list) and len(values) != len(silos) for values in lists):
        yield "a list by silo has another length than the roster"
    for values in settings.required_multiplier.values():
        if not all(0 <= asked <= _LARGEST for asked in (values if isinstance(values, list) else [values])):
            yield "a required multiplier is out of its range"
    if not settings.required_multiplier or not set(settings.required_multiplier) | set(settings.epsilon) <= set(
        observers
    ):
        yield "its targets are not on its tiers"
    if settings.accountant not in ACCOUNTANTS or settings.bound not in BOUNDS or settings.injection not in INJECTIONS:
        yield "it names an accountant, bound or injection that is not known"
    in_range = settings.rounds >= 1 and 0 < settings.delta < 1 and 1 / _LARGEST <= settings.clip_norm <= _LARGEST
    deployed = content.purpose == "deployment"
    if content.purpose not in PURPOSES or (deployed and (settings.parameters is None or settings.injection != "silo")):
        yield "it is marked neither for research nor for a deployment of known size in which silos draw the noise"
    stepped = {tier for tier in tiers for node in content.tiers[tier] if node.lattice_step is not None}
    if not stepped <= ({tiers[0]} if deployed else set()):
        yield "steps of a lattice stand elsewhere than with the innermost nodes of a deployment"
    spent = {None if entry.spent is None else tuple(entry.spent) for entry in silos}
    if spent != {None} and spent != {tuple(observers)}:
        yield "what was spent before is not told for every silo and tier"
    if spent == {None} and any(entry.moved_from is not None for entry in silos):
        yield "a silo moved since a plan before, and there was none"
    if any(not 0 <= value < math.inf for entry in silos for value in (entry.spent or {}).values()):
        yield "what was spent before is not a number of at least 0"
    if any(entry.moved_from in ("", entry.node) for entry in silos):
        yield "a silo moved from the place where it is"
    if (
        not in_range
        or not 0 <= settings.reserve < settings.delta
        or settings.colluders < 0
        or settings.dropouts < 0
        or settings.seed < 0
        or (settings.parameters is not None and settings.parameters < 1)
        or (settings.coupling is not None and not 0 < settings.coupling <= _LARGEST)
    ):
        yield "a setting is out of its range"
    if not content.federation.name.isprintable():
        yield "the federation's name is not printable"
    try:
        federation_of(content)
    except FulcrumError as error:
        yield str(error)


def epsilon_entries(epsilon: FloatArray) -> list[Any]:
    """Returns epsilons for the file: rounded up, and None where there is no guarantee."""
    values, where = np.unique(epsilon, return_inverse=True)
    entries = [epsilon_entry(value) for value in values.tolist()]
    return [entries[index] for index in where.tolist()]


def epsilon_entry(epsilon: float) -> Epsilon:
    """Returns one epsilon for the file."""
    return rounded_up(epsilon) if math.isfinite(epsilon) else None


def _node_entries(plan: "Plan", depth: int) -> list[NodeEntry]:
    federation = plan.federation
    tier = federation.tiers[depth]
    outer = federation.tiers[depth + 1] if depth + 1 < len(federation.tiers) else None
    profile = exposure_of(federation, tier=tier.name, colluders=plan.colluders, dropouts=plan.dropouts)
    worst = np.zeros(len(tier.nodes))
    np.maximum.at(worst, federation.membership(tier.name), plan.epsilon(tier.name))
    injected = plan.aggregator_noise_multiplier if depth == 0 else None
    noise = np.sqrt(plan.node_noise(tier.name)) if injected is None else injected
    return [
        NodeEntry(
            name=name,
            parent=None if outer is None else outer.nodes[outer.parent_of[index]],
            silos=int(profile.silos[index]),
            exposure=float(profile.exposure[index]),
            noise_multiplier=float(noise[index]),
            epsilon_worst=epsilon_entry(float(worst[index])),
            lattice_step=None if plan.lattice_steps is None or depth > 0 else float(plan.lattice_steps[index]),
        )
        for index, name in enumerate(tier.nodes)
    ]


def _number_or_list(values: FloatArray | None) -> float | list[float] | None:
    """Returns one number where all are the same, else the list."""
    if values is None:
        return None
    if values.ndim == 0:
        return float(values)
    return float(values[0]) if (values == values[0]).all() else values.tolist()


def package_version() -> str:
    """Returns the version of Fulcrum that is installed."""
    try:
        return version("fulcrum-dp")
    except PackageNotFoundError:  # a source tree that was never installed
        return "unknown"
