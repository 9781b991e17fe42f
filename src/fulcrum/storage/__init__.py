"""Durable files: written whole, or SQLite files that are held, synced, and know how far their log goes.

Change it for another way of writing to disk. It knows nothing of what is written.

Imports from: base.
"""
