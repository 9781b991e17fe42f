"""The end of a job and the rounds so far, written by the server's job into the kit for the server's own process."""

import json
from pathlib import Path
from typing import Any, TypedDict

from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import in_one_line
from fulcrum.server.deployed_run import save_deployed_run
from fulcrum.server.run_results import RunResult

ENDED = "fulcrum_ended"
"""The field of a job's metadata with the reason for an early end."""

RUN = "fulcrum_run"
"""The field of a job's metadata with the results of the plan's rounds so far, as in run.json."""


class Ending(TypedDict):
    """The reason for which a job ended before its plan was over.

    Attributes:
        job: The job.
        reason: The reason in one line.
        final: True if the same job, submitted again, would end in the same way before any silo is asked.
    """

    job: str
    reason: str
    final: bool


def note_ending(fl_ctx: Any, error: Exception, *, final: bool) -> None:
    """Writes the reason for the coming end of a job into the server's kit, for the server's own process."""
    ending = Ending(job=fl_ctx.get_job_id(), reason=in_one_line(error), final=final)
    root = Path(fl_ctx.get_engine().get_workspace().get_root_dir())
    write_whole(_ending(root), json.dumps(ending).encode())


def note_run(fl_ctx: Any, run: RunResult) -> None:
    """Writes the results of the rounds so far into the server's kit, for the operator and the server's own process."""
    save_deployed_run(run, Path(fl_ctx.get_engine().get_workspace().get_root_dir()))


def read_run(root: Path) -> Any:
    """Returns the results of the rounds so far, as plain data; None before the first result."""
    try:
        return json.loads((root / "run.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def read_ending(root: Path, job: str) -> Ending | None:
    """Returns the recorded reason for a job's end; None without a record."""
    try:
        fields = json.loads(_ending(root).read_bytes())
        ending = Ending(job=str(fields["job"]), reason=str(fields["reason"]), final=bool(fields["final"]))
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    return ending if ending["job"] == job else None


def _ending(root: Path) -> Path:
    return root / "ended-job.json"
