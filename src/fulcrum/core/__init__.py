"""The code that a silo runs and trusts: everything that decides what leaves a silo, and nothing else.

Change it with care, and keep it small: a test holds its size to a budget. Everything outside of this folder is a client
of it. It solves for no allocation, trains nothing and draws no picture.

Imports from: base.
"""
