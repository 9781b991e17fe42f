"""Kits for the operators of a Flower federation: a folder for every site with a start script, and the app to run."""

from pathlib import Path
from typing import Any

from fulcrum.aggregation.masked_group import largest_answer
from fulcrum.engines.flower.kits.app_files import app_files
from fulcrum.engines.flower.kits.certificates import AUTHORITY, write_certificates, write_node_key
from fulcrum.engines.flower.kits.flower_sites import silos_of, write_sites
from fulcrum.engines.installation import write_installation
from fulcrum.engines.kit_templates import write_script, write_text
from fulcrum.engines.site_folders import BUILT_IN, Deployment, made_whole
from fulcrum.planning.engine_limits import SERVER


def write_kits(deployment: Deployment, folder: Path, *, issuer_key: Path | None = None) -> dict[str, Any]:
    """Writes a kit for the server and for every silo, the app, and Flower's configuration for the operator of the run.

    Args:
        deployment: The deployment to write kits for.
        folder: A new or empty folder.
        issuer_key: The private key to sign the plan with; see `signed_plan`.
    """
    silos = silos_of(deployment)
    train = "" if deployment.train == BUILT_IN else deployment.train
    with made_whole(folder, replaces=deployment.replaces) as work:
        plan, keys_made = write_sites(deployment, work, issuer_key=issuer_key)
        values = {
            "address": deployment.address,
            "everywhere": "::" if ":" in deployment.host else "0.0.0.0",  # noqa: S104 SuperNodes are elsewhere
            "port": deployment.port,
            "control": deployment.port + 1,
            "largest_answer": largest_answer(plan),
            "silos": silos,
            "digest": plan.digest,
            "moves": deployment.plan.server_rule.clause,
            "train": train,
            "keys_made": keys_made,
            "issuer_made": (work / "issuer.key").exists(),
        }
        write_certificates(work, work / SERVER, deployment.host)
        wheel = None
        for name in (SERVER, *silos):
            (work / name / AUTHORITY).write_bytes((work / AUTHORITY).read_bytes())
            if not deployment.runs_here:  # here Fulcrum is installed
                wheel = write_installation(work / name, "flower", wheel=wheel)
        for name, site in zip(deployment.plan.federation.silo_names.tolist(), silos, strict=True):
            write_node_key(work / site)
            write_script(work / site / "start.sh", "flower/start_silo.sh", **values)
            write_text(work / site / "README.md", "flower/silo.md", name=name, site=site, **values)
        write_script(work / SERVER / "start.sh", "flower/start_server.sh", **values)
        write_text(work / SERVER / "README.md", "flower/server.md", **values)
        for name, text in app_files(plan).items():
            (work / "app" / name).parent.mkdir(parents=True, exist_ok=True)
            (work / "app" / name).write_text(text, encoding="utf-8")
        write_script(work / "register.sh", "flower/register.sh", **values)
        write_script(work / "run.sh", "flower/run.sh", **values)
        write_text(work / "README.md", "flower/folder.md", **values)
    return {"sites": len(silos) + 1, "plan_digest": plan.digest, "issuer": plan.issuer, "keys_made": keys_made}
