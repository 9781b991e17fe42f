import contextlib
import random

import numpy as np
import pytest

import fulcrum
from fulcrum.simulation.data.partition import coupled_partition
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.torch import torch_engine
from fulcrum.simulation.torch.torch_device import TorchDevice
from fulcrum.simulation.torch.torch_engine import train_on_tensors
from fulcrum.simulation.torch.torch_model import torch_model

torch = pytest.importorskip("torch")

from stepping_silos import BATCH, SILOS, steps_of  # noqa: E402

pytestmark = pytest.mark.torch
PLAN = fulcrum.plan("isic-paper", rounds=2, epsilon=20.0)
TRAINING = LocalTraining(learning_rate=0.2, steps=2, batch=4)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = torch.nn.Linear(16, 8), torch.nn.Linear(8, 2, bias=False)

    def forward(self, inputs):
        return self.head(torch.relu(self.hidden(inputs)))


class Dropping(Net):
    def forward(self, inputs):
        return self.head(torch.nn.functional.dropout(torch.relu(self.hidden(inputs)), 0.5, self.training))


class Writing(Net):
    def forward(self, inputs):
        hidden = self.hidden(inputs)
        hidden[:, 0] = 1
        return self.head(hidden.relu_())


class Convolving(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.filter, self.head = torch.nn.Conv2d(1, 3, 3, padding=1), torch.nn.Linear(12, 2)

    def forward(self, inputs):
        seen = torch.relu(self.filter(inputs.reshape(-1, 1, 4, 4)))
        return self.head(torch.nn.functional.max_pool2d(seen, 2).flatten(1))


class Scheduled(Net):
    calls = 0

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs) / self.calls


class Tossing(Net):
    def forward(self, inputs):
        return super().forward(inputs) if random.random() < 2 else inputs[:, :2]


@pytest.fixture(scope="module")
def task():
    return load_task("digits")


@pytest.mark.parametrize("model", [Net, Dropping, Writing, Convolving])
def test_a_recorded_step_gives_what_mapping_gives_to_the_bit(task, model):
    steps, given = steps_of(model, task)
    leaves, inputs, targets = given
    other = (
        {name: (leaf * 2).detach().requires_grad_() for name, leaf in leaves.items()},
        inputs.flip(0),
        targets.flip(0),
    )
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        found.append(steps.gradients(*other))
        assert steps.record(*given)
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    assert all(gradient.any() for gradient in found[0])


def test_a_recorded_step_does_not_go_through_the_module(task):
    steps, given = steps_of(Net, task)
    assert steps.record(*given)
    steps.model.module.forward = None
    steps.gradients(*given)
    with pytest.raises(TypeError):
        steps.gradients(given[0], given[1][:, :2], given[2][:, :2])


def test_a_recorded_step_moves_the_parameters_without_going_through_the_module(task):
    steps, (leaves, _, _) = steps_of(Net, task)
    inputs, targets = (steps.model.as_tensor(values) for values in (task.features_train, task.labels_train))
    begun, chosen = [leaf.detach().clone() for leaf in leaves.values()], torch.arange(SILOS * BATCH).reshape(SILOS, -1)
    move = steps.model.stepper(list(leaves.values()), 0.3)
    ends = []
    for _ in range(2):
        with torch.no_grad():
            for leaf, start in zip(leaves.values(), begun, strict=True):
                leaf.copy_(start)
        steps.step(leaves, inputs, targets, chosen, move)
        ends.append([leaf.detach().clone() for leaf in leaves.values()])
        steps.record_moves(leaves, inputs, targets, chosen, 0.3)
        steps.model.module.forward = move = None
    assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))
    assert not any(torch.equal(*pair) for pair in zip(begun, ends[0], strict=True))


@pytest.mark.parametrize("model", [Scheduled, Tossing])
def test_a_module_that_does_something_else_at_every_call_is_not_recorded(task, model):
    steps, given = steps_of(model, task)
    assert not steps.record(*given)


def test_the_gradients_are_those_of_each_silo_alone(task):
    steps, (leaves, inputs, targets) = steps_of(Net, task)
    together = steps.gradients(leaves, inputs, targets)
    for silo in range(SILOS):
        own = {name: leaf[silo].detach().requires_grad_() for name, leaf in leaves.items()}
        said = steps.model.outputs(own, steps.fixed, inputs[silo])
        loss = torch.nn.functional.cross_entropy(said, targets[silo])
        for one, gradient in zip(together, torch.autograd.grad(loss, list(own.values())), strict=True):
            assert torch.allclose(one[silo], gradient, atol=1e-6)


@pytest.mark.parametrize("model", [Net, Dropping])
def test_threads_and_records_change_nothing(task, model, monkeypatch):
    plan = fulcrum.plan("severe", rounds=2, epsilon=20.0)
    job = Job(
        seed=0,
        partition=coupled_partition(task, plan.federation, seed=0),
        variants=Variants.from_plans([plan]).with_reference(),
    )
    training, fitted = LocalTraining(learning_rate=0.3, steps=2, batch=8), torch_model(model).on(task)
    before, found = torch.get_num_threads(), []
    for threads, worth in ((1, 1_000_000), (2, 1_000_000), (2, 1)):
        torch.set_num_threads(threads)
        monkeypatch.setattr(torch_engine, "_WORTH_RECORDING", worth)
        found.append(train_on_tensors(job, task, training, fitted, device=TorchDevice(chunk=20)).models)
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


class Heat:
    now = 1.0


def one_silo(leaves, inputs, targets):
    return {name: leaf[:1].detach() for name, leaf in leaves.items()}, inputs[:1], targets[:1]


class Gated(Net):
    """A part of it counts only once training has opened it: before that, its gradients are zero."""

    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Parameter(torch.zeros(()))

    def scaled(self, said, heat):
        return said * (1 + heat * self.gate**2)


class Scaled(Net):
    def scaled(self, said, heat):
        return said * heat


class ScaledAndDropping(Dropping, Scaled):
    pass


@pytest.mark.parametrize("model", [Scaled, ScaledAndDropping, Gated])
def test_a_record_that_is_right_no_longer_is_dropped_when_the_next_round_begins(task, model, monkeypatch):
    class Annealed(model):
        def forward(self, inputs):
            return self.scaled(super().forward(inputs), Heat.now)

    steps, given = steps_of(Annealed, task)
    mapped, _ = steps_of(Annealed, task)
    start = {name: leaf.detach().requires_grad_() for name, leaf in given[0].items()}
    if "gate" in start:
        start["gate"] = torch.zeros_like(start["gate"], requires_grad=True)
    assert steps.record(start, *given[1:])
    for now in (1.0, 1.0, 0.5, 0.5):
        monkeypatch.setattr(Heat, "now", now)
        steps.begin_round(*one_silo(*given))
        for _ in range(2):
            found = []
            for each in (steps, mapped):
                torch.manual_seed(3)
                found.append(each.gradients(*given))
            assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


class Capped(Net):
    """What it caps lies below the cap until training has gone some way."""

    def forward(self, inputs):
        return super().forward(inputs).clamp(-Heat.now, Heat.now)


def test_a_variable_that_counts_only_far_from_the_start_ends_records_too(task, monkeypatch):
    plan = fulcrum.plan("severe", rounds=4, epsilon=20.0)
    job = Job(seed=0, partition=coupled_partition(task, plan.federation, seed=0), variants=Variants.from_plans([plan]))
    training, fitted, found = LocalTraining(learning_rate=0.5, steps=5, batch=8), torch_model(Capped).on(task), []

    def lower(round_number, _):
        Heat.now = 100.0 if round_number < 2 else 1.0

    for worth in (1_000_000, 1):
        monkeypatch.setattr(Heat, "now", 100.0)
        monkeypatch.setattr(torch_engine, "_WORTH_RECORDING", worth)
        found.append(train_on_tensors(job, task, training, fitted, on_round=lower).models)
    assert np.array_equal(*found)


@pytest.mark.parametrize("worth", [1_000_000, 1])
def test_a_module_that_fails_in_a_later_round_is_told_in_one_line(task, monkeypatch, worth):
    class Failing(Net):
        def forward(self, inputs):
            if Heat.now < 1:
                raise ValueError("too\ncold")
            return super().forward(inputs)

    monkeypatch.setattr(Heat, "now", 1.0)
    monkeypatch.setattr(torch_engine, "_WORTH_RECORDING", worth)
    with pytest.raises(
        fulcrum.ParameterError, match=r"^Failing failed in round 2: ValueError: too cold\. Mend the model there$"
    ):
        fulcrum.train(PLAN, task, model=Failing, training=TRAINING, on_round=lambda *_: setattr(Heat, "now", 0.5))


class Prepared(Net):
    scale = None

    def forward(self, inputs):
        if self.scale is None:
            self.scale = torch.linspace(0.5, 1.5, inputs.shape[-1])
        return super().forward(inputs * self.scale)


class Halving(Net):
    def __init__(self):
        super().__init__()
        self.double()  # as the records are, so that they need no copy

    def forward(self, inputs):
        return super().forward(inputs.mul_(0.5))


class Rooted(Net):
    """A step away from its start it may give no number."""

    def __init__(self):
        super().__init__()
        self.small = torch.nn.Parameter(torch.full((8,), 0.005))

    def forward(self, inputs):
        return self.head(torch.relu(self.hidden(inputs)) * (1 + self.small.sqrt()))


class Orthogonal(Net):
    def __init__(self):
        super().__init__()
        torch.nn.utils.parametrizations.orthogonal(self.hidden)


@pytest.mark.parametrize("model", [Prepared, Halving, Rooted, Orthogonal])
def test_records_stay_while_nothing_else_changes(task, model):
    steps, (leaves, inputs, targets) = steps_of(model, task)
    if model is Rooted:
        leaves["small"] = torch.full_like(leaves["small"], 0.005, requires_grad=True)
    assert steps.record(leaves, inputs, targets)
    for _ in range(3):
        steps.begin_round(*one_silo(leaves, inputs, targets))
        with torch.no_grad():
            for leaf in leaves.values():
                leaf.mul_(1.1)
    steps.model.module.forward = None
    steps.gradients(leaves, inputs, targets)


class CountingInPython(Net):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, inputs):
        self.seen.append(len(inputs))
        return super().forward(inputs) * (1.0 if len(self.seen) < 30 else 3.0)


class CountingInItsClass(Net):
    calls = 0

    def forward(self, inputs):
        type(self).calls += 1
        return super().forward(inputs)


class CountingInATensor(Net):
    def __init__(self):
        super().__init__()
        self.calls = torch.zeros(())

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs) * (1.0 if self.calls < 30 else 3.0)


class Smoothing(Net):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(8)

    def forward(self, inputs):
        hidden = self.hidden(inputs)
        self.mean = 0.9 * self.mean + 0.1 * hidden.mean(dim=0).detach()
        return self.head(torch.relu(hidden - self.mean))


class BegunByTheFirstBatch(Net):
    centre = None

    def forward(self, inputs):
        if self.centre is None:
            self.centre = inputs.mean(dim=0)
        return super().forward(inputs - self.centre)


class OwnDraws(Net):
    def __init__(self):
        super().__init__()
        self.draws = np.random.default_rng(0)

    def forward(self, inputs):
        return super().forward(inputs) * (1.0 if self.draws.random() < 0.9 else 3.0)


class SharedDraws(Net):
    def forward(self, inputs):
        return super().forward(inputs) * (1 + np.random.rand())  # noqa: NPY002


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (CountingInPython, "its attribute seen"),
        (CountingInItsClass, "its attribute calls"),
        (CountingInATensor, "its attribute calls"),
        (Smoothing, "its attribute mean"),
        (BegunByTheFirstBatch, "its attribute centre"),
        (OwnDraws, "its attribute draws"),
        (SharedDraws, "NumPy's random numbers"),
        (Tossing, "Python's random numbers"),
    ],
)
def test_a_module_that_remembers_calls_is_trained_silo_by_silo_and_says_why(task, model, what):
    np.random.seed(0)  # noqa: NPY002
    run = fulcrum.train(PLAN, task, model=model, training=TRAINING)
    assert run.notes[-1].endswith(f": a call changes {what}, a state that silos must not share.")
    np.random.seed(0)  # noqa: NPY002
    slow = torch_model(model).on(task).as_model(learning_rate=TRAINING.learning_rate)
    assert model is SharedDraws or np.array_equal(
        run.models, fulcrum.train(PLAN, task, model=slow, training=TRAINING).models
    )


calls = 0


def counting(outputs, targets):
    global calls
    calls += 1
    return torch.nn.functional.cross_entropy(outputs, targets) / (1 + calls / 1_000)


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, outputs, targets):
        self.calls += 1
        return torch.nn.functional.cross_entropy(outputs, targets) / (1 + self.calls / 1_000)


def counting_in_a_closure():
    calls = []

    def loss(outputs, targets):
        calls.append(1)
        return torch.nn.functional.cross_entropy(outputs, targets) / (1 + len(calls) / 1_000)

    return loss


@pytest.mark.parametrize("loss", [counting, Counting(), Counting().__call__, counting_in_a_closure()])
def test_a_loss_that_remembers_calls_is_used_silo_by_silo_and_says_why(task, loss):
    run = fulcrum.train(PLAN, task, model=torch_model(Net, loss=loss), training=TRAINING)
    assert run.notes[-1].endswith(": a call changes calls of its loss, a state that silos must not share.")


def test_a_table_prepared_in_the_first_call_does_not_make_training_slow(task):
    run = fulcrum.train(PLAN, task, model=Prepared, training=TRAINING)
    assert not [note for note in run.notes if "silo by silo" in note]


def test_a_module_that_writes_to_its_records_changes_nobody_elses(task):
    before = task.features_train.copy(), task.features_test.copy()
    slow = torch_model(Halving).on(task).as_model(learning_rate=TRAINING.learning_rate)
    models = [fulcrum.train(PLAN, task, model=model, training=TRAINING).models for model in (Halving, slow)]
    assert models[0] == pytest.approx(models[1], abs=1e-12)
    assert np.array_equal(before[0], task.features_train)
    assert np.array_equal(before[1], task.features_test)


class Reading(torch.nn.Module):
    """Reads words 0 to 8, of which one pads."""

    def __init__(self, padding=4, drop=0.0):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(9, 5, padding_idx=padding), torch.nn.Linear(5, 2)
        self.drop = torch.nn.Dropout(drop)

    def forward(self, inputs):
        return self.head(self.drop(self.words(inputs.clamp(-4, 4).round().long() + 4)).mean(dim=1))


@pytest.mark.parametrize("padding", [4, -5, None])
def test_the_word_that_pads_is_not_trained(task, padding):
    runs = []
    for slow in (False, True):
        model = torch_model(lambda: Reading(padding))
        model = model.on(task).as_model(learning_rate=TRAINING.learning_rate) if slow else model
        runs.append(fulcrum.train(PLAN, task, model=model, training=TRAINING))
    assert not runs[0].notes[2:]
    assert runs[0].models == pytest.approx(runs[1].models, abs=1e-5)


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_a_module_that_mapping_would_train_otherwise_is_trained_silo_by_silo(task, monkeypatch, drop):
    from fulcrum.simulation.torch import torch_steps

    monkeypatch.setattr(torch_steps, "layers_by_products", lambda shared: contextlib.nullcontext())  # trains what pads
    run = fulcrum.train(PLAN, task, model=lambda: Reading(drop=drop), training=TRAINING)
    assert run.notes[-1].endswith(
        ": the module or its loss gives other gradients for many silos in one call (torch.func.vmap) than for a silo "
        "alone. Remove what depends on other records or on earlier calls, such as batch normalisation or a counter."
    )


def test_a_module_that_counts_its_calls_elsewhere_is_trained_silo_by_silo(task):
    calls = []

    class Hooked(Net):
        def __init__(self):
            super().__init__()
            self.hidden.register_forward_hook(lambda *given: calls.append(1) or given[-1] * (1 + len(calls) % 2))

    run = fulcrum.train(PLAN, task, model=Hooked, training=TRAINING)
    assert run.notes[-1].endswith(
        ": the module or its loss gives other gradients for many silos in one call (torch.func.vmap) than for a silo "
        "alone. Remove what depends on other records or on earlier calls, such as batch normalisation or a counter."
    )


def test_layers_that_torch_maps_one_silo_after_the_other_are_named(task):
    class Cells(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = torch.nn.GRUCell(16, 3), torch.nn.Linear(3, 2)

        def forward(self, inputs):
            return self.head(self.cell(inputs))

    heard = []
    run = fulcrum.train(PLAN, task, model=Cells, training=TRAINING, seeds=2, on_note=heard.append)
    told = "Parts of Cells train one silo after the other, which is slow: torch does not map aten::gru_cell."
    assert heard == [told]
    assert run.notes[-1] == told
    slow = torch_model(Cells).on(task).as_model(learning_rate=TRAINING.learning_rate)
    again = fulcrum.train(PLAN, task, model=slow, training=TRAINING, seeds=2)
    assert run.models == pytest.approx(again.models, abs=1e-5)


@pytest.mark.parametrize("norm", [0.1, 100.0])
def test_an_optimiser_that_looks_at_whole_tensors_is_run_silo_by_silo(task, norm):
    class Normed(torch.optim.SGD):
        def step(self):
            for group in self.param_groups:
                torch.nn.utils.clip_grad_norm_(group["params"], norm)
            super().step()

    model = torch_model(Net, optimiser=lambda tensors, rate: Normed(tensors, lr=rate))
    run = fulcrum.train(PLAN, task, model=model, training=TRAINING)
    assert run.notes[-1].endswith(": the optimiser does not treat every element of a tensor alike.")


def test_layers_that_draw_give_the_same_bits_for_the_same_seed_silo_by_silo_too(task):
    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cells, self.head = torch.nn.GRU(4, 3, batch_first=True), torch.nn.Linear(3, 2)

        def forward(self, inputs):
            last = self.cells(inputs.reshape(-1, 4, 4))[0][:, -1]
            return self.head(torch.nn.functional.dropout(last, 0.5, self.training))

    stood = torch.get_rng_state()
    runs = [fulcrum.train(PLAN, task, model=Recurrent, training=TRAINING) for _ in range(2)]
    assert "Batching rule not implemented for aten::gru" in runs[0].notes[-1]
    assert np.array_equal(runs[0].models, runs[1].models)
    assert torch.equal(stood, torch.get_rng_state())
