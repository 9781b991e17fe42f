"""The server's machine on Flower: limits and identities behind the gate, and the record of a run.

Change this folder for another rule of the gate.

Imports from: base, core, server, engines.
"""
