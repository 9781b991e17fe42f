"""The administrator's part: the job submitted, followed, and submitted again where it broke off."""

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fulcrum.engines.nvflare.job_endings import ENDED, RUN
from fulcrum.engines.nvflare.nvflare_kits import ADMIN
from fulcrum.errors import DataError, EngineError, MissingExtraError, in_one_line
from fulcrum.server.deployed_run import run_from
from fulcrum.server.run_results import RoundResult, RunResult

COMPLETED = "FINISHED:COMPLETED"

_INTERVAL = 0.5
_TRIES = 5
"""How often a job may fail quickly in a row before it is given up."""

_QUICK = 300.0
_LONGEST = 500
"""Characters of what the server says that are shown."""

_SILENCE = 600.0
"""Seconds without an answer of the server after which it is given up."""


@contextlib.contextmanager
def session(kits: Path, *, timeout: float = 60.0) -> Iterator[Any]:
    """Opens the administrator's session with the server."""
    try:
        from nvflare.fuel.flare_api.api_spec import NoConnection
        from nvflare.fuel.flare_api.flare_api import new_secure_session
    except ImportError:
        raise MissingExtraError("engine.not-installed", package="NVIDIA FLARE", extra="nvflare,secure") from None

    kit = kits / "admin"
    if not kit.is_dir():
        raise EngineError("flare.admin-kit-missing", folder=kit)
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            opened = new_secure_session(ADMIN, str(kit.resolve()), timeout=timeout)
        except NoConnection as error:
            raise EngineError("flare.server-unreachable", reason=str(error), kits=kits) from None
        try:
            yield opened
        finally:
            opened.close()


def follow(
    kits: Path,
    *,
    tick: Callable[[], None],
    on_status: Callable[[str], None] | None = None,
    on_round: Callable[[RoundResult], None] | None = None,
) -> RunResult | None:
    """Runs the job until it is complete: one that broke off is submitted again and goes on from the checkpoint.

    A job that cannot begin, however often it is submitted, is given up at once.

    Args:
        kits: As `write_kits` made them; its folders admin and job are used.
        tick: Called again and again while the job runs; what it raises ends the following.
        on_status: Told each time the job's status changes.
        on_round: Told what came of each round of the plan, once, those that were over before included.

    Returns:
        What came of the plan, as the server tells; None where it tells nothing.
    """
    tries, rounds = 0, _Rounds(on_round)
    while True:
        began = time.monotonic()
        with session(kits) as opened:
            job = opened.submit_job(str((kits / "job").resolve()))
            meta = _watched(opened, job, tick, on_status, rounds)
        status, (why, final) = meta["status"], _ending_of(meta)
        if status == COMPLETED:
            return rounds.run
        if final:
            raise EngineError("flare.job-impossible", reason=why)
        tries = tries + 1 if time.monotonic() - began < _QUICK else 1
        if tries == _TRIES:
            told = why or f"See {kits}/server/output.log"
            raise EngineError("flare.job-failed", tries=tries, status=status, reason=told)


class _Rounds:
    """What the server has told of the plan's rounds, each passed on once."""

    def __init__(self, on_round: Callable[[RoundResult], None] | None) -> None:
        self._on_round = on_round
        self._told = 0
        self.run: RunResult | None = None

    def hear(self, meta: Mapping[str, Any]) -> None:
        """Takes what the server tells of a job; what is not a run is as nothing."""
        try:
            self.run = run_from(meta[RUN])
        except (KeyError, DataError):
            return
        for found in self.run.rounds[self._told :]:
            self._told += 1
            if self._on_round is not None:
                self._on_round(found)


def _ending_of(meta: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns why a job ended, as far as the server says, and whether it would again; its words are made one line."""
    ending = meta.get(ENDED)
    if not isinstance(ending, Mapping):
        return "", False
    return in_one_line(ending.get("reason", ""))[:_LONGEST], bool(ending.get("final"))


def _watched(
    opened: Any, job: str, tick: Callable[[], None], on_status: Callable[[str], None] | None, rounds: _Rounds
) -> dict[str, Any]:
    """Follows one job to its end and returns what the server tells of it then."""
    from nvflare.fuel.flare_api.api_spec import InternalError, NoConnection

    told, heard = "", time.monotonic()
    while True:
        try:
            meta = dict(opened.get_job_meta(job))
            status = str(meta.get("status", ""))
            heard = time.monotonic()
            if status != told and on_status is not None:
                on_status(status)
            told = status
            rounds.hear(meta)
            if status.startswith("FINISHED"):
                return meta | {"status": status}
        except (NoConnection, InternalError) as error:
            if time.monotonic() - heard > _SILENCE:
                raise EngineError("flare.server-silent", seconds=_SILENCE, reason=str(error)) from None
        tick()
        time.sleep(_INTERVAL)
