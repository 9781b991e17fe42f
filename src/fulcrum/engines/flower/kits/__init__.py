"""Kits for the sites of a Flower federation: folders, certificates, the app as files, and all sites on one machine.

Change this folder for another file of a kit.

Imports from: base, core, aggregation, planning, server, engines, engines.flower.server_side.
"""
