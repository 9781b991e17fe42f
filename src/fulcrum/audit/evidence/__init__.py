"""Evidence of measurements, and the verdicts of an audit: bounds from guesses, tests of noise, verdicts.

Another test of noise, or another field of an audit's file, belongs here. The folder plays no observer and imports no
plan.

Imports from: base, core.
"""
