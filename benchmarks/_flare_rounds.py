"""Rounds of a federation on NVIDIA FLARE, on this machine, for the benchmarks beside this file.

Every silo sends an update of norm 1 that costs nothing to compute (`nvflare_site/payload.py`).
"""

import os
import re
import statistics
import sys
import tempfile
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from fulcrum.engines.local_sites import free_port
from fulcrum.engines.nvflare.kits.nvflare_kits import write_kits
from fulcrum.engines.nvflare.kits.nvflare_loopback import run_here
from fulcrum.engines.site_folders import Deployment
from fulcrum.planning.plan import Plan

SIZES = (34, 1_000_000)
_SITE = Path(__file__).parent / "nvflare_site"
_ROUND = re.compile(r"^([\d-]+ [\d:]+),(\d+) .*fulcrum round: ", re.MULTILINE)


def find_payload() -> None:
    """Lets this process and every site find the training module."""
    sys.path.insert(0, str(_SITE))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_SITE), *filter(None, [os.environ.get("PYTHONPATH")])])


def server_log(plan: Plan) -> str:
    """Runs a plan to the last round, every site a process of its own, and returns the server's log."""
    with tempfile.TemporaryDirectory() as folder:
        kits = Path(folder) / "kits"
        options, port = {"parameters": plan.parameters}, free_port(following=1)
        deployment = Deployment(plan=plan, train="payload", options=options, port=port, patience=300.0, runs_here=True)
        write_kits(deployment, kits)
        run_here(deployment, kits, on_round=lambda _: None, stall=600)
        return (kits / "server" / "output.log").read_text()


def seconds_a_round(plan: Plan) -> float:
    """Returns the median time between the ends of two rounds of a plan."""
    ends = [datetime.fromisoformat(f"{at}.{millis}") for at, millis in _ROUND.findall(server_log(plan))]
    return statistics.median((after - before).total_seconds() for before, after in pairwise(ends))
