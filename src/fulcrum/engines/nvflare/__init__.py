"""Plans on NVIDIA FLARE: silos, regional aggregators and server as processes of their own.

The components take no arguments. A site reads its task from its own folder (`fulcrum.core.silo.site`): a job can start
a site and cannot steer it.

Imports from: base, core, aggregation, planning, server, engines, engines.nvflare.kits, engines.nvflare.site_jobs.
"""
