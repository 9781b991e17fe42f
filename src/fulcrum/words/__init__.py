"""Sentences that more than one view shows: verdicts, recipes, numbers, and commands that make a plan again.

Change it for another sentence. Each sentence is a function of figures.

Imports from: base, core, readers, planning.
"""
