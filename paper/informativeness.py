"""Table "Informativeness of the guarantee across quantisation resolutions".

Entropies of the concentrations that the partitions really hold, over four profiles and all seeds. Nothing is trained.
"""

import sys

import numpy as np
from _experiments import FLOOR, OPTIMAL, PROFILES, UNIFORM, Setting, Study, plan_of, table_main
from _measured import Measured, Measurements

from fulcrum.planning.theory.leakage import finest_resolution, informativeness, quantised_entropy

RESOLUTIONS = (4, 10, 20, 50)


def rows(study: Study) -> list[Measured]:
    """Returns entropy, margin and mechanism term by resolution."""
    printed = Measurements(__file__)
    found = []
    mechanism = max(
        float(plan_of(name, "equal", arm, 0).mechanism_information.max())
        for name in PROFILES
        for arm in (OPTIMAL, UNIFORM)
    )
    for task in study.tasks:
        parts = [study.partition(Setting(task=task, profile=name), seed) for name in PROFILES for seed in study.seeds]
        shares = np.concatenate([part.shares for part in parts])
        fewest = min(float(part.counts.mean()) for part in parts)
        tests = [
            informativeness(
                mechanism=mechanism,
                floor=FLOOR,
                levels=levels,
                entropy=quantised_entropy(shares, levels=levels),
                records=fewest,
            )
            for levels in RESOLUTIONS
        ]
        found += [printed.row(task, f"entropy, R = {test.levels}, nats", test.entropy) for test in tests]
        found += [printed.row(task, f"margin, R = {test.levels}, nats", test.margin) for test in tests]
        found += [
            printed.row(task, "mechanism at most, nats", mechanism),
            printed.row(task, "mechanism over margin, R = 20, %", 100 * mechanism / tests[2].margin),
            printed.check(task, "resolutions that are informative", sum(test.informative for test in tests), 4.0),
            printed.row(task, "lowest concentration", shares.min()),
            printed.row(task, "highest concentration", shares.max()),
            printed.row(task, "silo instances", len(shares)),
            printed.row(task, "records a silo, fewest of a federation", fewest),
            printed.row(task, "finest identifiable R", finest_resolution(fewest)),
        ]
    return found


main = table_main(__doc__, rows)


if __name__ == "__main__":
    sys.exit(main(None))
