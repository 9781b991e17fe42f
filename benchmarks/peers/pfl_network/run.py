"""A round of pfl with a small PyTorch network, its local SGD and its Gaussian mechanism per silo.

Settings come from the environment: PEER_NETWORK (dense or convolutional), PEER_SILOS, PEER_ROUNDS, PEER_PROCESSES, and
PFL_PYTORCH_DEVICE, pfl's own.
"""

import json
import os
import statistics
import time
from importlib.metadata import version

import networks
import numpy as np
import pfl_rounds
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from torch.distributed import run
from torch.nn import functional

NETWORK = os.environ.get("PEER_NETWORK", "dense")
SILOS, ROUNDS = int(os.environ.get("PEER_SILOS", "1000")), int(os.environ.get("PEER_ROUNDS", "3"))
PROCESSES = os.environ.get("PEER_PROCESSES", "1")
DEVICE = os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")


class Learner(networks.MODULES[NETWORK]):
    """The network, with the loss and metrics that pfl asks for."""

    def loss(self, inputs, labels):
        """Cross-entropy of a batch."""
        return functional.cross_entropy(self(inputs), labels)

    def metrics(self, inputs, labels):
        """The loss; pfl evaluates in the first round, which is not counted."""
        return {"loss": Weighted(len(labels) * self.loss(inputs, labels).item(), len(labels))}


class Silo(PyTorchTensorDataset):
    """A silo that draws its batches with replacement."""

    def iter(self, batch_size):
        """As many batches as there are local steps."""
        drawn = torch.randint(networks.RECORDS, (networks.STEPS, batch_size), device=self.raw_data[0].device)
        yield from zip(*(tensor[drawn] for tensor in self.raw_data), strict=True)


class Clock(pfl_rounds.Clock):
    """Keeps the time at the end of every round, and the processor's."""

    def __init__(self):
        super().__init__()
        self.worked = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Notes both, all work on the device being done."""
        if DEVICE.startswith("cuda"):
            torch.cuda.synchronize()
        self.worked.append(time.process_time())
        return super().after_central_iteration(aggregate_metrics, model, central_iteration=central_iteration)


def simulate(rank):
    """Runs this process's share of every cohort; the first process reports."""
    np.random.seed(0)  # noqa: NPY002  # pfl draws from NumPy's global state, alike in every process
    torch.manual_seed(rank)
    features, labels = networks.pool(NETWORK)
    chosen = np.random.default_rng(1).integers(0, networks.POOL, (SILOS, networks.RECORDS))
    inputs, targets = torch.tensor(features, device=DEVICE), torch.tensor(labels, device=DEVICE)
    datasets = [Silo((inputs[own], targets[own])) for own in torch.tensor(chosen, device=DEVICE)]
    data = FederatedDataset(datasets.__getitem__, get_user_sampler("minimize_reuse", range(SILOS)))
    module, clock = Learner().to(DEVICE), Clock()
    FederatedAveraging().run(
        backend=SimulatedBackend(
            data, data, postprocessors=[GaussianMechanism(networks.CLIP, networks.NOISE), WeightByDatapoints()]
        ),
        model=PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        callbacks=[clock],
        **pfl_rounds.settings(ROUNDS + 1, SILOS, networks),
    )
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    if rank == 0:
        with torch.no_grad():
            loss = float(module.loss(inputs[:1000], targets[:1000]))
        if not loss < 2.3:
            raise SystemExit(f"pfl has not learnt: loss {loss:.3f}")
        seconds = statistics.median(np.diff(clock.ends).tolist())
        figures = {"peer": "pfl_network", "version": version("pfl"), "seconds_per_round": seconds}
        figures["processor_seconds_per_round"] = int(PROCESSES) * statistics.median(np.diff(clock.worked).tolist())
        print(json.dumps(figures | {"rounds": ROUNDS, "silos": SILOS, "network": NETWORK, "device": DEVICE}))


if "RANK" in os.environ or PROCESSES == "1":
    simulate(int(os.environ.get("RANK", "0")))
else:
    run.main(["--standalone", f"--nproc-per-node={PROCESSES}", __file__])
