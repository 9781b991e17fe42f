"""The time of a masked round on NVIDIA FLARE, in plain rounds: the same silos, with masks and with releases sealed.

Eight silos in two regions and a server, mutual TLS on this machine, in one run. A masked round has five stages, and
every stage is a task of NVIDIA FLARE, as a plain round is. Eleven sites share the machine: leave it alone meanwhile.

    python benchmarks/nvflare_masked.py
"""

import sys
from typing import Literal

from _flare_rounds import SIZES, find_payload, seconds_a_round

import fulcrum
from fulcrum.aggregation.masked_group import STAGES

PROMISE = 1.5  # plain rounds a stage
ROUNDS = 6
MEMBERS = {"north": [200, 220, 180, 240], "south": [210, 300, 190, 230]}


def measured(parameters: int, aggregation: Literal["trusted", "masked"]) -> float:
    """Runs the federation once and returns the median time between the ends of two rounds."""
    plan = fulcrum.plan(
        fulcrum.Federation.from_sizes(MEMBERS),
        rounds=ROUNDS,
        epsilon=5.0,
        parameters=parameters,
        purpose="deployment",
        aggregation=aggregation,
    )
    return seconds_a_round(plan)


def main() -> int:
    """Prints both medians and their ratio for each size; fails if a stage takes longer than promised."""
    find_payload()
    longest = 0.0
    for parameters in SIZES:
        plain, masked = measured(parameters, "trusted"), measured(parameters, "masked")
        stage = masked / plain / len(STAGES)
        longest = max(longest, stage)
        print(
            f"{parameters:>9,} parameters: {plain:.2f} s a plain round, "
            f"{masked:.2f} s a masked round, {stage:.2f} plain rounds a stage",
            flush=True,
        )
    print(f"promised: at most {PROMISE} plain rounds a stage")
    return int(longest > PROMISE)


if __name__ == "__main__":
    sys.exit(main())
