"""A round of pfl with its own PyTorch model and local SGD, its Gaussian mechanism per silo, over two processes."""

import os
from importlib.metadata import version

import numpy as np
import pfl_rounds
import torch
import workload
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

PROCESSES = os.environ.get("PEER_PROCESSES", "1")  # one, as pfl runs unless told otherwise; each has one thread
SETTINGS = {"OMP_NUM_THREADS": "1", "PFL_PYTORCH_DEVICE": "cpu", "PYTHONWARNINGS": "ignore"}


class Head(torch.nn.Module):
    """The softmax head, with the loss and metrics that pfl asks for."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Parameter(torch.tensor(workload.ZEROS))

    def loss(self, inputs, labels):
        """Cross-entropy of a batch."""
        return functional.cross_entropy(inputs @ self.head, labels)

    def metrics(self, inputs, labels):
        """The loss; pfl evaluates in the first round, which is not counted."""
        return {"loss": Weighted(len(labels) * self.loss(inputs, labels).item(), len(labels))}


class Silo(PyTorchTensorDataset):
    """A silo that draws its batches: pfl's own datasets end after one pass, which is four batches and not ten."""

    def iter(self, batch_size):
        """As many batches as there are local steps."""
        drawn = torch.randint(workload.RECORDS, (workload.STEPS, batch_size))
        yield from zip(*(tensor[drawn] for tensor in self.raw_data), strict=True)


def simulate(rank):
    """Runs this process's share of every cohort; the first process reports."""
    np.random.seed(0)  # noqa: NPY002  # pfl draws from NumPy's global state, alike in every process
    torch.manual_seed(rank)
    silos, held_out = workload.records()
    datasets = [Silo((torch.tensor(inputs), torch.tensor(labels, dtype=torch.int64))) for inputs, labels in silos]
    sampler = get_user_sampler("minimize_reuse", range(workload.SILOS))
    data = FederatedDataset(datasets.__getitem__, sampler)
    mechanism = GaussianMechanism(workload.CLIP, workload.NOISE)
    module, clock = Head(), pfl_rounds.Clock()
    rounds = workload.WARM_UP + workload.ROUNDS
    FederatedAveraging().run(
        backend=SimulatedBackend(data, data, postprocessors=[mechanism, WeightByDatapoints()]),
        model=PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        callbacks=[clock],
        **pfl_rounds.settings(rounds, workload.SILOS, workload),
    )
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()  # without it a process sometimes aborts as it exits
    if rank == 0:
        times = np.diff(clock.ends)[workload.WARM_UP - 1 :].tolist()
        workload.report("pfl_pytorch", version("pfl"), times, module.head.detach(), held_out)


if "RANK" in os.environ:
    simulate(int(os.environ["RANK"]))
else:
    os.environ.update(SETTINGS)
    run.main(["--standalone", f"--nproc-per-node={PROCESSES}", __file__])
