"""The work of the page: from the body of a request to the body of a response, without a web server.

>>> reply = answer(Job(kind="plan", body=b"{}"))
>>> reply.status, reply.body[:67]
(422, b'{"error":"the request cannot be read: Object missing required field')
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Literal

import msgspec

from fulcrum.core.plan.plan_file import to_json
from fulcrum.errors import FederationError, FulcrumError, ParameterError
from fulcrum.planning.files.exports import export_plan
from fulcrum.planning.plan import Plan
from fulcrum.readers.editing import MOST_SILOS
from fulcrum.readers.federation_csv import federation_csv
from fulcrum.readers.federation_json import roster_of
from fulcrum.readers.federation_reader import FederationReading, reading_of_bytes
from fulcrum.readers.spreadsheets.column_names import parse_column_options
from fulcrum.views.page.page_answers import LateAnswer, PageAnswer, PageQuestion, too_many_silos
from fulcrum.views.page.page_guard import FAILED
from fulcrum.views.report.html_report import report

DOWNLOADS: Mapping[str, tuple[str, Callable[[Plan], bytes]]] = {
    "plan.json": ("application/json", lambda plan: to_json(plan.content())),
    "plan.csv": ("text/csv; charset=utf-8", lambda plan: export_plan(plan, "csv").encode()),
    "federation.csv": ("text/csv; charset=utf-8", lambda plan: federation_csv(plan.federation).encode()),
    "report.html": ("text/html; charset=utf-8", lambda plan: report(plan).encode()),
}
"""The downloads by name: media type, and a function of the plan."""

_LARGEST_TOML = 5_000_000
_MOST_DOTS = 100
_DEEP_KEY = re.compile(
    rb"""^[ \t]*\[{0,2}[ \t]*KEY(?:[ \t]*\.[ \t]*KEY){4,}[ \t]*[\]=]""".replace(
        b"KEY", rb"""(?:"[^"\n]*"|'[^'\n]*'|[\w-]+)"""
    ),
    re.MULTILINE,
)  # the parser makes a table for every part of a key; no key of a federation has more than four parts

_log = logging.getLogger(__name__)


class Job(msgspec.Struct, kw_only=True, frozen=True):
    """A piece of work.

    Attributes:
        kind: The route of the request.
        body: The body of the request.
        name: The name of the uploaded file, or of the download.
        columns: The user's words on the columns of the file.
    """

    kind: Literal["read", "plan", "later", "download"]
    body: bytes
    name: str = ""
    columns: tuple[str, ...] = ()


class Reply(msgspec.Struct, kw_only=True, frozen=True):
    """The result of a piece of work: the status and the body of a response, JSON except for downloads."""

    status: int
    body: bytes

    @classmethod
    def refusal(cls, status: int, reason: str) -> "Reply":
        """Returns a reply with a reason in a single line."""
        return cls(status=status, body=msgspec.json.encode({"error": " ".join(reason.split())}))


def answer(job: Job) -> Reply:
    """Returns the reply to a job. Fulcrum's own errors become refusals of a single line; any other error is logged."""
    try:
        return Reply(status=200, body=_reply_body(job))
    except FulcrumError as error:
        return Reply.refusal(422, str(error))
    except MemoryError:
        return Reply.refusal(422, "this needs more memory than the page gives a question. Use: fulcrum plan")
    except Exception:
        _log.exception("a request failed")
        return Reply.refusal(500, FAILED)


def _reply_body(job: Job) -> bytes:
    if job.kind == "read":
        reading = read_upload(job.body, job.name, parse_column_options(job.columns))
        return msgspec.json.encode({"federation": roster_of(reading.federation), "notes": reading.notes})
    question = read_question(job.body)
    if job.kind == "plan":
        return msgspec.json.encode(PageAnswer.to(question))
    if job.kind == "later":
        return msgspec.json.encode(LateAnswer.to(question))
    return DOWNLOADS[job.name][1](question.settings.plan(question.federation_after()))


def read_question(body: bytes) -> PageQuestion:
    """Returns the question in a request's body.

    Raises:
        ParameterError: The body is not JSON, or not a question.
    """
    try:
        return msgspec.json.decode(body, type=PageQuestion)
    except RecursionError:
        raise ParameterError("page.request-nested") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ParameterError("page.request-unreadable", reason=str(error)) from None


def read_upload(data: bytes, name: str, columns: Mapping[str, Sequence[str]] | None = None) -> FederationReading:
    """Returns the federation of an uploaded file, with notes on its columns. The name is never opened as a path.

    Args:
        data: The content of the file.
        name: The name of the file.
        columns: The user's words on the columns, as for `read_federation`.

    Raises:
        FederationError: The file cannot be read, or has too many silos.
    """
    bare = PurePosixPath(name.replace("\\", "/")).name[-100:]
    file = bare if bare.isprintable() and bare else "the file"
    if file != bare:
        raise FederationError("page.file-name-unprintable")
    lines = max(data.count(b"\n"), data.count(b"\r"))
    if lines > 2 * MOST_SILOS:  # counted before parsing, which costs more
        raise FederationError("page.file-too-many-lines", file=file, lines=lines, most=MOST_SILOS)
    if file.lower().endswith(".toml"):
        _check_toml(data, file)
    reading = reading_of_bytes(data, file, columns=columns)
    if len(reading.federation) > MOST_SILOS:
        raise FederationError.at(file, too_many_silos(len(reading.federation)))
    return reading


def _check_toml(data: bytes, file: str) -> None:
    """Checks for TOML that takes the parser minutes: the parser walks a dotted key once for every part."""
    if len(data) > _LARGEST_TOML:
        raise FederationError("page.file-too-large", file=file, megabytes=_LARGEST_TOML // 1_000_000)
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.count(b".") > _MOST_DOTS:
            raise FederationError("page.line-too-many-dots", file=file, line=number, most=_MOST_DOTS)
    if deep := _DEEP_KEY.search(data):
        number = data.count(b"\n", 0, deep.start()) + 1
        raise FederationError("page.key-too-deep", file=file, line=number)
