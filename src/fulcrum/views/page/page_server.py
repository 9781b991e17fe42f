"""The web server beneath the page: where it listens, how much it takes at once, when it gives a connection up."""

import socket
from typing import TYPE_CHECKING, Any

from fulcrum.connections import connection_class
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
    return MissingExtraError("page.extra-missing")


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
            http=connection_class(patience=PATIENCE, slowest=SLOWEST, most_waiting=MOST_WAITING),
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
            "page.port-unusable", host=host, port=port, reason=reason, next_port=port % 65_535 + 1
        ) from None
