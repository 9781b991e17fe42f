"""What silo, region and server do, whatever engine carries their messages.

Change it for another rule of what a silo releases, a region sums or a server adds up.

Imports from: base, storage, federation, privacy, planning, noise, ledger, exchange.
"""
