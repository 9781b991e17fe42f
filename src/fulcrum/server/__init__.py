"""The server of a deployed federation: model, rounds, checkpoint, metrics, and the results of a run as a file.

Change it for another rule of what the server keeps of a run.

Imports from: base, core, aggregation, rules, planning.
"""
