"""Sums of releases: the regional aggregator, the server's side of a masked group, and the tests of norms.

Change it for another rule of what is summed, or who may be missing from a sum.

Imports from: base, core.
"""
