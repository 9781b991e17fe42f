"""The file format of a plan, `fulcrum.plan/2`: versioned JSON with the promise, the silos and the observers.

The schema is the types below. An epsilon of null means no guarantee (infinite). Epsilons are rounded up, never down;
noise multipliers are written in full. The digest covers every other byte, so a reader detects a changed file. Unknown
fields are refused: a field that an older reader ignores could carry a promise that no check covers.
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
    Neighbours,
    Purpose,
    ServerName,
    Shrink,
    UnitName,
)

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
    """The federation of the plan."""

    name: str
    digest: str
    silos: int
    tiers: list[str]


class Spectrum(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Variances of a head's inputs, in the order of the inputs, for the server's prior; no epsilon rests on them.

    `origin` is "public", or "training-split" for variances of the silos' own records, outside every epsilon and for
    research alone. `source` is the name of the data. `embedding` is true for the output of a frozen public network.
    """

    variances: Annotated[list[Positive], Meta(min_length=1)]
    origin: Literal["public", "training-split"]
    source: str
    embedding: bool = False


class PlanSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The settings and targets of the plan.

    `required_multiplier` states the targets as effective multipliers by tier, a number for all silos or a list by silo.
    Weights, clip share, server, aggregation and unit are omitted if equal to the paper's. `weights` is "declared" for
    weights that the federation declares, and "by-silo" for weights given by silo. `influence_mix` is the part of the
    regions' weights that is by share, so that every region has `least_influence`; `disputed_influence` is
    the least influence of a pooling server while regions oppose each other, if larger. `absent_regions` is true where a
    round continues without a region that has no sum; no epsilon further out then counts on that region's noise.
    `spectrum` has the input variances of a server that shrinks by the spectrum prior. The settings from `unit` on are
    those of `PrivacyUnit` and `PlanData`.
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
    spectrum: Spectrum | None = None
    least_influence: Share = 0.0
    disputed_influence: Share = 0.0
    influence_mix: Share = 0.0
    aggregation: AggregationName = "trusted"
    absent_regions: bool = False
    unit: UnitName = "silo"
    neighbours: Neighbours = "replace"
    silos_per_person: Annotated[int, Meta(ge=1)] = 1
    unit_name: str = ""
    persons_per_silo: Annotated[float, Meta(ge=1, le=LARGEST)] | None = None
    silo_clip: Annotated[float, Meta(ge=1, le=LARGEST)] | None = None
    silo_epsilon: Annotated[float, Meta(gt=0)] | None = None


class PlanGuarantee(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The guarantee in words: the statement, the neighbouring relation, and all assumptions."""

    statement: str
    adjacency: str
    sensitivity: float
    assumptions: list[str]


class PlanSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The main figures, always for both observers.

    A plan for persons states four more worst epsilons: above and inside in the second convention of neighbours, above
    for a person with records in two silos, and above for a silo as a whole.
    """

    noise_budget: float
    uniform_noise_budget: float
    saving: float
    dispersion: float
    epsilon_above_worst: Epsilon
    epsilon_above_mean: Epsilon
    epsilon_inside_worst: Epsilon
    epsilon_inside_mean: Epsilon
    other_neighbours_above: Epsilon | msgspec.UnsetType = msgspec.UNSET
    other_neighbours_inside: Epsilon | msgspec.UnsetType = msgspec.UNSET
    two_silos_above: Epsilon | msgspec.UnsetType = msgspec.UNSET
    whole_silo_above: Epsilon | msgspec.UnsetType = msgspec.UNSET


class NodeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A sum that an observer of a tier sees; `noise_multiplier` is the noise in the sum over the clip norm.

    In deployment the innermost nodes carry the lattice step of their silos. If shares are mixed into the regions'
    weights, `rule_weight` is the weight of an innermost node by the rule alone. If membership changes,
    `phase_multipliers` has for an innermost node the noise multiplier of each silo by phase, and `noise_multiplier` is
    the root of the mean noise variance of all rounds. Phases are numbered by their first rounds.
    """

    name: str
    parent: str | None
    silos: int
    exposure: float
    noise_multiplier: Multiplier
    epsilon_worst: Epsilon
    lattice_step: float | None = None
    rule_weight: Annotated[float, Meta(gt=0, le=1)] | None = None
    phase_multipliers: list[Multiplier] | None = None


class SiloEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A silo: node, noise, and epsilon against an observer of every tier.

    `spent` is the squared shift (mu²) by tier that the silo had spent before this plan; the epsilons include the past.
    `moved_from` is the silo's region in the plan before, if the silo moved. `weight` is the weight in the sums, if
    different from the share of all records, and `declared_weight` the weight that the federation declares. `records`
    is null where sizes are not declared. `site` is the declared technical name of the silo's site. If membership
    changes, `rounds` lists the silo's stays (first round, last round, every k-th round), `noise_multiplier` is the
    largest of the silo's phases, and `price` is the silo's price, over the largest, in the proof that the noise is near
    the least. `inside_price` is the price of the silo's target inside, if there is one.
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
    weight: Annotated[float, Meta(ge=SMALLEST, le=1)] | None = None
    declared_weight: float | None = None
    site: str = ""
    rounds: list[tuple[Count, Count, Count]] | None = None
    price: Share | None = None
    inside_price: Share | None = None


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


def values_by_silo(value: Required, silos: int) -> list[float]:
    """Returns a setting as a list with one number for each silo: a list as it is, a single number for all silos."""
    return value if isinstance(value, list) else [value] * silos


def key_bytes(text: str) -> bytes | None:
    """Returns the 32 bytes of a public key in base64, or None for any other text.

    Base64 has four spellings of 32 bytes, since two bits of the last letter have no meaning. Only the spelling of the
    encoder is a key: a second spelling would look like a second key, and its owner like two silos.

    >>> key_bytes("A" * 43 + "=") == bytes(32), key_bytes("A" * 42 + "B="), key_bytes("a key")
    (True, None, None)
    """
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return key if len(key) == 32 and base64.b64encode(key).decode() == text else None


def content_digest(content: PlanFile) -> str:
    """Returns the SHA-256 of the plan's content without the digest."""
    bare = msgspec.structs.replace(content, digest="")
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()


def to_json(content: PlanFile) -> bytes:
    """Returns the bytes of the plan file, with the digest."""
    sealed = msgspec.structs.replace(content, digest=content_digest(content))
    return msgspec.json.format(msgspec.json.encode(sealed), indent=1) + b"\n"
