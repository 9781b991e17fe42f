"""The result of an audit: for every observer the measured and the claimed epsilon, a verdict, and the reasons.

Verdicts, the gravest first:

- `VIOLATED`: the claim is broken, with the confidence stated. Release nothing until the cause is known.
- `LOOSER`: the claim holds with room to spare against the attacks of this audit. Less noise may suffice.
- `CONSISTENT`: no measurement contradicts the claim. The verdict proves nothing: another attack may do better.

An audit makes many tests. All bounds and verdicts of an audit hold together: for a mechanism that keeps its claims, the
chance of any `VIOLATED` is at most one minus the confidence, for every number of tests.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import DataError
from fulcrum.notebook_display import NotebookDisplay
from fulcrum.parsing import json_of
from fulcrum.regular_files import regular_file

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
    """The measurement against one observer.

    Attributes:
        attack: Name of the attack: "canary", or another name.
        tier: The observer's tier.
        node: The node whose sums the observer sees, or the silo's node.
        observer: Name of the observer.
        silo: The silo under attack.
        further: Further silos with records of the canary person.
        colluders: Silos of every region that give the observer their updates and noise.
        missing: Silos of every region that are missing from the sums.
        stated: The epsilon that the plan states; None is no guarantee.
        exact: The tight epsilon of the plan's noise; None is no guarantee.
        renyi: The epsilon by the paper's Theorem 1.
        assumption_free: A lower bound on epsilon without assumptions.
        gaussian: A lower bound on epsilon, assuming a Gaussian trade-off.
        reach: An upper bound on the epsilon that this observer reaches.
        noise_ratio: The measured noise width over the plan's; None without noise to measure.
        trials: Counted replays.
        verdict: An element of `VERDICTS`.
        reasons: Reasons for the verdict, in sentences; empty if no measurement contradicts the claim.
    """

    attack: str = "canary"
    tier: str
    node: str
    observer: str
    silo: str
    further: list[str] = []
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
    def lower_bound(self) -> float | None:
        """The larger lower bound on epsilon; None without a bound."""
        bounds = [bound for bound in (self.assumption_free, self.gaussian) if bound is not None]
        return max(bounds, default=None)

    def __getattr__(self, name: str) -> Any:
        """Answers the earlier name of `lower_bound`, with a warning."""
        if name != "measured":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        warnings.warn("Finding.measured goes with version 0.3. Use lower_bound", DeprecationWarning, stacklevel=2)
        return self.lower_bound


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A test of real parts: the noise of releases or of an engine's sums, masks, or a silo's sum of persons.

    Attributes:
        of: The part under test.
        node: The region, the silo, or the kind of mask.
        values: Number of coordinates, of masks or of persons.
        noise_ratio: The measured noise width over the plan's; None without noise to measure.
        verdict: An element of `VERDICTS`.
        reasons: Reasons for the verdict.
        fault: The name of a fault of a silo's sum of persons; empty without a fault.
    """

    of: str
    node: str
    values: int
    noise_ratio: float | None
    verdict: str
    reasons: list[str]
    fault: str = ""


class PropertyFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The accuracy of an observer's estimate of a silo's class concentration.

    Attributes:
        node: The silo's region.
        silo: The silo whose concentration is estimated.
        arm: Name of the plan, or of the variant without privacy.
        weights: The weights rule of the variant.
        server: The server rule of the variant.
        noise: True if the variant has noise.
        observer: The observer's knowledge: `floor` the concentrations of the silo's group and no update, `sums` the
            sums of the region, `all` in addition every other silo's records.
        error: The root of the mean squared error.
        blind_error: The same error for an observer who always answers the mean of the prior.
        nats_at_least: Lower bound on the information that the estimate proves.
        nats_at_most: The bound: nats of the releases, plus the information floor of the prior of the concentrations;
            for `floor` the information floor alone. None without noise, since no bound exists then.
        shadows: Federations that were trained for the estimate.
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
    """The knowledge that the observer inside gains of a single record, given all other records of the silo.

    Attributes:
        node: The silo's region.
        silo: The silo that holds the record.
        epsilon: The plan's epsilon inside, which covers the silo's whole dataset.
        allowed: The rate at which that epsilon lets an observer tell two datasets apart; None is no guarantee.
        right_at_least: Lower bound on the rate at which the observer told a record from another.
        right_at_most: Upper bound on the rate of this observer.
        resemblance: The cosine of the reconstructed record and the true record.
        bare_resemblance: The same without noise.
        trials: Number of games.
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


class Audit(NotebookDisplay, msgspec.Struct, frozen=True, kw_only=True):
    """All results of an audit.

    Attributes:
        format: `fulcrum.audit/1`.
        version: Version of Fulcrum.
        plan_digest: Digest of the plan.
        federation: Name of the federation.
        purpose: Purpose of the plan.
        aggregation: "trusted" if aggregators see single updates, "masked" if the server gets sums alone.
        unit: The word for the unit of privacy, such as "silo", "person" or "patient".
        relation: The change that leads from a federation to its neighbours.
        delta: The delta of all epsilons.
        rounds: The rounds that all epsilons cover.
        confidence: The confidence with which all bounds and verdicts hold together.
        tests: The number of tests that the errors are corrected for.
        trials: Replays of a game, including the pilot.
        seed: Seed of signs, and of noise in research.
        seconds: Duration of the audit.
        findings: Results by game and observer.
        probes: Tests of the draws of real parts.
        properties: Estimates of silos' class concentrations.
        records: Attacks on single records.
        notes: Limits of the audit, for the reader.
        command: The command that made the audit; empty without a command.
    """

    format: str = FORMAT
    version: str
    plan_digest: str
    federation: str
    purpose: str
    aggregation: str = "trusted"
    unit: str = "silo"
    relation: str = ""
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
        results: list[Finding | Probe | PropertyFinding | RecordFinding] = [
            *self.findings,
            *self.probes,
            *self.properties,
            *self.records,
        ]
        return gravest([result.verdict for result in results])

    def __repr__(self) -> str:
        """Returns plan, verdict and size of the audit in a line."""
        return (
            f"<{type(self).__name__} of {self.federation!r}: {self.verdict}, {len(self.findings)} observers, "
            f"{self.trials:,} replays of each game, plan {self.plan_digest[:12]}>"
        )

    def every_row(self) -> list[dict[str, Any]]:
        """Returns all results as rows of one table, under the names of the file; `kind` is the kind of the row.

        A row has no value in the columns of other kinds.
        """
        kinds: dict[str, Sequence[msgspec.Struct]] = {
            "observer": self.findings,
            "noise": self.probes,
            "concentration": self.properties,
            "record": self.records,
        }
        rows = [{"kind": kind, **msgspec.to_builtins(result)} for kind, results in kinds.items() for result in results]
        return [row | {"reasons": " ".join(row.get("reasons", ()))} for row in rows]

    def summary(self) -> dict[str, Any]:
        """Returns the verdict and all fields as plain data."""
        return {"verdict": self.verdict, **msgspec.to_builtins(self)}


@dataclass(slots=True, kw_only=True)
class Reasons:
    """The reasons for a verdict as sentences, gathered test by test.

    Attributes:
        violated: Reasons for the verdict that the plan's guarantee is violated.
        looser: Reasons for the verdict that the noise is wider than the plan says.
    """

    violated: list[str] = field(default_factory=list)
    looser: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The gravest verdict that has a reason."""
        return VIOLATED if self.violated else LOOSER if self.looser else CONSISTENT

    @property
    def sentences(self) -> list[str]:
        """The reasons for the verdict."""
        return list(self.violated or self.looser)


_KINDS = (Finding, Probe, PropertyFinding, RecordFinding)

EVERY_COLUMN = ("kind", *dict.fromkeys(name for kind in _KINDS for name in kind.__struct_fields__))
"""The columns of `Audit.every_row`."""


def gravest(verdicts: list[str]) -> str:
    """Returns the gravest of some verdicts."""
    return min(verdicts, key=VERDICTS.index, default=CONSISTENT)


def finite(value: float) -> float | None:
    """Returns a number, or None for a number that JSON cannot express."""
    return value if math.isfinite(value) else None


def save_audit(audit: Audit, folder: Path) -> Path:
    """Writes audit.json into a folder and returns the file's path."""
    target = folder / AUDIT_FILE
    write_whole(target, msgspec.json.format(msgspec.json.encode(audit.summary()), indent=1) + b"\n")
    return target


def read_audit(path: Path) -> Audit:
    """Reads a file of `save_audit`; `path` is the file or the folder."""
    where = path / AUDIT_FILE if path.is_dir() else path
    try:
        audit = json_of(regular_file(where).read_bytes(), Audit)
    except OSError as error:
        raise DataError("audit.file-unreadable", file=where, reason=error.strerror) from None
    except msgspec.MsgspecError as error:
        raise DataError("audit.file-malformed", file=where, reason=str(error)) from None
    if audit.format != FORMAT:
        raise DataError("audit.file-format", file=where, format=audit.format, expected=FORMAT)
    return audit
