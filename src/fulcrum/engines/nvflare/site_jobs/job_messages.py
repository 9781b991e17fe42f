"""The names of fields that silo, region and server exchange on NVIDIA FLARE, and the folder of a site."""

from pathlib import Path
from typing import Any

from fulcrum.core.silo.site import Role, Site, read_site

TASK = "train"

MODEL = "fulcrum_model"
"""Server to silos: the global model."""

ROUND = "fulcrum_round"
"""Server to regions and silos: the round, from 1."""

RELEASE = "fulcrum_release"
"""Silo to region: the sealed release."""

DECLINE = "fulcrum_decline"
"""Silo to region, in place of a release: the silo's signed statement that no release comes."""

ANSWER = "fulcrum_answer"
"""Region to server: the regional sum, or the notice that the region withheld the sum."""

APP = "config/config_fed_client.json"
"""The only file of a job's app at a silo or region; the kit has its own copy."""

FOLDER = "fulcrum"
"""The site's folder inside the kit's local folder."""

RUNNING_JOB = "running-job.json"
"""The file in a kit that names the running job, with the job's credentials, while the job runs."""


def site_of(fl_ctx: Any, role: Role) -> Site:
    """Returns the site of this process, read from the kit's local folder."""
    workspace = fl_ctx.get_engine().get_workspace()
    return read_site(Path(workspace.get_site_config_dir()) / FOLDER, role)
