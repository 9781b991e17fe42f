"""The mathematics of planning: allocation, weights, information bounds, the information floor.

Change this folder for another allocation or bound. Pure functions of arrays and federations; no files.

Imports from: base, core.
"""
