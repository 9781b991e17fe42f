"""The sites of a plan on Flower: one for the server and one for every silo. Regions are who is masked together."""

import re
from collections.abc import Mapping
from pathlib import Path

from fulcrum.engines.sites import THIS_MACHINE, Deployment, signed_plan, write_site
from fulcrum.errors import PlanError
from fulcrum.masking.group import check_sheltered
from fulcrum.planning.deployable import SERVER
from fulcrum.planning.plan import Plan
from fulcrum.planning.signing import new_key

APP = "fulcrum.engines.flower.app"
"""The module of the apps that are built in."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def silos_of(deployment: Deployment) -> list[str]:
    """Returns the silos in the plan's order."""
    names: list[str] = deployment.plan.federation.silo_names.tolist()
    return names


def write_sites(deployment: Deployment, work: Path, *, issuer_key: Path | None = None) -> tuple[Plan, bool]:
    """Writes the folder of every site, with the plan beside them; returns the signed plan, and whether keys were made.

    A plan that carries no keys gets them here, and every silo its own private half; one that carries keys leaves room
    for the private halves that silos made themselves, and keeps the signature that stands beside it.

    Args:
        deployment: What to deploy.
        work: The folder that the sites' folders go to.
        issuer_key: The private key to sign the plan with; see `signed_plan`.
    """
    check_deployable(deployment)
    for name in (SERVER, *silos_of(deployment)):
        (work / name).mkdir(mode=0o700)
    keys = {} if deployment.plan.keys else _new_keys(deployment, work)
    plan = signed_plan(deployment, work, keys, issuer_key)
    write_site(deployment, plan, work / SERVER, SERVER, "server", source=work, train=deployment.train)
    for name in silos_of(deployment):
        check_sheltered(plan, name)
        write_site(deployment, plan, work / name, name, "silo", source=work, train=deployment.train)
    return plan, bool(keys)


def check_deployable(deployment: Deployment) -> None:
    """Raises `PlanError` unless this engine can run the plan."""
    plan, silos = deployment.plan, silos_of(deployment)
    if len(plan.federation.tiers) > 1:
        tiers = ", ".join(tier.name for tier in plan.federation.tiers)
        raise PlanError(f"this engine runs plans with one tier of regions, this one has {tiers}. Plan one tier")
    if plan.aggregation != "masked":
        raise PlanError(
            "on Flower nobody stands in a region to add up: sums are masked. Plan with --aggregation masked"
        )
    if plan.purpose == "research" and deployment.host not in THIS_MACHINE:
        raise PlanError("a research plan protects nobody and stays on this machine. Plan with --purpose deployment")
    for name in silos:
        if not _NAME.fullmatch(name) or name == SERVER:
            raise PlanError(f"{name!r} cannot name a site's folder: letters, digits, - . and _ only. Rename it")
    if plan.keys and (missing := [name for name in silos if name not in plan.keys]):
        raise PlanError(f"the plan carries keys, but none of {missing[0]!r}. Give every silo a key, or none")


def _new_keys(deployment: Deployment, work: Path) -> Mapping[str, str]:
    """Makes a key for every silo, puts the private half into its folder, and returns the public ones."""
    public = {}
    for name in silos_of(deployment):
        private = work / name / "site.key"
        public[name] = new_key(private)
        private.with_name("site.key.pub").unlink()
    return public
