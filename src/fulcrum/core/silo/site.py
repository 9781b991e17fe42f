"""The folder of a site: role, signed plan, private key, policy, and the folder of records.

A site is a folder:

    site.toml       role, name, issuer, training module and options
    plan.json       the plan, and plan.json.sig its signature
    site.key        the site's private key: signing at a silo, sealing at a region
    policy.toml     the limits of a silo, optional
    initialised.json, state     the records that `fulcrum site init` made (`fulcrum.core.silo.site_records`)

No file in the folder comes from the network: a job cannot change the behaviour of a site. The purpose of a site is in
site.toml, which the operator keeps, and not in the plan, which the issuer made: an issuer cannot turn a deployed site
into a research site, whose noise is seeded. Only `fulcrum up` makes research sites, on one machine.
"""

import contextlib
import os
import stat
import time
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from fulcrum.core.plan.signatures import read_signed_plan
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.core.silo.policy import Policy, read_policy
from fulcrum.errors import DataError, FileInUseError, PolicyError
from fulcrum.parsing import toml_of

FORMAT = "fulcrum.site/2"

_BEFORE = "fulcrum.site/1"  # without purpose and policy; a site of this format is a deployment site

STATE = "state"
"""The folder of a site's records inside the site's folder; site.toml may name another folder."""

SUMS = "sums.db"
"""The file name of a region's record, in the folder of records."""

_LONGEST_WAIT = 30.0
"""Seconds until another process of this site must have closed a file."""

_TRAINING_SHARE, _LEAST_TRAINING = 0.8, 60.0
"""The share of a region's patience that a silo may train for; the rest is for noise, ledger and network. The least
number of seconds, since a process must start and import libraries before training."""

_Opened = TypeVar("_Opened")

Role = Literal["silo", "region", "server"]
Purpose = Literal["deployment", "research"]


class SiteSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of site.toml.

    Attributes:
        format: The format, `fulcrum.site/2`.
        role: The role of the site.
        name: The name of the site in the plan; any name for the server.
        issuer: The public key that must have signed the plan; the key itself, never the name of a file.
        purpose: The purpose of the plans that the site runs. Research protects no silo, and only `fulcrum up` makes
            research sites, on loopback.
        policy: True if policy.toml must exist. No release is made if a declared policy.toml is missing, nor, in
            deployment, if an undeclared policy.toml exists.
        train: The training module, at silos and at the server.
        seed: The seed of all random numbers in research; deployment does not use the seed.
        patience: The seconds that a region waits for its silos in a round; the server waits half as long again.
        training_seconds: The deadline of a silo's training in a round; 0 for four fifths of `patience`, at least a
            minute.
        training_gigabytes: The address space of a silo's training process, in 2^30 bytes; 0 for no limit by Fulcrum.
        state: The folder of ledger, sums or checkpoint, relative to the site's folder. A silo that took part before
            names the folder of its ledger: a silo has a single ledger for life.
        options: The options of the training module.
        engine_names: The technical names, on the engine, of this site and its neighbours, by their names in the plan; a
            name that is not here is the same on the engine.
    """

    format: str
    role: Role
    name: str
    issuer: str
    purpose: Purpose = "deployment"
    policy: bool = False
    train: str = ""
    seed: int = 0
    patience: float = 120.0
    training_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    training_gigabytes: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    state: str = STATE
    options: dict[str, Any] = {}
    engine_names: dict[str, str] = {}

    @property
    def training_deadline(self) -> float:
        """The seconds that training may take, so that the release reaches the region within the region's patience."""
        return self.training_seconds or max(_LEAST_TRAINING, _TRAINING_SHARE * self.patience)


@dataclass(frozen=True, kw_only=True)
class Site:
    """A site, read from its folder."""

    folder: Path
    settings: SiteSettings
    plan: VerifiedPlan

    @property
    def key(self) -> Path:
        """The path of the site's private key."""
        return self.folder / "site.key"

    @property
    def state(self) -> Path:
        """The folder of the site's records, which must outlive the process."""
        return self.folder / self.settings.state

    @property
    def policy(self) -> Policy | None:
        """The silo's policy, read from disk at every access; None for a site without a policy.

        Edge cases, both refused:

        - a policy.toml that cannot be read: an ignored policy would release beyond the silo's limits;
        - in deployment, a policy.toml that site.toml does not declare: the loss of such a file would go unnoticed, and
          the silo would release without limits.
        """
        path = self.folder / "policy.toml"
        if not self.settings.policy and not os.path.lexists(path):
            return None
        _check_no_pipes(self.folder, (path.name,))
        policy = read_policy(path)
        if not self.settings.policy and self.settings.purpose == "deployment":
            raise PolicyError("policy.undeclared", file=path, format=FORMAT)
        return policy


def ledger_name(silo: str) -> str:
    """Returns the file name of a silo's ledger, in the folder of records."""
    return f"{silo}.ledger"


def record_name(silo: str) -> str:
    """Returns the file name of a silo's record of masked rounds, in the folder of records."""
    return f"{silo}.masking"


def read_site(folder: str | Path, role: Role | None = None) -> Site:
    """Reads a site's folder.

    Args:
        folder: The folder.
        role: The role that the site must have; None for any role.

    Raises:
        FulcrumError: The site has another role, the plan lacks a good signature by the issuer, a check of
            `fulcrum verify` fails for the plan file or its words, or the purpose of the plan is not the purpose of the
            site, even with a good signature.
    """
    folder = Path(folder).absolute()  # training may change the working directory
    path = folder / "site.toml"
    _check_no_pipes(folder, ("site.toml", "plan.json", "plan.json.sig", "site.key", "policy.toml"))
    try:
        settings = msgspec.convert(toml_of(path.read_bytes()), SiteSettings)
    except OSError as error:
        raise DataError("file.unreadable", file=path, reason=error.strerror) from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise DataError("site.file-malformed", file=path, reason=error) from None
    if settings.format not in (FORMAT, _BEFORE):
        raise DataError("file.format-unknown", file=path, format=settings.format, expected=FORMAT)
    if settings.format == _BEFORE and (settings.purpose != "deployment" or settings.policy):
        raise DataError("site.format-earlier", file=path, format=_BEFORE, expected=FORMAT)
    if "\0" in settings.name + settings.state:
        raise DataError("site.name-invalid", file=path)
    if role is not None and settings.role != role:
        raise DataError("site.role-differs", file=path, role=settings.role, expected=role)
    plan = read_signed_plan(folder / "plan.json", settings.issuer)
    if plan.purpose != settings.purpose:
        raise DataError("site.purpose-differs", file=path, purpose=settings.purpose, plan_purpose=plan.purpose)
    return Site(folder=folder, settings=settings, plan=plan)


def _check_no_pipes(folder: Path, names: Iterable[str]) -> None:
    """Refuses a pipe or a device among a site's files: reading a pipe would block for ever."""
    for name in names:
        with contextlib.suppress(OSError):  # reading the file reports the error
            mode = (folder / name).stat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise DataError("site.not-a-file", file=folder / name)


def once_free(opening: Callable[[], _Opened]) -> _Opened:
    """Opens a file of this site; waits while another process of the site, which is about to end, holds the file."""
    deadline = time.monotonic() + _LONGEST_WAIT
    while True:
        try:
            return opening()
        except FileInUseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
