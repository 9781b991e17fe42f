"""Table "Per-silo epsilon by region": the severe profile, 10 rounds, delta 1e-5, worst case 0.99.

The paper prints epsilon against an observer above the regions. What a curious aggregator inside one learns is added.
"""

import sys

import numpy as np
from _printed import Printed, Row, main

import fulcrum

INSIDE = "Not printed in the paper: an observer inside the region meets a silo's own noise alone."


def rows() -> list[Row]:
    """Returns epsilon by region, allocation and observer, and the means over silos."""
    printed = Printed(__file__)
    uniform, optimal = (
        fulcrum.plan("severe", rounds=10, delta=1e-5, epsilon=0.99, accountant="renyi", allocation=allocation)
        for allocation in ("uniform", "optimal")
    )
    first = np.unique(uniform.federation.innermost.parent_of, return_index=True)[1]  # silos of a region are equal
    regions = ["60", "20", "8", "4 (a)", "4 (b)"]
    found: list[Row] = []
    for name, made in (("uniform", uniform), ("optimal", optimal)):
        above = made.epsilon_above
        found += [printed.row(f"{name}, region of {m}", above[k]) for m, k in zip(regions, first, strict=True)]
        found.append(printed.row(f"{name}, mean over silos", above.mean()))
    spread = uniform.epsilon_above.max() / uniform.epsilon_above.min()
    found.append(printed.row("uniform, largest over smallest", spread))
    found.append(printed.row("uniform, aggregator", uniform.epsilon_inside.max(), INSIDE))
    inside = optimal.epsilon_inside
    found += [
        printed.row(f"optimal, aggregator of {m}", inside[k], INSIDE) for m, k in zip(regions, first, strict=True)
    ]
    return found


if __name__ == "__main__":
    sys.exit(main(__doc__, rows))
