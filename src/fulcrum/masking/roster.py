"""The rule that the keys of a roster meet: no two of them are the same X25519 key, of two members or of one.

Silos refuse a roster that breaks the rule. The server applies the same rule to every answer, since one member that
breaks it would otherwise stop every attempt of its group.
"""

from fulcrum.errors import ExchangeError
from fulcrum.masking.messages import PublicKeys


class DistinctKeys:
    """The keys of a roster, each of which belongs to one purpose of one member."""

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}

    def add(self, silo: str, keys: PublicKeys) -> None:
        """Adds the two keys of a member.

        Raises:
            ExchangeError: One of the keys is the other, or a key of another member. Nothing is added.
        """
        numbers = {_number_of(keys.masking), _number_of(keys.sealing)}
        if len(numbers) < 2:
            raise ExchangeError(f"the two keys of silo {silo!r} are one key")
        for number in numbers:
            if number in self._owners:
                raise ExchangeError(f"silos {self._owners[number]!r} and {silo!r} have one key")
        self._owners |= dict.fromkeys(numbers, silo)


def _number_of(key: bytes) -> int:
    """Returns the number that X25519 takes a public key for. Bytes would not do: several encodings give one number."""
    return int.from_bytes(key, "little") % 2**255 % (2**255 - 19)
