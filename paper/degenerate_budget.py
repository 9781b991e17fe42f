"""Section "Formulating the problem": the unweighted budget, the sum of sigma², is degenerate.

Least noise by linear program on the clinical structure, whose first region holds 9930, 3163 and 2691 records.
"""

import sys

import numpy as np
from _printed import Printed, Row, main
from scipy.optimize import linprog

import fulcrum
from fulcrum.readers.profiles import profile

CONCENTRATED = "The cheapest sum of sigma² puts a region's whole noise on its heaviest member."
EQUAL = "The weighted budget does not see the difference: it is the noise that enters the model."
BARE = "Silos that add no noise of their own, and have no guarantee against their aggregator."
DEARER = "What the paper's allocation costs by the unweighted budget, over the cheapest by it."


def rows() -> list[Row]:
    """Returns where the least unweighted noise goes, and what each budget says of it."""
    printed = Printed(__file__)
    federation = profile("isic-paper")
    even = fulcrum.allocate(federation, fulcrum.Requirement(multiplier={"region": 1.0})) ** 2
    mass = federation.weights**2
    region_of = federation.membership("region")
    summed = (region_of == np.arange(federation.node_count("region"))[:, None]) * mass
    # Every region must hold the noise that the paper's allocation gives it: sum of w² sigma² >= S.
    solved = linprog(np.ones(len(federation)), A_ub=-summed, b_ub=-summed @ even)
    least = np.asarray(solved.x)
    first = region_of == 0
    heaviest = int(np.argmax(mass))
    share = mass[heaviest] * least[heaviest] / (mass[first] @ least[first])
    return [
        printed.row("noise on the heaviest silo, %", 100 * share, CONCENTRATED),
        printed.row("even over concentrated, weighted", (mass @ even) / (mass @ least), EQUAL),
        Row(quantity="even over concentrated, unweighted", ours=float(even.sum() / least.sum()), note=DEARER),
        Row(quantity="silos left bare, of six", ours=float((least <= 1e-9).sum()), note=BARE),
    ]


if __name__ == "__main__":
    sys.exit(main(__doc__, rows))
