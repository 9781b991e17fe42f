"""The slow engine: a user's own three functions, silo after silo, and an error with the name of a failing silo.

The slow engine draws the batches and the noise of the batched engine, so for the built-in head both agree up to
rounding.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.core.noise.mechanism import GaussianMechanism, apply_by_person, apply_mechanism
from fulcrum.core.noise.noise_sources import SILOS_A_BLOCK
from fulcrum.errors import DivergedUpdateError, FulcrumError, ParameterError
from fulcrum.simulation.data.person_groups import PersonGroups, check_task_fits, groups_of
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.batched_engine import aggregator_noise, batch_picks, block_noise, server_rate
from fulcrum.simulation.embedded.federation_jobs import FederationRun, Job, Variants
from fulcrum.simulation.embedded.models import Model
from fulcrum.simulation.embedded.training_settings import GradientTraining, LocalTraining, check_training_fits
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
    """Trains a job silo by silo; parameters and sums come back as flat vectors, (parameters, 1, variants).

    Args:
        job: The job to train.
        task: The records, and the test split.
        training: Steps and batch; the model has a learning rate of its own. `GradientTraining` for units within silos.
        model: The model of a silo.
        keep_regional_sums: True keeps the sums seen by an observer above the regions.
        every_round: True tests after every round, False after the last round alone.
        on_round: Called after every tested round with the round and the accuracies by variant.
        on_part: Called after every silo with the rounds done, as a fraction.
    """
    variants = job.variants
    check_training_fits(training, variants.unit)
    check_task_fits(task, variants.unit)
    if isinstance(training, GradientTraining) and training.class_shares:
        raise ParameterError("training.class-shares-model")
    options: dict[str, Any] = {
        "outputs": lambda models: [model.scores(column, task.features_test) for column in models.T],
        "keep_regional_sums": keep_regional_sums,
        "every_round": every_round,
        "on_round": on_round,
        "rate": server_rate(training),
    }
    if variants.unit.is_within_silo:
        groups = groups_of(job.partition, task, variants.unit)
        return run_rounds(
            variants,
            task,
            model,
            sums=lambda models, number: _sums_of_persons(job, task, model, groups, models, number, on_part),
            **options,
        )

    def sums(models: FloatArray, round_number: int) -> FloatArray:
        observed = aggregator_noise(job, round_number, model.parameters)
        for block in range(-(-len(variants.weights) // SILOS_A_BLOCK)):
            picks = batch_picks(job, block, round_number, training)
            noise = block_noise(job, block, round_number, model.parameters)
            for place in range(picks.shape[1]):
                silo = block * SILOS_A_BLOCK + place
                for variant in range(len(variants.clip_norm)):
                    update = _update(
                        model, models[:, variant], task, picks[:, place], variants.silo_name(silo), round_number
                    )
                    mechanism = _mechanism(variants, silo, variant, noise[place], round_number)
                    observed[variants.region_of[silo], :, variant] += apply_mechanism(mechanism, update)
                if on_part is not None:
                    on_part(round_number - 1 + (silo + 1) / len(variants.weights))
        return observed

    return run_rounds(variants, task, model, sums=sums, **options)


def _mechanism(variants: Variants, silo: int, variant: int, noise: FloatArray, round_number: int) -> GaussianMechanism:
    """Returns the mechanism of a silo for one release of a variant, with the silo's normal draws of the round."""
    weight, multiplier = variants.of_round(slice(silo, silo + 1), round_number)
    return GaussianMechanism(
        clip_norm=float(variants.clip_norm[variant]),
        clip_share=float(variants.clip_share[variant]),
        weight=float(weight[0, variant]),
        noise_multiplier=float(multiplier[0, variant]),
        draw=noise.reshape,
        largest_sum=1.0 if variants.largest_sums is None else float(variants.largest_sums[silo, variant]),
    )


def _sums_of_persons(
    job: Job,
    task: Task,
    model: Model,
    groups: PersonGroups,
    models: FloatArray,
    round_number: int,
    on_part: Callable[[float], None] | None,
) -> FloatArray:
    """Returns the regional sums of releases that are clipped by person, (regions, parameters, variants)."""
    variants = job.variants
    observed = aggregator_noise(job, round_number, model.parameters)
    for silo in range(len(variants.weights)):
        block, place = divmod(silo, SILOS_A_BLOCK)
        if place == 0:
            noise = block_noise(job, block, round_number, model.parameters)
        for variant in range(len(variants.clip_norm)):
            rows = (
                _gradient(model, models[:, variant], task, groups.rows(person), variants.silo_name(silo), round_number)
                for person in range(groups.silos[silo], groups.silos[silo + 1])
            )
            mechanism = _mechanism(variants, silo, variant, noise[place], round_number)
            observed[variants.region_of[silo], :, variant] += apply_by_person(mechanism, rows, model.parameters)
        if on_part is not None:
            on_part(round_number - 1 + (silo + 1) / len(variants.weights))
    return observed


def _gradient(model: Model, start: FloatArray, task: Task, rows: IntArray, silo: str, round_number: int) -> FloatArray:
    """Returns a person's negative gradient, which moves the model; any error of the model names the silo."""
    if model.gradient is None:
        raise ParameterError("model.gradient-missing")
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # a gradient that is not finite counts as zero
            of_loss = model.gradient(start.copy(), task.features_train[rows], task.labels_train[rows])
        gradient = -np.asarray(of_loss, dtype=np.float64).reshape(-1)
    except FulcrumError:
        raise
    except Exception as error:
        error.add_note(f"raised by the model at silo {silo!r} in round {round_number}")
        raise
    if gradient.shape != (model.parameters,):
        raise ParameterError("model.gradient-shape", parameters=model.parameters, shape=gradient.shape)
    return gradient


def _update(model: Model, start: FloatArray, task: Task, picks: IntArray, silo: str, round_number: int) -> FloatArray:
    """Returns a silo's update after local training; any error of the training names the silo."""
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
        advice = "Lower the learning rate of the model"
        raise DivergedUpdateError("training.update-diverged", silo=silo, round=round_number, advice=advice)
    return update
