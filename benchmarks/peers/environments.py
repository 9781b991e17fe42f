"""Runs each peer in an environment of its own, made under `build/peers` where it is missing or out of date.

python benchmarks/peers/environments.py fedjax pfl pfl_pytorch flower
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypedDict, cast

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parents[1] / "build" / "peers"
PEERS = ("fedjax", "pfl", "pfl_pytorch", "flower")
VARIABLES = {
    "PYTHONPATH": str(HERE),  # where `workload` is
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",  # FedJAX: 8% faster than without
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Figures(TypedDict):
    """What a peer's `run.py` prints."""

    peer: str
    version: str
    seconds_per_round: float
    rounds: int
    accuracy: float


def installed(peer: str) -> Path:
    """The Python of a peer's environment, installed if its requirements are not what was installed last."""
    folder, requirements = ENVIRONMENTS / peer, HERE / peer / "requirements.txt"
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return python
    print(f"installing {peer}", file=sys.stderr)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(requirements)]
    for command in ([sys.executable, "-m", "venv", "--clear", str(folder)], pip):
        if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
            raise SystemExit(f"{peer} cannot be installed: {' '.join(command[1:4])} failed")
    stamp.write_text(requirements.read_text())
    return python


def figures(peer: str, processes: int = 1) -> Figures:
    """One run of a peer, which has been checked to train; `processes` is for the one that can be told."""
    if peer not in PEERS:
        raise SystemExit(f"no peer {peer!r}; there are {', '.join(PEERS)}")
    command = [str(installed(peer)), "-W", "ignore", str(HERE / peer / "run.py")]
    print(f"running {peer}", file=sys.stderr)
    variables = os.environ | VARIABLES | {"PEER_PROCESSES": str(processes)}
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{peer} failed with status {done.returncode}")
    return cast(Figures, json.loads(done.stdout.splitlines()[-1]))


def seconds_per_round(peer: str) -> float:
    """The median time of a peer's round, start-up, compilation and evaluation left out."""
    return figures(peer)["seconds_per_round"]


if __name__ == "__main__":
    for name in sys.argv[1:] or PEERS:
        print(json.dumps(figures(name)))
