"""What people see: numbers in words, tables in the terminal, charts, the report, the page.

Change it for another picture of a plan. It computes nothing that a plan does not say.

Imports from: base, federation, privacy, planning, simulation, audit.
"""
