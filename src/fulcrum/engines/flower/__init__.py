"""Plans on Flower: a user's app runs under a plan, and the server gets masked sums and no single release.

A mod precedes the app at every silo, and a strategy runs at the server; the masking is `fulcrum.core.masking`.

Imports from: base, core, planning, server, engines, engines.flower.kits, engines.flower.server_side.
"""
