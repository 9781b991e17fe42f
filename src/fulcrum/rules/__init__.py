"""Server rules: functions by which the server moves the model from the sums of the regions.

Change this folder for a new estimator. A rule reads released sums and public facts of the plan, no data of silos.

Imports from: base, core.
"""
