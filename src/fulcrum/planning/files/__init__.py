"""Plan files: the content of a plan file, differences between files, exports to tools, keys and signatures.

Change this folder for another export.

Imports from: base, core, rules, planning, planning.theory.
"""
