"""The records that simulated silos train on: read, checked, embedded, parted among silos.

Change it for another kind of data, or another partition.

Imports from: base, core.
"""
