"""Server rules: how the sums of the regions move the model, and what is known of them before the first round.

Change it for another estimator. Everything here is a function of what was released.

Imports from: base, core.
"""
