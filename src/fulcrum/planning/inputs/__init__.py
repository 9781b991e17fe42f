"""The inputs of a plan: settings, targets, recipes, weights and the server's rule.

Change this folder for another setting, or another kind of target.

Imports from: base, core, rules, planning.theory.
"""
