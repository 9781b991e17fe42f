"""The rounds of a job with a user's own model: regional sums move the model of every variant, then tests follow."""

from collections.abc import Callable, Sequence

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.federation_jobs import FederationRun, Variants
from fulcrum.simulation.embedded.metrics import measure, measure_by_region, measure_by_silo
from fulcrum.simulation.embedded.models import Model
from fulcrum.simulation.embedded.server_variants import Servers
from fulcrum.simulation.torch.torch_model import TorchModel


def run_rounds(
    variants: Variants,
    task: Task,
    model: Model | TorchModel,
    *,
    sums: Callable[[FloatArray, int], FloatArray],
    outputs: Callable[[FloatArray], Sequence[FloatArray]],
    keep_regional_sums: bool = False,
    every_round: bool = True,
    on_round: Callable[[int, FloatArray], None] | None = None,
    rate: float = 1.0,
) -> FederationRun:
    """Runs all rounds; parameters and sums come back as flat vectors, (parameters, 1, variants).

    Args:
        variants: Rounds, and the server rule of every variant.
        task: The task with the test split.
        model: The model, with start, parameters and metric.
        sums: Models (parameters, variants) and the round to regional sums, (regions, parameters, variants).
        outputs: Models to the outputs of every variant's model for the test records.
        keep_regional_sums: True keeps the sums seen by an observer above the regions.
        every_round: True tests after every round, False after the last round alone.
        on_round: Called after every tested round with the round and the accuracies by variant.
        rate: The server's learning rate; 1 for sums of updates.
    """
    models = np.zeros((model.parameters, len(variants.clip_norm)))
    if model.start is not None:
        models += model.start[:, None]
    servers = Servers(variants.rules, (model.parameters,), classes=model.classes, rate=rate)
    accuracy, kept_sums = [], []
    for round_number in range(1, variants.rounds + 1):
        observed = sums(models, round_number)
        models = servers.advance(models, observed)
        if keep_regional_sums:
            kept_sums.append(observed[:, :, None, :])
        if every_round or round_number == variants.rounds:
            scores = outputs(models)
            values, recall = measure(scores, task, model.metric)
            accuracy.append(values)
            if on_round is not None and every_round:
                on_round(round_number, values)
    return FederationRun(
        models=models[:, None, :],
        accuracy=np.array(accuracy),
        recall=recall,
        by_silo=measure_by_silo(scores, task, model.metric),
        by_region=measure_by_region(scores, task, variants.regions_of(task), model.metric),
        regional_sums=np.array(kept_sums) if keep_regional_sums else None,
    )
