"""The rounds of a job with a user's own model: what regions send moves the model of each arm, which is then tested."""

from collections.abc import Callable, Sequence

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import Arms, FederationRun
from fulcrum.simulation.embedded.metrics import measured, measured_by_silo
from fulcrum.simulation.embedded.models import Model
from fulcrum.simulation.embedded.server_variants import Servers
from fulcrum.simulation.torch.torch_model import TorchModel


def run_rounds(
    arms: Arms,
    task: Task,
    model: Model | TorchModel,
    *,
    sums: Callable[[FloatArray, int], FloatArray],
    outputs: Callable[[FloatArray], Sequence[FloatArray]],
    keep_regional_sums: bool = False,
    every_round: bool = True,
    on_round: Callable[[int, FloatArray], None] | None = None,
) -> FederationRun:
    """Runs all rounds; parameters and sums come back as flat vectors, (parameters, 1, arms).

    Args:
        arms: Rounds, and what the server of each arm does.
        task: What is tested on.
        model: Its start, parameters and metric.
        sums: Models (parameters, arms) and the round to what regions send, (regions, parameters, arms).
        outputs: Models to what that of each arm says of the test records.
        keep_regional_sums: Whether to keep what the observer saw.
        every_round: Whether to test after every round, or after the last alone.
        on_round: Called after each round with its number and the accuracies by arm, where every round is tested.
    """
    models = np.zeros((model.parameters, len(arms.clip_norm)))
    if model.start is not None:
        models += model.start[:, None]
    servers = Servers(arms.rules, (model.parameters,), classes=model.classes)
    accuracy, seen = [], []
    for round_number in range(1, arms.rounds + 1):
        observed = sums(models, round_number)
        models = servers.moved(models, observed)
        if keep_regional_sums:
            seen.append(observed[:, :, None, :])
        if every_round or round_number == arms.rounds:
            said = outputs(models)
            found, recall = measured(said, task, model.metric)
            accuracy.append(found)
            if on_round is not None and every_round:
                on_round(round_number, found)
    return FederationRun(
        models=models[:, None, :],
        accuracy=np.array(accuracy),
        recall=recall,
        by_silo=measured_by_silo(said, task, model.metric),
        regional_sums=np.array(seen) if keep_regional_sums else None,
    )
