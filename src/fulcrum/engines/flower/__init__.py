"""Plans on Flower: an app of the user's runs under a plan, and the server gets masked sums and nothing finer.

A mod stands before the app at every silo, a strategy at the server; the masking is that of `fulcrum.core.masking`.

Imports from: base, core, aggregation, planning, server, engines.
"""
