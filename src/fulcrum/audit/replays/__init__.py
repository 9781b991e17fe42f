"""Every observer of a plan, played by replay through the code that makes every release.

Another observer belongs here. `evidence` judges the measurements.

Imports from: base, core, planning, simulation, audit.evidence.
"""
