"""What is learned of silos and their records from sums of real training.

Change it for another attack on what silos train on.

Imports from: base, federation, privacy, planning, noise, roles, simulation, audit.evidence, audit.replays,
audit.real_parts.
"""
