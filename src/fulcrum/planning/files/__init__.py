"""Plans as files for others: the content of a plan file, differences between files, exports to other tools.

Change it for another export.

Imports from: base, core, rules, planning.
"""
