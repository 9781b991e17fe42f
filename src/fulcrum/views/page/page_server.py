"""The web server of the page: its socket, its limit of connections, and its deadlines."""

import socket
from typing import TYPE_CHECKING, Any

from fulcrum.connections import connection_class
from fulcrum.errors import MissingExtraError, ParameterError

if TYPE_CHECKING:
    import uvicorn

MOST_CONNECTIONS = 64
"""The most connections at a time."""

MOST_WAITING = MOST_CONNECTIONS // 2
"""The most connections at a time without a complete request."""

PATIENCE = 5.0
"""Seconds for a request or an answer of any length."""

SLOWEST = 200_000
"""Bytes that must pass in every further second."""


def missing_extra() -> MissingExtraError:
    """Returns the error for missing packages of the page."""
    return MissingExtraError("page.extra-missing")


def web_server(application: Any) -> "uvicorn.Server":
    """Returns a server of an application; the method `run` takes the listening sockets.

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
            http=connection_class(patience=PATIENCE, slowest=SLOWEST, most_waiting=MOST_WAITING),
            log_config=None,  # Uvicorn's would close log handlers of a surrounding program
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
    """Returns a listening socket.

    Raises:
        ParameterError: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]  # newer Pythons add the address
        raise ParameterError(
            "page.port-unusable", host=host, port=port, reason=reason, next_port=port % 65_535 + 1
        ) from None
