"""The protocol of a server rule: the function by which the server moves the model by the sums of a round.

A rule is a single file: a class with a name, `of`, `begin` and `step`, entered in `fulcrum.rules.rule_registry`.
Planner, simulation, coordinator, checkpoint, audit and views look the rule up by the name in the plan file.

>>> from fulcrum.rules.rule_registry import rule_named
>>> rule_named("sum").adds_up, rule_named("random-effects").adds_up
(True, False)

A rule is post-processing: a rule reads released sums, and facts of the plan that are public before the first round. No
silo's privacy rests on a rule, and no silo imports a rule. Silos count the rule "sum" as reading the global sum alone,
and all further rules as reading the sum of every region: `figures.outermost_complete_tier`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from fulcrum.arrays import BoolArray, FloatArray
from fulcrum.core.plan.plan_data import PlanData

RESERVED = frozenset({"model", "state", "classes", "file", "allow_pickle"})
"""Names for the checkpoint itself and for NumPy's `savez`: a rule's state must not use these names."""


class PlanFacts(Protocol):
    """The public facts of a plan that a server knows before the first round."""

    @property
    def plan(self) -> PlanData:
        """The plan: rounds, clip norm, weights, noise multipliers, and all further settings."""

    @property
    def shares(self) -> FloatArray:
        """By region, the share of all records, or of all silos if sizes are not declared; shares add up to 1."""

    @property
    def weight(self) -> FloatArray:
        """By region, the sum of the silos' weights."""

    @property
    def variance(self) -> FloatArray:
        """By region, the variance of the noise in a coordinate of the regional sum."""

    @property
    def least_noise(self) -> float:
        """The noise budget of the least-noise weights: variance in the model in one round, in squared clip norms."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerState:
    """The state of a server between two rounds: the whole input of the next round besides the sums.

    Attributes:
        model: The global model.
        arrays: Float64 arrays by name, as in a checkpoint; names and shapes stay those of `begin`. Names are
            identifiers outside of `RESERVED`.
        numbers: Numbers by name, as in a checkpoint. The rule for names is that of `arrays`.
    """

    model: FloatArray
    arrays: Mapping[str, FloatArray] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def finite(self) -> bool:
        """True if all numbers of the state are finite, as a next round needs."""
        rows = (row for array in (self.model, *self.arrays.values()) for row in (array if array.ndim > 1 else [array]))
        return all(np.isfinite(row).all() for row in rows) and bool(np.isfinite(list(self.numbers.values())).all())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundSums:
    """The sums of a round, as input of a server rule.

    Attributes:
        values: By region, in the model's shape or as a row; zeros for a region without a sum. A rule with
            `reads_regions = False` gets a single entry, the global sum of all present regions.
        present: By region, True if the round has the region's sum.
        weight: By region, the total weight of the silos in the sum; None if all silos are in the sums.
        variance: By region, the variance of the noise in a coordinate of the sum; None if all silos are in the sums.
        unit: The factor of `values`, such as the step of the lattice.
        classes: The number of classes of a softmax head, the length of the last axis; None for any further model.
        spare: By name of `ServerRule.reused`, memory that `step` may take for the array of the new state: for large
            models the allocation of new memory takes longer than the arithmetic.
    """

    values: Sequence[np.ndarray[Any, Any]] | FloatArray
    present: BoolArray
    weight: FloatArray | None = None
    variance: FloatArray | None = None
    unit: float = 1.0
    classes: int | None = None
    spare: Mapping[str, FloatArray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDiagnostics:
    """The figures of a round for people, computed from released sums alone: the figures cost no privacy.

    Attributes:
        heard: The number of regions with a sum.
        step: The factor of the round's sums in the estimate.
        signal: The norm of the estimate, less the part of the noise; 0 if noise explains the whole norm.
        noise: The expected norm of the noise in the estimate.
        heterogeneity: t², the variance of regional effects in a coordinate, beyond the noise.
        shrunk: The share of the estimate's norm that shrinkage took off.
    """

    heard: int
    step: float
    signal: float
    noise: float
    heterogeneity: float
    shrunk: float


class ServerRule(Protocol):
    """A rule by which a server moves the model; a class that inherits from `ServerRule` gets the defaults.

    Every rule keeps the following terms, and `tests/rules/test_rule_conformance.py` checks all registered rules:

    - the same facts, states and sums give the same bits, in every process;
    - `step` does not write to the arguments, except to `RoundSums.spare`;
    - the state is whole: a state after a checkpoint was written and read back gives the same bits as the state before;
    - an absent region has zeros for a sum, and the zeros change no result;
    - model and arrays keep the shapes that `begin` gave.

    Attributes:
        name: In the plan file and on the command line: small letters, digits and hyphens, beginning with a letter.
        adds_up: True for "sum" alone: the model moves by the global sum, and the state is the model.
        reads_regions: True if `step` needs the sum of every region; False if the global sum is enough.
        takes_shrink: True if the rule reads the plan's setting `shrink`.
        reused: Names of state arrays, as large as all sums together, that `step` writes anew as a whole.
        clause: The words after "the server ..." in a clause.
        sentences: The same for a report, in sentences; `{inner}` stands for the word for a region.
        proviso: The condition, in words with `{inner}` as above, under which influence and noise have the plan's
            figures; empty if they always have.
    """

    name: ClassVar[str]
    adds_up: ClassVar[bool] = False
    reads_regions: ClassVar[bool] = True
    takes_shrink: ClassVar[bool] = False
    reused: ClassVar[tuple[str, ...]] = ()
    clause: ClassVar[str]
    sentences: ClassVar[str] = ""
    proviso: ClassVar[str] = "if sums were added up"

    @classmethod
    def of(cls, facts: PlanFacts) -> Self:
        """Returns the rule for a plan."""

    def check_model(self, shapes: Sequence[tuple[int, ...]], classes: int | None) -> None:  # noqa: ARG002, none is needed
        """Raises `ParameterError` for a model that the rule cannot move; by default every model is allowed.

        Args:
            shapes: The shapes of the model's arrays, in order.
            classes: The number of classes of a softmax head; None for any further model.
        """
        return

    def begin(self, start: FloatArray) -> ServerState:
        """Returns the state before the first round; does not write to `start`, the model."""

    def step(self, state: ServerState, sums: RoundSums) -> tuple[ServerState, RoundDiagnostics | None]:
        """Returns the state after a round, and the figures of the round, if the rule has figures."""

    def can_be(self, state: ServerState) -> bool:
        """Returns False for a state of the right shapes that no run can reach: such a checkpoint is refused."""
        return state.finite

    def region_factors(self) -> FloatArray | None:
        """Returns by region the factor of the sum in the model: influences then add up to 1. None for factors 1."""
        return None

    def noise_factor(self) -> float:
        """Returns the variance of the model's noise after all rounds, over the variance under the rule "sum".

        Both models have moved equally far, by sums that are the same in all rounds.
        """
        return 1.0

    @property
    def key(self) -> bytes:
        """Bytes that are equal for server rules with equal results: training runs once for equal bytes.

        By default every instance has bytes of its own.
        """
        return id(self).to_bytes(8)
