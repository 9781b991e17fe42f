"""The rounds of silos in words, for plans whose membership changes.

>>> from dataclasses import replace
>>> from fulcrum.planning.planner import plan
>>> from fulcrum.readers.federation import Federation
>>> federation = replace(Federation.from_sizes({"north": [4, 3]}), stays=(((1, 0, 1),), ((3, 0, 1),)))
>>> phase_words(plan(federation, rounds=4, epsilon=1.0))
'rounds 1-2: 1 silo; rounds 3-4: 2 silos'
"""

from collections.abc import Iterable

import numpy as np

from fulcrum.core.phase_noise import rosters_of
from fulcrum.core.rosters import Stay
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.scheduling import least_multiplier
from fulcrum.readers.schedule_file import stays_by_silo

_PHASES_SHOWN, _RUNS_SHOWN = 8, 12


def rounds_text(stays: Iterable[Stay]) -> str:
    """Returns stays in the words of a schedule file.

    >>> rounds_text([(1, 1, 1), (3, 9, 3)])
    '1 3-9/3'
    """
    return " ".join(
        f"{first}" if first == last else f"{first}-{last}" + (f"/{every}" if every > 1 else "")
        for first, last, every in stays
    )


def rounds_by_silo(plan: Plan) -> list[str]:
    """Returns by silo the rounds in which the silo takes part."""
    return [rounds_text(stays) for stays in stays_by_silo(rosters_of(plan.federation))]


def noise_by_silo(plan: Plan) -> list[str]:
    """Returns by silo the noise multiplier, from the least to the largest of the silo's rounds."""
    if plan.phase_multiplier is None:
        return [f"{multiplier:.6g}" for multiplier in plan.noise_multiplier.tolist()]
    least = least_multiplier(plan.federation, plan.phase_multiplier).tolist()
    pairs = zip(least, plan.noise_multiplier.tolist(), strict=True)
    return [f"{low:.6g}" if f"{low:.6g}" == f"{high:.6g}" else f"{low:.6g} to {high:.6g}" for low, high in pairs]


def phase_words(plan: Plan) -> str:
    """Returns the phases of a plan: rounds with the same roster, and the number of silos."""
    rosters = rosters_of(plan.federation)
    listed = []
    for phase, present in enumerate(rosters.present[:_PHASES_SHOWN]):
        rounds = (np.flatnonzero(rosters.phase_of_round == phase) + 1).tolist()
        count, noun = int(present.sum()), "round" if len(rounds) == 1 else "rounds"
        listed.append(f"{noun} {_runs(rounds)}: {count} {'silo' if count == 1 else 'silos'}")
    more = len(rosters.present) - len(listed)
    return "; ".join(listed) + (f"; and {more} more phases" if more else "")


def _runs(rounds: list[int]) -> str:
    """Returns rounds as runs.

    >>> _runs([1, 2, 3, 7])
    '1-3, 7'
    """
    there = set(rounds)
    starts = [number for number in rounds if number - 1 not in there]
    ends = [number for number in rounds if number + 1 not in there]
    runs = [(first, last, 1) for first, last in zip(starts, ends, strict=True)]
    more = len(runs) - _RUNS_SHOWN
    return rounds_text(runs[:_RUNS_SHOWN]).replace(" ", ", ") + (f" and {more:,} more" if more > 0 else "")
