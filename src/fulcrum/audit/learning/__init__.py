"""What is learned of silos and their records from sums of real training.

Change it for another attack on what silos train on.

Imports from: base, core, planning, simulation, audit.evidence, audit.integration, audit.replays.
"""
