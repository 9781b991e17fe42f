"""The mathematics: what an observer sees, what noise gives against it, and the least noise that is enough.

Change it for another accountant, bound or allocation. Pure functions of arrays and federations; no files.

Imports from: base, federation.
"""
