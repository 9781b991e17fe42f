"""The member's side of secure aggregation: masks, shares, and the answers of a silo in a masked round.

Change it for another protocol, graph of neighbours or stream of masks. It decides nothing about what is released.

Imports from: base, core, core.messages, core.noise, core.plan, core.store.
"""
