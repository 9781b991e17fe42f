"""The silo: its site, its policy, and the only way from an update to a release.

Change this folder for another rule about the releases of a silo.

Imports from: base, core, core.masking, core.messages, core.noise, core.plan, core.store, core.training.
"""
