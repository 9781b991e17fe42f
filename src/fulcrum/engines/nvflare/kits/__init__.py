"""Kits for the sites of NVIDIA FLARE, their start on one machine, and the administrator's console.

Change this folder for another file of a kit.

Imports from: aggregation, base, core, planning, server, engines, engines.nvflare.site_jobs.
"""
