"""A PyTorch module is trained the same way whatever the program around it does with torch."""

import contextlib
import threading

import numpy as np
import pytest

import fulcrum
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.torch import torch_engine
from fulcrum.simulation.torch.torch_model import torch_model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

PLAN = fulcrum.plan("severe", rounds=2, epsilon=20.0)
TRAINING = LocalTraining(learning_rate=0.3, steps=2, batch=8)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = torch.nn.Linear(16, 8), torch.nn.Linear(8, 2)

    def forward(self, inputs):
        return self.head(torch.relu(self.hidden(inputs)))


@pytest.fixture(scope="module")
def task():
    return load_task("digits")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def trained(task, model, **options):
    return fulcrum.train(PLAN, task, model=model, training=TRAINING, **options)


@contextlib.contextmanager
def default_device(name):
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@pytest.mark.parametrize("worth", [1_000_000, 1])
@pytest.mark.parametrize(
    "surroundings",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: default_device("meta"),
    ],
)
@pytest.mark.usefixtures("two_threads")
def test_what_a_caller_chose_for_its_own_thread_changes_nothing(task, monkeypatch, surroundings, worth):
    monkeypatch.setattr(torch_engine, "_WORTH_RECORDING", worth)
    model = torch_model(Net)
    plain = trained(task, model)
    with surroundings():
        again = trained(task, model)
    assert np.array_equal(plain.models, again.models)
    assert np.array_equal(plain.accuracy, again.accuracy)


@pytest.mark.usefixtures("two_threads")
def test_trainings_of_one_model_in_several_threads_do_not_meet(task):
    model, found, after = torch_model(Net), [], []
    alone = trained(task, model)
    threads = [threading.Thread(target=lambda: found.append(trained(task, model).models)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert all(np.array_equal(alone.models, each) for each in found)
    later = threading.Thread(target=lambda: after.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert after == [torch.get_num_threads()] == [2]


@pytest.mark.usefixtures("two_threads")
def test_a_training_within_another_changes_neither(task):
    class Dropping(Net):
        def forward(self, inputs):
            return self.head(torch.nn.functional.dropout(torch.relu(self.hidden(inputs)), 0.5, self.training))

    plain, inner = trained(task, Dropping), []
    outer = trained(task, Dropping, on_round=lambda *_: inner.append(trained(task, Dropping).models))
    assert all(np.array_equal(plain.models, each) for each in (outer.models, *inner))
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.usefixtures("two_threads")
def test_layers_that_draw_in_testing_give_the_same_for_the_same_seed_and_touch_no_other_draws(
    task, monkeypatch, always
):
    class Noisy(Net):
        def forward(self, inputs):
            return super().forward(inputs + torch.randn_like(inputs) if always or not self.training else inputs)

    monkeypatch.setattr(torch_engine, "_TESTED_AT_ONCE", 20)  # so that threads would test at once
    model = torch_model(Noisy, metric=lambda outputs, _: float(outputs.sum()))
    stood = torch.get_rng_state()
    runs = [trained(task, model).accuracy for _ in range(3)]
    assert all(np.array_equal(runs[0], each) for each in runs)
    assert torch.equal(stood, torch.get_rng_state())


draws = torch.Generator().manual_seed(0)


def test_a_module_that_draws_from_a_generator_of_its_own_program_is_trained_silo_by_silo(task):
    class Drawing(Net):
        def forward(self, inputs):
            return super().forward(inputs) + 1e-3 * torch.rand(2, generator=draws)

    run = trained(task, Drawing)
    assert run.notes[-1].endswith(": a call changes the variable draws, a state that silos must not share.")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_module_made_on_a_gpu_has_the_same_start_for_everybody_and_touches_no_other_draws():
    torch.cuda.init()
    stood = torch.cuda.get_rng_state()
    starts = [torch_model(lambda: torch.nn.Linear(3, 2, device="cuda")).start for _ in range(2)]
    assert np.array_equal(*starts)
    assert torch.equal(stood, torch.cuda.get_rng_state())
