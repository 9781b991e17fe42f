"""The command line: arguments in, results out; no maths. A module for every group of commands.

Change this folder for another command or option.

Imports from: base, core, aggregation, readers, planning, server, words, simulation, engines, audit, views.
"""
