"""The command line: arguments in, results out; no maths. One module for each group of commands.

Change it for another command or option.

Imports from: base, core, aggregation, readers, planning, server, words, simulation, engines, audit, views.
"""
