"""The protocol of a server rule: how a server moves the model by the sums of a round.

A rule is one file: a class with a name, `of`, `begin` and `step`, entered in `fulcrum.rules.rule_registry`. Planner,
simulation, coordinator, checkpoint, audit and views take it from there by the name that the plan file carries.

>>> from fulcrum.rules.rule_registry import rule_named
>>> rule_named("sum").adds_up, rule_named("random-effects").adds_up
(True, False)

A rule is post-processing: it reads released sums, and facts of the plan that are public before the first round. So no
silo's privacy rests on it, and no silo imports it. Silos know of the rule "sum" that it reads the global sum alone, and
count every other rule as one that may read the sum of each region: `figures.outermost_complete_tier`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from fulcrum.arrays import BoolArray, FloatArray
from fulcrum.core.plan.plan_data import PlanData

RESERVED = frozenset({"model", "state", "classes", "file", "allow_pickle"})
"""Names that a checkpoint, or the function of NumPy that writes it, has for itself: none is in a rule's state."""


class PlanFacts(Protocol):
    """The facts that a server knows of a plan before the first round, all of them public."""

    @property
    def plan(self) -> PlanData:
        """The plan: rounds, clip norm, weights, noise multipliers, and all other settings."""

    @property
    def shares(self) -> FloatArray:
        """By region, its share of all records, or of all silos where sizes are not declared; they add up to 1."""

    @property
    def weight(self) -> FloatArray:
        """By region, the sum of its silos' weights."""

    @property
    def variance(self) -> FloatArray:
        """By region, the variance of the noise in each coordinate of its sum."""

    @property
    def least_noise(self) -> float:
        """The noise variance that the least-noise weights would have, over the squared clip norm."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServerState:
    """The state of a server between two rounds: all that the next round goes on from.

    Attributes:
        model: The global model.
        arrays: Float64 arrays by name, as a checkpoint keeps them; their names and shapes stay as `begin` gives them.
            Names are identifiers, and none is `RESERVED`.
        numbers: Numbers by name, as a checkpoint keeps them. Names are as those of arrays.
    """

    model: FloatArray
    arrays: Mapping[str, FloatArray] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def finite(self) -> bool:
        """True where a next round can go on from this state."""
        rows = (row for array in (self.model, *self.arrays.values()) for row in (array if array.ndim > 1 else [array]))
        return all(np.isfinite(row).all() for row in rows) and bool(np.isfinite(list(self.numbers.values())).all())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundSums:
    """The sums of one round, as a server rule gets them.

    Attributes:
        values: By region, in the model's shape or in one row; zeros where a region has no sum. A rule with
            `reads_regions = False` gets one entry, the global sum of the regions that are present.
        present: By region, True where its sum is there.
        weight: By region, of the silos that are in its sum; None where all of them are.
        variance: By region, of the noise in each coordinate of its sum; None where all silos are in it.
        unit: The factor of `values`, such as the step of their lattice.
        classes: Of a softmax head, whose last axis they are; None for a model of which nothing is known.
        spare: By name of `ServerRule.reused`, memory that `step` may take for the array of the new state: for large
            models new memory takes longer to come by than all the rest.
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
    """The figures that a server can tell of a round, from released sums alone, so that they cost no privacy.

    Attributes:
        heard: Regions that were heard.
        step: How far the model follows what was said in this round.
        signal: The norm of the estimate, less its noise's part; 0 where noise explains all of it.
        noise: The norm that the noise in the estimate has.
        heterogeneity: t², how much regions differ in a coordinate beyond their noise.
        shrunk: The share of the estimate's norm that was taken off.
    """

    heard: int
    step: float
    signal: float
    noise: float
    heterogeneity: float
    shrunk: float


class ServerRule(Protocol):
    """A rule by which a server moves the model; a class that inherits from it gets the defaults.

    Every rule keeps to these terms, and `tests/rules/test_rule_conformance.py` holds all registered rules to them:

    - the same facts, states and sums give the same bits, in whatever process;
    - `step` writes to nothing that it is given, but for `RoundSums.spare`;
    - the state is whole: one that was written to a checkpoint and read back gives the same bits as one that was not;
    - a region that is not present has zeros for its sum, and changes nothing by them;
    - model and arrays keep the shapes that `begin` gave them.

    Attributes:
        name: In the plan file and on the command line: small letters, digits and hyphens, from a letter on.
        adds_up: True for "sum" alone: the model moves by the global sum, and the state is the model.
        reads_regions: True where `step` needs the sum of each region; False where the global sum is enough.
        takes_shrink: True where the plan's setting `shrink` says something to the rule.
        reused: Names of arrays of the state that `step` writes anew as a whole, and that are as large as all sums.
        clause: The words after "the server ..." in one clause.
        sentences: The same for a report, in sentences; `{inner}` stands for the word for a region.
        proviso: The condition under which influence and noise have the figures that the plan states, in words, with
            `{inner}` as above; empty where they always have.
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

    def begin(self, start: FloatArray) -> ServerState:
        """Returns the state before the first round; `start` is the model, and is not written to."""

    def step(self, state: ServerState, sums: RoundSums) -> tuple[ServerState, RoundDiagnostics | None]:
        """Returns the state after a round, and the figures that can be told of the round, where the rule has any."""

    def can_be(self, state: ServerState) -> bool:
        """Returns False for a state, of the right shapes, that no run comes to: a checkpoint of it is refused."""
        return state.finite

    def region_factors(self) -> FloatArray | None:
        """Returns by region the factor of its sum in the model, so that influences add up to 1; None for ones."""
        return None

    def noise_factor(self) -> float:
        """Returns the variance of the model's noise after all rounds over that of a model that adds up.

        Both models have moved equally far by sums that are alike in all rounds.
        """
        return 1.0

    @property
    def key(self) -> bytes:
        """The same for rules that do the same, which are then trained once; by default each is taken for its own."""
        return id(self).to_bytes(8)
