"""Who may ask the page, under which names of the server, and how much; what every response says.

Whoever was led here by another page, or under another name than the server's own, is refused. A browser is told to load
nothing from elsewhere.
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
"""What every response says, whatever it is."""

FAILED = "the server failed. Its log says why"
"""What is said of a failure that is no fault of the request."""

_log = logging.getLogger(__name__)


class Refusal(Exception):  # noqa: N818, not a mistake of ours
    """A request that is answered with a status and one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Guard:
    """Stands before the application: who may ask, how much, and what every answer says.

    Refused with one line of JSON: a host that is not the server's own, so that no other name can be pointed here; a
    request for work from another site's page; a body that is too large, whatever its header says of it. Every response
    carries `HEADERS`.

    Args:
        application: What answers.
        hosts: Names of this server, in lower case.
    """

    def __init__(self, application: Application, *, hosts: Container[str]) -> None:
        self.application = application
        self.hosts = hosts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        started = False

        async def sent(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                named = {name.lower() for name, _ in message.get("headers", [])}
                ours = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *(item for item in ours if item[0] not in named)]
            await send(message)

        try:
            self._admit(scope)
            await self.application(scope, _limited(receive), sent)
        except Refusal as refusal:
            if not started:
                await _tell(sent, refusal.status, str(refusal))
        except Exception:
            _log.exception("a request failed")
            if not started:
                await _tell(sent, 500, FAILED)

    def _admit(self, scope: Message) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "").lower()
        if _without_port(host) not in self.hosts:
            raise Refusal(400, "this server is not called that. Open the address that fulcrum serve printed")
        if scope["method"] in ("GET", "HEAD"):
            return
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        if site != "same-origin" or (origin is not None and origin.lower() != f"{scope['scheme']}://{host}"):
            raise Refusal(403, "another page asked for this. Use the page of this server")
        if headers.get("content-length", "0").isdecimal() and int(headers.get("content-length", "0")) > LARGEST_BODY:
            raise Refusal(413, _too_large())


def loopback(host: str) -> bool:
    """Says whether an address can be reached from this machine alone.

    >>> loopback("127.0.0.1"), loopback("localhost"), loopback("0.0.0.0"), loopback("example.org")
    (True, True, False, False)
    """
    if host == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def everywhere(host: str) -> bool:
    """Says whether a server at an address listens on every address of its machine.

    >>> everywhere("0.0.0.0"), everywhere("::"), everywhere("127.0.0.1")
    (True, True, False)
    """
    address = _address(host)
    return host == "" if address is None else address.is_unspecified


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Names that a server answers to, in lower case, and whether it also answers to any numeric address.

    A page elsewhere can point a name of its own here, and then read what it is answered; an address it cannot.
    """

    names: frozenset[str]
    addresses: bool = False

    def __contains__(self, host: object) -> bool:
        """Says whether a host, without its port, is one of them."""
        return host in self.names or (self.addresses and isinstance(host, str) and _address(host) is not None)


def hosts_of(host: str, names: Iterable[str] = ()) -> Hosts:
    """Returns what a server at `host` answers to: that, this machine's own names, and the names given.

    One that listens everywhere also answers to any numeric address and to the name of its machine.

    >>> "192.168.1.7" in hosts_of("0.0.0.0"), "example.org" in hosts_of("0.0.0.0")
    (True, False)
    >>> "example.org" in hosts_of("0.0.0.0", ["Example.org"])
    True
    """
    found = {"localhost", "127.0.0.1", "[::1]", *names}
    found |= {socket.gethostname(), socket.getfqdn()} if everywhere(host) else {f"[{host}]" if ":" in host else host}
    return Hosts(names=frozenset(name.lower() for name in found if name), addresses=everywhere(host))


def _limited(receive: Receive) -> Receive:
    """Returns a `receive` that refuses a body once it is too large, whatever its header says."""
    met = 0

    async def received() -> Message:
        nonlocal met
        message = await receive()
        met += len(message.get("body", b""))
        if met > LARGEST_BODY:
            raise Refusal(413, _too_large())
        return message

    return received


async def _tell(send: Send, status: int, reason: str) -> None:
    body = msgspec.json.encode({"error": reason})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the numeric address that a host is, with or without brackets; None for a name."""
    try:
        return ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        return None


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _too_large() -> str:
    return f"that is larger than the {LARGEST_BODY // 1_000_000} MB that the page takes. Use: fulcrum plan"
