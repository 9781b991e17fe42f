"""The silo: its site, its policy, its training, and the one way from an update to a release.

Change it for another rule of what a silo releases.

Imports from: base, core, core.masking, core.messages, core.noise, core.plan, core.store.
"""
