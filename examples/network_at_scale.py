"""At how many silos does a network learn under a given epsilon, and when is a linear head the better choice?

python examples/network_at_scale.py --silos 1000 10000 --epsilon 1 3 8 [--hidden 64] [--device cuda] [-o found.json]

Ten classes of CIFAR-10 (cifar10.npz in the folder that FULCRUM_DATA names), 64 principal components of its features,
silos in regions of lognormal size. A network of one hidden layer and a linear head are trained under the same promise
to every silo four ways: uniform noise, the paper's optimum, weights of least noise, and the joint recipe, which chooses
weights, clip and server together. All ways and epsilons of one seed share batches and noise draws.

The file has 25,000 training records. Where silos ask for more than that in all, every record is held by several silos.
So without privacy nothing is learnt that 25,000 records do not teach, however many silos there are: what more silos
bring is less noise. The promise is made to each silo; to a person whose record is in several silos it is weaker.
With --unit record the promise is made to each record of one silo, and silos send one sum of clipped gradients a round.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

import fulcrum
from fulcrum.core.store.durable_files import check_writable
from fulcrum.simulation.data.partition import Partition, coupled_partition
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.model_engines import model_of, train_model
from fulcrum.simulation.training_runs import GRADIENT_RATE

WAYS = {
    "uniform": {"allocation": "uniform"},
    "optimal": {},
    "least-noise": {"weights": "least-noise"},
    "joint": {"recipe": "joint"},
}
IN_WORDS = {
    "uniform": "uniform noise",
    "optimal": "the paper's optimum",
    "least-noise": "weights of least noise",
    "joint": "joint",
}
REGIONS, COMPONENTS, CLASSES = 60, 64, 10


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


def linear_head() -> torch.nn.Linear:
    """Returns the built-in head as a module, so that it trains on the same device; like that one it begins at zeros."""
    head = torch.nn.Linear(COMPONENTS, CLASSES)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head


def lognormal_regions(silos: int, *, records: float = 25.0, seed: int = 0) -> fulcrum.Federation:
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
    return fulcrum.Federation(name=f"{silos:,} silos", sizes=np.full(silos, records), tiers=(tier,))


def shared_partition(task: fulcrum.Task, federation: fulcrum.Federation, *, seed: int) -> Partition:
    """Deals records to silos by the declared sizes; where they do not suffice, as many copies of all as are needed."""
    held = len(task.labels_train)
    copies = math.ceil(federation.sizes.sum() / held)
    labels = np.tile(task.labels_train, copies)
    unread = np.broadcast_to(task.features_train[:1], (len(labels), *task.features_train.shape[1:]))
    many = replace(task, features_train=unread, labels_train=labels, records=None)
    dealt = coupled_partition(many, federation, seed=seed)
    return replace(dealt, records=dealt.records % held)


def training_of(options: argparse.Namespace) -> fulcrum.LocalTraining:
    """Returns local steps, or one gradient of each record a round if the unit of privacy is a record."""
    if options.unit == "silo":
        rate = options.learning_rate or options.local_rate
        return fulcrum.LocalTraining(learning_rate=rate, steps=options.steps, batch=16)
    return fulcrum.GradientTraining(learning_rate=options.learning_rate or GRADIENT_RATE)


def learnt(
    task: fulcrum.Task, models: Mapping[str, Callable[[], Any]], silos: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Returns what each model learns at one number of silos, a row for each epsilon and way."""
    federation = lognormal_regions(silos, records=options.records)
    ways = [(epsilon, way) for epsilon in options.epsilon for way in options.ways]
    rows: list[dict[str, Any]] = [{"silos": silos, "epsilon": epsilon, "way": way} for epsilon, way in ways]
    training = training_of(options)
    for name in options.models:
        model, begun = model_of(models[name]), time.monotonic()
        plans = [
            fulcrum.plan(
                federation,
                rounds=options.rounds,
                epsilon=epsilon,
                parameters=model.parameters,
                unit=options.unit,
                clip_norm=options.clip_norm,
                **WAYS[way],
            )
            for epsilon, way in ways
        ]
        arms = Variants.from_plans(plans).with_reference()
        jobs = [
            Job(seed=seed, partition=shared_partition(task, federation, seed=seed), variants=arms)
            for seed in range(options.seeds)
        ]

        def tell(done: int, found: list[Any], name: str = name, begun: float = begun) -> None:
            left = (time.monotonic() - begun) / max(done, 1) * (options.rounds - done)
            sys.stderr.write(
                f"{silos:,} silos, {name}: round {done} of {options.rounds}, about {left:.0f} s left; accuracy up to "
                f"{found[0][:-1].max():.3f}, {found[0][-1]:.3f} without privacy\n"
            )

        runs, _ = train_model(jobs, task, training, model, device=options.device, on_round=tell)
        last = np.array([run.accuracy[-1] for run in runs])
        for place, (row, plan) in enumerate(zip(rows, plans, strict=True)):
            row |= {
                name: float(last[:, place].mean()),
                f"{name} by seed": last[:, place].tolist(),
                f"{name} without privacy": float(last[:, -1].mean()),
                f"{name} parameters": model.parameters,
                f"{name} noise": math.sqrt(model.parameters * plan.model_noise),
                f"{name} seconds": time.monotonic() - begun,
            }
    return rows


def study(
    task: fulcrum.Task, models: Mapping[str, Callable[[], Any]], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Trains every model at every number of silos, prints what came of it, and returns it by row."""
    if options.output:
        check_writable(options.output)  # before anybody waits for what is to stand there
    rows: list[dict[str, Any]] = []
    for silos in options.silos:
        shared = silos * options.records / len(task.labels_train)
        if shared > 1:
            sys.stderr.write(f"{silos:,} silos: every record is held by {shared:.3g} silos on average\n")
        rows += learnt(task, models, silos, options)
        if options.output:
            options.output.write_text(json.dumps(rows, indent=1) + "\n")
    told = {"json": lambda found: json.dumps(found, indent=1) + "\n", "markdown": as_markdown, "table": as_table}
    sys.stdout.write(told[options.format](rows))
    return rows


def names_of(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the models that rows tell of."""
    end = " without privacy"
    return [key.removesuffix(end) for key in rows[0] if key.endswith(end)]


def as_markdown(rows: list[dict[str, Any]]) -> str:
    """Returns two tables, accuracies and noise: a row for each number of silos and way, a column for each epsilon."""
    names, epsilons = names_of(rows), list(dict.fromkeys(row["epsilon"] for row in rows))
    by_key = {(row["silos"], row["way"], row["epsilon"]): row for row in rows}
    told = []
    for title, key, form in (("accuracy", "", ".3f"), ("noise of a round, in clips", " noise", ".2g")):
        columns = " | ".join(f"epsilon {epsilon:g}" for epsilon in epsilons)
        told += [f"| silos | {title}: {' / '.join(names)} | {columns} |", "|---" * (2 + len(epsilons)) + "|"]
        for silos, way in dict.fromkeys((row["silos"], row["way"]) for row in rows):
            here = [by_key[silos, way, epsilon] for epsilon in epsilons]
            cells = [" / ".join(format(row[name + key], form) for name in names) for row in here]
            told.append(f"| {silos:,} | {IN_WORDS[way]} | {' | '.join(cells)} |")
        told.append("")
    for silos in dict.fromkeys(row["silos"] for row in rows):
        row = next(row for row in rows if row["silos"] == silos)
        found = ", ".join(f"{name} {row[f'{name} without privacy']:.3f}" for name in names)
        told.append(f"Without privacy, {silos:,} silos: {found}.")
    return "\n".join(told) + "\n"


def as_table(rows: list[dict[str, Any]]) -> str:
    """Returns a line for each row, and what follows for each number of silos and epsilon."""
    names = names_of(rows)
    told = []
    for row in rows:
        found = "  ".join(
            f"{name} {row[name]:.3f} ({row[f'{name} without privacy']:.3f} without privacy, noise "
            f"{row[f'{name} noise']:.2g} clips a round)"
            for name in names
        )
        told.append(f"{row['silos']:>9,} silos  epsilon {row['epsilon']:<4g} {row['way']:<12} {found}")
    for silos, epsilon in dict.fromkeys((row["silos"], row["epsilon"]) for row in rows if len(names) > 1):
        here = [row for row in rows if (row["silos"], row["epsilon"]) == (silos, epsilon)]
        best = {name: max(row[name] for row in here) for name in names}
        found = ", ".join(f"{name} {accuracy:.3f}" for name, accuracy in best.items())
        told.append(f"At {silos:,} silos and epsilon {epsilon:g} train the {max(best, key=best.__getitem__)}: {found}.")
    return "\n".join(told) + "\n"


class Parser(argparse.ArgumentParser):
    """Reads a command line; a mistake in it is one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong, and ends the program."""
        self.exit(2, f"error: {message}. See: --help\n")


def at_least(least: int) -> Callable[[str], int]:
    """Returns what reads a whole number of at least `least`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
        return int(text)

    return read


def add_study_options(parser: argparse.ArgumentParser, models: Sequence[str], *, learning_rate: float = 0.1) -> None:
    """Adds what every such study can be told."""
    parser.add_argument("--silos", type=at_least(REGIONS), nargs="+", default=[1000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--models", nargs="+", choices=models, default=list(models))
    parser.add_argument("--records", type=float, default=25.0, help="of each silo")
    parser.add_argument("--rounds", type=at_least(1), default=20)
    parser.add_argument("--unit", choices=("silo", "record"), default="silo", help="the unit of privacy")
    parser.add_argument("--clip-norm", type=float, default=1.0, help="of an update, or of the gradient of a record")
    parser.add_argument("--steps", type=at_least(1), default=5, help="local, of 16 records each; for the unit silo")
    rates = f"{learning_rate:g} of local steps, {GRADIENT_RATE:g} of the server for the unit record"
    parser.add_argument("--learning-rate", type=float, help=f"by default {rates}")
    parser.set_defaults(local_rate=learning_rate)
    parser.add_argument("--seeds", type=at_least(1), default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--format", choices=("table", "markdown", "json"), default="table")
    parser.add_argument("-o", "--output", type=Path, help="a JSON file, written anew after each number of silos")


@contextmanager
def errors_in_one_line(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Ends the program with exit code 2 where it was told what cannot be."""
    try:
        yield
    except (fulcrum.FulcrumError, OSError) as error:
        parser.exit(2, f"error: {error}\n")


def main() -> None:
    """Trains network and head on features."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_study_options(parser, ("network", "head"))
    parser.add_argument("--hidden", type=at_least(1), default=64, help="units; 1333 for about 10^5 parameters")
    parser.add_argument("--data-dir", default=None)
    options = parser.parse_args()
    with errors_in_one_line(parser):
        task = fulcrum.load_task("cifar10", every_class=True, components=COMPONENTS, data_dir=options.data_dir)
        study(task, {"network": lambda: Network(options.hidden), "head": linear_head}, options)


if __name__ == "__main__":
    main()
