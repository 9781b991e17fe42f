"""Federations from files, tables and names: read, checked, changed by hand, written.

Change it for another file format, or another fact about silos. It knows nothing of privacy.

Imports from: base, core.
"""
