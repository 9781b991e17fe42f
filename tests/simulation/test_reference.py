import dataclasses

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.errors import DivergedUpdateError, ParameterError
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.embedded.models import Model, SoftmaxHead
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.training_runs import train

TRAINING = LocalTraining(learning_rate=0.3, steps=3, batch=8)


def nearest_mean(features=16, *, step=None):
    """A model of another kind: one mean a class, moved towards each batch."""

    def towards(means, inputs, labels):
        for label in (0, 1):
            if (labels == label).any():
                means[label] += 0.3 * (inputs[labels == label].mean(axis=0) - means[label])
        return means

    return Model(
        parameters=2 * features,
        init=lambda parameters: parameters.reshape(2, features).copy(),
        step=step or towards,
        final=lambda means: means.ravel(),
        scores=lambda parameters, inputs: -((inputs[:, None] - parameters.reshape(2, features)) ** 2).sum(axis=2),
    )


def test_a_users_own_model_is_three_functions():
    plan = fulcrum.plan("isic-paper", rounds=4, epsilon=50.0)
    run = train(plan, "digits", model=nearest_mean(), training=TRAINING)
    assert run.models.shape == (1, 32, 1)
    assert run.reference[0] > 0.75
    assert run.regional_sums.shape == (1, 4, 4, 32, 1)


def test_the_head_as_three_functions_gives_what_the_batched_engine_gives():
    plan = fulcrum.plan("isic-paper", rounds=3, epsilon=5.0)
    head = SoftmaxHead(features=16, classes=2).as_model(learning_rate=0.3)
    slow, fast = train(plan, "digits", model=head, training=TRAINING), train(plan, "digits", training=TRAINING)
    assert slow.accuracy == pytest.approx(fast.accuracy)


def test_a_model_that_fails_names_the_silo():
    def breaks(state, inputs, labels):
        raise RuntimeError("out of luck")

    plan = fulcrum.plan("isic-paper", rounds=1, epsilon=5.0)
    with pytest.raises(RuntimeError, match="out of luck") as caught:
        train(plan, "digits", model=nearest_mean(step=breaks), training=TRAINING)
    assert caught.value.__notes__ == ["raised by the model at silo 'region-1-1' in round 1"]


def test_a_model_that_diverges_names_the_silo():
    plan = fulcrum.plan("isic-paper", rounds=1, epsilon=5.0)
    with pytest.raises(DivergedUpdateError, check=coded("training.update-diverged", silo="region-1-1", round=1)):
        train(plan, "digits", model=nearest_mean(step=lambda means, x, y: means * np.nan), training=TRAINING)


def test_a_model_may_start_anywhere():
    start = np.full(32, 0.25)
    model = Model(
        parameters=32,
        init=lambda p: p,
        step=lambda p, x, y: p,
        final=lambda p: p,
        scores=lambda p, x: np.zeros((len(x), 2)),
        start=start,
    )
    run = train(fulcrum.plan("isic-paper", rounds=1, epsilon=1e6), load_task("digits"), model=model, training=TRAINING)
    assert run.models[0, :, 0] == pytest.approx(start, abs=0.05)
    with pytest.raises(ParameterError, check=coded("model.start-shape", parameters=32)):
        dataclasses.replace(model, start=start[1:])


def test_the_head_as_three_functions_is_pooled_and_shrunk_as_in_the_batched_engine():
    plan = fulcrum.plan("isic-paper", rounds=3, epsilon=5.0, parameters=34, recipe="joint")
    head = SoftmaxHead(features=16, classes=2).as_model(learning_rate=0.3)
    slow, fast = train(plan, "digits", model=head, training=TRAINING), train(plan, "digits", training=TRAINING)
    assert slow.models.reshape(-1) == pytest.approx(fast.models.reshape(-1), abs=1e-10)
    assert np.abs(fast.models).max() > 0.01


def test_a_model_that_is_no_head_is_shrunk_where_the_plan_says_so_whatever_the_model():
    models = {}
    for shrink in (None, "even-heads", False, True):
        options = {"rounds": 3, "epsilon": 5.0, "parameters": 32, "recipe": "joint", "shrink": shrink}
        models[shrink] = train(
            fulcrum.plan("isic-paper", **options), "digits", model=nearest_mean(), training=TRAINING
        ).models
    assert np.array_equal(models[None], models["even-heads"])
    assert np.array_equal(models[False], models["even-heads"])
    assert np.abs(models[True]).sum() < 0.9 * np.abs(models[False]).sum()


@pytest.mark.parametrize("classes", [1, 3])
def test_parameters_that_are_no_head_of_so_many_classes_are_refused(classes):
    bare = nearest_mean()
    with pytest.raises(ParameterError, check=coded("model.classes-unfit", parameters=32)):
        dataclasses.replace(bare, classes=classes)


def test_the_head_as_three_functions_gives_the_sums_of_the_batched_engine_under_rosters_that_change():
    """The slow engine applies the mechanism of a single silo, with the noise of the phase, release by release."""
    sizes = {"north": {"a": 120, "b": 90, "c": 180}, "south": {"d": 60, "e": 150}}
    federation = fulcrum.with_schedule(
        fulcrum.Federation.from_sizes(sizes), {"a": "1-", "b": "1-2", "c": "3-", "d": "1-/2", "e": "1-"}
    )
    plan = fulcrum.plan(federation, rounds=4, epsilon=5.0)
    head = SoftmaxHead(features=16, classes=2).as_model(learning_rate=0.3)
    slow = train(plan, "digits", model=head, training=TRAINING, keep_regional_sums=True)
    fast = train(plan, "digits", training=TRAINING, keep_regional_sums=True)
    assert slow.accuracy == pytest.approx(fast.accuracy)
    flat = fast.regional_sums.reshape(slow.regional_sums.shape)
    assert slow.regional_sums == pytest.approx(flat, abs=1e-9)
