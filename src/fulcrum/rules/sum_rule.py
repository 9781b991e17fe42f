"""The rule "sum", the paper's Algorithm 1: the server moves the model by the added sums of the regions."""

from typing import ClassVar, Self

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.rules.server_rule import PlanFacts, RoundSums, ServerRule, ServerState


class SumRule(ServerRule):
    """Adds regional sums up: the only rule whose model, as silos count it, reveals no more than the global sum."""

    name: ClassVar[str] = "sum"
    adds_up: ClassVar[bool] = True
    reads_regions: ClassVar[bool] = False
    clause: ClassVar[str] = "adds regional sums up"
    sentences: ClassVar[str] = "The server adds the sums of {inner}s up."
    proviso: ClassVar[str] = ""

    @classmethod
    def of(cls, facts: PlanFacts) -> Self:  # noqa: ARG003, none is needed
        """Returns the rule, the same for every plan."""
        return cls()

    def begin(self, start: FloatArray) -> ServerState:
        """Returns the model alone."""
        return ServerState(model=start)

    def step(self, state: ServerState, sums: RoundSums) -> tuple[ServerState, None]:
        """Returns the model moved by the global sum."""
        return ServerState(model=state.model + np.reshape(sums.values[0] * sums.unit, state.model.shape)), None

    @property
    def key(self) -> bytes:
        """The same for every plan."""
        return b""
