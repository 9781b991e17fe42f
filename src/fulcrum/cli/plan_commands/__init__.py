"""The commands on plans and federations: make, compare, describe, sign and show.

Change this folder for another command without training.

Imports from: base, core, aggregation, readers, planning, server, words, simulation, engines, audit, views,
cli.shared_options.
"""
