"""Other ways to keep the promise of a plan, compared: allocations, weights, variants.

Change this folder for another comparison.

Imports from: base, core, readers, planning, planning.content, planning.inputs, planning.theory.
"""
