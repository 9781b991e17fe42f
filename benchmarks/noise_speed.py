"""Noise on 10^6 coordinates at a lattice width of 1e5: discrete, from AES, beside what it replaces and beside its peer.

What it replaces is NumPy's `standard_normal` from PCG64: floating point, from a generator that can be predicted. The
peer is OpenDP's Gaussian measurement on integers, exact and from the operating system's randomness, timed on a sample
that must pass for the same distribution. All are measured in one run; the figures to quote are the ratios.

    python benchmarks/noise_speed.py
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import opendp.prelude as dp
from scipy import stats

from fulcrum.core.noise.discrete_gaussian import DiscreteGaussian, _combine_draws, _compiled_loop, _draw_samples
from fulcrum.core.noise.keystream import random_bytes
from fulcrum.views.terminal.screen import FORMATS, Result, show, table
from fulcrum.views.terminal.table_columns import Column

COORDINATES, WIDTH, REPEATS, PEER_SAMPLE = 1_000_000, 1e5, 15, 20_000
LEAST_COMPILED, LEAST_NUMPY = 0.5, 0.05


def seconds_in_turn(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median time of each, after one run to warm up; taken in turn, so that a busy spell falls on all alike."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(REPEATS):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def peer_seconds() -> float:
    """The time of the peer over every coordinate, from a sample."""
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    measurement, zeros = dp.m.make_gaussian(*space, scale=WIDTH), [0] * PEER_SAMPLE
    measurement(zeros)
    start = time.perf_counter()
    theirs = np.array(measurement(zeros))
    taken = time.perf_counter() - start
    mine = DiscreteGaussian(WIDTH).sample(PEER_SAMPLE, random_bytes)
    pvalue = float(stats.ks_2samp(mine, theirs).pvalue)
    if pvalue < 1e-9:
        raise SystemExit(f"the peer's noise is of another distribution (p = {pvalue:.2g}): not a peer")
    return taken / PEER_SAMPLE * COORDINATES


def main() -> None:
    """Measures, prints, and fails if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=FORMATS, default="table")
    style = parser.parse_args().format
    noise, rng = DiscreteGaussian(WIDTH), np.random.Generator(np.random.PCG64(1))
    compiled = _compiled_loop()
    works: dict[str, Callable[[], object]] = {
        "normal": lambda: rng.standard_normal(COORDINATES),
        "numpy": lambda: _draw_samples(noise.convolution, COORDINATES, random_bytes, _combine_draws),
        "bytes": lambda: random_bytes(8 * COORDINATES),
        "system": lambda: os.urandom(8 * COORDINATES),
    }
    if compiled is not None:
        works["compiled"] = lambda: noise.sample(COORDINATES, random_bytes)
    taken = seconds_in_turn(works)
    peer = peer_seconds()
    best = taken.get("compiled", taken["numpy"])
    without = taken["normal"] / taken["numpy"]
    rows = [
        {
            "figure": "without numba, rate over standard_normal",
            "value": without,
            "promise": f"at least {LEAST_NUMPY:g}",
        },
        {"figure": "bytes alone, rate over os.urandom", "value": taken["system"] / taken["bytes"], "promise": ""},
        {"figure": "OpenDP on integers, rate over standard_normal", "value": taken["normal"] / peer, "promise": ""},
        {"figure": "best here over OpenDP", "value": peer / best, "promise": ""},
    ]
    kept = without >= LEAST_NUMPY
    if compiled is not None:
        ratio = taken["normal"] / taken["compiled"]
        figure, promise = "with numba, rate over standard_normal", f"at least {LEAST_COMPILED:g}"
        rows.insert(0, {"figure": figure, "value": ratio, "promise": promise})
        kept = kept and ratio >= LEAST_COMPILED
    columns = (
        Column(key="figure", heading="figure", figures=False),
        Column(key="value", heading="ratio"),
        Column(key="promise", heading="promise", figures=False),
    )
    title = f"{COORDINATES:,} coordinates at a lattice width of {WIDTH:g}"
    show(Result(data=rows, rows=rows, picture=[table(title, columns, rows)]), style)
    if not kept:
        raise SystemExit("a promise is not kept")


if __name__ == "__main__":
    main()
