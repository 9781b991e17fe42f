"""Sums of releases: the regional aggregator, the server's side of a masked group, and the tests of norms.

Change this folder for another rule about the content of a sum, or about silos that are missing from a sum.

Imports from: base, core.
"""
