"""The file format of a plan, `fulcrum.plan/1`: versioned JSON that says what was promised, to whom, against whom.

The schema is the types below; an epsilon of null means that there is no guarantee (infinite). Epsilons are rounded up, never
down; noise multipliers are written in full. The digest covers every other byte, so a changed file is noticed.

>>> round_up(0.98999999999), round_up(0.9900001)
(0.99, 0.990001)
"""

import hashlib
import math
import os
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import PlanError

FORMAT = "fulcrum.plan/1"

_DIGITS = 6  # significant digits of an epsilon, after rounding up

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
    clip_norm: float
    accountant: str
    allocation: str
    seed: int
    injection: str
    colluders: int
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


class NodeEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One sum that an observer of a tier sees; `noise_multiplier` is the noise in it over the clip norm."""

    name: str
    parent: str | None
    silos: int
    exposure: float
    noise_multiplier: float
    epsilon_worst: Epsilon


class SiloEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One silo: its place, its noise, and its epsilon against an observer of each tier."""

    silo: str
    records: int | float
    node: str
    noise_multiplier: float
    epsilon: dict[str, Epsilon]
    preference: float | None = None
    group: str | None = None


class PlanFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A whole plan."""

    format: str
    made_by: str
    federation: FederationEntry
    settings: Settings
    guarantee: Guarantee
    summary: Summary
    tiers: dict[str, list[NodeEntry]]
    silos: list[SiloEntry]
    advice: list[str]
    digest: str = ""


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
    return content


def write_whole(path: str | Path, data: bytes) -> None:
    """Writes a file so that it is there whole or not at all; what stood there stays until then."""
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            mask = os.umask(0)
            os.umask(mask)
            Path(temporary).chmod(0o666 & ~mask)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise PlanError(f"{path} cannot be written: {error.strerror}. Nothing was changed there") from None


def round_up(value: float) -> float:
    """Returns the value at six significant digits, never below it."""
    if value == 0 or not math.isfinite(value):
        return value
    digits = _DIGITS - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    return rounded if rounded >= value else round(value + 10.0**-digits, digits)


def epsilon_entries(epsilon: FloatArray) -> list[Any]:
    """Returns epsilons for the file: rounded up, and None where there is no guarantee."""
    values, where = np.unique(epsilon, return_inverse=True)
    entries = [epsilon_entry(value) for value in values.tolist()]
    return [entries[index] for index in where.tolist()]


def epsilon_entry(epsilon: float) -> Epsilon:
    """Returns one epsilon for the file."""
    return round_up(epsilon) if math.isfinite(epsilon) else None
