"""The rounds in which each silo takes part, if membership changes and all rosters are fixed before the first release.

Two silos take part in all four rounds, a third silo from round 3 on:

>>> rosters = Rosters.of_stays([[(1, 4, 1)], [(1, 4, 1)], [(3, 4, 1)]], 4)
>>> rosters.phase_of_round.tolist(), rosters.lengths.tolist(), rosters.present[0].tolist()
([0, 0, 1, 1], [2.0, 2.0], [True, True, False])

A phase is the set of all rounds with the same roster, adjacent or not. The rosters are public: a plan states them, and
they are part of the digest of its federation.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from fulcrum.arrays import BoolArray, FloatArray, IntArray, read_only
from fulcrum.errors import FederationError

Stay = tuple[int, int, int]
"""The first round, the last round, and k for every k-th round from the first on.

A federation may have a last round of 0 for the end of any plan. The planner replaces the 0 by the plan's last round:
rosters and plan files have no other meaning for a stay than its three numbers.
"""

MOST_SCHEDULED_ROUNDS = 100_000
"""The most rounds of a plan whose membership changes: a round every hour for eleven years.

Rosters list every round, and a plan file of 4 KB can name 10^9 of them.
"""

MOST_CELLS = 100_000_000
"""The most silos times phases of a schedule, one byte each."""


MOST_LOST = 100
"""The most colluders and dropouts of a region together, where membership changes.

Verification looks at so many silos in every phase, and a small file could otherwise cost a silo minutes and gigabytes.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rosters:
    """The roster of every round.

    Attributes:
        phase_of_round: By round, from round 1 on, the number of the phase, in the order of first rounds.
        present: By phase and silo, True if the silo takes part.
    """

    phase_of_round: IntArray
    present: BoolArray

    @classmethod
    def of_stays(cls, stays: Sequence[Sequence[Stay]], rounds: int) -> Self:
        """Returns the rosters of stays by silo over the rounds of a plan.

        Raises:
            FederationError: A stay is empty, overlaps the stay before, or lies beyond the rounds; a silo has no stay;
                there are too many rounds.
        """
        if rounds > MOST_SCHEDULED_ROUNDS:
            raise FederationError("schedule.rounds-many", rounds=rounds, most=MOST_SCHEDULED_ROUNDS)
        numbers: dict[tuple[Stay, ...], int] = {}
        pattern_of = np.array([numbers.setdefault(tuple(listed), len(numbers)) for listed in stays])
        if len(numbers) * rounds > MOST_CELLS:
            raise FederationError("schedule.too-large", silos=len(numbers), phases=rounds, most=MOST_CELLS)
        patterns = np.zeros((len(numbers), rounds), dtype=bool)
        for listed, number in numbers.items():
            ended = 0
            for first, last, every in listed:
                if not (ended < first <= last <= rounds and every >= 1):
                    silo = int(np.argmax(pattern_of == number)) + 1
                    raise FederationError(
                        "schedule.stay-invalid", number=silo, first=first, last=last, every=every, rounds=rounds
                    )
                patterns[number, first - 1 : last : every] = True
                ended = last
            if not listed:
                raise FederationError("schedule.silo-without-rounds", number=int(np.argmax(pattern_of == number)) + 1)
        phases: dict[bytes, int] = {}
        columns = np.packbits(patterns.T, axis=1)
        phase_of_round = np.array([phases.setdefault(column.tobytes(), len(phases)) for column in columns])
        if len(phases) * len(stays) > MOST_CELLS:
            raise FederationError("schedule.too-large", silos=len(stays), phases=len(phases), most=MOST_CELLS)
        starts = np.unique(phase_of_round, return_index=True)[1]
        by_phase = np.ascontiguousarray(patterns[:, starts].T)
        return cls(
            phase_of_round=read_only(phase_of_round.astype(np.intp)),
            present=read_only(by_phase.take(pattern_of, axis=1)),
        )

    @property
    def rounds(self) -> int:
        """The number of rounds of the schedule."""
        return len(self.phase_of_round)

    @property
    def lengths(self) -> FloatArray:
        """By phase, the number of rounds."""
        return np.bincount(self.phase_of_round).astype(np.float64)

    def phase(self, round_number: int) -> int:
        """Returns the phase of a round, from 1."""
        return int(self.phase_of_round[round_number - 1])

    def has(self, silo: int, round_number: int) -> bool:
        """Returns True if the silo at a place in the federation takes part in a round."""
        return bool(self.present[self.phase(round_number), silo])

    @property
    def digest(self) -> bytes:
        """The SHA-256 over the phase of every round and the roster of every phase."""
        sha = hashlib.sha256(self.phase_of_round.astype("<i8").tobytes())
        sha.update(np.packbits(self.present, axis=1).tobytes())
        return sha.digest()
