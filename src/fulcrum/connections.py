"""Connections of a web server that are given up where whoever is at the other end is too slow.

Half a request costs nothing to send and would hold a place for ever. A connection is therefore dropped where a whole
request, or the taking of an answer, is too slow; and where too many are without a whole request, a newcomer gets the
place of whoever has the least time left. Whoever sends earns time, and whoever is silent does not.

Less than half a request is a connection that never begins TLS, or never ends its beginning. Where TLS is asked for
these have places of their own, fewer than there are files, so that they leave some to whoever speaks TLS.
"""

import asyncio
import ssl


def connection_class(
    *,
    patience: float,
    slowest: float,
    most_waiting: int,
    tls: ssl.SSLContext | None = None,
    most_unsecured: int = 0,
) -> type[asyncio.Protocol]:
    """Returns Uvicorn's class of connections with time limits: its own waits for ever for the end of a request.

    Args:
        patience: Seconds that a connection may take for TLS, for a request or for an answer, however short it is.
        slowest: Bytes in each further second.
        most_waiting: Connections that may be without a whole request at once.
        tls: What connections are secured by, before anything is read of them. Uvicorn itself is then given no
            certificate, since it counts nobody who has not spoken TLS, and `loop="asyncio"`, since another loop may
            read before TLS begins.
        most_unsecured: Connections that may be without TLS at once, where it is asked for; a newcomer gets the place of
            the oldest.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    unsecured: dict[Connection, asyncio.Transport] = {}  # noqa: F821 made below; the oldest comes first

    class Connection(H11Protocol):
        """A connection whose requests must come, and whose answers must be taken, in time."""

        securing: asyncio.Task[None] | None = None
        early = b""  # what came with the end of TLS's beginning
        refused = False  # with what else comes from there
        given_up = False  # its file is closed in the loop's next turn
        waits_since = 0.0  # for a whole request, where `request_timer` is set
        allowed = 0.0
        request_timer: asyncio.TimerHandle | None = None
        answer_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            if tls is None:
                self.begin(transport)
                return
            transport.pause_reading()  # the first byte is for TLS
            unsecured[self] = transport
            if len(unsecured) > most_unsecured:
                next(iter(unsecured)).refuse()
            self.securing = self.loop.create_task(self.secure(transport, tls))

        async def secure(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
            """Begins TLS, and then to wait for requests."""
            try:
                secured = await self.loop.start_tls(
                    transport,
                    self,
                    context,
                    server_side=True,
                    ssl_handshake_timeout=patience,
                    ssl_shutdown_timeout=patience,
                )
            except OSError:  # errors of TLS are such
                return
            finally:
                unsecured.pop(self, None)
            if secured is not None and not secured.is_closing():  # it may be gone by now
                self.begin(secured)
                if self.early:
                    self.data_received(self.early)

        def refuse(self) -> None:
            """Ends a connection that has not begun TLS."""
            unsecured.pop(self).abort()
            if self.securing is not None:
                self.securing.cancel()

        def begin(self, transport: asyncio.Transport) -> None:
            """Begins to wait for requests."""
            super().connection_made(transport)
            others = (other for other in self.connections if isinstance(other, Connection))
            # Who is given up counts no more: of many that come in one turn of the loop each takes the place of another.
            waiting = [
                other
                for other in others
                if not other.given_up and (other.request_timer is not None or other.transport.is_closing())
            ]
            if len(waiting) >= most_waiting:
                min(waiting, key=lambda other: other.waits_since + other.allowed).give_up()
            self.watch()

        def data_received(self, data: bytes) -> None:
            if self.transport is None:
                self.early += data
                return
            if self.refused:
                return
            self.allowed += len(data) / slowest
            super().data_received(data)
            self.watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.watch()

        def send_400_response(self, msg: str) -> None:
            """Answers what is no request, and waits for the other end to close, or to have had its time.

            Closed at once, as Uvicorn does, whoever is still sending would not get to see the answer. What was begun
            for it ends now. Where another answer is under way, or was given, the connection ends without one.
            """
            if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                self.give_up()
                return
            content = msg.encode("ascii")
            headers = [("content-type", "text/plain"), ("content-length", str(len(content))), ("connection", "close")]
            for event in (
                h11.Response(status_code=400, headers=headers),
                h11.Data(data=content),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
            self.refused = True
            if self.cycle is not None:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if self.request_timer is None:
                self.waits_since, self.allowed = self.loop.time(), patience
                self.request_timer = self.loop.call_later(patience, self.check)

        def watch(self) -> None:
            """Waits for a whole request, unless one has come."""
            if self.refused:
                return
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
            self.given_up = True
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
            self.answer_timer = self.loop.call_later(allowed, self.give_up)

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
            if self.transport is not None:
                super().connection_lost(exc)

    return Connection
