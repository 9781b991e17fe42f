"""The commands that run a plan: training in process, deployment on an engine, audit.

Change this folder for another command that trains or attacks.

Imports from: base, core, readers, planning, server, words, simulation, engines, audit, views, cli.shared_options.
"""
