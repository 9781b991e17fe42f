"""The real parts under audit: releases, regional sums, masked sums, masks and engines.

Change it for a test of another part. What it measures, `evidence` judges.

Imports from: base, core, aggregation, planning, server, simulation, engines, audit.evidence, audit.replays.
"""
