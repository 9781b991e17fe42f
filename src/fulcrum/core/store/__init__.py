"""Durable files, written whole or kept by SQLite under a lock; and the ledger of a silo's releases and costs.

Change this folder for a new way of writing to disk, or a new rule of the ledger.

Imports from: base.
"""
