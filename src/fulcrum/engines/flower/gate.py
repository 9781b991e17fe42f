"""The gate in front of a SuperLink: registered SuperNodes pass, and no run is submitted through the gate.

Flower 1.41.0 takes the requests of SuperNodes and the submission of runs at the same port, and knows no accounts. Every
silo reaches that port, and could have all SuperNodes run an app to read the records. The SuperLink of a kit therefore
listens on the server's machine alone. The gate listens for other machines, and hands on the requests of SuperNodes.

The SuperLink takes a whole request into memory before checking the sender. Three strangers with requests of 1 GB each
caused 6.2 GB of memory. The gate checks three things before reading a byte of a request's content:

- headers with the signature of a registered SuperNode, see `node_identity`;
- a length within the plan's bound for the request;
- room among the bytes under way, see `bytes_in_flight`.

A SuperNode asks for messages, and after the answer "none" asks again 3 seconds later. The gate therefore holds such a
question, and asks the SuperLink in the SuperNode's place, twice a second, until a message is there.

    python -m fulcrum.engines.flower.gate --host 0.0.0.0 --port 9092 --superlink 9093 --largest-answer 400000
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fulcrum.connections import connection_class
from fulcrum.engines.flower.kits.certificates import AUTHORITY, CERTIFICATE, KEY
from fulcrum.engines.flower.server_side.bytes_in_flight import BytesInFlight, NoRoomError
from fulcrum.engines.flower.server_side.flower_version import check_version
from fulcrum.engines.flower.server_side.node_identity import RegisteredNodes, claimed_key, is_signed
from fulcrum.errors import EngineError

if sys.platform != "win32":
    import resource

_Headers = list[tuple[bytes, bytes]]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

DATABASE = "superlink.db"
"""The SuperLink's database, in the folder of gate and SuperLink."""

_FLEET = b"/v1/fleet/"
_ACTIVATE, _PUSH, _TELL, _PULL, _APP = b"activate-node", b"push-object", b"push-messages", b"pull-object", b"get-fab"
_NEWS = b"pull-messages"
_QUESTIONS = {_ACTIVATE, _PUSH, _TELL, _PULL, _APP, _NEWS, b"deactivate-node", b"send-node-heartbeat"}
_QUESTIONS |= {b"get-run", b"confirm-message-received"}
"""The requests of a registered SuperNode: Flower's Fleet API without registering and unregistering."""

_OF_ONE_CONNECTION = {b"connection", b"host", b"keep-alive", b"transfer-encoding", b"upgrade"}
_OF_DECODED = _OF_ONE_CONNECTION | {b"content-length", b"content-encoding"}
_OK = 200
_UNKNOWN, _REFUSED, _NOT_REGISTERED, _TOO_LARGE, _NO_LENGTH, _AWAY, _BUSY = 401, 403, 412, 413, 411, 502, 503
_UNREGISTERED = {
    "code": 2004,
    "detail": "this SuperNode's key is not registered. On the server's machine: ./register.sh",
}
"""In the form of Flower's own errors, printed by a SuperNode at the end."""

_LONGEST = 600.0  # seconds that a SuperLink may take for a part of what it takes or answers

_SMALL = 2**16
"""Bytes of a request or an answer with names and numbers alone."""

_PART = int(os.environ.get("FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", "5242880"))
"""Bytes of an array in a request of Flower's; the variable is Flower's own, and holds for SuperNodes too."""

_NAME_OF_A_PART = 200
"""Bytes of a part's name in the list of a message's parts."""

_LARGEST_APP = 10 * 2**20
"""Bytes of an app, by Flower's own limit."""

_MOST_IN_FLIGHT = 2**28
"""Bytes of requests and answers under way; the SuperLink's memory grows by two to three times as many."""

_PARTS_OF_A_PEER = 4
"""Parts of arrays under way for a SuperNode: Flower pushes two at a time, and pulls two."""

_REQUESTS_OF_A_PEER = 16

_PATIENCE = 20.0
"""Seconds for the shortest request or answer on a connection, and for a request to wait for room."""

_SLOWEST = 20_000
"""Bytes in each further second."""

_LONGEST_HOLD, _HOLD_INTERVAL = 8.0, 0.5
"""Seconds for which the gate holds a SuperNode's question for messages, and seconds between questions to the SuperLink.

A SuperNode waits 30 seconds for an answer.
"""

_USUAL_FILES = 1024
"""The usual limit on the open files of a process."""

_MOST_WAITING = _USUAL_FILES // 4
"""The most connections without a whole request at once. Each may also hold a connection to the SuperLink: together
half of the usual files."""

_MOST_UNSECURED = _USUAL_FILES // 8
"""The most connections without TLS at once: an eighth of the usual files."""

_MOST_AT_ONCE = _USUAL_FILES // 16
"""Connections that the gate accepts in a row before counting any. Up to four times as many may be open in addition to
counted connections, until the gate ends the first of them."""

_QUEUE = 2048
"""Connections that the kernel queues: at most this many strangers are ahead of a silo."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bounds on the bytes of SuperNodes' requests under a plan, and of the SuperLink's answers.

    Attributes:
        largest_answer: Bytes of a silo's longest answer in any stage of a round; None where unknown.
    """

    largest_answer: int | None = None

    def request(self, question: bytes) -> int:
        """Returns the most bytes of a request's content."""
        answer = _PART if self.largest_answer is None else self.largest_answer
        if question == _PUSH:
            return _SMALL + min(_PART, answer)
        return _SMALL + (_NAME_OF_A_PART * -(-answer // _PART) if question == _TELL else 0)

    def answer(self, question: bytes) -> int:
        """Returns the most bytes of the SuperLink's answer."""
        return _SMALL + {_PULL: _PART, _APP: _LARGEST_APP}.get(question, 0)


class Gate:
    """An ASGI app: hands requests of registered SuperNodes on to a SuperLink on this machine, and refuses all others.

    Args:
        port: The SuperLink's port.
        authority: The certificate of the authority behind the SuperLink's certificate.
        nodes: The registered SuperNodes.
        sizes: The bounds on requests and answers.
        patience: Seconds of waiting for room.
    """

    def __init__(self, port: int, authority: Path, nodes: RegisteredNodes, sizes: Sizes, patience: float) -> None:
        import httpx

        trusted = ssl.create_default_context(cafile=str(authority))
        limits, timeout = httpx.Limits(max_connections=None), httpx.Timeout(_LONGEST)
        self._nodes, self._sizes = nodes, sizes
        self._in_flight = BytesInFlight(
            most=_MOST_IN_FLIGHT,
            most_of_a_peer=_PARTS_OF_A_PEER * (_PART + 2 * _SMALL),
            most_requests=_REQUESTS_OF_A_PEER,
            patience=patience,
        )
        self._held: dict[bytes, asyncio.Future[None]] = {}
        self._failures = httpx.HTTPError
        self._superlink = httpx.AsyncClient(
            base_url=f"https://127.0.0.1:{port}", verify=trusted, timeout=timeout, limits=limits, trust_env=False
        )

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            return
        question, headers = scope["raw_path"].removeprefix(_FLEET), scope["headers"]
        is_known = scope["raw_path"] == _FLEET + question and question in _QUESTIONS
        if not is_known or scope["method"] != "POST" or scope["query_string"]:
            await _end(send, _REFUSED)
            return
        key, status = self._sender(headers)
        if key is None:
            # A SuperNode prints the reason for a failed activation. Other requests get the SuperLink's own status.
            if status == _NOT_REGISTERED and question == _ACTIVATE:
                await _end(send, _NOT_REGISTERED, _UNREGISTERED)
            else:
                await _end(send, _UNKNOWN if status == _NOT_REGISTERED else status)
            return
        length = _length_in(headers)
        if length is None or length > self._sizes.request(question):
            await _end(send, _NO_LENGTH if length is None else _TOO_LARGE)
            return
        try:
            async with self._in_flight.reserve(key, length + self._sizes.answer(question)):
                path = scope["raw_path"].decode()
                if question == _NEWS:
                    await self._hold(key, path, headers, receive, send)
                else:
                    await self._hand_on(path, headers, receive, send)
        except NoRoomError:
            await _end(send, _BUSY)

    def _sender(self, headers: _Headers) -> tuple[bytes | None, int]:
        """Returns the registered key that signed a request, and 0; or None, and the HTTP status of the refusal."""
        key = claimed_key(headers)
        registered = self._nodes.has(key)
        if registered is None:
            return None, _AWAY
        if key is None or not registered:
            return None, _UNKNOWN if key is None else _NOT_REGISTERED
        return (key, 0) if is_signed(key, headers) else (None, _UNKNOWN)

    async def _hand_on(self, path: str, headers: _Headers, receive: _Receive, send: _Send) -> None:
        """Hands a request on to the SuperLink and the answer back, without collecting either."""
        end_to_end = [(name, value) for name, value in headers if name.lower() not in _OF_ONE_CONNECTION]
        request = self._superlink.build_request("POST", path, headers=end_to_end, content=_content(receive))
        try:
            answer = await self._superlink.send(request, stream=True)
        except (self._failures, _CutShort):
            await _end(send, _AWAY)
            return
        try:
            end_to_end = [(name, value) for name, value in answer.headers.raw if name.lower() not in _OF_ONE_CONNECTION]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": end_to_end})
            async for part in answer.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answer.aclose()

    async def _hold(self, key: bytes, path: str, headers: _Headers, receive: _Receive, send: _Send) -> None:
        """Asks the SuperLink for a SuperNode's messages until a message is there, or the time is up.

        The SuperLink gives a message once. When the SuperNode has left, the gate stops: the message would be lost. A
        second question of the SuperNode ends the first, whose connection may be dead: at most one question of a
        SuperNode is held.
        """
        end_to_end = [(name, value) for name, value in headers if name.lower() not in _OF_ONE_CONNECTION]
        loop = asyncio.get_running_loop()
        deadline, leaving, replaced = loop.time() + _LONGEST_HOLD, None, loop.create_future()
        try:
            content = b"".join([part async for part in _content(receive)])
            if (earlier := self._held.get(key)) is not None and not earlier.done():
                earlier.set_result(None)
            self._held[key] = replaced
            leaving = asyncio.ensure_future(receive())
            while True:
                answer = await self._superlink.post(path, headers=end_to_end, content=content)
                # An answer without messages has no bytes. All else is the SuperNode's to read.
                if answer.content or answer.status_code != _OK or loop.time() > deadline or replaced.done():
                    break
                await asyncio.wait([leaving, replaced], timeout=_HOLD_INTERVAL, return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    return
                if replaced.done():
                    break
        except (self._failures, _CutShort):
            await _end(send, _AWAY)
            return
        finally:
            if leaving is not None:
                leaving.cancel()
            if self._held.get(key) is replaced:
                del self._held[key]
        answer_headers = [(name, value) for name, value in answer.headers.raw if name.lower() not in _OF_DECODED]
        answer_headers.append((b"content-length", b"%d" % len(answer.content)))
        await send({"type": "http.response.start", "status": answer.status_code, "headers": answer_headers})
        await send({"type": "http.response.body", "body": answer.content})


def _length_in(headers: _Headers) -> int | None:
    """Returns the length of a request's content by the headers; None without a length, or with two framings.

    Content in chunks has no length to hold against the plan. No SuperNode sends chunks.
    """
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    chunked = any(name.lower() == b"transfer-encoding" for name, _ in headers)
    whole = len(lengths) == 1 and lengths[0].isdigit() and len(lengths[0]) < 16  # digits that Python reads at once
    return int(lengths[0]) if whole and not chunked else None


class _Listener(socket.socket):
    """A socket with a long queue that yields few connections at once: asyncio has a single number for both."""

    def listen(self, backlog: int = 0, /) -> None:
        """Listens."""
        super().listen(max(backlog, _QUEUE))


class _CutShort(Exception):  # noqa: N818 nobody is told
    """The sender left before the end of the request."""


async def _content(receive: _Receive) -> AsyncIterator[bytes]:
    """Gives the content of a request as it comes."""
    while True:
        part = await receive()
        if part["type"] != "http.request":
            raise _CutShort  # otherwise a partial request would be handed on as a whole one
        yield part.get("body", b"")
        if not part.get("more_body", False):
            return


async def _end(send: _Send, status: int, content: Mapping[str, Any] | None = None) -> None:
    body = b"" if content is None else json.dumps(content).encode()
    headers = [(b"content-length", b"%d" % len(body))]
    headers += [] if content is None else [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _most_files() -> int:
    """Returns the number of files that this process may open, after raising the limit to the allowed maximum."""
    if sys.platform == "win32":
        return _USUAL_FILES
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return _USUAL_FILES if most == resource.RLIM_INFINITY else most


def main() -> None:
    """Runs the gate with the certificates in the current folder, until interrupted."""
    import uvicorn

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--superlink", type=int, required=True, help="the port on this machine that the SuperLink has")
    parser.add_argument("--largest-answer", type=int, help="bytes of a silo's longest answer under the plan")
    parser.add_argument("--database", type=Path, default=Path(DATABASE), help="the SuperLink's, which names its nodes")
    parser.add_argument("--patience", type=float, default=_PATIENCE, help="seconds for the shortest request")
    options = parser.parse_args()
    try:
        check_version()  # paths, headers and tables of another version may differ
    except EngineError as error:
        sys.exit(str(error))
    nodes, sizes = RegisteredNodes(options.database), Sizes(options.largest_answer)
    share = min(1.0, _most_files() / _USUAL_FILES)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTIFICATE, KEY)
    connections = connection_class(
        patience=options.patience,
        slowest=_SLOWEST,
        most_waiting=int(share * _MOST_WAITING),
        tls=tls,
        most_unsecured=int(share * _MOST_UNSECURED),
    )
    settings = uvicorn.Config(
        Gate(options.superlink, Path(AUTHORITY), nodes, sizes, options.patience),
        # h11 bounds the head of a request. The connection class bounds the time before a sender is identified.
        http=connections,
        loop="asyncio",
        backlog=int(share * _MOST_AT_ONCE),
        ws="none",
        lifespan="off",
        log_level="warning",
    )
    with _Listener(socket.AF_INET6 if ":" in options.host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((options.host, options.port))
        except OSError as error:
            sys.exit(f"cannot listen on {options.host} port {options.port}: {error.strerror}. Give another --port")
        with contextlib.suppress(KeyboardInterrupt):  # the operator's
            uvicorn.Server(settings).run([listener])


if __name__ == "__main__":
    main()
