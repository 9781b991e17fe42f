"""What real parts draw: releases, regional and masked sums, masks, runs on every engine; tested with known updates.

Change it for another part whose noise is tested, or another engine. Scratch files alone: no silo's ledger is opened.

Imports from: base, planning, noise, ledger, exchange, masking, roles, simulation, engines, audit.evidence,
audit.replays.
"""
