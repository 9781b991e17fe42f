"""The guard of the page: checks the host, the origin and the size of every request, and sets the headers of responses.

A request from another site's page, or under a host name that is not the server's own, is refused. The headers forbid a
browser to load content from other servers.
"""

import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

LARGEST_BODY = 16_000_000
"""Bytes that a request may have."""

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
"""The headers of every response."""

FAILED = "the server failed. Its log says why"
"""The reply to a failure of the server."""

_log = logging.getLogger(__name__)


class Refusal(Exception):  # noqa: N818, not a mistake of ours
    """A refused request, answered with a status and a single line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Guard:
    """Checks every request before the application, and adds `HEADERS` to every response.

    Requests refused with a line of JSON:

    - a host that is not the server's own: otherwise DNS rebinding could point a foreign name at the server;
    - a request for work from another site's page;
    - a body that is too large, counted as the body arrives and not by its header.

    Args:
        application: The guarded application.
        hosts: Names of the server, in lower case.
    """

    def __init__(self, application: Application, *, hosts: Container[str]) -> None:
        self.application = application
        self.hosts = hosts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                named = {name.lower() for name, _ in message.get("headers", [])}
                ours = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *(item for item in ours if item[0] not in named)]
            await send(message)

        try:
            self._admit(scope)
            await self.application(scope, _limit_body(receive), send_with_headers)
        except Refusal as refusal:
            if not started:
                await _tell(send_with_headers, refusal.status, str(refusal))
        except Exception:
            _log.exception("a request failed")
            if not started:
                await _tell(send_with_headers, 500, FAILED)

    def _admit(self, scope: Message) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "").lower()
        if _without_port(host) not in self.hosts:
            raise Refusal(400, "this server has another name. Open the address that fulcrum serve printed")
        if scope["method"] in ("GET", "HEAD"):
            return
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        if site != "same-origin" or (origin is not None and origin.lower() != f"{scope['scheme']}://{host}"):
            raise Refusal(403, "another page asked for this. Use the page of this server")
        if headers.get("content-length", "0").isdecimal() and int(headers.get("content-length", "0")) > LARGEST_BODY:
            raise Refusal(413, _too_large())


def loopback(host: str) -> bool:
    """Checks that an address can be reached from this machine alone.

    >>> loopback("127.0.0.1"), loopback("localhost"), loopback("0.0.0.0"), loopback("example.org")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def everywhere(host: str) -> bool:
    """Checks that a server at an address listens on every address of its machine.

    >>> everywhere("0.0.0.0"), everywhere("::"), everywhere("127.0.0.1")
    (True, True, False)
    """
    address = _address(host)
    return host == "" if address is None else address.is_unspecified


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """The names of a server, in lower case; with `addresses` also every numeric address.

    A foreign page can point a name of its own at the server and then read the answers, but not a numeric address.
    """

    names: frozenset[str]
    addresses: bool = False

    def __contains__(self, host: object) -> bool:
        """Checks that a host, without its port, is a name or address of the server."""
        return host in self.names or (self.addresses and isinstance(host, str) and _address(host) is not None)


def hosts_of(host: str, names: Iterable[str] = ()) -> Hosts:
    """Returns the names of a server at `host`: the host itself, local names, and the given names.

    A server on every address of its machine also answers to any numeric address and to the name of the machine.

    >>> "192.168.1.7" in hosts_of("0.0.0.0"), "example.org" in hosts_of("0.0.0.0")
    (True, False)
    >>> "example.org" in hosts_of("0.0.0.0", ["Example.org"])
    True
    """
    hosts = {"localhost", "127.0.0.1", "[::1]", *names}
    hosts |= {socket.gethostname(), socket.getfqdn()} if everywhere(host) else {f"[{host}]" if ":" in host else host}
    return Hosts(names=frozenset(name.lower() for name in hosts if name), addresses=everywhere(host))


def _limit_body(receive: Receive) -> Receive:
    """Returns a `receive` that refuses a body beyond the largest size, counted as the body arrives."""
    size = 0

    async def receive_part() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > LARGEST_BODY:
            raise Refusal(413, _too_large())
        return message

    return receive_part


async def _tell(send: Send, status: int, reason: str) -> None:
    body = msgspec.json.encode({"error": reason})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the numeric address of a host, with or without brackets; None for a name."""
    try:
        return ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        return None


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _too_large() -> str:
    return f"the request is larger than the {LARGEST_BODY // 1_000_000} MB that the page takes. Use: fulcrum plan"
