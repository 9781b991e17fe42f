"""JAX Privacy's auditor on the scores of canary games: epsilon by Clopper and Pearson, one line of JSON for each file.

Its `epsilon_from_gdp` is left out: on pure noise it reports an epsilon far above 0.
"""

import json
import sys
import time

import numpy as np
from jax_privacy.auditing import CanaryScoreAuditor, Split

for path in sys.argv[1:]:
    with np.load(path) as given:
        scores, positive, delta = given["scores"], given["positive"], float(given["delta"])
    began = time.process_time()
    found = [
        float(
            CanaryScoreAuditor(row[sign], row[~sign]).epsilon_clopper_pearson(
                0.05 / len(scores), delta=delta, one_sided=False, threshold_strategy=Split(seed=0)
            )
        )
        for row, sign in zip(scores, positive, strict=True)
    ]
    print(json.dumps({"epsilon": found, "seconds": time.process_time() - began}))
