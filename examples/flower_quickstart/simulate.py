"""Runs the private app on Flower's simulation, 50 nodes on this machine: python simulate.py private."""

import subprocess
import sys
import tempfile
from pathlib import Path

import fulcrum

HERE = Path(__file__).parent
NODES = 50


def main(which: str) -> None:
    """Runs one of the two: `plain` by Flower's own command, `private` by Fulcrum's, which makes the sites first."""
    if which == "plain":
        run("flwr", "run", str(HERE / "plain"), "--stream", "--federation-config", f"num-supernodes={NODES}")
        return
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        fulcrum.save_plan(private_plan(), plan)
        run("fulcrum", "simulate", "flower", str(plan), "--app", str(HERE / "private"))


def run(command: str, *words: str) -> None:
    """Runs a command of this environment."""
    subprocess.run([Path(sys.executable).parent / command, *words], check=True)  # noqa: S603 our own words


def private_plan() -> fulcrum.Plan:
    """Returns the plan: all silos are masked as one group, and whoever sees its sums is promised epsilon 8."""
    return fulcrum.plan(
        str(HERE / "federation.csv"), rounds=5, epsilon={"federation": 8.0}, aggregation="masked", clip_norm=1.0
    )


if __name__ == "__main__":
    main(sys.argv[1])
