"""The planner: a target turned into noise for every silo, with figures, advice, variants and comparisons.

Change this folder for another kind of target, or another piece of advice.

Imports from: base, core, rules, readers.
"""
