"""The embedded engine: training of a plan in a single process with seeded noise, for research.

Change the folder for another way of training.

Imports from: base, core, rules, readers, planning, server.
"""
