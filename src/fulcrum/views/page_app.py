"""The page that one plays with, as a web application: every answer follows from its question, and nothing is kept.

No cookies, and nothing is written to disk. A browser is told to load nothing from elsewhere; whoever was led here by
another page, or under another name than the server's own, is refused.
"""

import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from fulcrum.errors import FederationError, FulcrumError, ParameterError
from fulcrum.federation.as_json import roster_of
from fulcrum.federation.editing import MOST_SILOS
from fulcrum.federation.reading import federation_from_bytes
from fulcrum.federation.structure import Federation
from fulcrum.planning.exporting import exported
from fulcrum.planning.plan import Plan
from fulcrum.planning.plan_file import to_json
from fulcrum.privacy.accounting import ACCOUNTANTS
from fulcrum.privacy.allocation import ALLOCATIONS
from fulcrum.version import package_version
from fulcrum.views.chart_style import javascript_bundle, theme
from fulcrum.views.html import environment, inline_json, script, style
from fulcrum.views.page_answers import Answer, Question, Settings, federation_csv, head, regions, too_many
from fulcrum.views.report import report
from fulcrum.views.web_server import missing_extra

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]
Made = TypeVar("Made")

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

DOWNLOADS: Mapping[str, tuple[str, Callable[[Plan], bytes]]] = {
    "plan.json": ("application/json", lambda made: to_json(made.content())),
    "plan.csv": ("text/csv; charset=utf-8", lambda made: exported(made, "csv").encode()),
    "federation.csv": ("text/csv; charset=utf-8", lambda made: federation_csv(made.federation).encode()),
    "report.html": ("text/html; charset=utf-8", lambda made: report(made).encode()),
}
"""What can be taken home: its kind, and how it is made."""

_WORKERS = 4
_LARGEST_TOML = 5_000_000
_MOST_DOTS = 100
_REASONS = {
    404: "there is nothing here. Open /",
    405: "this is not asked for in that way. Open /",
    500: "the server failed. Its log says why",
}
_log = logging.getLogger(__name__)


class _Refusal(Exception):  # noqa: N818, not a mistake of ours
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
        except _Refusal as refusal:
            if not started:
                await _tell(sent, refusal.status, str(refusal))
        except Exception:
            _log.exception("a request failed")
            if not started:
                await _tell(sent, 500, _REASONS[500])

    def _admit(self, scope: Message) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "").lower()
        if _without_port(host) not in self.hosts:
            raise _Refusal(400, "this server is not called that. Open the address that fulcrum serve printed")
        if scope["method"] in ("GET", "HEAD"):
            return
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        if site != "same-origin" or (origin is not None and origin.lower() != f"{scope['scheme']}://{host}"):
            raise _Refusal(403, "another page asked for this. Use the page of this server")
        if headers.get("content-length", "0").isdecimal() and int(headers.get("content-length", "0")) > LARGEST_BODY:
            raise _Refusal(413, _too_large())


def application(federation: Federation, *, hosts: Container[str]) -> Guard:
    """Returns the application whose page starts with a federation.

    Args:
        federation: What the page shows first.
        hosts: Names that the server answers to, as `hosts_of` gives them.

    Raises:
        MissingExtraError: Starlette or vl-convert-python is not installed.
    """
    return Guard(_routes(federation), hosts=hosts)


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
    """Names that a server answers to, in lower case, and whether it answers to any address in figures too.

    A page elsewhere can point a name of its own here, and then read what it is answered; an address it cannot.
    """

    names: frozenset[str]
    addresses: bool = False

    def __contains__(self, host: object) -> bool:
        """Says whether a host, without its port, is one of them."""
        return host in self.names or (self.addresses and isinstance(host, str) and _address(host) is not None)


def hosts_of(host: str, names: Iterable[str] = ()) -> Hosts:
    """Returns what a server at `host` answers to: that, this machine's own names, and the names given.

    One that listens everywhere also answers to any address in figures and to the name of its machine.

    >>> "192.168.1.7" in hosts_of("0.0.0.0"), "example.org" in hosts_of("0.0.0.0")
    (True, False)
    >>> "example.org" in hosts_of("0.0.0.0", ["Example.org"])
    True
    """
    found = {"localhost", "127.0.0.1", "[::1]", *names}
    found |= {socket.gethostname(), socket.getfqdn()} if everywhere(host) else {f"[{host}]" if ":" in host else host}
    return Hosts(names=frozenset(name.lower() for name in found if name), addresses=everywhere(host))


def _routes(federation: Federation) -> "Starlette":
    try:
        import anyio
        from anyio.to_thread import run_sync
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.requests import ClientDisconnect, Request
        from starlette.responses import Response
        from starlette.routing import Route
    except ImportError:
        raise missing_extra() from None
    if len(federation) > MOST_SILOS:
        raise FederationError(too_many(len(federation)))
    files = {
        "/style.css": ("text/css; charset=utf-8", style("serve.css").encode()),
        "/page.js": ("text/javascript; charset=utf-8", script("serve.js").encode()),
        "/vega.js": ("text/javascript; charset=utf-8", javascript_bundle().encode()),
    }
    page = _page(federation)
    limiter = anyio.CapacityLimiter(_WORKERS)

    async def worked(work: Callable[[], Made]) -> Made:
        """Does work beside the loop, a few at a time; what is wrong with a question is told in one line."""
        try:
            return await run_sync(work, limiter=limiter)
        except FulcrumError as error:
            raise _Refusal(422, " ".join(str(error).split())) from None

    async def shown(request: Request) -> Response:
        if request.url.path in files:
            kind, content = files[request.url.path]
            return Response(content, headers={"Content-Type": kind})
        return Response(page, headers={"Content-Type": "text/html; charset=utf-8"})

    async def read(request: Request) -> Response:
        body, name = await _body(request, "application/octet-stream"), request.query_params.get("name", "")
        return _json(await worked(lambda: {"federation": roster_of(read_upload(body, name))}))

    async def planned(request: Request) -> Response:
        body = await _body(request, "application/json")
        return _json(await worked(lambda: Answer.to(asked(body))))

    async def downloaded(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in DOWNLOADS:
            raise HTTPException(404)
        kind, write = DOWNLOADS[name]

        def made() -> bytes:
            question = asked(body)
            return write(question.settings.plan(question.federated()))

        body = await _body(request, "application/json")
        attached = {"Content-Type": kind, "Content-Disposition": f'attachment; filename="{name}"'}
        return Response(await worked(made), headers=attached)

    async def refused(_: Request, error: Exception) -> Response:
        if isinstance(error, _Refusal):
            return _json({"error": str(error)}, status=error.status)
        if isinstance(error, ClientDisconnect):  # nobody is there to be told
            return _json({"error": "the request was not sent whole"}, status=400)
        status, headers = (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
        return _json({"error": _REASONS.get(status, "the request is wrong")}, status=status, headers=headers)

    def _json(content: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        kind = {"Content-Type": "application/json"}
        return Response(msgspec.json.encode(content), status_code=status, headers={**(headers or {}), **kind})

    return Starlette(
        routes=[
            *(Route(path, shown, methods=["GET"]) for path in ("/", *files)),
            Route("/read", read, methods=["POST"]),
            Route("/plan", planned, methods=["POST"]),
            Route("/download/{name}", downloaded, methods=["POST"]),
        ],
        exception_handlers={HTTPException: refused, _Refusal: refused, ClientDisconnect: refused, Exception: refused},
    )


def asked(body: bytes) -> Question:
    """Returns the question in a request's body.

    Raises:
        ParameterError: It is not JSON, or not a question.
    """
    try:
        return msgspec.json.decode(body, type=Question)
    except RecursionError:
        raise ParameterError("the request is nested too deeply to be read") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ParameterError(f"the request cannot be read: {error}") from None


def read_upload(data: bytes, name: str) -> Federation:
    """Returns the federation of a file that a page sent; its name is a name alone, and never opened.

    Raises:
        FederationError: It cannot be read, or holds too many silos.
    """
    bare = PurePosixPath(name.replace("\\", "/")).name[-100:]
    file = bare if bare.isprintable() and bare else "the file"
    if file != bare:
        raise FederationError("the file's name must be printable. Rename it")
    lines = data.count(b"\n")
    if lines > 2 * MOST_SILOS:  # before anything is parsed
        raise FederationError(f"{file} has {lines:,} lines. The page takes {MOST_SILOS:,} silos. Use: fulcrum plan")
    if file.lower().endswith(".toml"):
        _check_toml(data, file)
    found = federation_from_bytes(data, file)
    if len(found) > MOST_SILOS:
        raise FederationError(f"{file}: {too_many(len(found))}")
    return found


def _check_toml(data: bytes, file: str) -> None:
    """Refuses what would take the parser minutes: it walks a dotted key once for each of its parts."""
    if len(data) > _LARGEST_TOML:
        raise FederationError(
            f"{file} is larger than the {_LARGEST_TOML // 1_000_000} MB of TOML that the page takes. Use CSV"
        )
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.count(b".") > _MOST_DOTS:
            raise FederationError(
                f"{file} line {number}: more than {_MOST_DOTS} dots on one line. Break it, or use CSV"
            )


def _page(federation: Federation) -> bytes:
    settings = Settings()
    made = settings.plan(federation)
    data = {
        "federation": roster_of(federation),
        "themes": {"light": theme(), "dark": theme(dark=True)},
        "largest": LARGEST_BODY,
    }
    return (
        environment()
        .get_template("serve.html")
        .render(
            name=federation.name,
            settings=settings,
            head=head(made),
            regions=regions(federation),
            allocations=ALLOCATIONS,
            accountants=ACCOUNTANTS,
            version=package_version(),
            data=inline_json(data),
        )
        .encode()
    )


async def _body(request: "Request", kind: str) -> bytes:
    """Returns the body of a request of that kind, which no form of another site's page can send."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
        raise _Refusal(415, f"the request must be of the kind {kind}")
    return await request.body()


def _limited(receive: Receive) -> Receive:
    """Returns what gives a request's body piece by piece and refuses to go on where it is too large."""
    met = 0

    async def received() -> Message:
        nonlocal met
        message = await receive()
        met += len(message.get("body", b""))
        if met > LARGEST_BODY:
            raise _Refusal(413, _too_large())
        return message

    return received


async def _tell(send: Send, status: int, reason: str) -> None:
    body = msgspec.json.encode({"error": reason})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the address that a host is in figures, with or without brackets; None for a name."""
    try:
        return ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        return None


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _too_large() -> str:
    return f"that is larger than the {LARGEST_BODY // 1_000_000} MB that the page takes. Use: fulcrum plan"
