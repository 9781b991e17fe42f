"""The plan: a target turned into noise for every silo, with what it promises in figures and words; its file.

Change it for another kind of target, another field of the plan file, another check of a plan.

Imports from: base, storage, federation, privacy, estimation.
"""
