"""Plans, comparisons, runs and audits as tables in a terminal, and as CSV and JSON.

Change this folder for another column or table.

Imports from: base, core, planning, server, words, simulation, audit, views.charts.
"""
