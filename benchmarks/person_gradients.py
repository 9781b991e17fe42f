"""Gradients by person of a PyTorch module for 10^3 silos of 200 records, beside Opacus, in one run.

python benchmarks/person_gradients.py [--device cuda] [--silos 1000] [--network dense] [--persons 50] [--turns 3]

Every record is a person, as Opacus knows no other unit. Fulcrum's round clips every gradient, adds up by silo and
region, adds the noise of every silo, moves the model and tests it on a hundred records. Opacus clips, adds up and adds
noise silo by silo (`GradSampleModule`, `DPOptimizer`), as federations use it; and in large batches, which give no silo
a sum of its own. "one gradient of all records" is torch's forward and backward pass alone, without gradients by record,
clip and noise: no way that uses torch's layers takes much less. Each is measured in a process of its own, in turns, and
has all cores that torch takes. The promise is at least 5 times the speed of Opacus silo by silo on two cores, 50 times
on a GPU. With --persons, Fulcrum's round is also measured with so many persons a silo, each with several records.

On a busy machine only the ratios of processor time say something.
"""

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import networks
from peers.environments import installed

from fulcrum.core.privacy_unit import PrivacyUnit
from fulcrum.rules.sum_rule import SumRule
from fulcrum.simulation.data.partition import Partition
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.training_settings import GradientTraining
from fulcrum.simulation.torch.torch_device import TorchDevice
from fulcrum.simulation.torch.torch_model import torch_model
from fulcrum.simulation.torch.torch_persons import train_by_person

RECORDS, REGION, ROUNDS, TURNS = 200, 100, 4, 3  # the first round is not counted
LARGE_BATCH = {"cpu": 20_000, "cuda": 200_000}
PLAIN_BATCH = {"cpu": 1_024, "cuda": 200_000}
LEAST = {"cpu": 5, "cuda": 50}


def own_round(network: str, silos: int, device: str, persons: int) -> dict[str, float]:
    """Returns time, processor time and peak memory of a round through the engine; persons=0: each record is one."""
    features, labels = networks.pool(network)
    chosen = np.random.default_rng(1).integers(0, networks.POOL, silos * RECORDS).astype(np.intp)
    names = None if not persons else tuple(map(str, np.arange(networks.POOL) % (persons or 1)))
    task = Task(
        name=network,
        features_train=features,
        labels_train=labels,
        features_test=features[:100],
        labels_test=labels[:100],
        classes=tuple(map(str, range(networks.CLASSES))),
        persons=names,
        fitted=False,
    )
    regions = -(-silos // REGION)
    variants = Variants(
        silo_name=str,
        weights=np.full((silos, 1), 1 / silos / RECORDS),
        region_of=np.arange(silos) // REGION,
        regions=regions,
        rounds=ROUNDS,
        noise_multiplier=np.full((silos, 1), networks.NOISE),
        aggregator_noise_multiplier=np.zeros((regions, 1)),
        clip_norm=np.array([networks.CLIP]),
        clip_share=np.ones(1),
        rules=(SumRule(),),
        largest_sums=np.full((silos, 1), float(RECORDS)),
        unit=PrivacyUnit(name="person" if persons else "record"),
    )
    part = Partition(
        records=chosen,
        starts=np.arange(silos) * RECORDS,
        counts=np.full(silos, RECORDS),
        shares=np.zeros(silos),
    )
    ends: list[tuple[float, float]] = []
    train_by_person(
        Job(seed=0, partition=part, variants=variants),
        task,
        GradientTraining(learning_rate=networks.LEARNING_RATE),
        torch_model(networks.MODULES[network]).on(task),
        device=TorchDevice(name=device, draws="device"),
        on_round=lambda *_: ends.append((time.perf_counter(), time.process_time())),
    )
    return figures_of(ends, device.partition(":")[0])


def one_gradient(network: str, silos: int, device: str) -> dict[str, float]:
    """Returns the figures of one gradient of all records, which is no release: no gradient by record, clip or noise."""
    features, labels = networks.pool(network)
    kind = device.partition(":")[0]
    chosen = torch.tensor(np.random.default_rng(1).integers(0, networks.POOL, silos * RECORDS), device=device)
    inputs, targets = torch.tensor(features, device=device), torch.tensor(labels, device=device)
    module = networks.MODULES[network]().to(device)
    innermost = kind == "cpu" and inputs.ndim == 4  # channels, as the engine has images on a processor
    ends = []
    for _ in range(ROUNDS):
        for places in chosen.split(PLAIN_BATCH[kind]):
            batch = inputs[places].contiguous(memory_format=torch.channels_last) if innermost else inputs[places]
            loss = torch.nn.functional.cross_entropy(module(batch), targets[places], reduction="sum")
            torch.autograd.grad(loss, list(module.parameters()))
        if kind == "cuda":
            torch.cuda.synchronize()
        ends.append((time.perf_counter(), time.process_time()))
    return figures_of(ends, kind)


def figures_of(ends: list[tuple[float, float]], kind: str) -> dict[str, float]:
    """Returns the median time and processor time between the ends of rounds, and the peak memory of this process."""
    seconds, worked = np.median(np.diff(ends, axis=0), axis=0).tolist()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    memory = torch.cuda.max_memory_allocated() if kind == "cuda" else own
    return {"seconds": seconds, "processor_seconds": worked, "memory": memory}


def in_own_process(options: argparse.Namespace, network: str, *way: str) -> dict[str, float]:
    """Returns the figures of a way of Fulcrum or of torch, measured in a process of its own."""
    settings = ["--device", options.device, "--silos", str(options.silos), "--network", network]
    return run([sys.executable, "-W", "ignore", __file__, *settings, *way], {})


def peer(options: argparse.Namespace, network: str, batch: int) -> dict[str, float]:
    """Returns the figures of Opacus, from this environment where it is installed in it, else from one of its own."""
    here = Path(__file__).resolve().parent / "peers"
    python = sys.executable if importlib.util.find_spec("opacus") is not None else str(installed("opacus"))
    settings = {
        "PEER_NETWORK": network,
        "PEER_SILOS": str(options.silos),
        "PEER_RECORDS": str(RECORDS),
        "PEER_BATCH": str(batch),
        "PEER_DEVICE": options.device,
        "PEER_REPEATS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")])),
    }
    return run([python, "-W", "ignore", str(here / "opacus" / "run.py")], settings)


def run(command: list[str], settings: dict[str, str]) -> dict[str, float]:
    """Returns the last line that a process prints, from JSON."""
    done = subprocess.run(command, env=os.environ | settings, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[3]} failed with status {done.returncode}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def rows_of(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields by network the figures of every way, and the ratios to Fulcrum's."""
    kind = options.device.partition(":")[0]
    for network in options.network.split(","):
        ways: dict[str, Callable[[], dict[str, float]]] = {
            "fulcrum": partial(in_own_process, options, network, "--own"),
            "opacus, silo by silo": partial(peer, options, network, RECORDS),
            "opacus, large batches": partial(peer, options, network, LARGE_BATCH[kind]),
            "one gradient of all records": partial(in_own_process, options, network, "--plain"),
        }
        if options.persons:
            several = ("--own", "--persons", str(options.persons))
            ways["fulcrum, several records a person"] = partial(in_own_process, options, network, *several)
        turns: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for _ in range(options.turns):
            for way, measure in ways.items():
                turns[way].append(measure())
        medians = {
            way: {name: statistics.median(turn[name] for turn in figures) for name in ("seconds", "processor_seconds")}
            | {"memory": max(turn["memory"] for turn in figures)}
            for way, figures in turns.items()
        }
        own = medians["fulcrum"]
        for way, figures in medians.items():
            yield {
                "network": network,
                "way": way,
                "seconds": round(figures["seconds"], 4),
                "processor seconds": round(figures["processor_seconds"], 4),
                "ratio": round(figures["seconds"] / own["seconds"], 2),
                "ratio of processor time": round(figures["processor_seconds"] / own["processor_seconds"], 2),
                "peak memory, MiB": round(figures["memory"] / 2**20),
            } | ({"promise": f"at least {LEAST[kind]}"} if way == "opacus, silo by silo" else {})


def main() -> None:
    """Measures, and prints a table or one line of JSON for each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--silos", type=int, default=1_000)
    parser.add_argument("--network", default="dense,convolutional")
    parser.add_argument("--persons", type=int, default=0, help="a silo, each with several records")
    parser.add_argument("--turns", type=int, default=TURNS, help="of every way, of which the median counts")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--own", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.own:
        print(json.dumps(own_round(options.network, options.silos, options.device, options.persons)))
        return
    if options.plain:
        print(json.dumps(one_gradient(options.network, options.silos, options.device)))
        return
    for row in rows_of(options):
        if options.format == "json":
            print(json.dumps(row), flush=True)
        else:
            print("  ".join(f"{name}: {value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
