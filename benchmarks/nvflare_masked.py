"""The time of a masked round on NVIDIA FLARE, in plain rounds: the same silos, with masks and with releases sealed.

Eight silos in two regions and a server, mutual TLS on this machine, in one run. A masked round has five stages, and
every stage is a task of NVIDIA FLARE, as a plain round is. Eleven sites share the machine: leave it alone meanwhile.

    python benchmarks/nvflare_masked.py
"""

import os
import re
import statistics
import sys
import tempfile
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Literal

import fulcrum
from fulcrum.aggregation.masked_group import STAGES
from fulcrum.engines.local_sites import free_port
from fulcrum.engines.nvflare.kits.nvflare_kits import write_kits
from fulcrum.engines.nvflare.kits.nvflare_loopback import run_here
from fulcrum.engines.site_folders import Deployment

PROMISE = 1.5  # plain rounds a stage
ROUNDS = 6
SIZES = (34, 1_000_000)
SITE = Path(__file__).parent / "nvflare_site"
MEMBERS = {"north": [200, 220, 180, 240], "south": [210, 300, 190, 230]}
_WAYS: tuple[Literal["trusted", "masked"], ...] = ("trusted", "masked")
_ROUND = re.compile(r"^([\d-]+ [\d:]+),(\d+) .*fulcrum round: ", re.MULTILINE)


def seconds_a_round(folder: Path, parameters: int, aggregation: Literal["trusted", "masked"]) -> float:
    """Runs the federation once and returns the median time between the ends of two rounds."""
    plan = fulcrum.plan(
        fulcrum.Federation.from_sizes(MEMBERS),
        rounds=ROUNDS,
        epsilon=5.0,
        parameters=parameters,
        purpose="deployment",
        aggregation=aggregation,
    )
    options = {"parameters": parameters}
    port = free_port(following=1)
    deployment = Deployment(plan=plan, train="payload", options=options, port=port, patience=300.0, runs_here=True)
    write_kits(deployment, folder / "kits")
    run_here(deployment, folder / "kits", on_round=lambda _: None, stall=600)
    log = (folder / "kits" / "server" / "output.log").read_text()
    ends = [datetime.fromisoformat(f"{at}.{millis}") for at, millis in _ROUND.findall(log)]
    return statistics.median((after - before).total_seconds() for before, after in pairwise(ends))


def main() -> int:
    """Prints both medians and their ratio for each size; fails if a stage takes longer than promised."""
    sys.path.insert(0, str(SITE))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])])
    longest = 0.0
    for parameters in SIZES:
        seconds: dict[Literal["trusted", "masked"], float] = {}
        for aggregation in _WAYS:
            with tempfile.TemporaryDirectory() as folder:
                seconds[aggregation] = seconds_a_round(Path(folder), parameters, aggregation)
        stage = seconds["masked"] / seconds["trusted"] / len(STAGES)
        longest = max(longest, stage)
        print(
            f"{parameters:>9,} parameters: {seconds['trusted']:.2f} s a plain round, "
            f"{seconds['masked']:.2f} s a masked round, {stage:.2f} plain rounds a stage",
            flush=True,
        )
    print(f"promised: at most {PROMISE} plain rounds a stage")
    return int(longest > PROMISE)


if __name__ == "__main__":
    sys.exit(main())
