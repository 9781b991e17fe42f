"""What Fulcrum adds to a round on NVIDIA FLARE: the same federation with it, and bare, in one run.

Six silos in three regions and a server, mutual TLS on this machine, the same messages between the same sites. Bare, a
silo sends its update as it is and a region adds; with Fulcrum it is clipped, perturbed, charged to the ledger on disk,
sealed, opened, checked, and its region's sum stored.

Ten sites share the machine that it runs on, so anything else that runs there falls on some rounds and not on others:
leave it alone meanwhile.

    python benchmarks/nvflare_overhead.py
"""

import os
import re
import statistics
import sys
import tempfile
from pathlib import Path

import fulcrum
from fulcrum.engines.nvflare.kits.nvflare_kits import write_kits
from fulcrum.engines.nvflare.kits.nvflare_loopback import run_here
from fulcrum.engines.site_folders import Deployment

PROMISE = 1.3  # for the head of the digits, and for a large model with every site on one machine
ROUNDS = 12
REPEATS = 2
SIZES = (34, 1_000_000)
SITE = Path(__file__).parent / "nvflare_site"
FEDERATION = "silo,records,region\na1,200,north\na2,220,north\nb1,180,mid\nb2,240,mid\nb3,210,mid\nc1,300,south\n"


def seconds_a_round(folder: Path, parameters: int, *, bare: bool, port: int) -> list[float]:
    """Runs the federation once and returns how long each round took, the first left out."""
    (folder / "fed.csv").write_text(FEDERATION)
    plan = fulcrum.plan(
        str(folder / "fed.csv"), rounds=ROUNDS, epsilon=5.0, parameters=parameters, purpose="deployment"
    )
    deployment = Deployment(plan=plan, train="payload", options={"parameters": parameters}, port=port)
    write_kits(deployment, folder / "kits")
    os.environ["FULCRUM_BARE"] = "1" if bare else ""
    run_here(deployment, folder / "kits", on_round=lambda _: None, stall=180)
    log = (folder / "kits" / "server" / "output.log").read_text()
    return [float(found) for found in re.findall(r"Round \d+ finished in ([\d.]+) seconds", log)][1:]


def main() -> int:
    """Prints both medians and their ratio for each size; fails if one is above what is promised."""
    sys.path.insert(0, str(SITE))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])])
    ratios = []
    for parameters in SIZES:
        found: dict[bool, list[float]] = {True: [], False: []}
        for repeat in range(REPEATS):
            for bare in (True, False):
                with tempfile.TemporaryDirectory() as folder:
                    port = 20000 + 100 * repeat + 10 * bare + 2 * SIZES.index(parameters)
                    found[bare] += seconds_a_round(Path(folder), parameters, bare=bare, port=port)
        without, with_fulcrum = (statistics.median(found[bare]) for bare in (True, False))
        ratio = with_fulcrum / without
        ratios.append(ratio)
        print(
            f"{parameters:>9,} parameters: {without:.2f} s a round bare, {with_fulcrum:.2f} s with Fulcrum, "
            f"{ratio:.2f} times"
        )
    print(f"promised: at most {PROMISE} times")
    return int(max(ratios) > PROMISE)


if __name__ == "__main__":
    sys.exit(main())
