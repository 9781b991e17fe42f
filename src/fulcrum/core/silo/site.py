"""What one site of a federation holds: its role, the signed plan, its key, its policy, and where its state is kept.

A site is a folder:

    site.toml       role, name, issuer, training module and options
    plan.json       the plan, and plan.json.sig its signature
    site.key        the site's private key: signing at a silo, sealing at a region
    policy.toml     what the silo insists on, at silos that insist on something
    initialised.json, state     the records that `fulcrum site init` made (`fulcrum.core.silo.site_records`)

Nothing in it comes from the network: whatever a job asks for, the site does what its own folder says. What the site may
be used for stands in site.toml, which its operator keeps, and not in the plan, which somebody else made: a site runs
deployment plans alone, unless it was made for research on one machine.
"""

import contextlib
import os
import stat
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
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

_BEFORE = "fulcrum.site/1"  # had no purpose and no policy: such a site is one for deployment

STATE = "state"
"""The folder of a site's records, in its own, unless site.toml names another."""

SUMS = "sums.db"
"""A region's record, in its state folder."""

_LONGEST_WAIT = 30.0
"""Seconds for a process of this site to let a file go."""

_TRAINING_SHARE, _LEAST_TRAINING = 0.8, 60.0
"""Of the patience of a region, the part that a silo may train for: the rest is for noise, ledger and the way. Seconds
that it has at least, since a process must start and import its libraries before it trains."""

_Opened = TypeVar("_Opened")

Role = Literal["silo", "region", "server"]
Purpose = Literal["deployment", "research"]


class SiteSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What site.toml holds.

    Attributes:
        format: `fulcrum.site/2`.
        role: What the site is.
        name: Its name in the plan; any name for the server.
        issuer: The public key that must have signed the plan; the key itself, never the name of a file.
        purpose: What plans the site runs. Research protects nobody: `fulcrum up` alone makes such sites, on loopback.
        policy: Whether there is a policy.toml. Nothing is released where it is missing, nor where it is there unsaid.
        train: The training module, at silos and at the server.
        seed: Of everything that is drawn in research; deployment draws nothing from it.
        patience: Seconds a region waits for its silos in a round; the server waits for regions half as long again.
        training_seconds: The deadline of a silo's training in a round; 0 for four fifths of `patience`, and a minute
            at least.
        training_gigabytes: The address space of a silo's training process, in 2^30 bytes; 0 for no limit of Fulcrum's.
        state: Where ledger, sums or checkpoint are kept, relative to the site's folder. A silo that took part before
            names the folder of its ledger: one ledger a silo, for life.
        options: For the training module.
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

    @property
    def training_deadline(self) -> float:
        """Seconds that training may take, so that the release reaches the region before it gives up waiting."""
        return self.training_seconds or max(_LEAST_TRAINING, _TRAINING_SHARE * self.patience)


@dataclass(frozen=True, kw_only=True)
class Site:
    """One site, read from its folder."""

    folder: Path
    settings: SiteSettings
    plan: VerifiedPlan

    @property
    def key(self) -> Path:
        """The site's private key."""
        return self.folder / "site.key"

    @property
    def state(self) -> Path:
        """Where the site keeps what must outlive it."""
        return self.folder / self.settings.state

    @property
    def policy(self) -> Policy | None:
        """What the silo insists on, read anew each time; one that cannot be read is refused, not left out.

        A deployed site whose site.toml does not say that there is one is refused too: were the file lost, nobody would
        notice, and the silo would insist on nothing.
        """
        path = self.folder / "policy.toml"
        if not self.settings.policy and not os.path.lexists(path):
            return None
        _check_no_pipes(self.folder, (path.name,))
        found = read_policy(path)
        if not self.settings.policy and self.settings.purpose == "deployment":
            raise PolicyError("policy.undeclared", file=path, format=FORMAT)
        return found


def ledger_name(silo: str) -> str:
    """The file of a silo's ledger, in its state folder."""
    return f"{silo}.ledger"


def record_name(silo: str) -> str:
    """The file of a silo's masked rounds, in its state folder."""
    return f"{silo}.masking"


def read_site(folder: str | Path, role: Role | None = None) -> Site:
    """Reads a site's folder.

    Refused are a role other than given, a plan without a good signature by the issuer, a plan file of which a check of
    `fulcrum verify` fails, its words included, and a plan of another purpose than the site's own, whoever signed it.
    """
    folder = Path(folder).absolute()  # wherever training changes to
    path = folder / "site.toml"
    _check_no_pipes(folder, ("site.toml", "plan.json", "plan.json.sig", "site.key", "policy.toml"))
    try:
        settings = msgspec.convert(toml_of(path.read_bytes()), SiteSettings)
    except OSError as error:
        raise DataError("site.file-unreadable", file=path, reason=error.strerror) from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise DataError("site.file-malformed", file=path, reason=error) from None
    if settings.format not in (FORMAT, _BEFORE):
        raise DataError("site.format-unknown", file=path, format=settings.format, expected=FORMAT)
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
    """Refuses a pipe or a device among a site's files: to read it would wait for ever."""
    for name in names:
        with contextlib.suppress(OSError):  # told where it is read
            mode = (folder / name).stat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise DataError("site.not-a-file", file=folder / name)


def once_free(opening: Callable[[], _Opened]) -> _Opened:
    """Opens a file of this site, waiting where another process of the site still holds it: that one is about to end."""
    deadline = time.monotonic() + _LONGEST_WAIT
    while True:
        try:
            return opening()
        except FileInUseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def site_toml(settings: SiteSettings) -> str:
    """Returns site.toml."""
    fields: dict[str, Any] = msgspec.to_builtins(settings)
    options = fields.pop("options")
    lines = [f"{name} = {_toml(value)}" for name, value in fields.items()]
    if options:
        lines += ["", "[options]", *(f"{name} = {_toml(value)}" for name, value in options.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value as TOML writes it: JSON's strings, numbers, booleans and lists are TOML as well."""
    if isinstance(value, Mapping) or value is None:
        raise DataError("site.option-type", option=value)
    return msgspec.json.encode(value).decode()
