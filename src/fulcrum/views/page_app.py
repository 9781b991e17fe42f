"""The page of `fulcrum serve` as a web application: every answer follows from its question, and nothing is kept.

No cookies, and nothing is written to disk. `page_guard` stands before it.
"""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fulcrum.errors import FederationError, FulcrumError, ParameterError
from fulcrum.federation.as_csv import federation_csv
from fulcrum.federation.as_json import roster_of
from fulcrum.federation.column_names import MOST_COLUMNS, columns_said
from fulcrum.federation.editing import MOST_SILOS
from fulcrum.federation.reading import FederationReading, reading_of_bytes
from fulcrum.federation.structure import Federation
from fulcrum.planning.exporting import exported
from fulcrum.planning.plan import Plan
from fulcrum.planning.plan_file import PURPOSES, to_json
from fulcrum.planning.recipes import RECIPES, SERVERS
from fulcrum.privacy.accounting import ACCOUNTANTS
from fulcrum.privacy.allocation import ALLOCATIONS
from fulcrum.privacy.weights import WEIGHTS
from fulcrum.version import package_version
from fulcrum.views.chart_style import javascript_bundle, theme
from fulcrum.views.html import inline_json, rendered, script, style
from fulcrum.views.page_answers import LateAnswer, PageAnswer, PageQuestion, too_many
from fulcrum.views.page_guard import FAILED, LARGEST_BODY, Guard, Refusal
from fulcrum.views.page_head import head
from fulcrum.views.page_regions import regions
from fulcrum.views.page_server import missing_extra
from fulcrum.views.page_settings import PageSettings
from fulcrum.views.report import report

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

Made = TypeVar("Made")

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
_DEEP_KEY = re.compile(
    rb"""^[ \t]*\[{0,2}[ \t]*KEY(?:[ \t]*\.[ \t]*KEY){4,}[ \t]*[\]=]""".replace(
        b"KEY", rb"""(?:"[^"\n]*"|'[^'\n]*'|[\w-]+)"""
    ),
    re.MULTILINE,
)  # deeper than tier, region, silo and what is said of it: nothing the reader knows, and a table a part to the parser
_REASONS = {
    404: "there is nothing here. Open /",
    405: "this is not asked for in that way. Open /",
    500: FAILED,
}


def application(
    federation: Federation,
    *,
    hosts: Container[str],
    settings: PageSettings | None = None,
    notes: Sequence[str] = (),
) -> Guard:
    """Returns the application whose page starts with a federation.

    Args:
        federation: What the page shows first.
        hosts: Names that the server answers to, as `hosts_of` gives them.
        settings: What its sliders and choices say first.
        notes: How the federation was read.

    Raises:
        MissingExtraError: Starlette or vl-convert-python is not installed.
    """
    return Guard(_routes(_page(federation, settings or PageSettings(), notes)), hosts=hosts)


def _routes(page: bytes) -> "Starlette":
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
    files = {
        "/style.css": ("text/css; charset=utf-8", style("serve.css").encode()),
        "/page.js": ("text/javascript; charset=utf-8", script("serve.js").encode()),
        "/vega.js": ("text/javascript; charset=utf-8", javascript_bundle().encode()),
    }
    limiter = anyio.CapacityLimiter(_WORKERS)

    async def worked(work: Callable[[], Made]) -> Made:
        """Does work in a thread, a few at a time; an error of ours becomes a refusal of one line."""
        try:
            return await run_sync(work, limiter=limiter)
        except FulcrumError as error:
            raise Refusal(422, " ".join(str(error).split())) from None

    async def shown(request: Request) -> Response:
        if request.url.path in files:
            kind, content = files[request.url.path]
            return Response(content, headers={"Content-Type": kind})
        return Response(page, headers={"Content-Type": "text/html; charset=utf-8"})

    async def read(request: Request) -> Response:
        body, asked_for = await _body(request, "application/octet-stream"), request.query_params
        name, said = asked_for.get("name", ""), asked_for.getlist("column")[:MOST_COLUMNS]
        reading = await worked(lambda: read_upload(body, name, columns_said(said)))
        return _json({"federation": roster_of(reading.federation), "notes": reading.notes})

    async def planned(request: Request) -> Response:
        body = await _body(request, "application/json")
        return _json(await worked(lambda: PageAnswer.to(asked(body))))

    async def later(request: Request) -> Response:
        body = await _body(request, "application/json")
        return _json(await worked(lambda: LateAnswer.to(asked(body))))

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
        if isinstance(error, Refusal):
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
            Route("/later", later, methods=["POST"]),
            Route("/download/{name}", downloaded, methods=["POST"]),
        ],
        exception_handlers={HTTPException: refused, Refusal: refused, ClientDisconnect: refused, Exception: refused},
    )


def asked(body: bytes) -> PageQuestion:
    """Returns the question in a request's body.

    Raises:
        ParameterError: It is not JSON, or not a question.
    """
    try:
        return msgspec.json.decode(body, type=PageQuestion)
    except RecursionError:
        raise ParameterError("the request is nested too deeply to be read") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ParameterError(f"the request cannot be read: {error}") from None


def read_upload(data: bytes, name: str, columns: Mapping[str, Sequence[str]] | None = None) -> FederationReading:
    """Returns the federation of a file that a page sent, and how it was read; its name is never opened as a path.

    Args:
        data: The file.
        name: What it is called.
        columns: What was said of its columns, as `read_federation` takes it.

    Raises:
        FederationError: It cannot be read, or holds too many silos.
    """
    bare = PurePosixPath(name.replace("\\", "/")).name[-100:]
    file = bare if bare.isprintable() and bare else "the file"
    if file != bare:
        raise FederationError("the file's name must be printable. Rename it")
    lines = max(data.count(b"\n"), data.count(b"\r"))
    if lines > 2 * MOST_SILOS:  # before anything is parsed
        raise FederationError(f"{file} has {lines:,} lines. The page takes {MOST_SILOS:,} silos. Use: fulcrum plan")
    if file.lower().endswith(".toml"):
        _check_toml(data, file)
    found = reading_of_bytes(data, file, columns=columns)
    if len(found.federation) > MOST_SILOS:
        raise FederationError(f"{file}: {too_many(len(found.federation))}")
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
    if deep := _DEEP_KEY.search(data):
        number = data.count(b"\n", 0, deep.start()) + 1
        raise FederationError(f"{file} line {number}: a key of more than four parts, which no federation has")


def _page(federation: Federation, settings: PageSettings, notes: Sequence[str]) -> bytes:
    if len(federation) > MOST_SILOS:
        raise FederationError(too_many(len(federation)))
    made = settings.plan(federation)
    data = {
        "federation": roster_of(federation),
        "themes": {"light": theme(), "dark": theme(dark=True)},
        "largest": LARGEST_BODY,
        "notes": notes,
    }
    shown = rendered(
        "serve.html",
        name=federation.name,
        settings=settings,
        head=head(made),
        regions=regions(made),
        allocations=ALLOCATIONS,
        accountants=ACCOUNTANTS,
        recipes=RECIPES,
        weights=WEIGHTS,
        servers=SERVERS,
        purposes=PURPOSES,
        version=package_version(),
        data=inline_json(data),
    )
    return shown.encode()


async def _body(request: "Request", kind: str) -> bytes:
    """Returns the body of a request of that kind, which no form of another site's page can send."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
        raise Refusal(415, f"the request must be of the kind {kind}")
    return await request.body()
