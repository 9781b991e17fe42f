"""The topology of a federation: silos with their sizes, and the tree of regions and outer tiers that aggregates them.

>>> from fulcrum.readers.federation import Federation
>>> federation = Federation.from_sizes({"north": [120, 80], "south": [300]})
>>> federation.weights.tolist()
[0.24, 0.16, 0.6]
>>> federation.tier("region").nodes
('north', 'south')

A silo's aggregation weight is what it declares, else its share of all records: sizes that are given are public, and
adjacent federations keep the declared size. Where no silo gives a size, none is public and all count as alike. Every
silo reports to one region, every region to one node of the next tier, and so on up to the root.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Self

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray, IntArray, NameArray, read_only
from fulcrum.errors import FederationError, ParameterError, listing, suggestion

SILO = "silo"
"""The tier of an observer who sees single updates."""

ROOT = "federation"
"""The tier of an observer who sees the global sum alone."""

KNOWN_COLUMNS = (SILO, "records", "epsilon", "group", "weight")
"""Columns with a meaning of their own; every other column is a tier, or refused."""

RESERVED_COLUMNS = ("share", "from", "until")
"""Columns kept free for a meaning that they are to have; until then they are refused, in capitals too."""

BATCH = 1_000_000
"""Silos that are worked on at a time, so that memory stays bounded in federations of 10^8."""

_LARGEST_SIZE = 1e100  # far beyond any count; larger ones would overflow when summed and squared
_WHOLE = 1e-12  # weights whose sum is this near to 1 have been brought to it
_LARGEST_RATIO = 1e50  # the square of a smaller weight would underflow, and its silo be left without noise


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tier:
    """One level of aggregation.

    Attributes:
        name: What the level is called, such as "region" or "country".
        nodes: The names of its nodes.
        parent_of: For every child (a silo at the innermost tier, else a node of the tier below) its node here.
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
    """Silos, their sizes, and the tree that aggregates them.

    Attributes:
        name: For messages and file names.
        sizes: Records by silo, positive and finite; all alike where `sizes_known` is false.
        tiers: Levels of aggregation, inner to outer, without the silos and without the root. At least one.
        preferences: Declared epsilon by silo, NaN where none was declared, or None.
        group: The organisational group by silo that correlates its data with others', or None for the region.
        sizes_known: Whether sizes were given, and so are public.
        declared_weights: What each silo counts for, where the federation says so; brought to the sum 1.
        chosen_weights: What each silo counts for where a plan says so; no part of the digest.
        weights: The aggregation weight of each silo: the chosen, else the declared, else `sizes / sizes.sum()`.
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
            # One NaN is as good as another, but their bits differ and the digest sees bits.
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
            if problem := tier_name_problem(tier.name):
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
        if self.declared_weights is not None:
            object.__setattr__(self, "declared_weights", self._checked_declaration(self.declared_weights))
        object.__setattr__(self, "weights", self._checked_weights())
        codes = [tier.parent_of for tier in (*self.tiers, self.group) if tier is not None]
        weights = self.weights, self.declared_weights
        for array in (self.sizes, *weights, self.preferences, self.declared_names, *codes):
            if array is not None:
                read_only(array)

    def _checked_declaration(self, declared: FloatArray) -> FloatArray:
        """Returns the declared weights brought to the sum 1; those that have it stay as they are, bit for bit."""
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

    def weighted(self, weights: FloatArray) -> Self:
        """Returns the same federation in which silos count for these weights, which add up to 1."""
        return replace(self, chosen_weights=read_only(np.array(weights, dtype=np.float64)))

    @property
    def silo_names(self) -> NameArray:
        """The name of each silo; silo-1, silo-2 and so on where none were declared."""
        if self.declared_names is not None:
            return self.declared_names
        return np.array([f"silo-{k}" for k in range(1, len(self) + 1)], dtype=np.dtypes.StringDType())

    def silo_name(self, index: int) -> str:
        """Returns the name of one silo without naming them all."""
        return f"silo-{index + 1}" if self.declared_names is None else str(self.declared_names[index])

    @property
    def tier_names(self) -> tuple[str, ...]:
        """Every tier an observer can stand at, inner to outer: the silos, the tiers, the root."""
        return (SILO, *(tier.name for tier in self.tiers), ROOT)

    @property
    def innermost(self) -> Tier:
        """The tier that silos report to, usually called "region"."""
        return self.tiers[0]

    def tier(self, name: str) -> Tier:
        """Returns the tier of that name, or raises `ParameterError` with the nearest one."""
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
        """Returns how many sums an observer of that tier sees."""
        if tier == SILO:
            return len(self)
        return 1 if tier == ROOT else len(self.tier(tier).nodes)

    def membership(self, tier: str) -> IntArray:
        """Returns for every silo the node of `tier` that its update is summed in."""
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
        """A SHA-256 over names, sizes, tiers, preferences, groups and declared weights, in order."""
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
        return sha.hexdigest()

    def __len__(self) -> int:
        return len(self.sizes)


def tier_name_problem(name: str) -> str:
    """Returns why a tier cannot bear this name, or an empty string.

    >>> tier_name_problem("federation")
    "a tier cannot be called 'federation': that name has a meaning of its own"
    """
    if name in (*KNOWN_COLUMNS, ROOT):
        return f"a tier cannot be called {name!r}: that name has a meaning of its own"
    if reserved := reserved_problem(name):
        return f"a tier cannot be called {name!r}: {reserved}"
    problem = name_problem(name)
    return f"a tier's name must {problem}, got {name!r}" if problem else ""


def reserved_problem(name: str) -> str:
    """Returns that a name is reserved, and what to do; an empty string where it is not.

    >>> reserved_problem("Share"), reserved_problem("country")
    ('that name is reserved for later use. Rename it or leave it out', '')
    """
    later = name.strip().lower() in RESERVED_COLUMNS
    return "that name is reserved for later use. Rename it or leave it out" if later else ""


def name_problem(name: object) -> str:
    """Returns the rule that a name of a silo or node breaks, or an empty string."""
    # Names go into one-line messages, file names and terminals, so nothing invisible is let in.
    if not isinstance(name, str) or not name or not name.isprintable():
        return "be printable and not empty"
    # Tables are read without space around a cell, so such a silo would come back as another.
    return "have no space around it" if name[0] == " " or name[-1] == " " else ""
