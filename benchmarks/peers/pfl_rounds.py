"""What the runs of pfl share: a clock of its rounds, and how it is told what to train."""

# ruff: noqa: ARG002  (pfl's interfaces)
import time

from pfl.algorithm.base import NNAlgorithmParams
from pfl.callback.base import TrainingProcessCallback
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics


class Clock(TrainingProcessCallback):
    """Keeps the time at the end of every round."""

    def __init__(self):
        self.ends = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Notes the time."""
        self.ends.append(time.perf_counter())
        return False, Metrics()


def settings(rounds, silos, local):
    """All silos in every round, no evaluation after the first; local steps as the module `local` has them."""
    return {
        "algorithm_params": NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=silos,
            val_cohort_size=None,
        ),
        "model_train_params": NNTrainHyperParams(
            local_num_epochs=None,
            local_learning_rate=local.LEARNING_RATE,
            local_batch_size=local.BATCH,
            local_num_steps=local.STEPS,
        ),
        "send_metrics_to_platform": False,
    }
