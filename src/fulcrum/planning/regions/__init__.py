"""The choice of regions: the tree of least noise at a target, within limits, with a proven gap to the optimum.

Change this folder for another limit on regions, or another solver.

Imports from: base, core, rules, readers, planning, planning.theory.
"""
