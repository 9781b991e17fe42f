"""Plans on NVIDIA FLARE: silos, regional aggregators and server as processes of their own.

The components take no arguments. A site reads from its own folder (`fulcrum.core.silo.site`) what it does, so a job can
start it and cannot steer it.

Imports from: base, core, aggregation, planning, server, engines.
"""
