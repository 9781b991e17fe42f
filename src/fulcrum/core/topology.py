"""The topology of a federation: silos with their sizes, and the tree of regions and outer tiers above the silos.

>>> from fulcrum.readers.federation import Federation
>>> federation = Federation.from_sizes({"north": [120, 80], "south": [300]})
>>> federation.weights.tolist()
[0.24, 0.16, 0.6]
>>> federation.tier("region").nodes
('north', 'south')

A silo's aggregation weight is the declared weight, else the silo's share of all records. Given sizes are public, and
neighbouring federations keep the declared sizes. If no silo gives a size, no size is public and all silos count alike.
Every silo reports to a single region, every region to a single node of the next tier, up to the root.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Self

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray, IntArray, NameArray, read_only
from fulcrum.core.rosters import Rosters, Stay
from fulcrum.errors import FederationError, ParameterError, listing, suggestion

SILO = "silo"
"""The tier of an observer that sees single updates."""

ROOT = "federation"
"""The tier of an observer that sees the global sum alone."""

STAY_COLUMNS = ("from", "until", "every")
"""Columns of the rounds in which a silo takes part: the first, the last, and k for every k-th round."""

KNOWN_COLUMNS = (SILO, "records", "epsilon", "group", "weight", *STAY_COLUMNS)
"""Columns with a fixed meaning; any other column is a tier, or refused."""

RESERVED_COLUMNS = ("share",)
"""Columns that are reserved for a later meaning, and refused until then, in capitals too."""

BATCH = 1_000_000
"""The number of silos processed at a time, so that memory stays bounded in federations of 10^8 silos."""

_LARGEST_SIZE = 1e100  # far beyond any count; sums of squares of larger sizes would overflow
_WHOLE = 1e-12  # weights whose sum is this near to 1 are already scaled
_LARGEST_RATIO = 1e50  # the square of a smaller weight would underflow, and leave its silo without noise


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tier:
    """A level of aggregation.

    Attributes:
        name: The name of the level, for example "region" or "country".
        nodes: The names of the nodes.
        parent_of: For every child (a silo at the innermost tier, else a node of the tier below) the index of its node.
    """

    name: str
    nodes: tuple[str, ...]
    parent_of: IntArray

    @classmethod
    def from_labels(cls, name: str, labels: Iterable[str]) -> Self:
        """Returns the tier whose nodes are the distinct labels in order of appearance."""
        index: dict[str, int] = {}
        codes = np.fromiter((index.setdefault(label, len(index)) for label in labels), np.intp)
        return cls(name=name, nodes=tuple(index), parent_of=codes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Topology:
    """Silos, their sizes, and the tree that aggregates the silos.

    Attributes:
        name: The name for messages and file names.
        sizes: Records by silo, positive and finite; all alike if `sizes_known` is false.
        tiers: Levels of aggregation, inner to outer, without the silos and without the root. At least one.
        preferences: Declared epsilon by silo, NaN for a silo without a declaration, or None.
        group: By silo, the organisational group whose data are correlated, or None for the region.
        sizes_known: True if sizes were given, and so are public.
        declared_weights: The weights that the federation declares, scaled to the sum 1.
        chosen_weights: The weights that a plan chooses; not part of the digest.
        persons: By silo, the declared number of persons, if a plan protects persons; None if a plan protects silos. Not
            part of the digest.
        declared_sites: By silo, the declared technical name of its site, "" for a silo without a declaration. Not
            part of the digest.
        stays: By silo, the declared rounds of the silo as a federation file states them; None for a federation without
            such columns. Not part of the digest: a plan's number of rounds turns stays into rosters.
        rosters: The roster of every round of a plan, if membership changes; None if all silos take part in all rounds.
        weights: The weight of every silo's update in a sum: the chosen, else the declared, else `sizes / sizes.sum()`.
            If a plan protects persons, the weight of the gradient of one person of the silo.
    """

    name: str
    sizes: FloatArray
    tiers: tuple[Tier, ...]
    preferences: FloatArray | None = None
    group: Tier | None = None
    declared_names: NameArray | None = field(default=None, repr=False)
    sizes_known: bool = True
    declared_weights: FloatArray | None = field(default=None, repr=False)
    chosen_weights: FloatArray | None = field(default=None, repr=False)
    persons: FloatArray | None = field(default=None, repr=False)
    declared_sites: NameArray | None = field(default=None, repr=False)
    stays: tuple[tuple[Stay, ...], ...] | None = field(default=None, repr=False)
    rosters: Rosters | None = field(default=None, repr=False)
    weights: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        silos = len(self.sizes)
        if silos == 0:
            raise FederationError("federation.silos-missing", federation=self.name)
        bad = ~((self.sizes > 0) & (self.sizes <= _LARGEST_SIZE))
        if bad.any():
            where = int(np.argmax(bad))
            raise FederationError(
                "federation.size-range", silo=self.silo_name(where), most=_LARGEST_SIZE, size=self.sizes[where]
            )
        if self.sizes.max() > _LARGEST_RATIO * self.sizes.min():
            raise FederationError(
                "federation.size-ratio", most=_LARGEST_RATIO, smallest=self.sizes.min(), largest=self.sizes.max()
            )
        if self.preferences is not None:
            # All NaN mean the same but may differ in their bits, and the digest covers bits.
            plain = np.where(np.isnan(self.preferences), np.nan, self.preferences)
            object.__setattr__(self, "preferences", None if np.isnan(plain).all() else plain)
        if not self.tiers:
            raise FederationError("federation.tier-missing", name=self.name)
        for name, column in (("names", self.declared_names), ("epsilon", self.preferences)):
            if column is not None and len(column) != silos:
                raise FederationError(
                    "federation.column-length", federation=self.name, silos=silos, values=len(column), column_name=name
                )
        for tier in self.tiers:
            if problem := tier_name_problem(tier.name, in_plan=True):
                raise FederationError("federation.tier-name", reason=problem)
        children = silos
        for tier in self.tiers:
            if len(tier.parent_of) != children:
                raise FederationError(
                    "federation.tier-length", tier=tier.name, children=children, placed=len(tier.parent_of)
                )
            if len(np.bincount(tier.parent_of)) != len(tier.nodes) or not np.bincount(tier.parent_of).all():
                raise FederationError("federation.node-empty", tier=tier.name, nodes=len(tier.nodes))
            children = len(tier.nodes)
        if len(self.tiers) > 1 and (named := next((tier for tier in self.tiers if ROOT in tier.nodes), None)):
            # With one tier the name is harmless: such plans are in force, and no node stands between node and root.
            raise FederationError("federation.node-reserved", tier=named.name, name=ROOT)
        if self.rosters is not None:
            self._check_rosters(self.rosters)
        if self.declared_weights is not None:
            object.__setattr__(self, "declared_weights", self._checked_declaration(self.declared_weights))
        object.__setattr__(self, "weights", self._checked_weights())
        codes = [tier.parent_of for tier in (*self.tiers, self.group) if tier is not None]
        weights = self.weights, self.declared_weights, self.persons
        # Read-only: a federation that was verified for a plan must not change afterwards.
        for array in (self.sizes, *weights, self.preferences, self.declared_names, *codes):
            if array is not None:
                read_only(array)

    def _check_rosters(self, rosters: Rosters) -> None:
        """Refuses rosters of other silos, and a round in which a region has no silo."""
        if rosters.present.shape[1] != len(self.sizes):
            raise FederationError("schedule.silos-differ", silos=len(self.sizes), listed=rosters.present.shape[1])
        regions = self.tiers[0]
        for phase, present in enumerate(rosters.present):
            filled = np.bincount(regions.parent_of[present], minlength=len(regions.nodes))
            if not filled.all():
                first = int(np.argmax(rosters.phase_of_round == phase)) + 1
                empty = regions.nodes[int(np.argmin(filled))]
                raise FederationError("schedule.region-empty", tier=regions.name, region=empty, round=first)

    def _checked_declaration(self, declared: FloatArray) -> FloatArray:
        """Returns the declared weights scaled to the sum 1; weights of the sum 1 stay unchanged, bit for bit."""
        if len(declared) != len(self.sizes):
            raise FederationError(
                "federation.weights-length", federation=self.name, silos=len(self.sizes), weights=len(declared)
            )
        bad = ~((declared > 0) & (declared <= _LARGEST_SIZE))
        if bad.any():
            where = int(np.argmax(bad))
            raise FederationError("federation.weight-range", silo=self.silo_name(where), weight=declared[where])
        total = float(declared.sum())
        return declared if abs(total - 1) <= _WHOLE else np.asarray(declared / total)

    def _checked_weights(self) -> FloatArray:
        """Returns the chosen, else the declared weights, else the shares of records, all checked."""
        if self.chosen_weights is None and self.declared_weights is None:
            return np.asarray(self.sizes / self.sizes.sum())
        chosen = np.array(
            self.declared_weights if self.chosen_weights is None else self.chosen_weights, dtype=np.float64
        )
        if chosen.shape != self.sizes.shape or not ((chosen > 0) & np.isfinite(chosen)).all():
            raise FederationError("federation.weights-invalid", federation=self.name)
        if chosen.max() > _LARGEST_RATIO * chosen.min():
            raise FederationError("federation.weight-ratio", federation=self.name, most=_LARGEST_RATIO)
        return chosen

    def with_weights(self, weights: FloatArray) -> Self:
        """Returns the same federation with the given weights of silos, which add up to 1."""
        return replace(self, chosen_weights=read_only(np.array(weights, dtype=np.float64)))

    @property
    def shares(self) -> FloatArray:
        """The share of every silo in the sum of all silos; the shares add up to 1.

        A share is the weight of the silo or, if a plan protects persons, the weight of one person times the declared
        number of persons.
        """
        return self.weights if self.persons is None else np.asarray(self.weights * self.persons)

    @property
    def silo_names(self) -> NameArray:
        """The name of every silo; silo-1, silo-2 and so on for a federation without declared names."""
        if self.declared_names is not None:
            return self.declared_names
        return np.array([f"silo-{k}" for k in range(1, len(self) + 1)], dtype=np.dtypes.StringDType())

    def silo_name(self, index: int) -> str:
        """Returns the name of a single silo without the names of all silos."""
        return f"silo-{index + 1}" if self.declared_names is None else str(self.declared_names[index])

    @property
    def tier_names(self) -> tuple[str, ...]:
        """Every tier at which an observer can stand, inner to outer: the silos, the tiers, the root."""
        return (SILO, *(tier.name for tier in self.tiers), ROOT)

    @property
    def innermost(self) -> Tier:
        """The tier to which silos report, usually called "region"."""
        return self.tiers[0]

    def tier(self, name: str) -> Tier:
        """Returns the tier with the name, or raises `ParameterError` with the nearest name."""
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise ParameterError(
            "federation.tier-unknown",
            federation=self.name,
            tier=name,
            known=listing(self.tier_names),
            suggestion=suggestion(name, self.tier_names),
        )

    def node_count(self, tier: str) -> int:
        """Returns the number of sums that an observer of the tier sees."""
        if tier == SILO:
            return len(self)
        return 1 if tier == ROOT else len(self.tier(tier).nodes)

    def membership(self, tier: str) -> IntArray:
        """Returns for every silo the node of `tier` whose sum contains the silo's update."""
        if tier == SILO:
            return np.arange(len(self))
        if tier == ROOT:
            return np.zeros(len(self), dtype=np.intp)
        wanted = self.tier(tier)
        codes = self.innermost.parent_of
        for level in self.tiers[1 : self.tiers.index(wanted) + 1]:
            codes = level.parent_of[codes]
        return codes

    @property
    def digest(self) -> str:
        """The SHA-256 over names, sizes, tiers, preferences, groups, declared weights and rosters, in order."""
        sha = hashlib.sha256(b"fulcrum.federation/1")
        for tier in (*self.tiers, *((self.group,) if self.group else ())):
            sha.update(msgspec.json.encode([tier.name, tier.nodes]))
            sha.update(tier.parent_of.astype("<i8").tobytes())
        sha.update(self.sizes.astype("<f8").tobytes() if self.sizes_known else b"sizes unknown")
        sha.update(b"" if self.preferences is None else self.preferences.astype("<f8").tobytes())
        names = iter(self.silo_names)
        while batch := [str(name) for name in islice(names, BATCH)]:
            sha.update(msgspec.json.encode(batch))
        if self.declared_weights is not None:
            sha.update(b"weights" + self.declared_weights.astype("<f8").tobytes())
        if self.rosters is not None:
            sha.update(b"rosters" + self.rosters.digest)
        return sha.hexdigest()

    def __len__(self) -> int:
        return len(self.sizes)


def tier_name_problem(name: str, *, in_plan: bool = False) -> str:
    """Returns the reason to refuse the name of a tier, or an empty string.

    Args:
        name: The name, in which capitals do not tell a tier from the rounds of a silo.
        in_plan: True for a plan file, which may have a tier `every`: earlier versions gave the name no meaning, and a
            signed plan keeps its signature.

    >>> tier_name_problem("federation")
    "a tier cannot be called 'federation': that name has a meaning of its own"
    """
    lower = name.strip().lower()
    if (name in (*KNOWN_COLUMNS, ROOT) or lower in STAY_COLUMNS) and not (in_plan and lower == "every"):
        return f"a tier cannot be called {name!r}: that name has a meaning of its own"
    if reserved := reserved_problem(name):
        return f"a tier cannot be called {name!r}: {reserved}"
    problem = name_problem(name)
    return f"a tier's name must {problem}, got {name!r}" if problem else ""


def reserved_problem(name: str) -> str:
    """Returns the reason to refuse a reserved name, with a remedy, or an empty string.

    >>> reserved_problem("Share"), reserved_problem("country")
    ('that name is reserved for later use. Rename it or leave it out', '')
    """
    later = name.strip().lower() in RESERVED_COLUMNS
    return "that name is reserved for later use. Rename it or leave it out" if later else ""


def name_problem(name: object) -> str:
    """Returns the rule that the name of a silo or node breaks, or an empty string."""
    # Names are shown in one-line messages, file names and terminals: invisible characters could forge a line.
    if not isinstance(name, str) or not name or not name.isprintable():
        return "be printable and not empty"
    # Readers of tables strip spaces around a cell, so the name would come back as a different silo.
    return "have no space around it" if name[0] == " " or name[-1] == " " else ""
