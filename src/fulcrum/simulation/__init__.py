"""The embedded engine: a plan trained in one process with seeded noise, for research.

Change it for another way of training.

Imports from: base, core, rules, readers, planning, server.
"""
