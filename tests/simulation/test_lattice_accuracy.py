"""What the lattice costs in accuracy: nothing that shows."""

import os

import numpy as np
import pytest

import fulcrum
from fulcrum.core.noise.mechanism import clip_factor
from fulcrum.core.noise.noise_sources import SILOS_A_BLOCK
from fulcrum.simulation.data.partition import coupled_partition
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.embedded.batched_engine import accuracy_of, batch_picks, block_noise
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.models import SoftmaxHead, with_bias
from fulcrum.simulation.embedded.training_settings import LocalTraining

TRAINING = LocalTraining(learning_rate=0.3)


def accuracies(task, plan, seed, *, lattice):
    """Algorithm 1 with the same draws, released in floating point or as integers on each region's lattice."""
    head = SoftmaxHead(features=task.features_train.shape[1], classes=2)
    federation, arms = plan.federation, Variants.from_plans([plan])
    job = Job(seed=seed, partition=coupled_partition(task, federation, seed=seed), variants=arms)
    inputs, model = with_bias(task.features_train), np.zeros((head.features + 1, 2, 1))
    steps = plan.lattice_steps[federation.innermost.parent_of][:, None]
    for round_number in range(1, plan.rounds + 1):
        total = np.zeros(head.parameters)
        for block in range(-(-len(federation) // SILOS_A_BLOCK)):
            silos = slice(block * SILOS_A_BLOCK, min((block + 1) * SILOS_A_BLOCK, len(federation)))
            picks = batch_picks(job, block, round_number, TRAINING)
            flat = head.local_updates(model, inputs, task.labels_train, picks, TRAINING.learning_rate)
            flat = flat.reshape(len(flat), -1)
            weights = federation.weights[silos, None]
            signal = weights * flat * clip_factor(np.linalg.norm(flat, axis=1), 1.0)[:, None]
            noise = (
                weights * plan.noise_multiplier[silos, None] * block_noise(job, block, round_number, head.parameters)
            )
            if lattice:
                whole = np.trunc(signal / steps[silos]) + np.rint(noise / steps[silos])
                total += (whole * steps[silos]).sum(axis=0)
            else:
                total += (signal + noise).sum(axis=0)
        model = model + total.reshape(model.shape)
    return float(accuracy_of(head, model, with_bias(task.features_test), task.labels_test)[0])


def gap(task, seeds):
    parameters = 2 * (task.features_train.shape[1] + 1)
    plan = fulcrum.plan("severe", rounds=10, epsilon=0.99, purpose="deployment", parameters=parameters)
    pairs = [[accuracies(task, plan, seed, lattice=kind) for kind in (True, False)] for seed in range(seeds)]
    return 100 * np.diff(np.array(pairs), axis=1).mean()


def test_integers_learn_what_floating_point_learns():
    assert abs(gap(load_task("digits"), 5)) < 0.3


def test_on_news_the_lattice_costs_less_than_a_third_of_a_point():
    if "FULCRUM_DATA" not in os.environ:
        pytest.skip("set FULCRUM_DATA to the folder of feature files to run this")
    assert abs(gap(load_task("agnews"), 10)) < 0.3
