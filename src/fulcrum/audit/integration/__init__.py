"""The real parts under audit: releases, regional sums, masked sums, masks and engines.

A test of another part belongs here. `evidence` judges the measurements.

Imports from: base, core, aggregation, planning, server, simulation, engines, audit.evidence, audit.replays.
"""
