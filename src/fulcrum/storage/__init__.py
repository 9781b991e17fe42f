"""Durable files: written whole, or SQLite files that are held, synced, and run no code of their own.

Change it for another way of writing to disk. It knows nothing of what is written.

Imports from: base.
"""
