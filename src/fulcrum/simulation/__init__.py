"""The embedded engine: a plan trained in one process with seeded noise, for research.

Change it for other data, another partition, another model.

Imports from: base, storage, federation, privacy, estimation, planning, noise.
"""
