"""The data of a plan, in arrays: no method solves, prints or writes.

`VerifiedPlan` is the same data after every check has held, and the only type that lets a release leave a silo. The plan
that `fulcrum.plan` returns is the data with figures. Figures of the data are functions in `fulcrum.core.plan.figures`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.choices import Accountant, AggregationName, Bound, Injection, Purpose, ServerName, Shrink
from fulcrum.core.plan.plan_file import Spectrum
from fulcrum.core.privacy_unit import SILO_UNIT, PrivacyUnit
from fulcrum.core.topology import Topology


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanData:
    """Settings and noise of a plan.

    Attributes:
        federation: The tree of silos and regions, with weights.
        rounds: T, the number of releases of a silo.
        delta: The DP parameter.
        reserve: The part of delta that lattice noise costs; accountants work with the rest.
        accountant: The way from noise to epsilon.
        epsilon_target: By tier, the target for epsilon.
        required_multiplier: By tier, the effective multiplier that the targets require, by silo or the same for all.
        information: The target in nats for the information about a silo's class concentration, or None.
        bound: The way from noise to information.
        floor: By silo, the information floor in nats, or None.
        coupling: The coupling behind the floor, or None.
        budget: The noise budget in place of a target, in units of C², or None.
        colluders: Silos of every region that may share their noise with an observer.
        dropouts: Silos of every region that may be missing from a sum.
        parameters: d, the number of trainable parameters, or None.
        clip_norm: C.
        clip_share: The share of C at which an update is clipped before it is scaled up to C; 1 clips alone.
        allocation: The name of the rule that divided the noise among silos.
        seed: For allocations that draw.
        injection: The side that draws the noise: silos, or trusted aggregators.
        aggregation: The way of adding releases: by trusted aggregators, or masked.
        server: The rule by which the server moves the model.
        shrink: The models from which a pooling server removes noise.
        spectrum: The public input variances of the spectrum prior; None under every other shrinkage.
        weights_rule: The rule behind the weights, or the way from sizes (0) to least noise (1).
        least_influence: The least influence of every region, as a part of the region's share by size.
        disputed_influence: The same while the sums show that regions oppose each other, if larger.
        influence_mix: The part of the regions' weights that is by share, to reach the least influence.
        rule_weights: By region, the weight by the rule alone; None where no shares are mixed in.
        absent_regions: True where a round continues without a region that has no sum.
        noise_multiplier: By silo, in federation order: the silo adds N(0, (noise_multiplier * clip_norm)²) to each
            coordinate of its clipped update. All zero where aggregators draw the noise.
        aggregator_noise_multiplier: By region, the aggregator's noise on the weighted sum, over C; None where silos
            draw the noise.
        phase_multiplier: Where membership changes, by phase and region the noise multiplier of every silo that takes
            part; `noise_multiplier` is then the largest of a silo's phases, and no release draws by it. None where all
            silos take part in all rounds.
        prices: Where membership changes, by observer (above, inside) and silo the price that proves how near the noise
            is to the least; no release rests on prices.
        purpose: Research, or deployment.
        unit: The unit of privacy: the neighbouring relation, and the sensitivity of a clipped update.
        persons_per_silo: The declared number of persons of each silo, where the federation declares no sizes.
        silo_clip: The largest sum of a silo's clipped gradients, in clip norms; None: the declared number of persons.
        silo_epsilon: With a unit within silos, the target for a silo as a whole against an observer of the innermost
            tier; None without such a target.
        spent: By tier and silo, the squared shift (mu²) spent before this plan; empty for a first plan.
        moved: By silo with another region in the plan before, the earlier region.
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
    spectrum: Spectrum | None = None
    weights_rule: str | float = "sizes"
    least_influence: float = 0.0
    disputed_influence: float = 0.0
    influence_mix: float = 0.0
    rule_weights: FloatArray | None = None
    absent_regions: bool = False
    noise_multiplier: FloatArray
    aggregator_noise_multiplier: FloatArray | None = None
    phase_multiplier: FloatArray | None = None
    prices: FloatArray | None = None
    purpose: Purpose = "research"
    unit: PrivacyUnit = SILO_UNIT
    persons_per_silo: float | None = None
    silo_clip: float | None = None
    silo_epsilon: float | None = None
    spent: Mapping[str, FloatArray] = field(default_factory=dict)
    moved: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def weights(self) -> FloatArray:
        """The weights in the sums, by silo: of the silo's update or, if persons are protected, of one gradient."""
        return self.federation.weights

    @property
    def largest_sums(self) -> FloatArray:
        """By silo, the largest norm of the update before the weight, in clip norms: 1 if silos are protected.

        If persons are protected, a silo adds up one clipped gradient for each person. The sum is scaled down to the
        declared number of persons, or to `silo_clip`: scaling to a ball is a projection, and no difference grows.
        """
        persons = self.federation.persons
        if persons is None:
            return np.ones(len(self.federation))
        return persons if self.silo_clip is None else np.minimum(persons, self.silo_clip)

    @property
    def is_deployment(self) -> bool:
        """True if releases are on a lattice with cryptographic noise, and charged to ledgers."""
        return self.purpose == "deployment"

    @property
    def is_research(self) -> bool:
        """True if releases are floating point with seeded noise, which protects nobody."""
        return self.purpose == "research"

    @property
    def is_masked(self) -> bool:
        """True if the server gets sums alone; False if aggregators are trusted to see single updates."""
        return self.aggregation == "masked"

    @property
    def silos_draw_noise(self) -> bool:
        """True if silos draw the noise; False if trusted aggregators do."""
        return self.injection == "silo"
