"""The report: one HTML file to read, print and sign, with the answers that a registry asks for.

Change it for another part of the report.

Imports from: base, core, planning, server, words, audit, views, views.charts, views.terminal.
"""
