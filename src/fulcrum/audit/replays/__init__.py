"""Every observer of a plan, played by replay through the code that makes every release.

Change it for another observer. What it measures, `evidence` judges.

Imports from: base, core, planning, simulation, audit.evidence.
"""
