"""Plans on Flower: a mod for any ClientApp, a strategy for any ServerApp, and federations of their own.

    ClientApp(mods=[fulcrum_mod])      # fulcrum.engines.flower.silo
    FulcrumStrategy(site)              # fulcrum.engines.flower.server

The server gets masked sums and nothing finer; see `fulcrum.masking`.

Imports from: base, storage, planning, masking, roles, simulation, engines.
"""
