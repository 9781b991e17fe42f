"""The page of `fulcrum serve` as a web application without memory: every answer follows from its question.

The application sets no cookies and writes no files. `page_guard` checks every request first.
"""

import threading
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fulcrum.core.choices import ACCOUNTANTS, NEIGHBOURS, PURPOSES, UNITS, WEIGHTS
from fulcrum.core.topology import Topology
from fulcrum.planning.inputs.recipes import RECIPES
from fulcrum.planning.theory.allocation import ALLOCATIONS
from fulcrum.readers.editing import MOST_SILOS
from fulcrum.readers.federation_json import roster_of
from fulcrum.readers.spreadsheets.column_names import MOST_COLUMNS
from fulcrum.rules.rule_registry import known_rules
from fulcrum.version import package_version
from fulcrum.views.charts.chart_style import javascript_bundle, theme
from fulcrum.views.html import inline_json, render, script, style
from fulcrum.views.page.page_answers import too_many_silos
from fulcrum.views.page.page_guard import FAILED, LARGEST_BODY, Guard, Refusal
from fulcrum.views.page.page_head import head
from fulcrum.views.page.page_regions import regions
from fulcrum.views.page.page_server import missing_extra
from fulcrum.views.page.page_settings import PageSettings
from fulcrum.views.page.page_work import DOWNLOADS, Job
from fulcrum.views.page.page_workers import Workers

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

_WORKERS = 4
"""Worker processes, and so questions under way."""

_REASONS = {
    404: "there is nothing here. Open /",
    405: "this address does not take that method. Open /",
    500: FAILED,
}


def application(
    federation: Topology,
    *,
    hosts: Container[str],
    settings: PageSettings | None = None,
    notes: Sequence[str] = (),
) -> Guard:
    """Returns the application with a page that starts with a federation.

    Args:
        federation: The first federation of the page.
        hosts: The names of the server, of `hosts_of`.
        settings: The first settings of sliders and choices.
        notes: Notes on doubtful columns of the federation's file.

    Raises:
        MissingExtraError: Starlette or vl-convert-python is not installed.
    """
    return Guard(_routes(_page(federation, settings or PageSettings(), notes), Workers()), hosts=hosts)


def _routes(page: bytes, workers: Workers) -> "Starlette":
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

    async def respond(request: Request, job: Job, kind: str = "application/json", **headers: str) -> Response:
        """Returns the response to a job. The work ends at the deadline, and when the browser leaves."""
        left = threading.Event()

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            left.set()

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            reply = await run_sync(lambda: workers.answer(job, left.is_set), limiter=limiter)
            group.cancel_scope.cancel()
        if reply.status != 200:
            kind, headers = "application/json", {}
        return Response(reply.body, status_code=reply.status, headers={"Content-Type": kind, **headers})

    async def serve_file(request: Request) -> Response:
        if request.url.path in files:
            kind, content = files[request.url.path]
            return Response(content, headers={"Content-Type": kind})
        workers.prepare()  # the browser asks its first question at once
        return Response(page, headers={"Content-Type": "text/html; charset=utf-8"})

    async def read(request: Request) -> Response:
        body, query = await _body(request, "application/octet-stream"), request.query_params
        columns = tuple(query.getlist("column")[:MOST_COLUMNS])
        return await respond(request, Job(kind="read", body=body, name=query.get("name", ""), columns=columns))

    async def answer_plan(request: Request) -> Response:
        return await respond(request, Job(kind="plan", body=await _body(request, "application/json")))

    async def answer_late(request: Request) -> Response:
        return await respond(request, Job(kind="later", body=await _body(request, "application/json")))

    async def download(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in DOWNLOADS:
            raise HTTPException(404)
        job = Job(kind="download", body=await _body(request, "application/json"), name=name)
        attached = {"Content-Disposition": f'attachment; filename="{name}"'}
        return await respond(request, job, DOWNLOADS[name][0], **attached)

    async def refuse(_: Request, error: Exception) -> Response:
        if isinstance(error, Refusal):
            return _json({"error": str(error)}, status=error.status)
        if isinstance(error, ClientDisconnect):  # no reader waits for the reply
            return _json({"error": "the request was not sent whole"}, status=400)
        status, headers = (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
        return _json({"error": _REASONS.get(status, "the request is wrong")}, status=status, headers=headers)

    def _json(content: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        kind = {"Content-Type": "application/json"}
        return Response(msgspec.json.encode(content), status_code=status, headers={**(headers or {}), **kind})

    return Starlette(
        routes=[
            *(Route(path, serve_file, methods=["GET"]) for path in ("/", *files)),
            Route("/read", read, methods=["POST"]),
            Route("/plan", answer_plan, methods=["POST"]),
            Route("/later", answer_late, methods=["POST"]),
            Route("/download/{name}", download, methods=["POST"]),
        ],
        exception_handlers={HTTPException: refuse, Refusal: refuse, ClientDisconnect: refuse, Exception: refuse},
    )


def _page(federation: Topology, settings: PageSettings, notes: Sequence[str]) -> bytes:
    if len(federation) > MOST_SILOS:
        raise too_many_silos(len(federation))
    plan = settings.plan(federation)
    data = {
        "federation": roster_of(federation),
        "themes": {"light": theme(), "dark": theme(dark=True)},
        "largest": LARGEST_BODY,
        "notes": notes,
    }
    page = render(
        "serve.html",
        name=federation.name,
        settings=settings,
        head=head(plan),
        regions=regions(plan),
        allocations=ALLOCATIONS,
        accountants=ACCOUNTANTS,
        recipes=RECIPES,
        weights=WEIGHTS,
        servers=known_rules(),
        purposes=PURPOSES,
        units=UNITS,
        neighbours=NEIGHBOURS,
        version=package_version(),
        data=inline_json(data),
    )
    return page.encode()


async def _body(request: "Request", kind: str) -> bytes:
    """Returns the body of a request with a content type that no form of another site's page can send."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
        raise Refusal(415, f"the request must be of the kind {kind}")
    return await request.body()
