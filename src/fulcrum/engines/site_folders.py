"""A deployment, and the folder of every site: settings, the signed plan, and an empty folder for the site's records.

`fulcrum.core.silo.site` reads the folder of a site. An engine writes the other files that the engine needs.
"""

import contextlib
import hashlib
import ipaddress
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fulcrum.aggregation.site_setup import init_site, site_toml
from fulcrum.arrays import FloatArray
from fulcrum.core.messages.aggregation_tree import tree_of
from fulcrum.core.messages.membership import regions_of
from fulcrum.core.plan.signatures import read_signed_plan
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.silo.policy import read_policy
from fulcrum.core.silo.site import FORMAT, Role, Site, SiteSettings
from fulcrum.core.silo.site_records import MARK
from fulcrum.errors import DataError, ParameterError, PlanError, in_one_line
from fulcrum.planning.content.plan_figures import changed_copy
from fulcrum.planning.engine_limits import SERVER
from fulcrum.planning.files.plan_issue import new_key, signer_of, write_signature
from fulcrum.planning.plan import Plan, save_plan
from fulcrum.planning.site_names import technical_names
from fulcrum.server.checkpoint import RoundSummary
from fulcrum.server.run_results import RunResult
from fulcrum.server.sum_archive import SUMS_FOLDER

THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
"""Names of this machine. A research plan runs on this machine alone."""

_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")  # RFC 1123
_LONGEST_HOST = 253

_WRITTEN = "written.json"
"""The list of all files of a folder of kits, with hashes."""

BUILT_IN = "fulcrum.engines.built_in_training"
"""The built-in training module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A plan, the sites that run the plan, and the address of the server.

    Attributes:
        plan: The plan to run.
        plan_file: The file that the plan was read from, if any; a signature in the same folder stays in use.
        train: The training module, installed at silos and server.
        options: The module's options, the same at every site; operators change their own site.toml.
        host: The name under which sites reach the server.
        port: The server's port; the next port is for the operators.
        patience: Seconds a region waits for its silos.
        seed: The seed of a research plan.
        policy: The policy file that every silo starts with, if any.
        keep_sums: True if the server stores every sum that arrives, for an audit.
        runs_here: True to run every site on this machine: every site is initialised when it is written. Kits for
            operators hold no ledger, masking record or sums; operators make these once, with `fulcrum site init`.
        replaces: True to replace kits in the same folder that nobody has changed.
    """

    plan: Plan
    train: str
    options: Mapping[str, Any] = field(default_factory=dict)
    host: str = "localhost"
    port: int = 8002
    patience: float = 120.0
    seed: int = 0
    policy: Path | None = None
    plan_file: Path | None = None
    keep_sums: bool = False
    runs_here: bool = False
    replaces: bool = False

    def __post_init__(self) -> None:
        """Checks training module, host and port, which reach scripts, certificates and the texts of kits.

        Raises:
            ParameterError: The training module has no name that Python imports, the host is neither a name nor an
                address, or the port or the next port does not exist.
        """
        if not all(part.isidentifier() for part in self.train.split(".")):
            raise ParameterError("kit.training-module-name", module=self.train[:60])
        if not _is_host(self.host):
            raise ParameterError("kit.host-name", host=in_one_line(self.host)[:60])
        if not 1 <= self.port < 65_535:
            raise ParameterError("kit.port-range", port=self.port)

    @property
    def address(self) -> str:
        """Host and port as one text. Brackets separate the colons of an IPv6 address from the port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def answer_time(self) -> float:
        """Seconds to wait for an answer before asking again; NVIDIA FLARE's 300 are too long after a crash."""
        return max(5.0, self.patience / 10)

    @property
    def regions(self) -> dict[str, list[str]]:
        """The members of every region."""
        members: dict[str, list[str]] = {region: [] for region in self.plan.federation.innermost.nodes}
        for silo, region in regions_of(self.plan.federation).items():
            members[region].append(silo)
        return members

    @property
    def aggregators(self) -> dict[str, list[str]]:
        """The silos or aggregators below every aggregator, from the regions outward."""
        tree = tree_of(self.plan)
        outer = [node for tier in tree.levels[1:] for node in tier.nodes]
        return self.regions | {node: list(tree.children(node)) for node in outer}

    @property
    def reporting(self) -> list[str]:
        """The aggregators below the server."""
        return list(tree_of(self.plan).levels[-1].nodes)

    @property
    def sites(self) -> dict[str, Role]:
        """The role of every site, by name; an aggregator of any tier has the role of a region."""
        roles: dict[str, Role] = {SERVER: "server"}
        for region, members in self.regions.items():
            roles[region] = "region"
            roles.update(dict.fromkeys(members, "silo"))
        return roles | dict.fromkeys(self.aggregators, "region")

    @property
    def engine_names(self) -> dict[str, str]:
        """The technical name of every site, by the name in the plan."""
        technical = {SERVER: SERVER} | technical_names(self.plan.federation)
        return {name: technical[name] for name in self.sites}

    def parent(self, name: str) -> str:
        """Returns the aggregator above a silo or an aggregator; the server above the outermost aggregators."""
        return next((node for node, members in self.aggregators.items() if name in members), SERVER)

    def names_near(self, name: str) -> dict[str, str]:
        """Returns the technical names of a site and its neighbours that differ from the names in the plan."""
        near = self.reporting if name == SERVER else [name, self.parent(name), *self.aggregators.get(name, [])]
        technical = self.engine_names
        return {site: technical[site] for site in near if technical[site] != site}


def _is_host(host: str) -> bool:
    """Returns True for a host's name or an IP address. A shell finds no commands in either form."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return len(host) <= _LONGEST_HOST and _HOST_NAME.fullmatch(host) is not None
    return "%" not in host  # the name of a network interface has no meaning on other machines


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LocalRun:
    """The result of a plan that ran on this machine.

    Attributes:
        run: The content of run.json.
        history: The result of every round, by the names of regions and silos.
        model: The final model.
        seconds: From the end of the first round to the end of the last.
        failed: The number of silos at which training failed, and the log to read; empty if training failed nowhere.
    """

    run: RunResult
    history: tuple[RoundSummary, ...]
    model: dict[str, FloatArray]
    seconds: float
    failed: str


@contextlib.contextmanager
def made_whole(folder: Path, *, replaces: bool = False) -> Iterator[Path]:
    """Yields a working folder that replaces a new or empty folder on success, and is deleted on failure.

    Args:
        folder: The folder to write.
        replaces: True to replace a folder that an earlier call wrote and nobody has changed since: a list in the folder
            has the hash of every file. A further file, a changed file or a record of a site stops the replacement, also
            if the change comes while the new folder is written.
    """
    occupied = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if occupied and not replaces:
        raise DataError("kit.folder-occupied", folder=folder)
    if occupied:
        _check_unchanged(folder, folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        yield work
        (work / _WRITTEN).write_bytes(msgspec.json.encode(_hashes(work)))
        if occupied:
            _replace(folder, work)
        else:
            if folder.exists():
                folder.rmdir()
            work.rename(folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _replace(folder: Path, work: Path) -> None:
    """Puts a new folder in the place of an unchanged folder, and deletes the listed files of the unchanged folder."""
    earlier = work.with_name(f"{work.name}.earlier")
    folder.rename(earlier)
    try:
        _check_unchanged(earlier, folder)  # again: an operator may have made a ledger meanwhile
        work.rename(folder)
    except BaseException:
        earlier.rename(folder)
        raise
    # Listed files alone: a file that a process of the earlier folder writes now stays, and so do its parents.
    listed = [earlier / name for name in (*_read_list(earlier), _WRITTEN)]
    for path in (path for path in listed if not path.is_dir()):
        path.unlink(missing_ok=True)
    for path in (*sorted((path for path in listed if path.is_dir()), reverse=True), earlier):
        with contextlib.suppress(OSError):
            path.rmdir()


def _hashes(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file below a folder, by relative path, and "" for anything that is no file.

    The list itself is left out. A folder that cannot be read raises `OSError`: it could hold a ledger.
    """

    def stop(error: OSError) -> None:
        raise error

    paths = [Path(parent) / name for parent, *kinds in os.walk(folder, onerror=stop) for kind in kinds for name in kind]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(paths)
        if path != folder / _WRITTEN
    }


def _read_list(folder: Path) -> dict[str, str]:
    return msgspec.json.decode((folder / _WRITTEN).read_bytes(), type=dict[str, str])


def _check_unchanged(place: Path, folder: Path) -> None:
    """Raises `DataError` unless an earlier call wrote all files of a folder, which is at `place` for now."""
    if (changed := _changed_file(place)) is not None:
        raise DataError("kit.folder-changed", folder=folder, file=changed)


def _changed_file(folder: Path) -> str | None:
    """Returns the first file or folder that stops a replacement; None if nothing differs from the list.

    Links, and marks of sites with records, stop a replacement even if the list has them.
    """
    if folder.is_symlink():
        return folder.name
    try:
        written = _read_list(folder)
    except (OSError, msgspec.DecodeError):
        return _WRITTEN
    try:
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or path.name == MARK:
                return path.relative_to(folder).as_posix()
        present = _hashes(folder)
    except OSError as error:
        return os.path.relpath(str(error.filename), folder)
    return next((name for name in sorted(written | present) if written.get(name) != present.get(name)), None)


def check_stays_here(deployment: Deployment) -> None:
    """Raises `PlanError` for a research plan that other machines would reach."""
    if deployment.plan.is_research and deployment.host not in THIS_MACHINE:
        raise PlanError("kit.plan-research")


def new_keys(homes: Mapping[str, Path], roles: Mapping[str, Role]) -> dict[str, str]:
    """Makes a key for every site, writes the private half to the site's folder, and returns the public halves."""
    public = {}
    for name, home in homes.items():
        private = home / "site.key"
        public[name] = new_key(private, kind="sealing" if roles[name] == "region" else "signing")
        private.with_name("site.key.pub").unlink()
    return public


def signed_plan(deployment: Deployment, work: Path, keys: Mapping[str, str], issuer_key: Path | None) -> VerifiedPlan:
    """Writes the plan with keys and signature, checks every silo's policy against the plan, and returns the plan."""
    path, signature = work / "plan.json", Path(f"{deployment.plan_file}.sig")
    if deployment.plan_file is not None and signature.exists() and issuer_key is None and not keys:
        shutil.copy(deployment.plan_file, path)
        shutil.copy(signature, f"{path}.sig")
    else:
        save_plan(changed_copy(deployment.plan, keys=dict(keys or deployment.plan.keys)), path)
        if issuer_key is None:
            issuer_key = work / "issuer.key"
            new_key(issuer_key)
        # A research plan is signed on its own machine alone (`check_deployable`), and its sites state the purpose.
        write_signature(path, issuer_key, purpose=deployment.plan.purpose)
    plan = read_signed_plan(path, signer_of(path))
    if deployment.policy is not None:
        read_policy(deployment.policy).check_every_silo(plan)
    return plan


def write_site(
    deployment: Deployment, plan: VerifiedPlan, home: Path, name: str, role: Role, *, source: Path, train: str
) -> None:
    """Writes the folder of a site: the signed plan, the settings, the policy, and an empty folder for records.

    Args:
        deployment: The deployment that the site belongs to.
        plan: The plan that `signed_plan` returned.
        home: The site's folder.
        name: The site's name.
        role: The site's role.
        source: The folder with the signed plan.
        train: The training module; empty for a site that trains nothing, or that trains by the engine's app.
    """
    for file in ("plan.json", "plan.json.sig"):
        shutil.copy(source / file, home)
    if role == "silo" and deployment.policy is not None:
        shutil.copy(deployment.policy, home / "policy.toml")
    settings = SiteSettings(
        format=FORMAT,
        role=role,
        name=name,
        issuer=plan.issuer,
        purpose=plan.purpose,
        policy=role == "silo" and deployment.policy is not None,
        train=train,
        seed=deployment.seed,
        patience=deployment.patience,
        options=dict(deployment.options) if train else {},
        engine_names=deployment.names_near(name),
    )
    (home / "site.toml").write_text(site_toml(settings), encoding="utf-8")
    state = home / "state"
    state.mkdir(mode=0o700)
    if role == "server" and deployment.keep_sums:
        (state / SUMS_FOLDER).mkdir()
    if deployment.runs_here:
        init_site(Site(folder=home, settings=settings, plan=plan))


def task_of(site: Site) -> str:
    """Returns the task of a server's site: the name of the built-in training's data, or the name of the module."""
    settings = site.settings
    return Path(str(settings.options.get("data", "digits"))).stem if settings.train == BUILT_IN else settings.train
