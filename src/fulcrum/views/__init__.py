"""The views of a plan: tables in the terminal, charts, the report, the page.

Change this folder for another picture of a plan. A view computes no figure of its own.

Imports from: base, core, rules, readers, planning, server, words, simulation, audit.
"""
