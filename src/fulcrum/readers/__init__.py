"""Federations from files, tables and names: read, checked, changed by hand, written.

Change this folder for a new file format, or a new fact about silos. No module here knows of privacy.

Imports from: base, core.
"""
