"""Plans on NVIDIA FLARE: silos, regional aggregators and server as processes of their own.

The components take no arguments: what a site does, it reads from its own folder (`fulcrum.roles.site`), so a job can
start it and cannot steer it.

Imports from: base, storage, planning, exchange, roles, simulation, engines.
"""
