"""The messages between silo, region and server: layouts, releases, sums, models, and how they are sealed.

Change it for another message. It decides nothing about what may be sent.

Imports from: base, core, core.plan.
"""
