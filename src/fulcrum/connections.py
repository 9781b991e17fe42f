"""Connections of a web server with time limits, against clients that hold connections open and send too slowly.

Half a request costs a client almost no bytes and would hold a connection for ever (the Slowloris attack). The server
therefore drops a connection when the whole request comes too slowly, or when the client reads the answer too slowly.
If too many connections wait for a whole request, a new connection replaces the connection with the least time left.
Every byte that a client sends adds time; silence adds none.

A client can also open a connection and never finish the TLS handshake. With TLS, connections before the end of the
handshake are counted apart and have a limit below the limit on open files, so that clients with TLS can still connect.
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
    """Returns a class of Uvicorn connections with time limits: Uvicorn's own class waits for ever for a request's end.

    Args:
        patience: Seconds for the TLS handshake, for a request and for an answer, however short.
        slowest: Bytes that earn one further second.
        most_waiting: The largest number of connections without a whole request.
        tls: The TLS context; the handshake comes before the first byte of a request. Give Uvicorn itself no
            certificate, since Uvicorn does not count connections before the end of a handshake, and `loop="asyncio"`,
            since other loops may read before the handshake begins.
        most_unsecured: The largest number of connections in a TLS handshake; a new connection replaces the oldest.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    unsecured: dict[Connection, asyncio.Transport] = {}  # noqa: F821 defined below; the oldest comes first

    class Connection(H11Protocol):
        """A connection with a time limit for requests and for answers."""

        securing: asyncio.Task[None] | None = None
        early = b""  # bytes that came together with the end of the TLS handshake
        refused = False  # after an answer 400 all further bytes are ignored
        given_up = False  # aborted; asyncio closes the file in the loop's next turn
        waits_since = 0.0  # start of the wait for a whole request, if `request_timer` is set
        allowed = 0.0
        request_timer: asyncio.TimerHandle | None = None
        answer_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            if tls is None:
                self.begin(transport)
                return
            transport.pause_reading()  # the first byte belongs to the TLS handshake
            unsecured[self] = transport
            if len(unsecured) > most_unsecured:
                next(iter(unsecured)).refuse()
            self.securing = self.loop.create_task(self.secure(transport, tls))

        async def secure(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
            """Completes the TLS handshake, then waits for requests."""
            try:
                secured = await self.loop.start_tls(
                    transport,
                    self,
                    context,
                    server_side=True,
                    ssl_handshake_timeout=patience,
                    ssl_shutdown_timeout=patience,
                )
            except OSError:  # ssl.SSLError is an OSError
                return
            finally:
                unsecured.pop(self, None)
            if secured is not None and not secured.is_closing():  # the client may have gone during the handshake
                self.begin(secured)
                if self.early:
                    self.data_received(self.early)

        def refuse(self) -> None:
            """Ends a connection before the end of the TLS handshake."""
            unsecured.pop(self).abort()
            if self.securing is not None:
                self.securing.cancel()

        def begin(self, transport: asyncio.Transport) -> None:
            """Starts the wait for requests."""
            super().connection_made(transport)
            peers = (peer for peer in self.connections if isinstance(peer, Connection))
            # `self.connections` still holds aborted connections until the loop's next turn. If they counted, many new
            # connections of one turn would all replace the same old connection, and exceed the limit.
            waiting = [
                peer
                for peer in peers
                if not peer.given_up and (peer.request_timer is not None or peer.transport.is_closing())
            ]
            if len(waiting) >= most_waiting:
                min(waiting, key=lambda peer: peer.waits_since + peer.allowed).give_up()
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
            """Sends an answer 400 to bytes that are no request, and waits until the client closes or the time is over.

            Uvicorn closes at once, and a client that is still sending would then not see the answer. The request's
            handler, if running, is told that the client is gone. If an earlier answer is under way or complete, the
            connection ends without an answer 400.
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
            """Starts the timer for a whole request, unless a whole request has come."""
            if self.refused:
                return
            if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
                self.stop_request_timer()
            elif self.request_timer is None and not self.transport.is_closing():
                self.waits_since, self.allowed = self.loop.time(), patience
                self.request_timer = self.loop.call_later(patience, self.check)

        def check(self) -> None:
            """Aborts the connection, unless the client has sent enough bytes for the time since the wait began."""
            if self.flow.read_paused:  # the server itself has stopped reading: the client is not the slow party
                self.allowed += patience
            left = self.waits_since + self.allowed - self.loop.time()
            if left <= 0:
                self.give_up()
            else:
                self.request_timer = self.loop.call_later(left, self.check)

        def give_up(self) -> None:
            self.given_up = True
            self.stop_request_timer()
            self.transport.abort()

        def stop_request_timer(self) -> None:
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
            self.stop_answer_timer()

        def stop_answer_timer(self) -> None:
            """Ends the wait for the client to read an answer."""
            if self.answer_timer is not None:
                self.answer_timer.cancel()
                self.answer_timer = None

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop_request_timer()
            self.stop_answer_timer()
            if self.transport is not None:
                super().connection_lost(exc)

    return Connection
