"""The rule "momentum": the server moves the model by a velocity, a decaying sum of all global sums so far.

Heavy ball (Polyak 1964; at the server of a federation: Hsu, Qi and Brown 2019, "Measuring the effects of non-identical
data distribution"): velocity = beta velocity + global sum, model = model + velocity. beta is 0.9 in every plan: a rule
with a different beta needs a name of its own, so that the name in a plan file fixes the server's step.

>>> rule = MomentumRule(rounds=2)
>>> state = rule.begin(np.zeros(1))
>>> for _ in range(2):
...     state, _ = rule.step(state, RoundSums(values=[np.ones(1)], present=np.ones(2, dtype=bool)))
>>> state.model.tolist(), state.arrays["velocity"].tolist()
([2.9], [1.9])
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.rules.server_rule import PlanFacts, RoundSums, ServerRule, ServerState

BETA = 0.9
"""The share of the velocity that carries over to the next round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentumRule(ServerRule):
    """Moves the model by a velocity; nine tenths of the velocity carry over to the next round.

    A round without sums moves the model by the remaining velocity.

    Attributes:
        rounds: T.
    """

    name: ClassVar[str] = "momentum"
    reads_regions: ClassVar[bool] = False
    clause: ClassVar[str] = f"adds {BETA:g} of its last step to every global sum"
    sentences: ClassVar[str] = (
        f"The server keeps a velocity: {BETA:g} times that of the round before, plus the sums of {{inner}}s added up. "
        "In every round it moves the model by the velocity, so that the noise of early rounds counts more than that of "
        "late ones; the noise budget includes that."
    )
    proviso: ClassVar[str] = "with momentum (scaled to the signal of added-up sums)"

    rounds: int

    @classmethod
    def of(cls, facts: PlanFacts) -> Self:
        """Returns the rule for the rounds of a plan."""
        return cls(rounds=facts.plan.rounds)

    def begin(self, start: FloatArray) -> ServerState:
        """Returns the state with the start model and velocity 0."""
        return ServerState(model=start, arrays={"velocity": np.zeros_like(start)})

    def step(self, state: ServerState, sums: RoundSums) -> tuple[ServerState, None]:
        """Returns the model moved by the new velocity."""
        total = np.reshape(sums.values[0] * sums.unit, state.model.shape)
        velocity = BETA * state.arrays["velocity"] + total
        return ServerState(model=state.model + velocity, arrays={"velocity": velocity}), None

    def noise_factor(self) -> float:
        """Returns T sum a² / (sum a)² over the T rounds, with a(t) = 1 + beta + ... + beta^(t-1).

        The sum of the round with t rounds to go, this round included, enters the final model with factor a(t), noise
        and signal alike. Equal factors, as in the rule "sum", give the least noise for a signal: the result is at
        least 1 (Cauchy and Schwarz).
        """
        # Closed forms of geometric series, not a loop: a plan may have a billion rounds.
        first = BETA * (1 - BETA**self.rounds) / (1 - BETA)
        second = BETA**2 * (1 - BETA ** (2 * self.rounds)) / (1 - BETA**2)
        return self.rounds * (self.rounds - 2 * first + second) / (self.rounds - first) ** 2

    @property
    def key(self) -> bytes:
        """The same bytes for every plan: `step` does not read the number of rounds."""
        return self.name.encode()
