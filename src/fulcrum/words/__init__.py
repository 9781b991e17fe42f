"""The sentences of several views: verdicts, recipes, numbers, and commands that repeat a plan.

Change this folder for another sentence. Every sentence is a function of figures.

Imports from: base, core, readers, planning.
"""
