"""Who reports to whom: silos, their sizes, the tree of regions above them; read, changed by hand, built in.

Change it for another file format, or another fact about silos. It knows nothing of privacy.

Imports from: base.
"""
