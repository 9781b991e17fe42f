"""Attacks on silos and their records, from sums of real training.

Another attack on the training data of silos belongs here.

Imports from: base, core, planning, simulation, audit.evidence, audit.integration, audit.replays.
"""
