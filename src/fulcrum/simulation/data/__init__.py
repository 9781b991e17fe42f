"""The records that simulated silos train on: reading, checks, embedding, and division among silos.

Change the folder for another kind of data, or another partition.

Imports from: base, core, readers, simulation.data.sources.
"""
