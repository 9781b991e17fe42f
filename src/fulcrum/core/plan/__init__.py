"""The plan as data: file, words, checks, signature, and `VerifiedPlan`, the only plan that can release.

Change it for another field of the plan file, or another check of a plan.

Imports from: base, core.
"""
