"""What an audit says: for every observer what was measured beside what is claimed, a verdict, and why.

Verdicts, the gravest first:

- `VIOLATED`: the claim is broken, with the confidence stated. Nothing may be released until it is known why.
- `LOOSER`: the claim holds with room to spare against the attacks made here. Less noise may do.
- `CONSISTENT`: nothing that was measured speaks against the claim. It proves nothing: another attack may do better.

One audit makes many tests. All bounds and verdicts of an audit hold together: the chance that an audit of a mechanism
that keeps its claims says `VIOLATED` anywhere is at most one minus the confidence, whatever the number of tests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import DataError
from fulcrum.parsing import json_of

VIOLATED, LOOSER, CONSISTENT = "violated", "looser than needed", "consistent"
VERDICTS = (VIOLATED, LOOSER, CONSISTENT)
"""The gravest first."""

FORMAT = "fulcrum.audit/1"
AUDIT_FILE = "audit.json"

PROVES_NOTHING = (
    "A bound that was not broken is not proven by that: these are the strongest attacks known to this software, "
    "and another may do better."
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured against one observer.

    Attributes:
        attack: What was done: "canary", or another attack's name.
        tier: Where the observer stands.
        node: Whose sums it sees, or whose silo.
        observer: Who it is.
        silo: Whom it attacks.
        colluders: Silos of each region that hand it their updates and noise.
        missing: Silos of each region that are missing from the sums.
        stated: The epsilon that the plan states; None is no guarantee.
        exact: The epsilon of its noise, tight; None is no guarantee.
        renyi: The same by the paper's Theorem 1.
        assumption_free: A lower bound on epsilon that assumes nothing.
        gaussian: A lower bound on epsilon, assuming a Gaussian trade-off.
        reach: What this observer does not reach beyond.
        noise_ratio: The noise width measured, over that of the plan; None where there is none to measure.
        trials: Replays that were counted.
        verdict: One of `VERDICTS`.
        reasons: Why, in sentences; empty where nothing speaks against the claim.
    """

    attack: str = "canary"
    tier: str
    node: str
    observer: str
    silo: str
    colluders: int = 0
    missing: int = 0
    stated: float | None
    exact: float | None
    renyi: float | None
    assumption_free: float | None
    gaussian: float | None
    reach: float | None
    noise_ratio: float | None
    trials: int
    verdict: str
    reasons: list[str]

    @property
    def measured(self) -> float | None:
        """The larger lower bound; None where there is none."""
        found = [bound for bound in (self.assumption_free, self.gaussian) if bound is not None]
        return max(found, default=None)


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A test of what something real drew: the noise of releases or of an engine's sums, or masks.

    Attributes:
        of: What was tested.
        node: The region, the silo, or the kind of mask.
        values: How many coordinates, or masks.
        noise_ratio: The noise width measured, over that of the plan; None for masks.
        verdict: One of `VERDICTS`.
        reasons: Why.
    """

    of: str
    node: str
    values: int
    noise_ratio: float | None
    verdict: str
    reasons: list[str]


class PropertyFinding(msgspec.Struct, frozen=True, kw_only=True):
    """How well a silo's class concentration was estimated.

    Attributes:
        node: Its region.
        silo: Whose concentration.
        arm: Under which plan, or without privacy.
        weights: What silos count for there.
        server: What the server does with the sums there.
        noise: Whether there is any.
        observer: What the observer knew: `floor` the concentrations of the silo's group and no update, `sums` the sums
            of its region, `all` every other silo's records besides.
        error: The root of the mean squared error.
        blind_error: That of an observer who always says the mean of the prior.
        nats_at_least: What the estimate proves to have been learned.
        nats_at_most: The bound: nats that the releases add, and the floor of the prior that concentrations were drawn
            from; for `floor` the floor alone. None where there is no noise, and so no bound.
        shadows: Federations that were trained for it.
        verdict: `VIOLATED` or `CONSISTENT`.
    """

    node: str
    silo: str
    arm: str
    weights: str
    server: str
    noise: bool
    observer: str
    error: float
    blind_error: float
    nats_at_least: float
    nats_at_most: float | None
    shadows: int
    verdict: str


class RecordFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What the observer inside learns of one of a silo's records, knowing all its others.

    Attributes:
        node: Its region.
        silo: Whose record.
        epsilon: The plan's, inside; it covers the silo's whole dataset.
        allowed: How often that epsilon lets an observer tell two datasets apart; None is no guarantee.
        right_at_least: How often it told a record from another, at least.
        right_at_most: And at most, this observer.
        resemblance: The cosine of the record that it reconstructs and the true one.
        bare_resemblance: The same without noise.
        trials: Games that were played.
        verdict: `VIOLATED` or `CONSISTENT`.
    """

    node: str
    silo: str
    epsilon: float | None
    allowed: float | None
    right_at_least: float
    right_at_most: float
    resemblance: float
    bare_resemblance: float
    trials: int
    verdict: str


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """All that an audit found.

    Attributes:
        format: `fulcrum.audit/1`.
        version: Of Fulcrum.
        plan_digest: The plan.
        federation: Its name.
        purpose: Of the plan.
        aggregation: "trusted" where aggregators see single updates, "masked" where the server gets sums alone.
        delta: At which epsilons hold.
        rounds: Over which they do.
        confidence: With which all bounds and verdicts hold together.
        tests: How many tests that was corrected for.
        trials: Replays of each game, the pilot included.
        seed: Of signs, and of noise in research.
        seconds: How long it took.
        findings: By game and observer.
        probes: Tests of what real parts drew.
        properties: What was learned of silos' class concentrations.
        records: What was learned of single records.
        notes: What a reader must know.
        command: The command that made it; empty where none did.
    """

    format: str = FORMAT
    version: str
    plan_digest: str
    federation: str
    purpose: str
    aggregation: str = "trusted"
    delta: float
    rounds: int
    confidence: float
    tests: int
    trials: int
    seed: int
    seconds: float
    findings: list[Finding]
    probes: list[Probe] = []
    properties: list[PropertyFinding] = []
    records: list[RecordFinding] = []
    notes: list[str] = []
    command: str = ""

    @property
    def verdict(self) -> str:
        """The gravest verdict of all."""
        learned = [*(one.verdict for one in self.properties), *(one.verdict for one in self.records)]
        return gravest([*(one.verdict for one in self.findings), *(one.verdict for one in self.probes), *learned])

    def every_row(self) -> list[dict[str, Any]]:
        """Returns all that was found as rows of one table, under the names of the file; `kind` says what a row is of.

        A row has no value in the columns of other kinds.
        """
        kinds: dict[str, Sequence[msgspec.Struct]] = {
            "observer": self.findings,
            "noise": self.probes,
            "concentration": self.properties,
            "record": self.records,
        }
        rows = [{"kind": kind, **msgspec.to_builtins(one)} for kind, found in kinds.items() for one in found]
        return [row | {"reasons": " ".join(row.get("reasons", ()))} for row in rows]

    def summary(self) -> dict[str, Any]:
        """Returns what a file or a program needs to know."""
        return {"verdict": self.verdict, **msgspec.to_builtins(self)}


@dataclass(slots=True, kw_only=True)
class Reasons:
    """Why a verdict is what it is, gathered test by test."""

    violated: list[str] = field(default_factory=list)
    looser: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """What they come to."""
        return VIOLATED if self.violated else LOOSER if self.looser else CONSISTENT

    @property
    def sentences(self) -> list[str]:
        """Those of the verdict."""
        return list(self.violated or self.looser)


_KINDS = (Finding, Probe, PropertyFinding, RecordFinding)

EVERY_COLUMN = ("kind", *dict.fromkeys(name for kind in _KINDS for name in kind.__struct_fields__))
"""The columns of `Audit.every_row`."""


def gravest(verdicts: list[str]) -> str:
    """Returns the gravest of some verdicts."""
    return min(verdicts, key=VERDICTS.index, default=CONSISTENT)


def finite(value: float) -> float | None:
    """Returns a number, or None for what JSON has no word for."""
    return value if math.isfinite(value) else None


def save_audit(audit: Audit, folder: Path) -> Path:
    """Writes audit.json into a folder and returns where it is."""
    target = folder / AUDIT_FILE
    write_whole(target, msgspec.json.format(msgspec.json.encode(audit.summary()), indent=1) + b"\n")
    return target


def read_audit(path: Path) -> Audit:
    """Reads what `save_audit` wrote; `path` is the file or its folder."""
    where = path / AUDIT_FILE if path.is_dir() else path
    try:
        found = json_of(where.read_bytes(), Audit)
    except OSError as error:
        raise DataError("audit.file-unreadable", file=where, reason=error.strerror) from None
    except msgspec.MsgspecError as error:
        raise DataError("audit.file-malformed", file=where, reason=str(error)) from None
    if found.format != FORMAT:
        raise DataError("audit.file-format", file=where, format=found.format, expected=FORMAT)
    return found
