"""The slow engine: one silo after the other, a user's own three functions, and a name for the silo that fails.

It draws the batches and the noise of the batched engine, so for the built-in head the two agree up to rounding.
"""

from collections.abc import Callable

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.noise.mechanism import GaussianMechanism, apply_mechanism
from fulcrum.core.noise.noise_sources import SILOS_A_BLOCK
from fulcrum.errors import DivergedUpdateError, FulcrumError, ParameterError
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import (
    FederationRun,
    Job,
    LocalTraining,
    aggregator_noise,
    batch_picks,
    block_noise,
)
from fulcrum.simulation.embedded.models import Model
from fulcrum.simulation.torch.model_rounds import run_rounds


def train_slowly(
    job: Job,
    task: Task,
    training: LocalTraining,
    model: Model,
    *,
    keep_regional_sums: bool = False,
    every_round: bool = True,
    on_round: Callable[[int, FloatArray], None] | None = None,
    on_part: Callable[[float], None] | None = None,
) -> FederationRun:
    """Trains one job silo by silo; parameters and sums come back as flat vectors, (parameters, 1, arms).

    Args:
        job: What to train.
        task: The records, and the test split.
        training: Steps and batch; the learning rate is the model's own affair.
        model: What a silo runs.
        keep_regional_sums: Whether to keep what the observer saw.
        every_round: Whether to test after every round, or after the last alone.
        on_round: Called after each round with its number and the accuracies by arm, where every round is tested.
        on_part: Called after each silo with the rounds done, as a fraction.
    """
    arms = job.arms

    def sums(models: FloatArray, round_number: int) -> FloatArray:
        observed = aggregator_noise(job, round_number, model.parameters)
        for block in range(-(-len(arms.weights) // SILOS_A_BLOCK)):
            picks = batch_picks(job, block, round_number, training)
            noise = block_noise(job, block, round_number, model.parameters)
            for place in range(picks.shape[1]):
                silo = block * SILOS_A_BLOCK + place
                for arm in range(len(arms.clip_norm)):
                    update = _update(model, models[:, arm], task, picks[:, place], arms.silo_name(silo), round_number)
                    mechanism = GaussianMechanism(
                        clip_norm=float(arms.clip_norm[arm]),
                        clip_share=float(arms.clip_share[arm]),
                        weight=float(arms.weights[silo, arm]),
                        noise_multiplier=float(arms.noise_multiplier[silo, arm]),
                        draw=noise[place].reshape,
                    )
                    observed[arms.region_of[silo], :, arm] += apply_mechanism(mechanism, update)
                if on_part is not None:
                    on_part(round_number - 1 + (silo + 1) / len(arms.weights))
        return observed

    return run_rounds(
        arms,
        task,
        model,
        sums=sums,
        outputs=lambda models: [model.scores(column, task.features_test) for column in models.T],
        keep_regional_sums=keep_regional_sums,
        every_round=every_round,
        on_round=on_round,
    )


def _update(model: Model, start: FloatArray, task: Task, picks: IntArray, silo: str, round_number: int) -> FloatArray:
    """Runs one silo's local training; whatever goes wrong there is told with the silo's name."""
    try:
        state = model.init(start.copy())
        for chosen in picks:
            state = model.step(state, task.features_train[chosen], task.labels_train[chosen])
        update = np.asarray(model.final(state), dtype=np.float64) - start
    except ParameterError as error:
        raise ParameterError.at(f"silo {silo!r} in round {round_number}", error) from error
    except FulcrumError:
        raise
    except Exception as error:
        error.add_note(f"raised by the model at silo {silo!r} in round {round_number}")
        raise
    if not np.isfinite(update).all():
        raise DivergedUpdateError("model.update-diverged", silo=silo, round=round_number)
    return update
