"""The plan as data: file, words, checks, signature, and `VerifiedPlan`, the only plan that can release.

Change this folder for a new field of the plan file, or a new check of a plan.

Imports from: base, core.
"""
