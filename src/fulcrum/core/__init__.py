"""The code that a silo runs and trusts: all steps that decide the content of a release, and no further code.

Change the core with care and keep the core small: a test holds its size to a budget. Every folder outside of the core
is a client of the core. The core solves for no allocation, trains no model and draws no picture.

Imports from: base.
"""
