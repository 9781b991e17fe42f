"""The job process of a silo or region: restarted after a kill by a signal, and after a restart of the whole site."""

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, JobConstants
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobProcessArgs
from nvflare.apis.workspace import Workspace
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher

from fulcrum.core.silo.site import read_site
from fulcrum.core.store.durable_files import write_whole
from fulcrum.engines.nvflare.kits.flare_version import check_version
from fulcrum.engines.nvflare.site_jobs.admission import is_job, restrict_commands, restrict_peers
from fulcrum.engines.nvflare.site_jobs.job_messages import FOLDER, RUNNING_JOB
from fulcrum.errors import EngineError

_RESTARTS = 20
_CREDENTIALS = (JobProcessArgs.AUTH_TOKEN, JobProcessArgs.TOKEN_SIGNATURE, JobProcessArgs.SSID)

_logger = logging.getLogger(__name__)


class _RestartedJob(JobHandleSpec):  # type: ignore[misc]
    """A job process that is launched again after a kill by a signal, unless the process was meant to end."""

    def __init__(self, launch: Callable[[], Any], ended: Callable[[], None]) -> None:
        super().__init__()
        self._launch = launch
        self._ended = ended
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # a restart must not overlook a request to end
        self._process = launch()

    def terminate(self) -> None:
        self._stopping.set()
        with self._lock:
            self._process.terminate()

    def poll(self) -> Any:
        return self._process.poll()

    def wait(self) -> None:
        try:
            for _ in range(_RESTARTS):
                self._process.wait()
                code = self._process.adapter.poll()
                with self._lock:
                    if self._stopping.is_set() or code is None or code >= 0:
                        break
                    _logger.warning("the job process was killed by signal %d: started again", -code)
                    self._process = self._launch()
            self._process.wait()
        finally:
            self._ended()


class SiteLauncher(ClientProcessJobLauncher):  # type: ignore[misc]
    """Launches job processes, and after a restart of the site rejoins the job that was running.

    A restarted site receives new credentials, and the server's running job knows the old ones alone. The job's own
    credentials are therefore stored in the site's folder while the job runs, readable by the owner alone, like the
    site's key.
    """

    def __init__(self) -> None:
        super().__init__()
        self._guarded = False
        check_version()  # the site's own version counts: the machine that made the kit may have another
        restrict_commands()

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> JobHandleSpec:
        """Launches the job and records that the job runs."""
        note, job_id = _note(fl_ctx), job_meta[JobConstants.JOB_ID]
        arguments = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
        brought = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_app_custom_dir(job_id)
        is_own = is_job(job_id) and arguments[JobProcessArgs.JOB_ID][1] == job_id
        if not self._guarded or not is_own or (brought and Path(brought).exists()):
            raise EngineError("flare.job-not-of-kit")
        stored = _read(note)
        if stored.get("job_id") == job_id:
            arguments |= {name: tuple(value) for name, value in stored["credentials"].items()}
        credentials = {name: arguments[name] for name in _CREDENTIALS if name in arguments}
        write_whole(note, json.dumps({"job_id": job_id, "credentials": credentials}).encode(), private=True)
        launch = super().launch_job
        try:
            return _RestartedJob(lambda: launch(job_meta, fl_ctx), lambda: note.unlink(missing_ok=True))
        except BaseException:
            note.unlink(missing_ok=True)
            raise

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Rejoins the running job when the site's own process is up and registered."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            workspace: Workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
            site = read_site(Path(workspace.get_site_config_dir()) / FOLDER)
            restrict_peers(fl_ctx.get_engine().get_cell(), site)
            self._guarded = True
        elif event_type == EventType.SYSTEM_START:
            self._rejoin(fl_ctx)

    def _rejoin(self, fl_ctx: FLContext) -> None:
        note = _note(fl_ctx)
        job_id = _read(note).get("job_id")
        if job_id is None:
            return
        try:
            meta = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT).get_job_meta_path(job_id))
            self.logger.warning("rejoining job %s, which was running when this site went down", job_id)
            fl_ctx.get_engine().start_app(job_id, json.loads(meta.read_text()))
        except Exception:
            self.logger.exception("job %s cannot be rejoined", job_id)
            note.unlink(missing_ok=True)


def _note(fl_ctx: FLContext) -> Path:
    """Returns the file in a site's folder that names the running job."""
    workspace: Workspace = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
    return Path(workspace.get_root_dir()) / RUNNING_JOB


def _read(note: Path) -> dict[str, Any]:
    try:
        content = json.loads(note.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
