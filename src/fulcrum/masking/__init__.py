"""Secure aggregation: a group's sum without anybody seeing a member's own part, whatever engine carries the messages.

Change it for another protocol, graph of neighbours or stream of masks. It decides nothing about what is released.

Imports from: base, storage, federation, privacy, planning, noise, exchange.
"""
