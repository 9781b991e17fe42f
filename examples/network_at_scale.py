"""At how many silos does a network learn under a given epsilon, and when is a linear head the better choice?

python examples/network_at_scale.py --silos 1000,10000 --epsilon 1,3,8 [--hidden 64] [--device cuda]

Ten classes of CIFAR-10 (cifar10.npz in the folder that FULCRUM_DATA names), 64 principal components of its features,
silos in regions of lognormal size. A network of one hidden layer and the built-in head are trained under the same
promise to every silo four ways: uniform noise, the paper's optimum, weights of least noise, and the joint recipe. All
ways and epsilons of one seed share batches and noise draws.
"""

import argparse
import json
import sys
import time

import numpy as np
import torch

import fulcrum
from fulcrum.simulation.model_engines import model_of
from fulcrum.simulation.runs import train_arms

WAYS = {
    "uniform": {"allocation": "uniform"},
    "optimal": {},
    "least-noise": {"weights": "least-noise"},
    "joint": {"recipe": "joint"},
}
ROUNDS, REGIONS, COMPONENTS, CLASSES = 20, 60, 64, 10


class Network(torch.nn.Module):
    """One hidden layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(COMPONENTS, hidden)
        self.head = torch.nn.Linear(hidden, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns a score for each class."""
        scores: torch.Tensor = self.head(torch.relu(self.hidden(inputs)))
        return scores


def lognormal_regions(silos: int, seed: int = 0) -> fulcrum.Federation:
    """Returns silos of one size in regions whose numbers of silos are lognormal."""
    share = np.random.default_rng(seed).lognormal(0, 1, REGIONS)
    place = np.arange(REGIONS)
    ends = np.rint(np.cumsum(share / share.sum()) * silos).astype(int)
    ends = np.maximum.accumulate(np.maximum(ends, 1) - place) + place  # every region has a silo
    ends = np.minimum(ends, silos - place[::-1])
    parent_of = np.searchsorted(ends, np.arange(silos), side="right")
    tier = fulcrum.Tier(
        name="region", nodes=tuple(f"region-{r + 1}" for r in range(REGIONS)), parent_of=parent_of.astype(np.intp)
    )
    return fulcrum.Federation(name=f"{silos:,} silos", sizes=np.full(silos, 25.0), tiers=(tier,))


def learnt(silos: int, options: argparse.Namespace) -> list[dict[str, float | str]]:
    """Returns the accuracy of network and head at one number of silos, a row for each epsilon and way."""
    task = fulcrum.load_task("cifar10", every_class=True, components=COMPONENTS, data_dir=options.data_dir)
    federation, network = lognormal_regions(silos), model_of(lambda: Network(options.hidden))
    epsilons = [float(epsilon) for epsilon in options.epsilon.split(",")]
    training = fulcrum.LocalTraining(learning_rate=options.learning_rate, steps=5, batch=16)
    head_parameters = (COMPONENTS + 1) * CLASSES
    found = {}
    for name, model, parameters in (("network", network, network.parameters), ("head", None, head_parameters)):
        plans = [
            fulcrum.plan(federation, rounds=ROUNDS, epsilon=epsilon, parameters=parameters, **way)
            for epsilon in epsilons
            for way in WAYS.values()
        ]
        begun = time.monotonic()

        def tell(done: int, _: object, name: str = name, begun: float = begun) -> None:
            left = (time.monotonic() - begun) / max(done, 1) * (ROUNDS - done)
            sys.stderr.write(f"{silos:,} silos, {name}: round {done} of {ROUNDS}, about {left:.0f} s left\n")

        found[name] = train_arms(
            [plans] * options.seeds,
            task,
            seeds=range(options.seeds),
            training=training,
            records=len(task.labels_train) / silos,
            model=model,
            device=None if model is None else options.device,
            on_round=tell if options.seeds == 1 else None,
        )
    ways = [(epsilon, way) for epsilon in epsilons for way in WAYS]
    return [
        {
            "silos": silos,
            "epsilon": epsilon,
            "way": way,
            **{name: float(arms.accuracy[:, place].mean()) for name, arms in found.items()},
            **{f"{name} without privacy": float(arms.reference.mean()) for name, arms in found.items()},
        }
        for place, (epsilon, way) in enumerate(ways)
    ]


def main() -> None:
    """Trains, and prints a table and what follows from it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", default="1000", help="comma separated")
    parser.add_argument("--epsilon", default="1,3,8", help="comma separated")
    parser.add_argument("--hidden", type=int, default=64, help="units; 1333 for about 10^5 parameters")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--format", choices=("table", "json"), default="table")
    options = parser.parse_args()
    rows = [row for silos in options.silos.split(",") for row in learnt(int(silos), options)]
    if options.format == "json":
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return
    for row in rows:
        sys.stdout.write(
            f"{row['silos']:>9,} silos  epsilon {row['epsilon']:<4g} {row['way']:<12} network {row['network']:.3f} "
            f"({row['network without privacy']:.3f} without privacy)  head {row['head']:.3f} "
            f"({row['head without privacy']:.3f})\n"
        )
    for silos, epsilon in dict.fromkeys((row["silos"], row["epsilon"]) for row in rows):
        here = [row for row in rows if (row["silos"], row["epsilon"]) == (silos, epsilon)]
        network, head = (max(float(row[name]) for row in here) for name in ("network", "head"))
        verdict = "is worth its parameters" if network > head else "is not worth it: train the head"
        sys.stdout.write(
            f"At {silos:,} silos and epsilon {epsilon:g} the network {verdict} ({network:.3f}, {head:.3f}).\n"
        )


if __name__ == "__main__":
    main()
