"""A server that pools beside what no server does without: reading its regions' sums, and writing its checkpoint.

A round of 100 regions with a model of 10^6 parameters, the last as a softmax head and as a model of which nothing is
known. Every figure is a ratio measured in one run: to adding the same sums up, and to writing the same checkpoint.

    python benchmarks/server_round.py [--regions 100] [--parameters 1000000]
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import fulcrum
from fulcrum.core.messages.layout import Layout
from fulcrum.rules.server_rule import RoundSums
from fulcrum.server.checkpoint import Checkpoint, Standing
from fulcrum.views.terminal.screen import FORMATS, Result, show, table
from fulcrum.views.terminal.table_columns import Column

SECONDS = 2.0
"""What a round may take beside writing the checkpoint; processor time, since a busy machine is nobody's fault."""

ROUNDS = 4
UNIT = 2.0**-30


def processor_seconds(work: Callable[[], object]) -> float:
    """What some work takes of the processor."""
    before = time.process_time()
    work()
    return time.process_time() - before


def plan_of(regions: int, parameters: int) -> fulcrum.Plan:
    """A plan whose server pools: regions of four silos."""
    sizes = {f"region-{place}": {f"silo-{place}-{number}": 100 for number in range(4)} for place in range(regions)}
    federation = fulcrum.Federation.from_sizes(sizes)
    return fulcrum.plan(federation, rounds=ROUNDS, epsilon=3.0, parameters=parameters, recipe="joint")


def added_up(sums: list[np.ndarray]) -> np.ndarray:
    """What the paper's server does."""
    total = np.zeros(len(sums[0]))
    for values in sums:
        total += values * UNIT
    return total


def main() -> None:
    """Measures, prints, and fails if a round takes too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=FORMATS, default="table")
    parser.add_argument("--regions", type=int, default=100)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    options = parser.parse_args()
    regions, parameters = options.regions, options.parameters
    plan, rng = plan_of(regions, parameters), np.random.default_rng(0)
    sums = [rng.integers(-(2**20), 2**20, parameters) for _ in range(regions)]
    floor = min(processor_seconds(lambda: added_up(sums)) for _ in range(3))
    rows: list[dict[str, object]] = []
    worst = 0.0
    for name, classes in (("a softmax head of two classes", 2), ("a model of which nothing is known", None)):
        rule = plan.server_rule
        state, present = rule.begin(np.zeros(parameters)), np.ones(regions, dtype=bool)
        room = np.full((regions, parameters), 0.0)
        times = []
        for _ in range(ROUNDS):
            before, kept = time.process_time(), state.arrays["said"]
            told = RoundSums(values=sums, present=present, unit=UNIT, classes=classes, spare={"said": room})
            state, _ = rule.step(state, told)
            times.append(time.process_time() - before)
            room = kept
        round_time = min(times[1:])  # the first asks for memory that it then has
        worst = max(worst, round_time)
        rows.append({"figure": f"a round of {name} over adding up", "ratio": round_time / floor})
    layout = Layout(names=("model",), shapes=((parameters,),))
    standing = Standing(plan_digest=plan.digest, round_number=ROUNDS + 1, layout=layout, history=[], pooling={})
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint(standing=standing, state=state)
        writing = processor_seconds(lambda: checkpoint.write(Path(folder)))
    rows.append({"figure": "the same round over writing its checkpoint", "ratio": worst / writing})
    columns = (Column(key="figure", heading="figure", figures=False), Column(key="ratio", heading="ratio"))
    title = f"{regions} regions, {parameters:,} parameters: {worst:.2f} s a round beside writing the checkpoint"
    show(Result(data=rows, rows=rows, picture=[table(title, columns, rows)]), options.format)
    if worst > SECONDS * max(1.0, regions * parameters / 1e8):
        raise SystemExit(f"a round takes {worst:.2f} s of the processor, the promise is {SECONDS:g}")


if __name__ == "__main__":
    main()
