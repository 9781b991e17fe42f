"""The end of a job and the rounds so far, written by the server's job into its kit for the server's own process."""

import json
from pathlib import Path
from typing import Any, TypedDict

from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import in_one_line
from fulcrum.server.deployed_run import save_deployed_run
from fulcrum.server.run_results import RunResult

ENDED = "fulcrum_ended"
"""In what the server tells of a job: why it ended, where it was not complete."""

RUN = "fulcrum_run"
"""In what the server tells of a job: what came of the plan's rounds so far, as run.json has it."""


class Ending(TypedDict):
    """Why a job ended before its plan was over.

    Attributes:
        job: Which job.
        reason: In one line.
        final: Whether the same job, submitted again, would end in the same way before any silo is asked.
    """

    job: str
    reason: str
    final: bool


def note_ending(fl_ctx: Any, error: Exception, *, final: bool) -> None:
    """Writes why the job is about to end into the server's kit, where the server's own process reads it."""
    told = Ending(job=fl_ctx.get_job_id(), reason=in_one_line(error), final=final)
    root = Path(fl_ctx.get_engine().get_workspace().get_root_dir())
    write_whole(_ending(root), json.dumps(told).encode())


def note_run(fl_ctx: Any, run: RunResult) -> None:
    """Writes what came of the rounds so far into the server's kit, for its operator and its own process to read."""
    save_deployed_run(run, Path(fl_ctx.get_engine().get_workspace().get_root_dir()))


def read_run(root: Path) -> Any:
    """Returns what came of the rounds so far, as plain data; None where nothing is written yet."""
    try:
        return json.loads((root / "run.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def read_ending(root: Path, job: str) -> Ending | None:
    """Returns why a job ended, if it wrote that down."""
    try:
        found = json.loads(_ending(root).read_bytes())
        told = Ending(job=str(found["job"]), reason=str(found["reason"]), final=bool(found["final"]))
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    return told if told["job"] == job else None


def _ending(root: Path) -> Path:
    return root / "ended-job.json"
