"""The files of the server's own process on NVIDIA FLARE: jobs and snapshots, inside its kit."""

from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.job_def_manager import SimpleJobDefManager
from nvflare.apis.job_def import Job, RunStatus
from nvflare.app_common.storages.filesystem_storage import FilesystemStorage

from fulcrum.engines.nvflare.job_endings import ENDED, RUN, read_ending, read_run


class KitStorage(FilesystemStorage):  # type: ignore[misc]
    """The server's snapshots, inside its kit; by default they are in a folder that every user of the machine shares."""

    def __init__(self) -> None:
        super().__init__(root_dir=str(Path("state/snapshots").absolute()))


class KitJobs(SimpleJobDefManager):  # type: ignore[misc]
    """The server's jobs, inside its kit; who asks for one is told of the rounds so far, and why it ended, if it did."""

    def __init__(self) -> None:
        super().__init__(uri_root=str(Path("state/jobs").absolute()))
        self._kit = Path().absolute()

    def get_job(self, jid: str, fl_ctx: FLContext) -> Job | None:
        """Returns a job, and with it what came of the plan's rounds so far."""
        job = super().get_job(jid, fl_ctx)
        if job is not None and (run := read_run(self._kit)) is not None:
            job.meta[RUN] = run
        return job

    def set_status(self, jid: str, status: RunStatus, fl_ctx: FLContext) -> None:
        """Notes where a job stands; whoever follows it finds its reason beside its end."""
        if (ending := read_ending(self._kit, jid)) is not None:
            self.update_meta(jid, {ENDED: ending}, fl_ctx)
        super().set_status(jid, status, fl_ctx)
