"""What people see: tables in the terminal, charts, the report, the page.

Change it for another picture of a plan. It computes nothing that a plan does not say.

Imports from: base, core, rules, readers, planning, server, words, simulation, audit.
"""
