"""The content of a plan: figures, advice, and the document of the plan's file.

Change the folder for a further figure, or a further piece of advice.

Imports from: base, core, rules, readers, planning.inputs, planning.theory.
"""
