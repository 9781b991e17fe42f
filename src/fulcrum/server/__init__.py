"""The server of a deployed federation: model, rounds, checkpoint, metrics, and the results of a run as a file.

Change this folder for a new rule on the files that a server keeps of a run.

Imports from: base, core, aggregation, rules, planning.
"""
