"""Section "Sensitivity to the assumed coupling": the severe profile at K = 2.2.

"5 for 100" is kappa 5 assumed where 100 holds.
"""

import math
import sys

import numpy as np
from _printed import Printed, Row, main

from fulcrum.planning.theory.leakage import cost_of_coupling
from fulcrum.planning.theory.prior import lateral_floor
from fulcrum.readers.profiles import profile

CEILING = "The largest saturation in the family that the paper considers, that of kappa 100."
NOT_FREE = "Not printed in the paper, which calls overestimating free: it is in nats, not in noise variance."


def rows() -> list[Row]:
    """Returns the overshoots, their ceiling, and the price of overestimating."""
    printed = Printed(__file__)
    sizes = np.bincount(profile("severe").innermost.parent_of)
    found = []
    for assumed in (5, 20):
        cost = cost_of_coupling(sizes, assumed=assumed, true=100, information=2.2)
        found.append(printed.row(f"overshoot, {assumed} for 100, nats", cost.worst_overshoot))
    ceiling = float(lateral_floor(math.inf, coupling=100))
    found.append(printed.row("ceiling of any overshoot, nats", ceiling, CEILING))
    over = cost_of_coupling(sizes, assumed=100, true=20, information=2.2)
    found.append(printed.row("noise, 100 for 20, 60 silos", over.noise_ratio[sizes.argmax()], NOT_FREE))
    return found


if __name__ == "__main__":
    sys.exit(main(__doc__, rows))
