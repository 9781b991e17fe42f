"""Kits for the operators of a Flower federation: a folder for each site, with what starts it, and the app to run."""

import shlex
from pathlib import Path
from typing import Any

from fulcrum.core.masking.masking_group import largest_answer
from fulcrum.engines.flower.certificates import AUTHORITY, write_certificates, write_node_key
from fulcrum.engines.flower.flower_operators import folder_readme, server_readme, silo_readme
from fulcrum.engines.flower.flower_sites import silos_of, write_sites
from fulcrum.engines.site_folders import BUILT_IN, Deployment, made_whole
from fulcrum.planning.engine_limits import SERVER
from fulcrum.planning.files.flower_export import app_files

_BEGIN = """\
#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
"""

_SERVER = """\
export FULCRUM_SITE="$PWD"
control="${CONTROL_PORT:-%(control)d}"
trap 'kill $(jobs -p) 2> /dev/null' EXIT
flower-superlink --host 127.0.0.1 --port "$control" \\
  --ssl-ca-certfile ca.crt --ssl-certfile server.pem --ssl-keyfile server.key \\
  --enable-supernode-auth --database superlink.db --disable-runtime-dependency-installation &
python -m fulcrum.engines.flower.gate --host "${HOST:-%(everywhere)s}" --port %(port)d \\
  --superlink "$control"%(largest)s &
wait -n
"""

_SILO = """\
exec flower-supernode --superlink %(address)s --root-certificates ca.crt \\
  --auth-supernode-private-key node.key --host 127.0.0.1 --port "${RUNTIME_PORT:-9094}" \\
  --node-config "fulcrum-site=\\"$PWD\\""
"""

_CONFIGURED = """\
export FLWR_HOME="$PWD/flwr"
mkdir -p flwr
cat > flwr/config.toml <<END
[superlink]
default = "fulcrum"

[superlink.fulcrum]
address = "127.0.0.1:${CONTROL_PORT:-%(control)d}"
root-certificates = "$PWD/ca.crt"
END
"""

_REGISTER = """\
for silo in %(silos)s; do
  flwr supernode register "$silo/node.key.pub" fulcrum
done
"""

_RUN = """\
exec flwr run app fulcrum "$@"
"""


def write_kits(deployment: Deployment, folder: Path, *, issuer_key: Path | None = None) -> dict[str, Any]:
    """Writes a kit for the server and for every silo, the app, and Flower's configuration for whoever runs it.

    Args:
        deployment: What to deploy.
        folder: A folder that is not there yet, or empty.
        issuer_key: The private key to sign the plan with; see `signed_plan`.
    """
    silos = silos_of(deployment)
    port = deployment.port
    values = {
        "address": shlex.quote(deployment.address),
        "everywhere": "::" if ":" in deployment.host else "0.0.0.0",  # noqa: S104 SuperNodes are elsewhere
        "port": port,
        "control": port + 1,
        "silos": " ".join(map(shlex.quote, silos)),
    }
    train = "" if deployment.train == BUILT_IN else deployment.train
    with made_whole(folder) as work:
        plan, keys_made = write_sites(deployment, work, issuer_key=issuer_key)
        answer = largest_answer(plan)
        values["largest"] = "" if answer is None else f" --largest-answer {answer}"
        write_certificates(work, work / SERVER, deployment.host)
        for name in (SERVER, *silos):
            (work / name / AUTHORITY).write_bytes((work / AUTHORITY).read_bytes())
        for name in silos:
            write_node_key(work / name)
            _script(work / name / "start.sh", _SILO % values)
            readme = silo_readme(name, digest=plan.digest, train=train, keys_made=keys_made)
            (work / name / "README.md").write_text(readme, encoding="utf-8")
        _script(work / SERVER / "start.sh", _SERVER % values)
        (work / SERVER / "README.md").write_text(server_readme(train=train, control=port + 1), encoding="utf-8")
        for name, text in app_files(plan).items():
            (work / "app" / name).parent.mkdir(parents=True, exist_ok=True)
            (work / "app" / name).write_text(text, encoding="utf-8")
        _script(work / "register.sh", (_CONFIGURED + _REGISTER) % values)
        _script(work / "run.sh", (_CONFIGURED + _RUN) % values)
        readme = folder_readme(
            silos,
            digest=plan.digest,
            address=deployment.address,
            control=port + 1,
            keys_made=keys_made,
            issuer_made=(work / "issuer.key").exists(),
        )
        (work / "README.md").write_text(readme, encoding="utf-8")
    return {"sites": len(silos) + 1, "plan_digest": plan.digest, "issuer": plan.issuer, "keys_made": keys_made}


def _script(path: Path, text: str) -> None:
    path.write_text(_BEGIN + text, encoding="utf-8")
    path.chmod(0o755)
