"""Results in notebooks: plans, comparisons, runs and audits as HTML and as data frames.

Change this folder for another result in a notebook.

Imports from: base, planning, words, simulation, audit, views, views.charts, views.terminal.
"""
