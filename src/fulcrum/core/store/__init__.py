"""Durable files: written whole, or SQLite files that are held and synced; and the ledger of what a silo has spent.

Change it for another way of writing to disk, or another rule of what a ledger records.

Imports from: base.
"""
