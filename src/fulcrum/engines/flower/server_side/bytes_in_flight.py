"""Limits on the bytes under way through a gate, in all and by peer. Requests beyond a limit wait in a queue.

A server with requests in memory needs as much memory as all senders together care to send. A request through the gate
reserves room before the first byte of content is read.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass


class NoRoomError(Exception):
    """A request got no room in time, or the peer has too many requests."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    peer: Hashable
    weight: int
    granted: asyncio.Future[None]


class BytesInFlight:
    """Room for requests under way, given in the order of arrival.

    A peer at its limit waits without holding up other peers. A request that is larger than a limit by itself gets room
    as soon as nothing else is under way: nothing of its peer for the peer's limit, nothing at all for the whole limit.

    Args:
        most: Bytes in all.
        most_of_a_peer: Bytes of a single peer.
        most_requests: Requests of a single peer, including waiting requests; one more is refused.
        patience: Seconds that a request waits before it is refused.
    """

    def __init__(self, *, most: int, most_of_a_peer: int, most_requests: int, patience: float) -> None:
        self._most, self._most_of_a_peer = most, most_of_a_peer
        self._most_requests, self._patience = most_requests, patience
        self._bytes: Counter[Hashable] = Counter()
        self._requests: Counter[Hashable] = Counter()
        self._waiting: deque[_Waiting] = deque()
        self._reserved = 0

    @property
    def reserved_bytes(self) -> int:
        """Bytes reserved at present."""
        return self._reserved

    @asynccontextmanager
    async def reserve(self, peer: Hashable, weight: int) -> AsyncIterator[None]:
        """Holds room for a request while the `with` lasts.

        Args:
            peer: The sender.
            weight: Bytes, at least 1.

        Raises:
            NoRoomError: The wait was too long, or the peer has too many requests.
        """
        if self._requests[peer] >= self._most_requests:
            raise NoRoomError
        self._add(self._requests, peer, 1)
        try:
            await self._take(peer, weight)
            try:
                yield
            finally:
                self._reserved -= weight
                self._add(self._bytes, peer, -weight)
        finally:
            self._add(self._requests, peer, -1)
            self._grant()

    async def _take(self, peer: Hashable, weight: int) -> None:
        turn = _Waiting(peer, weight, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        self._grant()
        try:
            async with asyncio.timeout(self._patience):
                await turn.granted
        except BaseException as error:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.granted.cancelled():  # granted as the wait ended
                self._reserved -= weight
                self._add(self._bytes, peer, -weight)
            if isinstance(error, TimeoutError):
                raise NoRoomError from None
            raise

    def _grant(self) -> None:
        """Gives room to waiting requests in order, up to the first request without room in the gate."""
        held_up: list[_Waiting] = []
        while self._waiting:
            turn = self._waiting.popleft()
            if turn.granted.cancelled():
                continue
            own = self._bytes[turn.peer]
            if own and own + turn.weight > self._most_of_a_peer:
                held_up.append(turn)
                continue
            if self._reserved and self._reserved + turn.weight > self._most:
                held_up.append(turn)
                break
            self._reserved += turn.weight
            self._add(self._bytes, turn.peer, turn.weight)
            turn.granted.set_result(None)
        self._waiting.extendleft(reversed(held_up))

    @staticmethod
    def _add(counter: Counter[Hashable], peer: Hashable, amount: int) -> None:
        counter[peer] += amount
        if not counter[peer]:
            del counter[peer]
