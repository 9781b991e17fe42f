"""What stands between a SuperLink and everybody else: lets SuperNodes through, and nobody's runs.

Flower 1.41.0 answers SuperNodes and whoever submits runs at one port, and knows no accounts. So whoever reaches that
port, as every silo does, could have all SuperNodes run an app of theirs, which reads the records there. The SuperLink
of a kit listens on its own machine alone. Its gate listens for the others, and hands on what SuperNodes ask for.

    python -m fulcrum.engines.flower.gate --host 0.0.0.0 --port 9092 --superlink 9093
"""

import argparse
import contextlib
import re
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from fulcrum.connections import connection_class
from fulcrum.engines.flower.certificates import AUTHORITY, CERTIFICATE, KEY

if sys.platform != "win32":
    import resource

_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_OF_SUPERNODES = re.compile(rb"/v1/fleet/[a-z-]+")
_OF_ONE_CONNECTION = {b"connection", b"host", b"keep-alive", b"transfer-encoding", b"upgrade"}
_AWAY, _REFUSED = 502, 403
_LONGEST = 600.0  # seconds that a SuperLink may take for a part of what it takes or answers

_PATIENCE = 20.0
"""Seconds that a connection may take for a request or for an answer, however short it is."""

_SLOWEST = 20_000
"""Bytes in each further second."""

_USUAL_FILES = 1024
"""How many files a process may usually open, with what it is allowed at most."""

_MOST_WAITING = _USUAL_FILES // 4
"""Connections that may be without a whole request at once; with what each may hold towards the SuperLink, half of those
files."""

_MOST_UNSECURED = _USUAL_FILES // 8
"""Connections that may be without TLS at once: an eighth of those files."""

_MOST_AT_ONCE = _USUAL_FILES // 16
"""Connections that are taken at once, before any of them is counted. Four times as many may be there beside those that
are, until the first of them are ended."""

_QUEUE = 2048
"""Connections that the kernel keeps until they are taken: a silo is behind so many strangers at most."""


class Gate:
    """An ASGI app that hands requests of SuperNodes on to a SuperLink on this machine, and refuses all others.

    Args:
        port: Where the SuperLink listens.
        authority: The certificate of the authority that signed the SuperLink's own.
    """

    def __init__(self, port: int, authority: Path) -> None:
        import httpx

        trusted = ssl.create_default_context(cafile=str(authority))
        limits, timeout = httpx.Limits(max_connections=None), httpx.Timeout(_LONGEST)
        self._failures = httpx.HTTPError
        self._superlink = httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{port}", verify=trusted, timeout=timeout, limits=limits, trust_env=False
        )

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            return
        framed_twice = {b"content-length", b"transfer-encoding"} <= {name.lower() for name, _ in scope["headers"]}
        plain = scope["method"] == "POST" and not scope["query_string"] and not framed_twice
        if not plain or not _OF_SUPERNODES.fullmatch(scope["raw_path"]):
            await _end(send, _REFUSED)
            return
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _OF_ONE_CONNECTION]
        asked = self._superlink.build_request(
            "POST", scope["raw_path"].decode(), headers=headers, content=_content(receive)
        )
        try:
            answer = await self._superlink.send(asked, stream=True)
        except (self._failures, _CutShort):
            await _end(send, _AWAY)
            return
        try:
            kept = [(name, value) for name, value in answer.headers.raw if name.lower() not in _OF_ONE_CONNECTION]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
            async for part in answer.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answer.aclose()


class _Listener(socket.socket):
    """A socket with a long queue, of which few connections are taken at once: asyncio has one number for both."""

    def listen(self, backlog: int = 0, /) -> None:
        """Listens."""
        super().listen(max(backlog, _QUEUE))


class _CutShort(Exception):  # noqa: N818 nobody is told
    """Whoever asked went away before all was said."""


async def _content(receive: _Receive) -> AsyncIterator[bytes]:
    """Gives the content of a request as it comes."""
    while True:
        part = await receive()
        if part["type"] != "http.request":
            raise _CutShort  # else what came so far would be handed on as if it were whole
        yield part.get("body", b"")
        if not part.get("more_body", False):
            return


async def _end(send: _Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def _most_files() -> int:
    """Returns how many files this process may open, once it may open as many as it is allowed to."""
    if sys.platform == "win32":
        return _USUAL_FILES
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return _USUAL_FILES if most == resource.RLIM_INFINITY else most


def main() -> None:
    """Runs the gate with the certificates in the current folder, until it is told to end."""
    import uvicorn

    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--host", required=True)
    given.add_argument("--port", type=int, required=True)
    given.add_argument("--superlink", type=int, required=True, help="the port on this machine that the SuperLink has")
    given.add_argument("--patience", type=float, default=_PATIENCE, help="seconds for the shortest request")
    asked = given.parse_args()
    share = min(1.0, _most_files() / _USUAL_FILES)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE, KEY)
    connections = connection_class(
        patience=asked.patience,
        slowest=_SLOWEST,
        most_waiting=int(share * _MOST_WAITING),
        tls=tls,
        most_unsecured=int(share * _MOST_UNSECURED),
    )
    settings = uvicorn.Config(
        Gate(asked.superlink, Path(AUTHORITY)),
        # By h11, which bounds the head of a request; before anybody is known, its time is bounded too.
        http=connections,
        loop="asyncio",
        backlog=int(share * _MOST_AT_ONCE),
        ws="none",
        lifespan="off",
        log_level="warning",
    )
    with _Listener(socket.AF_INET6 if ":" in asked.host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((asked.host, asked.port))
        except OSError as error:
            sys.exit(f"cannot listen on {asked.host} port {asked.port}: {error.strerror}. Give another --port")
        with contextlib.suppress(KeyboardInterrupt):  # the operator's
            uvicorn.Server(settings).run([listener])


if __name__ == "__main__":
    main()
