"""Start-up kits for every site of a plan: NVIDIA FLARE's own, with fewer permissions and with the plan in place."""

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

from fulcrum.aggregation.sum_sealing import check_node_keys
from fulcrum.core.plan.figures import is_one_group
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.silo.site import Role
from fulcrum.engines.installation import write_installation
from fulcrum.engines.kit_templates import write_script, write_text
from fulcrum.engines.nvflare.kits.flare_version import check_version
from fulcrum.engines.nvflare.site_jobs.job_messages import APP, FOLDER, TASK
from fulcrum.engines.site_folders import (
    BUILT_IN,
    Deployment,
    check_stays_here,
    made_whole,
    new_keys,
    signed_plan,
    write_site,
)
from fulcrum.errors import DataError, MissingExtraError, PlanError
from fulcrum.planning.engine_limits import SERVER, refusals

ADMIN = "admin@fulcrum.local"
PROJECT = "fulcrum"

_COMPONENTS = "fulcrum.engines.nvflare"

_ADMITTED: dict[Role, list[str]] = {
    "silo": ["flare_silo.SiloExecutor"],
    "region": ["flare_region.RegionGatherer"],
    "server": ["flare_server.PlanAssessor", "flare_server.FederationController"],
}
"""The components that a job may run, by role, where regional aggregators open releases."""

_ADMITTED_MASKED: dict[Role, list[str]] = {
    "silo": ["flare_masked_silo.MaskedSiloExecutor"],
    "region": ["flare_masked_region.MaskedRegionGatherer"],
    "server": ["flare_masked_server.MaskedAssessor", "flare_masked_server.MaskedFederationController"],
}
"""The components that a job may run, by role, where sums are masked."""

_EXECUTORS: tuple[Role, ...] = ("region", "silo")

_SHORTEST_WAIT, _LONGEST_WAIT = 0.1, 0.5
"""Seconds between two questions of a site for its next task; NVIDIA FLARE's default is the longest."""

_MOST_QUESTIONS = 100.0
"""The most questions in a second that an aggregator answers its members, where the shortest wait would allow more."""


def write_kits(deployment: Deployment, folder: str | Path, *, issuer_key: Path | None = None) -> dict[str, Any]:
    """Writes a kit for every site, the job and the administrator's kit into a folder, and returns a summary.

    A plan without keys gets keys here, and every kit its own private half. A plan with keys leaves room for the private
    halves that sites made themselves, and keeps the existing signature.

    Args:
        deployment: The deployment to write kits for.
        folder: A new or empty folder.
        issuer_key: The private key to sign the plan with. By default the signature file of the plan stays in use;
            without a signature file a fresh key is made.
    """
    check_deployable(deployment)
    target = Path(folder)
    if any(letter.isspace() for letter in str(target.absolute())):
        raise DataError("flare.folder-blank", folder=target.absolute())
    with made_whole(target, replaces=deployment.replaces) as work:
        kits = _provision(deployment, work)
        keyless = {"server"} if _aggregators_have_keys(deployment) else {"server", "region"}
        homes = {name: _home(kits[name]) for name, role in deployment.sites.items() if role not in keyless}
        keys = {} if deployment.plan.keys else new_keys(homes, deployment.sites)
        plan = signed_plan(deployment, work, keys, issuer_key)
        if len(deployment.aggregators) > len(deployment.regions):
            check_node_keys(plan)
        wheel = None
        for name, role in deployment.sites.items():
            _write_site(deployment, plan, kits[name], name, role, keys_made=bool(keys))
            if not deployment.runs_here:  # here Fulcrum is installed
                wheel = write_installation(kits[name], "nvflare", wheel=wheel)
        write_job(deployment, work / "job")
        write_text(
            work / "README.md",
            "nvflare/folder.md",
            sites=[(kits[name].name, name, role) for name, role in deployment.sites.items()],
            digest=plan.digest,
            host=deployment.host,
            port=deployment.port,
            keys_made=bool(keys),
            issuer_made=(work / "issuer.key").exists(),
        )
    return {"sites": len(kits), "plan_digest": plan.digest, "issuer": plan.issuer, "keys_made": bool(keys)}


def _aggregators_have_keys(deployment: Deployment) -> bool:
    """Returns False for masked sums without outer aggregators: a region then opens nothing and seals nothing."""
    return not deployment.plan.is_masked or len(deployment.aggregators) > len(deployment.regions)


def _component_names(deployment: Deployment, role: Role) -> list[str]:
    """Returns the whole names of the components that a job may run at a site of a role."""
    admitted = _ADMITTED_MASKED if deployment.plan.is_masked else _ADMITTED
    return [f"{_COMPONENTS}.{name}" for name in admitted[role]]


def check_deployable(deployment: Deployment) -> None:
    """Raises `PlanError` unless this engine can run the plan, and `EngineError` on an untested version."""
    check_version()
    for reason in refusals(deployment.plan):
        raise PlanError("engine.plan-refused", reason=reason)
    if ":" in deployment.host:
        raise PlanError("flare.host-name", host=deployment.host)
    check_stays_here(deployment)


def _home(kit: Path) -> Path:
    """Returns the site's own folder in a kit, and makes the folder if absent."""
    home = kit / "local" / FOLDER
    home.mkdir(mode=0o700, exist_ok=True)
    return home


def _write_site(
    deployment: Deployment, plan: VerifiedPlan, kit: Path, name: str, role: Role, *, keys_made: bool
) -> None:
    """Writes Fulcrum's own part of a kit: the signed plan, the site's settings, the site's permissions, a README."""
    home, train = _home(kit), "" if role == "region" else deployment.train
    write_site(deployment, plan, home, name, role, source=kit.parent, train=train)
    if role in _EXECUTORS:
        _write_json(home / Path(APP).name, _app(deployment, role))
    _close(kit, role, _component_names(deployment, role), deployment.answer_time)
    (kit / "readme.txt").unlink(missing_ok=True)
    write_text(
        kit / "README.md",
        f"nvflare/{role}.md",
        name=name,
        site=kit.name,
        region=name if role == "server" else deployment.parent(name),
        silos=deployment.aggregators.get(name, []),
        is_outer=role == "region" and name not in deployment.regions,
        parent="the server" if (parent := deployment.parent(name)) == SERVER else parent,
        has_key=_aggregators_have_keys(deployment),
        spare=plan.dropouts,
        moves=deployment.plan.server_rule.clause,
        digest=plan.digest,
        train="" if train == BUILT_IN else train,
        keys_made=keys_made,
        masked=plan.is_masked,
        one_group=is_one_group(plan),
    )


def _provision(deployment: Deployment, work: Path) -> dict[str, Path]:
    """Lets NVIDIA FLARE make kits and certificates, and returns the folder of every site by the name in the plan."""
    try:
        from nvflare.lighter.entity import Project, participant_from_dict
        from nvflare.lighter.impl.cert import CertBuilder
        from nvflare.lighter.impl.signature import SignatureBuilder
        from nvflare.lighter.impl.static_file import StaticFileBuilder
        from nvflare.lighter.impl.workspace import WorkspaceBuilder
        from nvflare.lighter.provisioner import Provisioner
    except ImportError:
        raise MissingExtraError(
            "kit.package-missing", engine="NVIDIA FLARE", package="nvflare", extra="nvflare,secure"
        ) from None
    participants = [
        {
            "name": SERVER,
            "type": "server",
            "org": PROJECT,
            "fed_learn_port": deployment.port,
            "admin_port": deployment.port + 1,
            "default_host": deployment.host,
        },
        {"name": ADMIN, "type": "admin", "org": PROJECT, "role": "project_admin"},
    ]
    technical = deployment.engine_names
    closed = {"type": "client", "org": PROJECT, "allow_log_streaming": False}
    participants.extend(closed | {"name": technical[node]} for node in deployment.reporting)
    for node, members in reversed(deployment.aggregators.items()):
        participants.extend(closed | {"name": technical[member], "parent": technical[node]} for member in members)
    described = {"name": PROJECT, "description": "Fulcrum", "connection_security": "mtls", "api_version": 3}
    project = Project(name=PROJECT, description="Fulcrum", props=described)
    for participant in participants:
        project.add_participant(participant_from_dict(participant))
    builders = [
        WorkspaceBuilder(["master_template.yml"]),
        StaticFileBuilder(config_folder="config", scheme="grpc"),
        CertBuilder(),
        SignatureBuilder(),
    ]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        context = Provisioner(str(work / "provisioned"), builders).provision(project)
    if context.get("build_error"):
        raise DataError("flare.provision-failed", reason=output.getvalue().strip().splitlines()[-1])
    provisioned = work / "provisioned" / PROJECT
    # The administrator is no site: a silo may have the administrator's name in the plan.
    kits = {name: work / site for name, site in technical.items()}
    for source, kit in ((ADMIN, work / "admin"), *((kit.name, kit) for kit in kits.values())):
        (provisioned / "prod_00" / source).rename(kit)
    (work / "authority").mkdir(mode=0o700)
    shutil.move(provisioned / "state", work / "authority" / "state")
    for file in (work / "authority").rglob("*.json"):
        file.chmod(0o600)
    shutil.rmtree(work / "provisioned")
    return kits


def _close(kit: Path, role: Role, admitted: list[str], answer_time: float) -> None:
    """Writes the permissions of a site: Fulcrum's components, no code of a job, no shell, no logs sent away."""
    local = kit / "local"
    for name in ("resources.json", "authorization.json", "privacy.json"):
        for suffix in (".default", ".sample"):
            (local / f"{name}{suffix}").unlink(missing_ok=True)
    (local / "log_config.json.default").rename(local / "log_config.json")
    everyone = {"submit_job": "any", "manage_job": "any", "byoc": "none", "shell_commands": "none", "clone_job": "none"}
    here = {"view": "any", "operate": "any", "download_job": "any"} if role == "server" else {"view": "none"}
    _write_json(
        local / "authorization.json", {"format_version": "1.0", "permissions": {"project_admin": everyone | here}}
    )
    # Whole names: a prefix would admit every function that a module of Fulcrum imports, with arguments of the job.
    allowed = {"format_version": 2, "class_list_enforcement_mode": "enforce", "class_allow_list": admitted}
    patient = {"client": {"retry_timeout": 30, "communication_timeout": answer_time}}
    resources = _SERVER_RESOURCES if role == "server" else _CLIENT_RESOURCES | patient
    _write_json(local / "resources.json", allowed | resources)
    kit.chmod(0o700)
    for script in ("start", "stop"):
        write_script(kit / f"{script}.sh", f"nvflare/{script}.sh")


def _component(name: str, path: str, **arguments: Any) -> dict[str, Any]:
    return {"id": name, "path": path, "args": arguments}


_CLIENT_RESOURCES: dict[str, Any] = {
    "allow_log_streaming": False,
    "components": [
        _component(
            "resource_manager",
            "nvflare.app_common.resource_managers.gpu_resource_manager.GPUResourceManager",
            num_of_gpus=0,
            mem_per_gpu_in_GiB=0,
        ),
        _component(
            "resource_consumer", "nvflare.app_common.resource_consumers.gpu_resource_consumer.GPUResourceConsumer"
        ),
        _component("process_launcher", f"{_COMPONENTS}.site_launcher.SiteLauncher"),
    ],
}

_SERVER_RESOURCES: dict[str, Any] = {
    "servers": [
        {"admin_storage": "transfer", "max_num_clients": 10000, "heart_beat_timeout": 600, "admin_timeout": 10.0}
    ],
    "snapshot_persistor": {
        "path": "nvflare.app_common.state_persistors.storage_state_persistor.StorageStatePersistor",
        "args": {
            "uri_root": "/",
            "storage": {"path": f"{_COMPONENTS}.server_files.KitStorage", "args": {}},
        },
    },
    "components": [
        _component(
            "job_scheduler",
            "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
            max_jobs=1,
            # By default a job waits twice as long after every try that finds a site missing: a site that comes up after
            # a minute is found after two and a half, and a site that comes up after 40 minutes never.
            min_schedule_interval=1,
            max_schedule_interval=10,
            max_schedule_count=1000,
        ),
        _component("job_manager", f"{_COMPONENTS}.server_files.KitJobs"),
        _component("job_store", "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"),
        _component(
            "process_launcher", "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher"
        ),
    ],
}


def write_job(deployment: Deployment, folder: Path) -> None:
    """Writes the job: the component of every site. The job carries no settings and no code."""
    by_role: dict[str, list[str]] = {}
    for name, role in deployment.sites.items():
        by_role.setdefault(role, []).append(deployment.engine_names[name])
    spare = sum(min(deployment.plan.dropouts, len(members) - 1) for members in deployment.regions.values())
    _write_json(
        folder / "meta.json",
        {
            "name": PROJECT,
            "resource_spec": {},
            "deploy_map": {f"app_{role}": names for role, names in by_role.items()},
            "min_clients": len(by_role["region"]) + len(by_role["silo"]) - spare,
            "mandatory_clients": by_role["region"] if spare else by_role["region"] + by_role["silo"],
        },
    )
    assessor, controller = _component_names(deployment, "server")
    _write_json(
        folder / "app_server" / "config" / "config_fed_server.json",
        {
            "format_version": 2,
            "server": {"task_request_interval": 0.2},
            "task_data_filters": [],
            "task_result_filters": [],
            "components": [_component("assessor", assessor)],
            "workflows": [_component("federation", controller)],
        },
    )
    for role in _EXECUTORS:
        _write_json(folder / f"app_{role}" / APP, _app(deployment, role))


def _app(deployment: Deployment, role: Role) -> dict[str, Any]:
    """Returns the configuration of a job at a silo or region; kits hold the same file, and run no other."""
    wait = deployment.answer_time
    most = max(len(members) for members in deployment.aggregators.values())
    return {
        "format_version": 2,
        "default_task_fetch_interval": min(max(most / _MOST_QUESTIONS, _SHORTEST_WAIT), _LONGEST_WAIT),
        "get_task_timeout": wait,
        "submit_task_result_timeout": wait,
        "task_check_timeout": wait,
        "task_check_interval": 1.0,
        "max_runner_sync_timeout": 10 * wait,
        "executors": [{"tasks": [TASK], "executor": {"path": _component_names(deployment, role)[0], "args": {}}}],
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
    }


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
