"""What one silo has spent, on disk before anything is sent.

Change it for another rule of what a silo may release. It knows plans by their digests alone.

Imports from: base, storage.
"""
