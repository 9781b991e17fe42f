"""A round of pfl: `SimulatedBackend` and `FederatedAveraging` over a NumPy model, its Gaussian mechanism per silo."""

# ruff: noqa: ARG002  (pfl's interfaces)
from importlib.metadata import version

import numpy as np
import pfl_rounds
import workload
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.metrics import Metrics
from pfl.model.base import Model
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.stats import MappedVectorStatistics


class Head(Model):
    """The softmax head as a pfl model of one array."""

    def __init__(self):
        self.head = workload.ZEROS

    def get_parameters(self, placeholders=None):
        """The head; never changed in place, so never copied."""
        return MappedVectorStatistics({"head": self.head})

    def set_parameters(self, w):
        """Puts back a head."""
        self.head = w["head"]

    def get_model_difference(self, other_parameters, clone=False):
        """The update since some other head."""
        return MappedVectorStatistics({"head": self.head - other_parameters["head"]})

    def evaluate(self, dataset, name_formatting_fn, eval_params=None):
        """Nothing: pfl evaluates in the first round, which is not counted."""
        return Metrics()

    def apply_model_update(self, statistics):
        """Adds the averaged update."""
        self.head = (self.head + statistics["head"]).astype(np.float32)
        return self, Metrics()


class Averaging(FederatedAveraging):
    """Federated averaging whose local training is NumPy: pfl has none of its own outside the larger frameworks."""

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        """Trains one silo."""
        model.head = workload.trained(model.head, user_dataset.raw_data, rng)
        return model.get_model_difference(initial_model_state), Metrics()


np.random.seed(0)  # noqa: NPY002  # pfl draws from NumPy's global state
rng = np.random.default_rng(0)
silos, held_out = workload.records()
datasets = [Dataset(raw_data=silo) for silo in silos]
sampler = get_user_sampler("minimize_reuse", range(workload.SILOS))
data = FederatedDataset(datasets.__getitem__, sampler)
mechanism = GaussianMechanism(workload.CLIP, workload.NOISE)
model, clock = Head(), pfl_rounds.Clock()
rounds = workload.WARM_UP + workload.ROUNDS
Averaging().run(
    backend=SimulatedBackend(data, data, postprocessors=[mechanism, WeightByDatapoints()]),
    model=model,
    callbacks=[clock],
    **pfl_rounds.settings(rounds, workload.SILOS, workload),
)
workload.report("pfl", version("pfl"), np.diff(clock.ends)[workload.WARM_UP - 1 :].tolist(), model.head, held_out)
