"""The data of a plan, in arrays: nothing here solves, prints or writes.

`VerifiedPlan` is this data once every check has held; it is the only type that lets something leave a silo. The plan
that `fulcrum.plan` returns is this data with figures. Figures of the data are functions in `fulcrum.core.plan.figures`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fulcrum.arrays import FloatArray
from fulcrum.core.choices import Accountant, AggregationName, Bound, Injection, Purpose, ServerName, Shrink
from fulcrum.core.privacy_unit import SILO_UNIT, PrivacyUnit
from fulcrum.core.topology import Topology


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanData:
    """Settings and noise of a plan.

    Attributes:
        federation: Who reports to whom, and the weight of every silo.
        rounds: T, the number of releases of each silo.
        delta: The DP parameter.
        reserve: The part of delta that lattice noise costs; accountants work with the rest.
        accountant: The way from noise to epsilon.
        epsilon_target: By tier, the epsilon that was asked for.
        required_multiplier: By tier, the effective multiplier that the targets ask of each silo, or one of all.
        information: The bound in nats that was asked for, on what is learned of a silo's class concentration.
        bound: The way from noise to information.
        floor: By silo, the lateral floor in nats, where one was given.
        coupling: The coupling behind the floor, where one was given.
        budget: The noise variance that was to be spent, in units of C², where it stood in for a target.
        colluders: Silos of each region that may share their noise with an observer.
        dropouts: Silos of each region that may be missing from a sum.
        parameters: d, the number of trainable parameters, where given.
        clip_norm: C.
        clip_share: The share of C at which an update is clipped before it is scaled up to C; 1 clips alone.
        allocation: The name of the rule that distributed the noise.
        seed: For allocations that draw.
        injection: The side that draws the noise: silos, or trusted aggregators.
        aggregation: The way sums are made: by trusted aggregators, or masked.
        server: The rule by which the server moves the model.
        shrink: The models of which a pooling server takes off noise.
        weights_rule: The rule behind the weights, or the way from sizes (0) to least noise (1).
        least_influence: The part of its share by size that every region has of the model at least.
        influence_mix: The part of the regions' weights that is by share, so that each region has that much.
        rule_weights: By region, its weight by the rule alone; None where no shares are mixed in.
        absent_regions: True where a round goes on without a region that has no sum.
        noise_multiplier: By silo, in federation order: the silo adds N(0, (noise_multiplier * clip_norm)²) to each
            coordinate of its clipped update. All zero where aggregators draw the noise.
        aggregator_noise_multiplier: By region, where aggregators draw the noise: that on the weighted sum, over C.
        purpose: Research, or deployment.
        unit: The unit of privacy: which federations are neighbours, and how far a clipped update moves between them.
        spent: By tier, the squared shift (mu²) that each silo had spent before this plan; empty for a first plan.
        moved: By silo that changed its region since the plan before, the region it was in.
        keys: Public keys by silo and region name.
    """

    federation: Topology
    rounds: int
    delta: float
    reserve: float = 0.0
    accountant: Accountant
    epsilon_target: Mapping[str, float] = field(default_factory=dict)
    required_multiplier: Mapping[str, float | FloatArray]
    information: float | None = None
    bound: Bound = "paper"
    floor: FloatArray | None = None
    coupling: float | None = None
    budget: float | None = None
    colluders: int = 0
    dropouts: int = 0
    parameters: int | None = None
    clip_norm: float = 1.0
    clip_share: float = 1.0
    allocation: str
    seed: int = 0
    injection: Injection = "silo"
    aggregation: AggregationName = "trusted"
    server: ServerName = "sum"
    shrink: Shrink = False
    weights_rule: str | float = "sizes"
    least_influence: float = 0.0
    influence_mix: float = 0.0
    rule_weights: FloatArray | None = None
    absent_regions: bool = False
    noise_multiplier: FloatArray
    aggregator_noise_multiplier: FloatArray | None = None
    purpose: Purpose = "research"
    unit: PrivacyUnit = SILO_UNIT
    spent: Mapping[str, FloatArray] = field(default_factory=dict)
    moved: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def weights(self) -> FloatArray:
        """The weight of each silo in the sums; all weights add up to 1."""
        return self.federation.weights
