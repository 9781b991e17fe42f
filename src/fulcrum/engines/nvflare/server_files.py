"""The files of the server's own process on NVIDIA FLARE: jobs and snapshots, inside the kit."""

from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.job_def_manager import SimpleJobDefManager
from nvflare.apis.job_def import Job, RunStatus
from nvflare.app_common.storages.filesystem_storage import FilesystemStorage

from fulcrum.engines.nvflare.site_jobs.job_endings import ENDED, RUN, read_ending, read_run


class KitStorage(FilesystemStorage):  # type: ignore[misc]
    """The server's snapshots, inside the kit; by default all users of the machine share the folder."""

    def __init__(self) -> None:
        super().__init__(root_dir=str(Path("state/snapshots").absolute()))


class KitJobs(SimpleJobDefManager):  # type: ignore[misc]
    """The server's jobs, inside the kit; a job's metadata has the rounds so far and the reason for the job's end."""

    def __init__(self) -> None:
        super().__init__(uri_root=str(Path("state/jobs").absolute()))
        self._kit = Path().absolute()

    def get_job(self, jid: str, fl_ctx: FLContext) -> Job | None:
        """Returns a job, with the results of the plan's rounds so far in the metadata."""
        job = super().get_job(jid, fl_ctx)
        if job is not None and (run := read_run(self._kit)) is not None:
            job.meta[RUN] = run
        return job

    def set_status(self, jid: str, status: RunStatus, fl_ctx: FLContext) -> None:
        """Stores the status of a job, and the reason for the job's end if recorded."""
        if (ending := read_ending(self._kit, jid)) is not None:
            self.update_meta(jid, {ENDED: ending}, fl_ctx)
        super().set_status(jid, status, fl_ctx)
