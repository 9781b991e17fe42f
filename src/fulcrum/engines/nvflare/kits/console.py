"""The administrator's part: submits the job, follows the job, and submits the job again after a failure."""

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fulcrum.engines.nvflare.kits.flare_version import check_version
from fulcrum.engines.nvflare.kits.nvflare_kits import ADMIN
from fulcrum.engines.nvflare.site_jobs.job_endings import ENDED, RUN
from fulcrum.errors import DataError, EngineError, MissingExtraError, in_one_line
from fulcrum.server.deployed_run import run_from
from fulcrum.server.run_results import RoundResult, RunResult

COMPLETED = "FINISHED:COMPLETED"

_SHORTEST, _INTERVAL = 0.1, 0.5
"""Seconds between questions to the server: the shortest time and the longest. Every question costs the server time."""

_SHARE = 0.05
"""The time between questions as a share of the time since the last news: quick rounds are heard of soon."""

_TRIES = 5
"""The number of quick failures in a row after which the job is given up."""

_QUICK = 300.0
_LONGEST = 500
"""The most characters of the server's reason that are shown."""

_SILENCE = 600.0
"""Seconds without an answer of the server after which the run is given up."""


@contextlib.contextmanager
def session(kits: Path, *, timeout: float = 60.0) -> Iterator[Any]:
    """Opens the administrator's session with the server."""
    check_version()
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
    last_round: int | None = None,
) -> RunResult | None:
    """Runs the job until completion: a job that broke off is submitted again and continues from the checkpoint.

    A job that cannot begin at all is given up at once.

    Args:
        kits: The folder that `write_kits` wrote; the folders admin and job are used.
        tick: Called repeatedly while the job runs; an exception of `tick` ends the following.
        on_status: Called at every change of the job's status.
        on_round: Called once with the result of every round of the plan, including rounds of earlier jobs.
        last_round: The round whose report ends the following, for sites that are killed next. By default the end of the
            job ends the following.

    Returns:
        The result of the plan as the server reports it; None without a report.
    """
    tries, rounds = 0, _Rounds(on_round)
    while True:
        began = time.monotonic()
        with session(kits) as opened:
            job = opened.submit_job(str((kits / "job").resolve()))
            meta = _follow_job(opened, job, tick, on_status, rounds, last_round)
        status, (why, final) = meta["status"], _ending_of(meta)
        if status == COMPLETED or rounds.reach(last_round):
            return rounds.run
        if final:
            raise EngineError("flare.job-impossible", reason=why)
        tries = tries + 1 if time.monotonic() - began < _QUICK else 1
        if tries == _TRIES:
            reason = why or f"See {kits}/server/output.log"
            raise EngineError("flare.job-failed", tries=tries, status=status, reason=reason)


class _Rounds:
    """The server's reports of the plan's rounds. Every round is passed on once."""

    def __init__(self, on_round: Callable[[RoundResult], None] | None) -> None:
        self._on_round = on_round
        self._passed_on = 0
        self.run: RunResult | None = None

    def hear(self, meta: Mapping[str, Any]) -> bool:
        """Reads the report in the server's metadata of a job, and returns True for a further round.

        Malformed reports are ignored.
        """
        try:
            self.run = run_from(meta[RUN])
        except (KeyError, DataError):
            return False
        further = self.run.rounds[self._passed_on :]
        for result in further:
            self._passed_on += 1
            if self._on_round is not None:
                self._on_round(result)
        return bool(further)

    def reach(self, number: int | None) -> bool:
        """Returns True once a round has been reported; False for None."""
        return number is not None and self._passed_on >= number


def _pause(quiet: float) -> float:
    """Returns the seconds until the next question to the server, by the seconds since the last news.

    >>> [_pause(quiet) for quiet in (0.0, 4.0, 60.0)]
    [0.1, 0.2, 0.5]
    """
    return min(max(_SHARE * quiet, _SHORTEST), _INTERVAL)


def _ending_of(meta: Mapping[str, Any]) -> tuple[str, bool]:
    """Returns the reason for a job's end as one line, and True if the same job would end in the same way again."""
    ending = meta.get(ENDED)
    if not isinstance(ending, Mapping):
        return "", False
    return in_one_line(ending.get("reason", ""))[:_LONGEST], bool(ending.get("final"))


def _follow_job(
    opened: Any,
    job: str,
    tick: Callable[[], None],
    on_status: Callable[[str], None] | None,
    rounds: _Rounds,
    last_round: int | None,
) -> dict[str, Any]:
    """Follows a job to the end or to the report of a round, and returns the server's metadata of the job."""
    from nvflare.fuel.flare_api.api_spec import InternalError, NoConnection

    last_status, heard = "", time.monotonic()
    news = heard - _INTERVAL / _SHARE  # processes are starting, and leave questions little time
    while True:
        try:
            meta = dict(opened.get_job_meta(job))
            status = str(meta.get("status", ""))
            heard = time.monotonic()
            if status != last_status and on_status is not None:
                on_status(status)
            last_status = status
            if rounds.hear(meta):
                news = heard
            if status.startswith("FINISHED") or rounds.reach(last_round):
                return meta | {"status": status}
        except (NoConnection, InternalError) as error:
            if time.monotonic() - heard > _SILENCE:
                raise EngineError("flare.server-silent", seconds=_SILENCE, reason=str(error)) from None
        tick()
        time.sleep(_pause(time.monotonic() - news))
