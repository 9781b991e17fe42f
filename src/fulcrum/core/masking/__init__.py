"""Secure aggregation on the side of a member: masks, shares, and the answers of a silo in a masked round.

Change the folder for a new protocol, graph of neighbours or stream of masks. The folder decides nothing about the
content of a release: a release is clipped, noised and recorded before the first mask is added.

Imports from: base, core, core.messages, core.noise, core.plan, core.store.
"""
