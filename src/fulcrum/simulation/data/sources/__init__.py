"""Records from sources: tables, images and texts, with the columns, ranges and features of the records.

Change this folder for another kind of source.

Imports from: base, core.
"""
