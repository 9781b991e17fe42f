"""The sites of a plan on Flower: a site for the server and for every silo. A region is a masked group."""

from pathlib import Path

from fulcrum.core.masking.masking_group import check_sheltered
from fulcrum.core.plan.verified_plan import VerifiedPlan
from fulcrum.engines.site_folders import Deployment, check_stays_here, new_keys, signed_plan, write_site
from fulcrum.errors import PlanError
from fulcrum.planning.engine_limits import SERVER, refusals_on_flower


def silos_of(deployment: Deployment) -> list[str]:
    """Returns the technical names of the silos' sites, in the plan's order."""
    technical = deployment.engine_names
    return [technical[silo] for silo in deployment.plan.federation.silo_names.tolist()]


def write_sites(deployment: Deployment, work: Path, *, issuer_key: Path | None = None) -> tuple[VerifiedPlan, bool]:
    """Writes the folder of every site and the plan; returns the signed plan, and True if keys were made.

    A plan without keys gets keys here, and every silo its own private half. A plan with keys leaves room for the
    private halves that silos made themselves, and keeps the existing signature.

    Args:
        deployment: The deployment to write sites for.
        work: The parent of the sites' folders.
        issuer_key: The private key to sign the plan with; see `signed_plan`.
    """
    check_deployable(deployment)
    for name in (SERVER, *silos_of(deployment)):
        (work / name).mkdir(mode=0o700)
    sites = zip(deployment.plan.federation.silo_names.tolist(), silos_of(deployment), strict=True)
    homes = {silo: work / site for silo, site in sites}
    keys = {} if deployment.plan.keys else new_keys(homes, deployment.sites)
    plan = signed_plan(deployment, work, keys, issuer_key)
    write_site(deployment, plan, work / SERVER, SERVER, "server", source=work, train=deployment.train)
    for silo, home in homes.items():
        check_sheltered(plan, silo)
        write_site(deployment, plan, home, silo, "silo", source=work, train=deployment.train)
    return plan, bool(keys)


def check_deployable(deployment: Deployment) -> None:
    """Raises `PlanError` unless this engine can run the plan."""
    for reason in refusals_on_flower(deployment.plan):
        raise PlanError("engine.plan-refused", reason=reason)
    check_stays_here(deployment)
