"""What Fulcrum adds to a round on NVIDIA FLARE: the same federation with it, and bare, in one run.

Six silos in three regions and a server, mutual TLS on this machine, the same messages between the same sites. Bare, a
silo sends its update as it is and a region adds; with Fulcrum it is clipped, perturbed, charged to the ledger on disk,
sealed, opened, checked, and its region's sum stored.

Ten sites share the machine that it runs on, so anything else that runs there falls on some rounds and not on others:
leave it alone meanwhile.

    python benchmarks/nvflare_overhead.py
"""

import os
import re
import statistics
import sys

from _flare_rounds import SIZES, find_payload, server_log

import fulcrum

PROMISE = 1.3  # for the head of the digits, and for a large model with every site on one machine
ROUNDS = 12
REPEATS = 2
MEMBERS = {"north": [200, 220], "mid": [180, 240, 210], "south": [300]}


def measured(parameters: int, *, bare: bool) -> list[float]:
    """Runs the federation once and returns how long each round took, the first left out."""
    plan = fulcrum.plan(
        fulcrum.Federation.from_sizes(MEMBERS), rounds=ROUNDS, epsilon=5.0, parameters=parameters, purpose="deployment"
    )
    os.environ["FULCRUM_BARE"] = "1" if bare else ""
    return [float(found) for found in re.findall(r"Round \d+ finished in ([\d.]+) seconds", server_log(plan))][1:]


def main() -> int:
    """Prints both medians and their ratio for each size; fails if one is above what is promised."""
    find_payload()
    ratios = []
    for parameters in SIZES:
        found: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(REPEATS):
            for bare in (True, False):
                found[bare] += measured(parameters, bare=bare)
        without, with_fulcrum = (statistics.median(found[bare]) for bare in (True, False))
        ratio = with_fulcrum / without
        ratios.append(ratio)
        print(
            f"{parameters:>9,} parameters: {without:.2f} s a round bare, {with_fulcrum:.2f} s with Fulcrum, "
            f"{ratio:.2f} times"
        )
    print(f"promised: at most {PROMISE} times")
    return int(max(ratios) > PROMISE)


if __name__ == "__main__":
    sys.exit(main())
