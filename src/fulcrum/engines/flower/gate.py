"""What stands between a SuperLink and everybody else: lets SuperNodes through, and nobody's runs.

Flower 1.41.0 answers SuperNodes and whoever submits runs at one port, and knows no accounts. So whoever reaches that
port, as every silo does, could have all SuperNodes run an app of theirs, which reads the records there. The SuperLink
of a kit listens on its own machine alone. Its gate listens for the others, and hands on what SuperNodes ask for.

    python -m fulcrum.engines.flower.gate --host 0.0.0.0 --port 9092 --superlink 9093
"""

import argparse
import re
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

_MOST_WAITING = 256
"""Connections that may be without a whole request at once; with what each may hold towards the SuperLink, half of the
files that a process may usually open."""


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


def main() -> None:
    """Runs the gate with the certificates in the current folder, until it is told to end."""
    import uvicorn

    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--host", required=True)
    given.add_argument("--port", type=int, required=True)
    given.add_argument("--superlink", type=int, required=True, help="the port on this machine that the SuperLink has")
    given.add_argument("--patience", type=float, default=_PATIENCE, help="seconds for the shortest request")
    asked = given.parse_args()
    if sys.platform != "win32":  # strangers that never begin TLS are counted by nobody
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvicorn.run(
        Gate(asked.superlink, Path(AUTHORITY)),
        host=asked.host,
        port=asked.port,
        ssl_certfile=CERTIFICATE,
        ssl_keyfile=KEY,
        # By h11, which bounds the head of a request; before anybody is known, its time is bounded too.
        http=connection_class(patience=asked.patience, slowest=_SLOWEST, most_waiting=_MOST_WAITING),
        ws="none",
        lifespan="off",
        log_level="warning",
    )


if __name__ == "__main__":
    main()
