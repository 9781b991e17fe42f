"""The rule for the keys of a roster: all X25519 keys differ, between members and within a member.

Silos refuse a roster against the rule. The server applies the rule to every answer, since a member with two equal keys
would otherwise stop every attempt of the group.
"""

from fulcrum.core.masking.masking_messages import PublicKeys
from fulcrum.errors import ExchangeError


class DistinctKeys:
    """The public keys of a round's members so far, all different, with the member that sent each key."""

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}

    def add(self, silo: str, keys: PublicKeys) -> None:
        """Adds the two keys of a member.

        Raises:
            ExchangeError: The two keys are equal, or a member has sent a key before. No key is added.
        """
        numbers = {_number_of(keys.masking), _number_of(keys.sealing)}
        if len(numbers) < 2:
            raise ExchangeError("mask.keys-equal", silo=silo)
        for number in numbers:
            if number in self._owners:
                raise ExchangeError("mask.key-shared", other_silo=self._owners[number], silo=silo)
        self._owners |= dict.fromkeys(numbers, silo)


def _number_of(key: bytes) -> int:
    """Returns the number of a public key in X25519."""
    # Comparing bytes would miss equal keys: RFC 7748 ignores the top bit and accepts numbers above the prime.
    return int.from_bytes(key, "little") % 2**255 % (2**255 - 19)
