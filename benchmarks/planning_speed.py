"""Planning 10^6 silos of unequal weight in 10^4 regions, both epsilons included, beside its floor and its peer.

The floor is one weighted `numpy.bincount` over the same arrays: no planner can do with less than one pass over
weights and regions. The peer is a loop over dp-accounting's exact Gaussian epsilon, one call a silo and observer,
timed on a sample. All are measured in one run; the figures to quote are the ratios.

    python benchmarks/planning_speed.py
"""

import argparse

import dp_accounting
import numpy as np
from _workloads import seconds

import fulcrum
from fulcrum.views.terminal.screen import FORMATS, Result, show, table
from fulcrum.views.terminal.table_columns import Column

SILOS, REGIONS, REPEATS, PEER_SAMPLE = 1_000_000, 10_000, 15, 300
MOST_BINCOUNTS, LEAST_SPEEDUP = 30.0, 1_000.0


def unequal_federation(silos: int, regions: int, seed: int = 0) -> fulcrum.Federation:
    """Lognormal sizes in regions drawn at random, so that neither weights nor order help."""
    rng = np.random.default_rng(seed)
    region_of = rng.permutation(np.arange(silos) % regions)
    tier = fulcrum.Tier(name="region", nodes=tuple(f"region-{k}" for k in range(regions)), parent_of=region_of)
    return fulcrum.Federation(name="unequal", sizes=rng.lognormal(5, 0.6, silos), tiers=(tier,))


def planned(federation: fulcrum.Federation) -> fulcrum.Plan:
    """A plan with both epsilons computed."""
    made = fulcrum.plan(federation, rounds=10, epsilon=1.0)
    made.epsilon_above  # noqa: B018
    made.epsilon_inside  # noqa: B018
    return made


def peer_seconds(made: fulcrum.Plan) -> float:
    """The time of the peer's loop over every silo and both observers, from a sample; the two must agree."""
    some = np.random.default_rng(1).choice(len(made.federation), PEER_SAMPLE, replace=False)
    multipliers = np.concatenate([made.effective_multiplier()[some], made.noise_multiplier[some]])
    # One Gaussian release of sensitivity 1 is what the peer knows: 2 sqrt(T) / s standard deviations, as here.
    sigmas = (multipliers / (2 * np.sqrt(made.rounds))).tolist()

    def loop() -> list[float]:
        return [dp_accounting.get_epsilon_gaussian(sigma, made.delta) for sigma in sigmas]

    mine = np.concatenate([made.epsilon_above[some], made.epsilon_inside[some]])
    apart = float(np.max(np.abs(np.array(loop()) - mine) / mine))
    if apart > 1e-4:
        raise SystemExit(f"the peer disagrees by {apart:.2g}: not a peer")
    return seconds(loop, repeats=3) / PEER_SAMPLE * len(made.federation)


def main() -> None:
    """Measures, prints, and fails if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=FORMATS, default="table")
    style = parser.parse_args().format
    federation = unequal_federation(SILOS, REGIONS)
    region_of, weights = federation.innermost.parent_of, federation.weights
    floor = seconds(lambda: np.bincount(region_of, weights, REGIONS), REPEATS)
    mine = seconds(lambda: planned(federation), REPEATS)
    peer = peer_seconds(planned(federation))
    fewer, more = unequal_federation(SILOS // 10, REGIONS // 10), unequal_federation(SILOS * 10, REGIONS * 10)
    tenth, tenfold = seconds(lambda: planned(fewer), REPEATS), seconds(lambda: planned(more), repeats=3)
    rows = [
        {
            "figure": "planning over one weighted bincount",
            "value": mine / floor,
            "promise": f"at most {MOST_BINCOUNTS:g}",
        },
        {
            "figure": "loop over dp-accounting over planning",
            "value": peer / mine,
            "promise": f"at least {LEAST_SPEEDUP:,.0f}",
        },
        {"figure": "time a silo, 10^6 over 10^5", "value": mine / tenth / 10, "promise": ""},
        {"figure": "time a silo, 10^7 over 10^6", "value": tenfold / mine / 10, "promise": ""},
    ]
    columns = (
        Column(key="figure", heading="figure", figures=False),
        Column(key="value", heading="ratio"),
        Column(key="promise", heading="promise", figures=False),
    )
    title = f"{SILOS:,} silos in {REGIONS:,} regions, both epsilons"
    show(Result(data=rows, rows=rows, picture=[table(title, columns, rows)]), style)
    if mine / floor > MOST_BINCOUNTS or peer / mine < LEAST_SPEEDUP:
        raise SystemExit("a promise is not kept")


if __name__ == "__main__":
    main()
