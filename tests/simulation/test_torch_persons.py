"""Gradients of PyTorch modules by person: against plain autograd, finite differences and the slow engine."""

import dataclasses
import itertools

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.core.training.assignment import Assignment
from fulcrum.core.training.torch_gradients import TorchGradients, map_gradients
from fulcrum.core.training.training_module import TrainingModule
from fulcrum.errors import DataError, ParameterError
from fulcrum.simulation.data.partition import declared_partition
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.training_settings import GradientTraining, LocalTraining
from fulcrum.simulation.model_engines import train_model
from fulcrum.simulation.reference_engine import train_slowly
from fulcrum.simulation.torch import torch_layers, torch_persons
from fulcrum.simulation.torch.torch_device import TorchDevice
from fulcrum.simulation.torch.torch_layers import UnknownLayerError, gradients_by_layers
from fulcrum.simulation.torch.torch_model import torch_model
from fulcrum.simulation.torch.torch_persons import train_by_person
from fulcrum.simulation.torch.torch_state import use_one_thread

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
functional = torch.nn.functional

FEDERATION = fulcrum.Federation.from_sizes({"north": {"a": 9, "b": 12, "c": 4}, "south": {"d": 10, "e": 5}})
TRAINING = GradientTraining(learning_rate=0.7)


class Dense(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = torch.nn.Linear(6, 5), torch.nn.Linear(5, 3)

    def forward(self, inputs):
        return self.head(torch.relu_(self.hidden(inputs)))


class Images(torch.nn.Module):
    """Convolutions with strides, padding, groups and dilation, group norm, layer norm, pooling."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.norm = torch.nn.GroupNorm(2, 4)
        self.second = torch.nn.Conv2d(4, 6, (3, 2), groups=2, dilation=(1, 2), padding=(0, 1), bias=False)
        self.layer_norm = torch.nn.LayerNorm((2, 2))
        self.words = torch.nn.Linear(4, 2)
        self.head = torch.nn.Linear(12, 3)

    def forward(self, inputs):
        seen = torch.relu_(self.norm(self.first(inputs)))
        seen = functional.max_pool2d(seen, 2, ceil_mode=True, stride=1)
        seen = functional.adaptive_avg_pool2d(self.second(seen), 2)
        return self.head(self.words(self.layer_norm(seen).flatten(2)).flatten(1))


class Sequence(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.filter, self.head = torch.nn.Conv1d(2, 3, 2, padding=1), torch.nn.Linear(12, 3)

    def forward(self, inputs):
        return self.head(torch.tanh(self.filter(inputs.reshape(-1, 2, 3))).flatten(1))


class Tied(torch.nn.Module):
    """Uses the same layer twice: the gradients of both uses add up before the norm."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)

    def forward(self, inputs):
        return self.head(torch.tanh(self.inner(torch.tanh(self.inner(inputs)))))


class Scaled(Dense):
    """Has a parameter outside of layers."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(6))

    def forward(self, inputs):
        return super().forward(inputs * self.scale)


class Words(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(7, 4, padding_idx=0), torch.nn.Linear(4, 3)

    def forward(self, places):
        return self.head(self.table(places).mean(dim=1))


class Branching(Dense):
    """Branches on each record by itself, which no mapping can follow."""

    def forward(self, inputs):
        return torch.cat([super(Branching, self).forward(x[None] if x.sum() > 0 else -x[None]) for x in inputs])


class Centred(Dense):
    """Subtracts the mean of the batch: records change each other's gradients."""

    def forward(self, inputs):
        return super().forward(inputs - inputs.mean(dim=0, keepdim=True))


class Remembering(Dense):
    def forward(self, inputs):
        self.seen = getattr(self, "seen", 0.0) + float(inputs.sum())
        return super().forward(inputs)


SHAPES = {Images: (3, 9, 9), Words: (5,)}


def data_of(module, count=40, seed=0):
    draws = np.random.default_rng(seed)
    shape = (count, *SHAPES.get(module, (6,)))
    features = draws.integers(0, 7, shape) if module is Words else draws.standard_normal(shape).astype(np.float32)
    return features, draws.integers(0, 3, count)


def task_of(module, *, persons=None, seed=0):
    features, labels = data_of(module, 60, seed)
    return Task(
        name="drawn",
        features_train=features[:40],
        labels_train=labels[:40],
        features_test=features[40:],
        labels_test=labels[40:],
        classes=("x", "y", "z"),
        silo=tuple(np.repeat(list("abcde"), [9, 12, 4, 10, 5]).tolist()),
        persons=persons,
        fitted=False,
    )


def persons_of_several(seed=1):
    return tuple(f"p{number}" for number in np.random.default_rng(seed).integers(0, 15, 40))


def plan_of(unit="person", **settings):
    return fulcrum.plan(FEDERATION, **({"rounds": 2, "epsilon": 20.0, "clip_norm": 0.4, "unit": unit} | settings))


def job_of(task, plan, **changes):
    variants = dataclasses.replace(Variants.from_plans([plan]), **changes).with_reference()
    return Job(seed=3, partition=declared_partition(task, plan.federation), variants=variants)


def gradient_rows(module, features, labels, loss=functional.cross_entropy):
    """The gradients of single records by plain autograd."""
    rows = []
    for record in range(len(labels)):
        module.zero_grad()
        loss(module(torch.as_tensor(features[[record]])), torch.as_tensor(labels[[record]])).backward()
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
        rows.append(torch.cat([gradient.reshape(-1) for gradient in found]).double().numpy())
    return np.array(rows)


def near(first, second, bound=1e-6):
    return np.abs(np.asarray(first) - np.asarray(second)).max() <= bound


@pytest.mark.parametrize("module", [Dense, Images, Sequence, Tied])
@pytest.mark.parametrize(("single", "patches"), [(True, 1 << 18), (False, 1 << 18), (True, 1), (False, 1_000)])
def test_gradients_by_layers_are_those_of_plain_autograd(module, single, patches, monkeypatch):
    monkeypatch.setattr(torch_layers, "_PATCHES_AT_ONCE", patches)  # all at once, one record at a time, five at a time
    torch.manual_seed(0)
    net, (features, labels) = module().double(), data_of(module, 9)
    features = features.astype(np.float64)
    expected = gradient_rows(net, features, labels)
    inputs, targets = torch.as_tensor(features), torch.as_tensor(labels)

    def loss(leaves):
        outputs = torch.func.functional_call(net, leaves, (inputs,))
        return functional.cross_entropy(outputs, targets, reduction="sum")

    parameters = {name: value.detach() for name, value in net.named_parameters()}
    found = gradients_by_layers(loss, parameters, 9, single=single)
    assert bool(found.pairs) == single
    person_of = torch.as_tensor([0, 0, 1, 1, 1, 2, 3, 3, 4])
    persons, shapes = torch.as_tensor(person_of).numpy(), {name: value.shape for name, value in parameters.items()}
    if single:
        assert near(found.norms(None, 9), np.linalg.norm(expected, axis=1), 1e-12)
        summed = found.weighted_sum(torch.arange(9.0).double(), slice(2, 7), shapes)
        wanted = np.arange(2, 7) @ expected[2:7]
    else:
        by_person = np.stack([expected[persons == person].sum(axis=0) for person in range(5)])
        assert near(found.norms(person_of, 5), np.linalg.norm(by_person, axis=1), 1e-12)
        summed, wanted = found.weighted_sum(torch.arange(5.0).double(), slice(0, 5), shapes), np.arange(5) @ by_person
    assert near(torch.cat([value.reshape(-1) for value in summed.values()]), wanted, 1e-12)


@pytest.mark.parametrize("module", [Scaled, Words])
def test_a_parameter_outside_of_known_layers_is_seen(module):
    net, (features, labels) = module(), data_of(module, 4)

    def loss(leaves):
        outputs = torch.func.functional_call(net, leaves, (torch.as_tensor(features),))
        return functional.cross_entropy(outputs, torch.as_tensor(labels), reduction="sum")

    with pytest.raises(UnknownLayerError, match="outside of known layers"):
        gradients_by_layers(loss, {name: value.detach() for name, value in net.named_parameters()}, 4)


@pytest.mark.parametrize("module", [Dense, Images, Words])
def test_rows_by_person_are_sums_of_autograd_and_of_finite_differences(module):
    torch.manual_seed(1)
    net, (features, labels) = module().double(), data_of(module, 12)
    features = features if module is Words else features.astype(np.float64)
    expected = gradient_rows(net, features, labels)
    ends = [0, 1, 5, 5, 12]  # the third person has no record
    persons = [(features[a:b], labels[a:b]) for a, b in itertools.pairwise(ends)]
    model = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    [*blocks] = TorchGradients(net, functional.cross_entropy).rows(model, persons)
    rows = np.concatenate(blocks)
    assert near(rows, [expected[a:b].sum(axis=0) for a, b in itertools.pairwise(ends)], 1e-12)
    few = list(TorchGradients(net, functional.cross_entropy, bytes_at_once=1).rows(model, iter(persons)))
    assert len(few) > 1
    assert near(np.concatenate(few), rows, 1e-12)
    single = TorchGradients(net, functional.cross_entropy)(model, persons[1])
    assert near(np.concatenate([part.ravel() for part in single.values()]), rows[1], 1e-12)

    def loss_at(vector):
        parts = torch.as_tensor(vector).split([value.size for value in model.values()])
        leaves = {name: part.reshape(model[name].shape) for name, part in zip(model, parts, strict=True)}
        outputs = torch.func.functional_call(net, leaves, (torch.as_tensor(features[1:5]),))
        return float(functional.cross_entropy(outputs, torch.as_tensor(labels[1:5]), reduction="sum"))

    start = np.concatenate([value.ravel() for value in model.values()])
    padding = 4 if module is Words else 0  # coordinates of the row that has no gradient by definition
    for coordinate in np.random.default_rng(0).choice(np.arange(padding, len(start)), 12, replace=False):
        step = np.zeros(len(start))
        step[coordinate] = 1e-6
        slope = (loss_at(start + step) - loss_at(start - step)) / 2e-6
        assert rows[1][coordinate] == pytest.approx(slope, abs=1e-6)
    assert not rows[:, :padding].any()


@pytest.mark.parametrize("module", [Dense, Images, Words, Tied, Scaled])
@pytest.mark.parametrize(
    ("settings", "persons", "share"),
    [
        ({"unit": "record"}, None, 1.0),
        ({}, persons_of_several(), 1.0),
        ({"silo_clip": 1.5}, persons_of_several(), 0.5),
    ],
)
def test_training_equals_the_slow_engine(module, settings, persons, share):
    """The slow engine takes gradients record by record, and clips by the mechanism of a deployed silo."""
    task, plan = task_of(module, persons=persons), plan_of(**settings)
    job, fitted = job_of(task, plan, clip_share=np.array([share])), torch_model(module).on(task)
    fast = train_by_person(job, task, TRAINING, fitted, keep_regional_sums=True)
    with use_one_thread():
        slow = train_slowly(job, task, TRAINING, fitted.as_model(learning_rate=1.0), keep_regional_sums=True)
    assert near(fast.regional_sums, slow.regional_sums, 1e-5)
    assert near(fast.models, slow.models, 1e-5)
    assert np.abs(slow.models - fitted.start[:, None, None]).max() > 0.01


@pytest.mark.parametrize("module", [Dense, Words])
def test_the_size_of_chunks_does_not_change_results(module):
    task = task_of(module, persons=persons_of_several())
    job, fitted = job_of(task, plan_of(silo_clip=2.0)), torch_model(module).on(task)
    models = [
        train_by_person(job, task, TRAINING, fitted, device=TorchDevice(chunk=chunk)).models
        for chunk in (None, 1, 3, 7)
    ]
    assert all(near(other, models[0], 1e-6) for other in models[1:])


def test_one_person_of_many_records_counts_as_one_clipped_gradient():
    task = task_of(Dense, persons=("one",) * 40)
    plan = plan_of(epsilon=1e5)
    job, fitted = job_of(task, plan), torch_model(Dense).on(task)
    run = train_by_person(job, task, TRAINING, fitted, keep_regional_sums=True)
    sizes = np.linalg.norm(run.regional_sums[0, :, :, 0, 0], axis=1)
    weights = [plan.weights[:3].sum(), plan.weights[3:].sum()]  # one person in each of five silos
    assert (sizes <= np.array(weights) * plan.clip_norm * 1.02).all()
    assert (sizes >= np.array(weights) * plan.clip_norm * 0.2).all()


def test_a_gradient_that_is_not_finite_is_zero_for_its_person_alone(monkeypatch):
    persons = persons_of_several()
    task = task_of(Dense, persons=persons)
    features = task.features_train.copy()
    features[5] = np.nan
    broken = dataclasses.replace(task, features_train=features)
    plan = plan_of(epsilon=1e6)
    fitted = torch_model(Dense).on(task)
    monkeypatch.setattr(torch_persons, "_TRIED", 3)
    run = train_by_person(job_of(broken, plan), broken, TRAINING, fitted, keep_regional_sums=True)
    with use_one_thread():
        slow = train_slowly(
            job_of(broken, plan), broken, TRAINING, fitted.as_model(learning_rate=1.0), keep_regional_sums=True
        )
    whole = train_by_person(job_of(task, plan), task, TRAINING, fitted, keep_regional_sums=True)
    assert np.isfinite(run.models).all()
    assert near(run.regional_sums, slow.regional_sums, 1e-6)
    moved = np.linalg.norm((run.regional_sums - whole.regional_sums)[0, :, :, 0, 0], axis=1)
    assert 0 < moved.max() <= plan.weights.max() * plan.clip_norm * 1.001
    assert moved.min() < 1e-9


def test_a_person_whose_records_fail_has_a_row_of_nan_and_no_other_has():
    net = Dense()
    features, labels = data_of(Dense, 6)
    persons = [
        (features[:2], labels[:2]),
        (features[2:4], [0, 99]),
        (features[4:, :3], labels[4:]),
        "odd",
        (features, labels),
    ]
    model = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    [rows] = TorchGradients(net, functional.cross_entropy).rows(model, persons)
    assert np.isnan(rows).all(axis=1).tolist() == [False, True, True, True, False]
    assert np.isfinite(rows[[0, 4]]).all()


def test_frozen_parameters_and_buffers_have_no_gradient():
    net = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3).eval())
    net[0].bias.requires_grad_(False)
    features, labels = data_of(Dense, 6)
    model = {name: value.numpy() for name, value in net.state_dict().items() if value.is_floating_point()}
    [rows] = TorchGradients(net, functional.cross_entropy).rows(model, [(features, labels)])
    names = np.repeat(list(model), [value.size for value in model.values()])
    assert {str(name) for name in names[rows[0] != 0]} == {"0.weight", "1.weight", "1.bias"}
    with pytest.raises(ParameterError, check=coded("model.person-arrays", array="0.bias")):
        next(TorchGradients(net, functional.cross_entropy).rows({"0.weight": model["0.weight"]}, [(features, labels)]))


class Normalised(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))


class Dropping(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(6, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))


class Drawing(Dense):
    def forward(self, inputs):
        return super().forward(inputs + torch.randn_like(inputs))


@pytest.mark.parametrize(
    ("module", "code"),
    [
        (Normalised, "model.person-batch-norm"),
        (Dropping, "model.person-random"),
        (Drawing, "model.person-random"),
        (Centred, "model.person-coupled"),
        (Remembering, "model.person-state"),
    ],
)
def test_modules_whose_gradients_depend_on_other_records_are_refused(module, code):
    task = task_of(Dense)
    job = job_of(task, plan_of("record"))
    with pytest.raises(ParameterError, check=coded(code)):
        train_model([job], task, TRAINING, torch_model(module))


def weighted(outputs, targets):
    return functional.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 2.0, 5.0]))


def contrasting(outputs, targets):
    return functional.cross_entropy(outputs, targets) + (outputs @ outputs.T).mean()


@pytest.mark.parametrize(
    ("loss", "code"),
    [
        (torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0])), "model.person-loss-weighted"),
        (weighted, "model.person-coupled"),
        (contrasting, "model.person-coupled"),
    ],
)
def test_losses_that_couple_records_are_refused(loss, code):
    task = task_of(Dense)
    with pytest.raises(ParameterError, check=coded(code)):
        train_by_person(job_of(task, plan_of("record")), task, TRAINING, torch_model(Dense, loss=loss).on(task))


def test_a_sum_over_records_is_as_good_as_a_mean():
    task = task_of(Dense)
    job = job_of(task, plan_of("record"))

    def added(outputs, targets):
        return functional.cross_entropy(outputs, targets, reduction="sum")

    ours, theirs = (
        train_by_person(job, task, TRAINING, torch_model(Dense, loss=loss).on(task)).models for loss in (added, None)
    )
    assert near(ours, theirs)


def test_optimisers_of_silos_and_more_than_one_step_are_refused():
    task = task_of(Dense)
    job = job_of(task, plan_of("record"))
    adam = torch_model(Dense, optimiser=lambda tensors, rate: torch.optim.Adam(tensors, lr=rate)).on(task)
    with pytest.raises(ParameterError, check=coded("model.person-optimiser")):
        train_by_person(job, task, TRAINING, adam)
    with pytest.raises(ParameterError, check=coded("training.unit-steps")):
        train_by_person(job, task, LocalTraining(learning_rate=0.1), torch_model(Dense).on(task))


def test_a_module_that_cannot_be_mapped_is_trained_person_by_person_with_a_note():
    task = task_of(Branching, persons=persons_of_several())
    runs, notes = train_model([job_of(task, plan_of(rounds=1))], task, TRAINING, torch_model(Branching))
    assert np.isfinite(runs[0].models).all()
    assert any("person by person" in note for note in notes)


def test_a_mapped_module_is_named_in_a_note():
    task, notes = task_of(Scaled), []
    run = train_by_person(
        job_of(task, plan_of("record", rounds=1)), task, TRAINING, torch_model(Scaled).on(task), on_note=notes.append
    )
    assert notes == [
        "Gradients of Scaled are mapped over records, which is slower than by layers: scale is used outside of known "
        "layers."
    ]
    assert run.models.shape == (Scaled().scale.numel() + 53, 1, 2)


def test_mapping_draws_nothing():
    net, (features, labels) = Dropping(), data_of(Dense, 3)

    def loss(leaves, record, target):
        return functional.cross_entropy(torch.func.functional_call(net, leaves, (record,)), target)

    with pytest.raises(RuntimeError, match="randomness"):
        map_gradients(loss, dict(net.named_parameters()), torch.as_tensor(features), torch.as_tensor(labels))
    with pytest.raises(ParameterError, check=coded("model.person-random")):
        TorchGradients(net, functional.cross_entropy)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("module", [Dense, Images, Words])
@pytest.mark.parametrize("persons", [None, persons_of_several()])
def test_a_gpu_gives_the_results_of_the_processor(module, persons):
    task = task_of(module, persons=persons)
    job = job_of(task, plan_of("record" if persons is None else "person", silo_clip=2.0))
    fitted = torch_model(module).on(task)
    ours = train_by_person(job, task, TRAINING, fitted, device=TorchDevice(name="cuda", draws="shared"))
    theirs = train_by_person(job, task, TRAINING, fitted)
    assert near(ours.models, theirs.models, 1e-4)


def test_a_training_module_gives_the_rows_of_a_pytorch_module():
    torch.manual_seed(2)
    net = Dense()
    features, labels = data_of(Dense, 8)
    people = [(features[:3], labels[:3]), (features[3:4], labels[3:4]), (features[4:], labels[4:])]
    training = TrainingModule(
        start=lambda _: net.state_dict(),
        persons=lambda _: iter(people),
        gradients=TorchGradients(net, functional.cross_entropy),
        may_have_tensors=True,
    )
    plan = fulcrum.verified_plan(plan_of())
    assignment = Assignment(silo="a", round_number=1, plan=plan, seed=0, options={})
    model = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    rows = np.concatenate(list(training.rows(model, assignment)))
    expected = gradient_rows(net, features, labels)
    assert near(rows, [-expected[:3].sum(axis=0), -expected[3], -expected[4:].sum(axis=0)])


def rows_of_linear(persons, **settings):
    net = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(net.weight, 0.5)
    torch.nn.init.zeros_(net.bias)
    model = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    return list(TorchGradients(net, functional.cross_entropy, **settings).rows(model, persons))


@pytest.mark.parametrize("as_tensor", [np.asarray, torch.from_numpy])
def test_an_array_that_is_filled_again_for_every_person_gives_each_person_its_own_row(as_tensor):
    numbers, buffer, labels = np.arange(15, dtype=np.float32).reshape(5, 1, 3), np.empty((1, 3), np.float32), [0]

    def refilled():
        for records in numbers:
            buffer[:] = records
            yield as_tensor(buffer), labels

    [rows], [expected] = rows_of_linear(refilled()), rows_of_linear([(records, labels) for records in numbers])
    assert np.array_equal(rows, expected)


def test_records_that_require_gradients_do_not_end_the_round_of_all():
    plain, labels = torch.arange(6.0).reshape(2, 1, 3), torch.zeros(1, dtype=torch.long)
    [rows] = rows_of_linear([(plain[0], labels), (plain[1].clone().requires_grad_(), labels)])
    [expected] = rows_of_linear([(plain[0], labels), (plain[1], labels)])
    assert np.array_equal(rows, expected)


def test_an_exit_by_the_records_of_one_person_is_nan_for_this_person_alone():
    class Exiting(torch.nn.Linear):
        def forward(self, inputs):
            if inputs.shape[1] > 1:
                raise SystemExit
            return super().forward(inputs).mean(dim=1)

    class Opened:
        def __array__(self, *arguments, **options):
            raise SystemExit

    net = Exiting(3, 2)
    model = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    long, short = np.ones((1, 4, 3), np.float32), np.ones((1, 1, 3), np.float32)
    persons = [(short, [0]), (long, [0]), (Opened(), [0]), (short, [1])]
    [rows] = TorchGradients(net, functional.cross_entropy).rows(model, persons)
    assert np.isnan(rows).all(axis=1).tolist() == [False, True, True, False]


def test_a_person_whose_records_fail_costs_a_few_calls_more():
    net, calls = Dense(), []
    model = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    features, labels = data_of(Dense, 64)
    people = [(features[[row]], labels[[row]]) for row in range(64)]
    people[40] = (features[[40]], np.array([99]))  # a class out of range

    def loss(outputs, targets):
        calls.append(len(outputs))
        return functional.cross_entropy(outputs, targets)

    [rows] = TorchGradients(net, loss).rows(model, people)
    assert np.isnan(rows).all(axis=1).tolist() == [person == 40 for person in range(64)]
    assert len(calls) == 1 + 2 * 6  # a call for all, then two for every halving of 64; one by one there would be 65
    whole = [person for number, person in enumerate(people) if number != 40]
    assert near(np.delete(rows, 40, axis=0), np.concatenate(list(TorchGradients(net, loss).rows(model, whole))))


def test_persons_without_records_wait_for_no_chunk_without_end():
    empty = np.empty((0, 3), np.float32), np.empty(0, np.int64)
    blocks = rows_of_linear([empty] * 100 + [None] * 100, bytes_at_once=8 * 8 * 10)
    assert [len(block) for block in blocks] == [10] * 20
    assert np.array_equal(np.isnan(np.concatenate(blocks)).all(axis=1), [False] * 100 + [True] * 100)


class Counts(Dense):
    """Multiplies by the number of calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs) * self.calls


class DrawsElsewhere(Dense):
    draws = np.random.default_rng(0)

    def forward(self, inputs):
        return super().forward(inputs * float(self.draws.random()))


@pytest.mark.parametrize("module", [Counts, DrawsElsewhere])
def test_a_pytorch_module_with_a_state_is_refused_after_its_rows(module):
    net = module()
    features, labels = data_of(Dense, 4)
    people = [(features[[row]], labels[[row]]) for row in range(4)]
    training = TrainingModule(
        start=lambda _: net.state_dict(),
        persons=lambda _: iter(people),
        gradients=TorchGradients(net, functional.cross_entropy),
        may_have_tensors=True,
    )
    plan = fulcrum.verified_plan(plan_of())
    assignment = Assignment(silo="a", round_number=1, plan=plan, seed=0, options={})
    model = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    with pytest.raises(DataError, check=coded("training.gradients-state", unit="person")):
        list(training.rows(model, assignment))


def test_records_of_another_type_change_no_other_row():
    net = torch.nn.Linear(3, 2)
    model = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    whole = [(np.full((1, 3), number), np.array([0])) for number in range(4)]  # integers, which a linear layer refuses
    wide = (np.ones((2, 4), np.float32), np.array([0, 1]))
    one = (np.full((1, 3), 0.5), np.array([1]))

    def rows(persons):
        return np.concatenate(list(TorchGradients(net, functional.cross_entropy).rows(model, persons)))

    alone = rows(whole)
    beside = rows([*whole[:2], one, wide, *whole[2:], None])
    assert np.isnan(alone).all()
    assert np.array_equal(beside[[0, 1, 4, 5]], alone, equal_nan=True)
    assert np.array_equal(beside[2], rows([one])[0])
    assert np.isnan(beside[[3, 6]]).all()
