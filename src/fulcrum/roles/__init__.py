"""What silo, region and server do, whatever engine carries their messages.

Change it for another rule of what a silo releases, a region sums or a server makes of the sums.

Imports from: base, storage, federation, privacy, estimation, planning, noise, ledger, exchange, masking.
"""
