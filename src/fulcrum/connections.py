"""Connections of a web server that are given up where whoever is at the other end is too slow.

Half a request costs nothing to send and would hold a place for ever. A connection is therefore dropped where a whole
request, or the taking of an answer, is too slow; and where too many are without a whole request, a newcomer gets the
place of whoever has the least time left. Whoever sends earns time, and whoever is silent does not.
"""

import asyncio


def connection_class(*, patience: float, slowest: float, most_waiting: int) -> type[asyncio.Protocol]:
    """Returns Uvicorn's class of connections with time limits: its own waits for ever for the end of a request.

    Args:
        patience: Seconds that a connection may take for a request or for an answer, however short it is.
        slowest: Bytes in each further second.
        most_waiting: Connections that may be without a whole request at once.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        """A connection whose requests must come, and whose answers must be taken, in time."""

        waits_since = 0.0  # for a whole request, where `request_timer` is set
        allowed = 0.0
        request_timer: asyncio.TimerHandle | None = None
        answer_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            others = (other for other in self.connections if isinstance(other, Connection))
            waiting = [other for other in others if other.request_timer is not None or other.transport.is_closing()]
            if len(waiting) >= most_waiting:
                min(waiting, key=lambda other: other.waits_since + other.allowed).give_up()
            self.watch()

        def data_received(self, data: bytes) -> None:
            self.allowed += len(data) / slowest
            super().data_received(data)
            self.watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.watch()

        def watch(self) -> None:
            """Waits for a whole request, unless one has come."""
            if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
                self.rest()
            elif self.request_timer is None and not self.transport.is_closing():
                self.waits_since, self.allowed = self.loop.time(), patience
                self.request_timer = self.loop.call_later(patience, self.check)

        def check(self) -> None:
            """Gives the connection up, unless it has sent enough in the time it had."""
            if self.flow.read_paused:  # what was sent has not been taken yet: it is not the sender who is slow
                self.allowed += patience
            left = self.waits_since + self.allowed - self.loop.time()
            if left <= 0:
                self.give_up()
            else:
                self.request_timer = self.loop.call_later(left, self.check)

        def give_up(self) -> None:
            self.rest()
            self.transport.abort()

        def rest(self) -> None:
            """Ends the wait for a request."""
            if self.request_timer is not None:
                self.request_timer.cancel()
                self.request_timer = None

        def pause_writing(self) -> None:
            super().pause_writing()
            allowed = patience + self.transport.get_write_buffer_size() / slowest
            self.answer_timer = self.loop.call_later(allowed, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self.taken()

        def taken(self) -> None:
            """Ends the wait for an answer to be taken."""
            if self.answer_timer is not None:
                self.answer_timer.cancel()
                self.answer_timer = None

        def connection_lost(self, exc: Exception | None) -> None:
            self.rest()
            self.taken()
            super().connection_lost(exc)

    return Connection
