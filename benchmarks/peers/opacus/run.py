"""Sums of gradients by Opacus, clipped record by record with noise, and what they took, as one line of JSON.

PEER_NETWORK, PEER_SILOS, PEER_RECORDS, PEER_BATCH, PEER_DEVICE and PEER_REPEATS are the settings. PEER_BATCH is the
number of records of one batch: the records of a silo, or many more, where the sum is of no silo.
"""

import json
import os
import resource
import statistics
import time
import warnings

import numpy as np
import opacus
import torch
from networks import CLIP, MODULES, NOISE, POOL, pool
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer

warnings.simplefilter("ignore")
network, device = os.environ["PEER_NETWORK"], os.environ["PEER_DEVICE"]
silos, records, batch, repeats = (int(os.environ[f"PEER_{name}"]) for name in ("SILOS", "RECORDS", "BATCH", "REPEATS"))
features, labels = pool(network)
inputs, targets = torch.tensor(features, device=device), torch.tensor(labels, device=device)
chosen = torch.tensor(np.random.default_rng(1).integers(0, POOL, silos * records), device=device)
torch.manual_seed(0)
module = GradSampleModule(MODULES[network]().to(device))
optimiser = DPOptimizer(
    torch.optim.SGD(module.parameters(), lr=0.1),
    noise_multiplier=NOISE,
    max_grad_norm=CLIP,
    expected_batch_size=batch,
)


def one_sum(places: torch.Tensor) -> list[torch.Tensor]:
    """Clips the gradient of each record, adds them up, and adds noise."""
    optimiser.zero_grad(set_to_none=True)
    loss = torch.nn.functional.cross_entropy(module(inputs[places]), targets[places])
    loss.backward()
    optimiser.pre_step()
    return [parameter.grad for parameter in module.parameters()]


def wait() -> None:
    """Waits until the device has done its work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


batches = chosen.split(batch)
for places in batches[:3]:
    one_sum(places)
times = []
for _ in range(repeats):
    wait()
    began, worked = time.perf_counter(), time.process_time()
    for places in batches:
        one_sum(places)
    wait()
    times.append((time.perf_counter() - began, time.process_time() - worked))
memory = (
    torch.cuda.max_memory_allocated()
    if device.startswith("cuda")
    else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
)
seconds, processor_seconds = (statistics.median(column) for column in zip(*times, strict=True))
print(
    json.dumps(
        {"version": opacus.__version__, "seconds": seconds, "processor_seconds": processor_seconds, "memory": memory}
    )
)
