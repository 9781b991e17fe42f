"""The file format of a plan, `fulcrum.plan/2`: versioned JSON that says what was promised, to whom, against whom.

The schema is the types below; an epsilon of null means that there is no guarantee (infinite). Epsilons are rounded
up, never down; noise multipliers are written in full. The digest covers every other byte, so a changed file is noticed.
"""

import base64
import hashlib
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from fulcrum.core.choices import (
    LARGEST,
    MOST_ROUNDS,
    SMALLEST,
    Accountant,
    AggregationName,
    Bound,
    Injection,
    Purpose,
    ServerName,
    Shrink,
)
from fulcrum.core.privacy_unit import SILO_UNIT

FORMAT = "fulcrum.plan/2"

Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
WeightsRule: TypeAlias = Literal["sizes", "equal", "least-noise", "declared", "by-silo"] | Share
Multiplier: TypeAlias = Annotated[float, Meta(ge=0, le=LARGEST)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[float, Meta(gt=0, le=LARGEST)]
Nats: TypeAlias = Annotated[float, Meta(ge=0, le=LARGEST)]
Shift: TypeAlias = Annotated[float, Meta(ge=0)]

Epsilon: TypeAlias = float | None
Required: TypeAlias = Multiplier | list[Multiplier]


class FederationEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which federation the plan is for."""

    name: str
    digest: str
    silos: int
    tiers: list[str]


class PlanSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What was asked for; `required_multiplier` is what it means by tier, one number or one by silo.

    Weights, clip share, server, aggregation and unit are left out where they are the paper's. `weights` is "declared"
    where silos count for what the federation declares, "by-silo" for weights that were given by silo. `influence_mix`
    is the part of the regions' weights that is by share, so that every region keeps `least_influence` of its own.
    `absent_regions` is true where a round goes on without a region that has no sum; no epsilon then counts on its noise
    further out.
    """

    rounds: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)]
    delta: Annotated[float, Meta(gt=0, lt=1)]
    reserve: Annotated[float, Meta(ge=0, lt=1)]
    clip_norm: Annotated[float, Meta(ge=1 / LARGEST, le=LARGEST)]
    accountant: Accountant
    allocation: str
    seed: Count
    injection: Injection
    colluders: Count
    dropouts: Count
    parameters: Annotated[int, Meta(ge=1)] | None
    epsilon: dict[str, float]
    information: float | None
    bound: Bound
    floor: Nats | list[Nats] | None
    coupling: Positive | None
    budget: float | None
    required_multiplier: dict[str, Required]
    weights: WeightsRule = "sizes"
    clip_share: Annotated[float, Meta(ge=SMALLEST, le=1)] = 1.0
    server: ServerName = "sum"
    shrink: Shrink = False
    least_influence: Share = 0.0
    influence_mix: Share = 0.0
    aggregation: AggregationName = "trusted"
    absent_regions: bool = False
    unit: str = SILO_UNIT.name


class PlanGuarantee(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What holds, in words: the statement, the neighbours it compares, and everything it rests on."""

    statement: str
    adjacency: str
    sensitivity: float
    assumptions: list[str]


class PlanSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The figures a reader looks for first; both observers, always."""

    noise_budget: float
    uniform_noise_budget: float
    saving: float
    dispersion: float
    epsilon_above_worst: Epsilon
    epsilon_above_mean: Epsilon
    epsilon_inside_worst: Epsilon
    epsilon_inside_mean: Epsilon


class NodeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One sum that an observer of a tier sees; `noise_multiplier` is the noise in it over the clip norm.

    In deployment the innermost nodes carry the step of the lattice that their silos release on. Where shares are mixed
    into the regions' weights, `rule_weight` is what an innermost node counts for by the rule alone.
    """

    name: str
    parent: str | None
    silos: int
    exposure: float
    noise_multiplier: Multiplier
    epsilon_worst: Epsilon
    lattice_step: float | None = None
    rule_weight: Annotated[float, Meta(gt=0, le=1)] | None = None


class SiloEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One silo: its place, its noise, and its epsilon against an observer of each tier.

    `spent` is the squared shift (mu²) by tier that it had spent before this plan, which its epsilons include;
    `moved_from` is its region in the plan before, where that was another one; `weight` is what it counts for, where
    that is not its share of all records, and `declared_weight` what the federation says that it ought to. `records` is
    null where sizes are not declared.
    """

    silo: str
    records: Annotated[int, Meta(gt=0)] | Positive | None
    node: str
    noise_multiplier: Multiplier
    epsilon: dict[str, Epsilon]
    preference: float | None = None
    group: str | None = None
    spent: dict[str, Shift] | None = None
    moved_from: Annotated[str, Meta(min_length=1)] | None = None
    weight: Annotated[float, Meta(gt=0, le=1)] | None = None
    declared_weight: float | None = None


class PlanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole plan."""

    format: str
    made_by: str
    purpose: Purpose
    federation: FederationEntry
    settings: PlanSettings
    guarantee: PlanGuarantee
    summary: PlanSummary
    tiers: dict[str, list[NodeEntry]]
    silos: list[SiloEntry]
    advice: list[str]
    keys: dict[str, str] = {}
    digest: str = ""


def key_bytes(text: str) -> bytes | None:
    """Returns the 32 bytes of a public key that a plan carries as base64, or None for any other text.

    Base64 has four spellings of 32 bytes, since two bits of the last letter count for nothing. Here the spelling of the
    encoder alone is a key, so that equal keys are equal texts.

    >>> key_bytes("A" * 43 + "=") == bytes(32), key_bytes("A" * 42 + "B="), key_bytes("a key")
    (True, None, None)
    """
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return key if len(key) == 32 and base64.b64encode(key).decode() == text else None


def content_digest(content: PlanFile) -> str:
    """Returns the SHA-256 of the plan without its own digest."""
    bare = msgspec.structs.replace(content, digest="")
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()


def to_json(content: PlanFile) -> bytes:
    """Returns the file's bytes, the digest filled in."""
    sealed = msgspec.structs.replace(content, digest=content_digest(content))
    return msgspec.json.format(msgspec.json.encode(sealed), indent=1) + b"\n"
