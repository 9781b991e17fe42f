"""A round of a PyTorch module through the embedded engine: a network 64-64-10, and a small convolutional one.

python benchmarks/torch_round.py [--device cuda] [--silos 1000,100000] [--network dense] [--peer]

Beside it stand, in the same run: the same round of the dense network written by hand with batched matrix products; with
--peer a round of pfl, from this environment where pfl is installed in it, else from one of its own; and what the device
does at most, measured: multiplications of large matrices, and bytes copied. The promises hold where all is measured: at
most 3 times the hand-written round from 10^5 silos on (fewer leave a GPU idle), at least 20 times pfl on two
cores and 300 times on a GPU (10 times with the convolutional network), and a time a silo that grows by at most a fifth
from 10^5 to 10^6 silos. Batches and noise are drawn by torch (`draws="device"`), as pfl's are; on the processor, rounds
with the draws of the other engines, the default there, are measured too. On a busy machine only the ratios of processor
time say something, of all pfl's processes and all our threads.

It needs numpy, scipy, msgspec and torch, and no more.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import networks
from peers.environments import installed

from fulcrum.rules.sum_rule import SumRule
from fulcrum.simulation.data.partition import Partition
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.torch.torch_device import TorchDevice
from fulcrum.simulation.torch.torch_engine import train_on_tensors
from fulcrum.simulation.torch.torch_model import torch_model

REGION = 100  # silos
ROUNDS = 4  # the first is not counted
SILO_ROUNDS = {
    "dense": 120_000,
    "convolutional": 20_000,
}  # at least, on the processor: long runs are faster
SILOS_AT_ONCE = {"cpu": 2_000, "cuda": 40_000}  # of the hand-written round
MANY_SILOS = 100_000  # fewer do not fill a GPU
MOST_OVER_SKETCH, MOST_GROWTH = 3.0, 1.2
LEAST_OVER_PEER = {("dense", "cpu"): 20, ("dense", "cuda"): 300, ("convolutional", "cuda"): 10}


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one size took."""

    network: str
    silos: int
    seconds: float
    processor_seconds: float
    sketch: float | None
    memory: float
    flops: float
    bytes_moved: float


def task_of(network: str) -> Task:
    """The records that silos share."""
    features, labels = networks.pool(network)
    return Task(
        name=network,
        features_train=features,
        labels_train=labels,
        features_test=features[:100],
        labels_test=labels[:100],
        classes=tuple(map(str, range(networks.CLASSES))),
    )


def job_of(silos: int, rounds: int) -> Job:
    """Silos in regions of a hundred, each with noise; there are not so many records, so silos share a pool."""
    regions = -(-silos // REGION)
    arms = Variants(
        silo_name=str,
        weights=np.full((silos, 1), 1 / silos),
        region_of=np.arange(silos) // REGION,
        regions=regions,
        rounds=rounds,
        noise_multiplier=np.full((silos, 1), networks.NOISE),
        aggregator_noise_multiplier=np.zeros((regions, 1)),
        clip_norm=np.array([networks.CLIP]),
        clip_share=np.ones(1),
        rules=(SumRule(),),
    )
    part = Partition(
        records=np.random.default_rng(1).integers(0, networks.POOL, silos * networks.RECORDS).astype(np.intp),
        starts=np.arange(silos) * networks.RECORDS,
        counts=np.full(silos, networks.RECORDS),
        shares=np.zeros(silos),
    )
    return Job(seed=0, partition=part, variants=arms)


def engine_seconds(network: str, silos: int, device: str, draws: str = "device") -> tuple[float, float]:
    """The median time and processor time of a round through a user's module, testing on a hundred records included."""
    task = task_of(network)
    model = torch_model(networks.MODULES[network]).on(task)
    training = LocalTraining(learning_rate=networks.LEARNING_RATE, steps=networks.STEPS, batch=networks.BATCH)
    ends: list[tuple[float, float]] = []
    rounds = max(ROUNDS, SILO_ROUNDS[network] // silos) if device == "cpu" else ROUNDS
    train_on_tensors(
        job_of(silos, rounds),
        task,
        training,
        model,
        device=TorchDevice(name=device, draws=draws),
        on_round=lambda *_: ends.append((time.perf_counter(), time.process_time())),
    )
    wall, worked = np.median(np.diff(ends, axis=0), axis=0).tolist()
    return wall, worked


def sketch_seconds(silos: int, device: str) -> float:
    """The median time of the dense network's round by batched matrix products, gradients written by hand."""
    features, labels = networks.pool("dense")
    inputs, targets = torch.tensor(features, device=device), torch.tensor(labels, device=device)
    one_hot = torch.eye(networks.CLASSES, device=device)[targets]
    records = torch.tensor(job_of(silos, 1).partition.records, device=device).reshape(silos, networks.RECORDS)
    shapes = [(64, 64), (64,), (64, networks.CLASSES), (networks.CLASSES,)]
    model = [torch.randn(shape, device=device) * 0.1 for shape in shapes]
    chunk = SILOS_AT_ONCE[device.partition(":")[0]]

    def one_round() -> None:
        for first in range(0, silos, chunk):
            own = records[first : first + chunk]
            w1, b1, w2, b2 = (part.expand(len(own), *part.shape).clone() for part in model)
            for _ in range(networks.STEPS):
                places = torch.randint(networks.RECORDS, (len(own), networks.BATCH), device=device)
                chosen = own.gather(1, places)
                x, y = inputs[chosen], one_hot[chosen]
                hidden = torch.baddbmm(b1[:, None], x, w1).relu_()
                residual = (torch.baddbmm(b2[:, None], hidden, w2).softmax(dim=2) - y) / networks.BATCH
                back = torch.bmm(residual, w2.transpose(1, 2)).mul_(hidden > 0)
                w2.baddbmm_(hidden.transpose(1, 2), residual, alpha=-networks.LEARNING_RATE)
                b2.sub_(residual.sum(dim=1), alpha=networks.LEARNING_RATE)
                w1.baddbmm_(x.transpose(1, 2), back, alpha=-networks.LEARNING_RATE)
                b1.sub_(back.sum(dim=1), alpha=networks.LEARNING_RATE)
            parts = [(part - start).flatten(1) for part, start in zip((w1, b1, w2, b2), model, strict=True)]
            update = torch.cat(parts, dim=1)
            update *= (networks.CLIP / update.norm(dim=1, keepdim=True)).clamp_(max=1)
            update += networks.NOISE * torch.randn_like(update)
            whole = len(update) // REGION * REGION
            update[:whole].unflatten(0, (-1, REGION)).sum(dim=1)

    return median_seconds(one_round, device, ROUNDS - 1)


def median_seconds(work: Callable[[], None], device: str, repeats: int) -> float:
    """The median time of some work, after one run to warm up, until the device has done it."""

    def wait() -> None:
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    times = []
    for _ in range(repeats + 1):
        wait()
        start = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def limits(device: str) -> tuple[float, float]:
    """The device's multiplications and additions a second in single precision, and bytes a second, as measured."""
    size = 8_192 if device.startswith("cuda") else 1_024
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    out = torch.empty(size, size, device=device)
    multiplied = 2 * size**3 / median_seconds(lambda: void(torch.mm(a, b, out=out)), device, 5)
    much = torch.zeros((1 << 30 if device.startswith("cuda") else 1 << 26) // 4, device=device)
    other = torch.empty_like(much)
    copied = 2 * much.numel() * 4 / median_seconds(lambda: void(other.copy_(much)), device, 5)
    return multiplied, copied


def void(_: Any) -> None:
    """Takes what a call returns."""


def work_of(network: str) -> tuple[float, float]:
    """Returns what a silo's round takes at least: operations, and bytes of parameters moved.

    A multiplication and an addition for every weight and place it is used at, forwards, and twice that backwards but
    for the gradient of the inputs. Parameters are read forwards and backwards, gradients written and read, parameters
    read and written at every step; then the update and its noise are written and read.
    """
    if network == "dense":
        forward, first, parameters = 64 * 64 + 64 * 10, 64 * 64, 4_810
    else:
        first, forward, parameters = 256 * 3 * 8 * 9, 256 * 3 * 8 * 9 + 64 * 8 * 16 * 9 + 256 * 10, 3_962
    flops = 2 * networks.STEPS * networks.BATCH * (3 * forward - first)
    return flops, 4.0 * parameters * (6 * networks.STEPS + 4)


def measured(network: str, silos: int, device: str, with_sketch: bool) -> Found:
    """Measures one size."""
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds, worked = engine_seconds(network, silos, device)
    own = torch.cuda.max_memory_allocated() if on_gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sketch = sketch_seconds(silos, device) if with_sketch else None
    flops, moved = work_of(network)
    return Found(
        network=network,
        silos=silos,
        seconds=seconds,
        processor_seconds=worked,
        sketch=sketch,
        memory=own,
        flops=flops * silos / seconds,
        bytes_moved=moved * silos / seconds,
    )


def peer_seconds(network: str, silos: int, device: str) -> tuple[float, float]:
    """The time and processor time of a round of pfl, in this environment where it is installed, else in its own."""
    here = Path(__file__).resolve().parent / "peers"
    python = sys.executable if importlib.util.find_spec("pfl") is not None else str(installed("pfl_network"))
    on_gpu = device.startswith("cuda")
    settings = {
        "PEER_NETWORK": network,
        "PEER_SILOS": str(silos),
        "PEER_ROUNDS": "3",
        "PEER_PROCESSES": "1" if on_gpu else "2",
        "PFL_PYTORCH_DEVICE": device,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")])),
    }
    sys.stderr.write(f"running pfl: {network}, {silos:,} silos\n")
    command = [python, "-W", "ignore", str(here / "pfl_network" / "run.py")]
    done = subprocess.run(command, env=os.environ | settings, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pfl failed with status {done.returncode}")
    told = json.loads(done.stdout.splitlines()[-1])
    return float(told["seconds_per_round"]), float(told["processor_seconds_per_round"])


def figures(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields each figure, and the promise it is held against."""
    device, kind = options.device, options.device.partition(":")[0]
    multiplied, copied = limits(device)
    yield {"figure": f"{device}: multiplications and additions measured, GFLOP/s", "value": multiplied / 1e9}
    yield {"figure": f"{device}: bytes copied, GB/s", "value": copied / 1e9}
    for network in options.network.split(","):
        by_silos: dict[int, Found] = {}
        for silos in map(int, options.silos.split(",")):
            sys.stderr.write(f"training {network}, {silos:,} silos\n")
            found = by_silos[silos] = measured(network, silos, device, network == "dense")
            what = f"{network}, {silos:,} silos"
            yield {"figure": f"{what}: a round, s", "value": found.seconds}
            yield {"figure": f"{what}: a round, processor s", "value": found.processor_seconds}
            yield {"figure": f"{what}: share of the multiplications measured", "value": found.flops / multiplied}
            yield {"figure": f"{what}: share of the bytes measured", "value": found.bytes_moved / copied}
            yield {"figure": f"{what}: peak memory, GB", "value": found.memory / 1e9}
            if found.sketch is not None:
                yield {"figure": f"{what}: the hand-written round, s", "value": found.sketch}
                yield {
                    "figure": f"{what}: times the hand-written round",
                    "value": found.seconds / found.sketch,
                    **({"at most": MOST_OVER_SKETCH} if found.silos >= MANY_SILOS else {}),
                }
        if {100_000, 1_000_000} <= set(by_silos):
            growth = by_silos[1_000_000].seconds / by_silos[100_000].seconds / 10
            yield {
                "figure": f"{network}: time a silo, 10^6 over 10^5",
                "value": growth,
                "at most": MOST_GROWTH,
            }
        if options.peer:
            few = min(by_silos)
            wall, worked = peer_seconds(network, few, device)
            yield {"figure": f"{network}, {few:,} silos: pfl, s", "value": wall}
            yield {"figure": f"{network}, {few:,} silos: pfl, processor s", "value": worked}
            least = LEAST_OVER_PEER.get((network, kind))
            promise = {} if least is None else {"at least": least}
            what = f"{network}, {few:,} silos: pfl over this engine"
            yield {"figure": what, "value": wall / by_silos[few].seconds} | promise
            if kind == "cpu":
                yield {"figure": f"{what}, processor time", "value": worked / by_silos[few].processor_seconds}
                ours, worked_here = engine_seconds(network, few, device, "shared")
                yield {"figure": f"{what} with draws of the other engines", "value": wall / ours}
                yield {"figure": f"{what} with these, processor time", "value": worked / worked_here}


def main() -> None:
    """Measures, prints, and fails if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--silos", default="1000,10000", help="comma separated")
    parser.add_argument("--network", default="dense,convolutional", help="dense, convolutional, or both")
    parser.add_argument("--peer", action="store_true", help="also pfl")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    options = parser.parse_args()
    rows = []
    for row in figures(options):
        rows.append(row)
        promise = ", ".join(f"{bound} {row[bound]:g}" for bound in ("at most", "at least") if bound in row)
        if options.format == "table":
            sys.stdout.write(f"{row['figure']:<70} {row['value']:>12.4g}  {promise}\n")
            sys.stdout.flush()
    if options.format == "json":
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    broken = [
        row["figure"]
        for row in rows
        if row["value"] > row.get("at most", np.inf) or row["value"] < row.get("at least", -np.inf)
    ]
    if broken:
        raise SystemExit(f"not kept: {'; '.join(broken)}")


if __name__ == "__main__":
    main()
