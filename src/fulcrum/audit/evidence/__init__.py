"""What measurements prove, and what an audit says of them: bounds from guesses, tests of noise, verdicts.

Change it for another test of noise, or another word in an audit's file. It plays no observer and knows no plan.

Imports from: base, core.
"""
