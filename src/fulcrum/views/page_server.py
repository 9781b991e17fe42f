"""The web server beneath the page: where it listens, how much it takes at once, when it gives a connection up.

Half a request costs nothing to send and would hold a place for ever. A connection is therefore dropped where a whole
request, or the taking of an answer, is too slow; and where half of the places are taken by halves of requests, a
newcomer gets that of whoever has kept it longest.
"""

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from fulcrum.errors import MissingExtraError, ParameterError

if TYPE_CHECKING:
    import uvicorn

MOST_CONNECTIONS = 64
"""Connections that are served at once."""

MOST_WAITING = MOST_CONNECTIONS // 2
"""Connections among them that may be without a whole request."""

PATIENCE = 5.0
"""Seconds that a connection may take for a request or for an answer, however short it is."""

SLOWEST = 200_000
"""Bytes in each further second."""


def missing_extra() -> MissingExtraError:
    """Returns what is said where the packages of the page are not installed."""
    return MissingExtraError("fulcrum serve needs starlette and uvicorn. Run: pip install 'fulcrum-dp[serve]'")


def web_server(application: Any) -> "uvicorn.Server":
    """Returns a server of an application; its `run` takes the sockets that it listens on.

    Raises:
        MissingExtraError: Uvicorn is not installed.
    """
    try:
        import uvicorn
    except ImportError:
        raise missing_extra() from None
    return uvicorn.Server(
        uvicorn.Config(
            application,
            http=_connection(),
            log_config=None,  # Uvicorn's would close the handlers that whoever runs this process has set up
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=2,
        )
    )


def listening(host: str, port: int) -> socket.socket:
    """Returns a socket that listens, or raises with the reason in one line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]  # newer Pythons add the address
        raise ParameterError(
            f"cannot listen on {host} port {port}: {reason}. Give another: --port {port % 65_535 + 1}"
        ) from None


def _connection() -> type[asyncio.Protocol]:
    """Returns Uvicorn's class of connections with time limits: its own waits for ever for the end of a request."""
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
            waiting = [other for other in others if other.request_timer is not None]
            if len(waiting) >= MOST_WAITING:
                min(waiting, key=lambda other: other.waits_since).give_up()
            self.watch()

        def data_received(self, data: bytes) -> None:
            self.allowed += len(data) / SLOWEST
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
                self.waits_since, self.allowed = self.loop.time(), PATIENCE
                self.request_timer = self.loop.call_later(PATIENCE, self.check)

        def check(self) -> None:
            """Gives the connection up, unless it has sent enough in the time it had."""
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
            allowed = PATIENCE + self.transport.get_write_buffer_size() / SLOWEST
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
