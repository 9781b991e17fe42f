"""The messages between silo, region and server: layouts, releases, sums and models, and the sealing of releases.

Change this folder for a new message. Other folders decide if a message may be sent: `core.silo` and `aggregation`.

Imports from: base, core, core.plan.
"""
