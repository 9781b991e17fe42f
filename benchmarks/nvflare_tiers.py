"""The time that one more level adds to a round on NVIDIA FLARE, in plain rounds: the same regions, with countries.

Eight silos in four regions and a server, without and with two countries between regions and server, mutual TLS on this
machine, in one run. Up to fifteen sites share the machine: leave it alone meanwhile.

    python benchmarks/nvflare_tiers.py
    python benchmarks/nvflare_tiers.py --masked

With `--masked` the sums are masked, and a plain round stays a round with trusted aggregators and without countries.
Under countries the silos seal their answers to their region.
"""

import argparse
import sys
from collections.abc import Iterable
from typing import Literal, TypeAlias

from _flare_rounds import SIZES, find_payload, seconds_a_round

import fulcrum
from fulcrum.aggregation.masked_group import STAGES

Aggregations: TypeAlias = Literal["trusted", "masked"]

PROMISE = 1.0  # plain rounds for one more level
STAGE_PROMISE = 1.5  # plain rounds for a stage of masked sums under countries
ROUNDS = 6
MEMBERS = {"north": [200, 220], "coast": [180, 240], "south": [210, 300], "hills": [190, 230]}
COUNTRIES = {"east": ["north", "coast"], "west": ["south", "hills"]}


def measured(parameters: int, rounds: int, *, countries: bool, aggregation: Aggregations = "trusted") -> float:
    """Runs the federation once and returns the median time between the ends of two rounds."""
    outer = {"country": COUNTRIES} if countries else None
    plan = fulcrum.plan(
        fulcrum.Federation.from_sizes(MEMBERS, outer=outer),
        rounds=rounds,
        epsilon={"region": 8.0, "country": 5.0} if countries else 8.0,
        parameters=parameters,
        purpose="deployment",
        aggregation=aggregation,
    )
    return seconds_a_round(plan)


def masked(sizes: Iterable[int], rounds: int) -> int:
    """Prints masked rounds beside a plain round, without and with countries; fails if a stage takes too long."""
    dearest = 0.0
    for parameters in sizes:
        plain = measured(parameters, rounds, countries=False)
        flat, deep = (
            measured(parameters, rounds, countries=countries, aggregation="masked") for countries in (False, True)
        )
        dearest = max(dearest, stage := deep / len(STAGES) / plain)
        print(
            f"{parameters:>9,} parameters: {plain:.2f} s a plain round, {flat:.2f} s masked, {deep:.2f} s masked with "
            f"countries, {stage:.2f} plain rounds a stage, {(deep - flat) / plain:.2f} for the level",
            flush=True,
        )
    print(f"promised: at most {STAGE_PROMISE:g} plain rounds for a stage")
    return int(dearest > STAGE_PROMISE)


def main() -> int:
    """Prints both medians and the cost of the level for each size; fails if the level costs more than promised."""
    parser = argparse.ArgumentParser(description="Measures what one more level adds to a round on NVIDIA FLARE.")
    parser.add_argument("--parameters", type=int, action="append", help="a size of the model; may be given again")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of every run, from 3 (default {ROUNDS})")
    parser.add_argument("--masked", action="store_true", help="measure masked sums")
    options = parser.parse_args()
    find_payload()
    if options.masked:
        return masked(options.parameters or SIZES, options.rounds)
    dearest = 0.0
    for parameters in options.parameters or SIZES:
        plain, deep = (measured(parameters, options.rounds, countries=countries) for countries in (False, True))
        level = deep / plain - 1
        dearest = max(dearest, level)
        print(
            f"{parameters:>9,} parameters: {plain:.2f} s a plain round, "
            f"{deep:.2f} s with countries, {level:.2f} plain rounds for the level",
            flush=True,
        )
    print(f"promised: at most {PROMISE:g} plain rounds for one more level")
    return int(dearest > PROMISE)


if __name__ == "__main__":
    sys.exit(main())
