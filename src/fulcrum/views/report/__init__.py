"""The report: an HTML file to read, print and sign, with the answers for a registry.

Change this folder for another part of the report.

Imports from: base, core, planning, server, words, audit, views, views.charts, views.terminal.
"""
