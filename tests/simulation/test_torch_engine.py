import dataclasses
import os
import re
import signal
import threading
import time

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.core.noise import mechanism
from fulcrum.errors import DivergedUpdateError, ParameterError
from fulcrum.simulation.data.partition import coupled_partition
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.embedded.batched_engine import train_jobs
from fulcrum.simulation.embedded.federation_jobs import Job, Variants
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.model_engines import train_model
from fulcrum.simulation.reference_engine import train_slowly
from fulcrum.simulation.torch import torch_engine
from fulcrum.simulation.torch.torch_device import TorchDevice
from fulcrum.simulation.torch.torch_draws import SharedDraws
from fulcrum.simulation.torch.torch_engine import train_on_tensors
from fulcrum.simulation.torch.torch_model import torch_model
from fulcrum.simulation.torch.torch_state import use_one_thread

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRAINING = LocalTraining(learning_rate=0.3, steps=4, batch=8)
PLAN = fulcrum.plan("isic-paper", rounds=3, epsilon=20.0)


class Head(torch.nn.Linear):
    def __init__(self):
        super().__init__(16, 2)
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(16, 8)
        self.head = torch.nn.Linear(8, 2)

    def forward(self, inputs):
        return self.head(torch.tanh(self.hidden(inputs)))


class Branching(Net):
    def forward(self, inputs):
        return super().forward(inputs if inputs.sum() > 0 else -inputs)


class Averaging(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(8))

    def forward(self, inputs):
        hidden = torch.tanh(self.hidden(inputs))
        self.average += hidden.detach().mean(dim=0)
        return self.head(hidden)


class Counting(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs)


class Convolving(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = torch.nn.Conv2d(1, 3, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(3)
        self.head = torch.nn.Linear(12, 2)

    def forward(self, inputs):
        seen = torch.relu(self.norm(self.filter(inputs.reshape(-1, 1, 4, 4))))
        return self.head(torch.nn.functional.max_pool2d(seen, 2).flatten(1))


@pytest.fixture(scope="module")
def task():
    return load_task("digits")


def job_of(task, *plans, seed=0):
    part = coupled_partition(task, plans[0].federation, seed=seed)
    return Job(seed=seed, partition=part, variants=Variants.from_plans(plans).with_reference())


def differences(task, model, *, job=None, training=TRAINING, **options):
    """How far the models of the two engines are from each other."""
    job, fitted = job or job_of(task, PLAN), torch_model(model, **options).on(task)
    fast = train_on_tensors(job, task, training, fitted)
    with use_one_thread():
        slow = train_slowly(job, task, training, fitted.as_model(learning_rate=training.learning_rate))
    assert np.abs(slow.models - fitted.start[:, None, None]).max() > 0.01
    return np.abs(fast.models - slow.models).max()


@pytest.mark.parametrize("recipe", ["paper", "joint"])
@pytest.mark.parametrize(("kind", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_the_torch_head_equals_the_numpy_head_on_the_same_seeds(task, recipe, kind, bound):
    plan = fulcrum.plan("isic-paper", rounds=3, epsilon=20.0, parameters=34, recipe=recipe)
    job = job_of(task, plan, seed=3)
    ours = train_jobs([job], task, TRAINING, keep_regional_sums=True)[0]
    theirs = train_on_tensors(job, task, TRAINING, torch_model(Head().to(kind)).on(task), keep_regional_sums=True)
    assert np.abs(theirs.models.reshape(17, 2, -1) - ours.models).max() < bound
    assert np.abs(theirs.regional_sums.reshape(ours.regional_sums.shape) - ours.regional_sums).max() < bound
    assert np.abs(ours.models).max() > 0.1


@pytest.mark.parametrize(
    "optimiser",
    [
        None,
        lambda tensors, rate: torch.optim.SGD(tensors, lr=rate, momentum=0.9, weight_decay=1e-3),
        lambda tensors, rate: torch.optim.Adam(tensors, lr=rate / 30, eps=1e-4),
    ],
    ids=["sgd", "momentum", "adam"],
)
@pytest.mark.parametrize("model", [Net, Convolving])
def test_a_network_equals_the_slow_engine(task, model, optimiser):
    assert differences(task, model, optimiser=optimiser) < 1e-5


@pytest.mark.parametrize("more", [{"injection": "aggregator"}, {"recipe": "joint"}, {"weights": "least-noise"}])
def test_weights_clip_and_server_of_the_plan_are_followed(task, more):
    plan = fulcrum.plan("isic-paper", rounds=3, epsilon=20.0, parameters=154, **more)
    assert differences(task, Net, job=job_of(task, plan)) < 1e-5


@pytest.mark.parametrize("draws", [None, "device"])
def test_a_processor_with_a_number_is_the_processor(task, draws):
    job, fitted = job_of(task, PLAN), torch_model(Net).on(task)
    runs = [
        train_on_tensors(job, task, TRAINING, fitted, device=TorchDevice(name=name, draws=draws))
        for name in ("cpu", "cpu:0")
    ]
    assert np.array_equal(runs[0].models, runs[1].models)


def test_an_adapter_beside_a_frozen_trunk_equals_the_slow_engine(task):
    assert differences(task, Net, trained="head.*") < 1e-6


@pytest.mark.parametrize("draws", ["shared", "device"])
def test_the_size_of_chunks_changes_nothing_but_rounding(draws):
    task = load_task("digits")
    plan = fulcrum.plan("severe", rounds=2, epsilon=20.0)
    fitted, job = torch_model(Net).on(task), job_of(task, plan)
    runs = [
        train_on_tensors(job, task, TRAINING, fitted, device=TorchDevice(draws=draws, chunk=chunk)).models
        for chunk in (None, 1, 7, 50)
    ]
    assert np.abs(runs[0] - fitted.start[:, None, None]).max() > 0.01
    for run in runs[1:]:
        assert np.abs(run - runs[0]).max() < 1e-5


def test_draws_on_the_device_are_others_of_the_same_kind(task):
    fitted, job = torch_model(Net).on(task), job_of(task, PLAN)
    quiet = dataclasses.replace(
        job, variants=dataclasses.replace(job.variants, weights=job.variants.weights * 0 + 1e-3)
    )
    runs = {
        (draws, seed): train_on_tensors(
            dataclasses.replace(quiet, seed=seed), task, TRAINING, fitted, device=TorchDevice(draws=draws)
        ).models[..., 0]
        for draws in ("shared", "device")
        for seed in (0, 1)
    }
    again = train_on_tensors(quiet, task, TRAINING, fitted, device=TorchDevice(draws="device")).models[..., 0]
    assert np.array_equal(again, runs["device", 0])
    moved = [np.std(run - fitted.start[:, None]) for run in runs.values()]
    assert max(moved) < 1.3 * min(moved)
    assert len({run.tobytes() for run in runs.values()}) == 4


def test_arms_share_batches_and_noise_and_equal_arms_are_equal_to_the_bit(task):
    loud = fulcrum.plan("isic-paper", rounds=2, epsilon=20.0, allocation="uniform")
    quiet = fulcrum.plan("isic-paper", rounds=2, epsilon=20.0)
    runs, _ = train_model([job_of(task, quiet, loud, quiet)], task, TRAINING, torch_model(Net))
    alone, _ = train_model([job_of(task, loud)], task, TRAINING, torch_model(Net))
    assert np.array_equal(runs[0].models[..., 0], runs[0].models[..., 2])
    assert not np.allclose(runs[0].models[..., 0], runs[0].models[..., 1])
    assert runs[0].models[..., 1] == pytest.approx(alone[0].models[..., 0], abs=1e-5)
    assert runs[0].models[..., 3] == pytest.approx(alone[0].models[..., 1], abs=1e-5)


def test_noise_of_twice_the_width_is_caught(task, monkeypatch):
    drawn = SharedDraws.noise
    doubled = lambda self, *silos: ((first, last, 2 * part) for first, last, part in drawn(self, *silos))  # noqa: E731
    monkeypatch.setattr(SharedDraws, "noise", doubled)
    assert differences(task, Net) > 0.01


def test_a_missing_clip_is_caught(task, monkeypatch):
    monkeypatch.setattr(mechanism, "clip_factor", lambda sizes, norm, share: np.ones_like(sizes))
    assert differences(task, Net, training=LocalTraining(learning_rate=3.0, steps=4, batch=8)) > 0.01


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Branching, r"data-dependent control flow.*test_torch_engine\.py line \d+"),
        (Averaging, r"test_torch_engine\.py line \d+"),
        (Counting, "the module writes to its buffer calls"),
    ],
)
def test_a_module_that_cannot_be_mapped_is_trained_silo_by_silo_and_says_why_and_where(task, model, why):
    heard = []
    run = fulcrum.train(PLAN, task, model=model, training=TRAINING, on_note=heard.append)
    slow = torch_model(model).on(task).as_model(learning_rate=TRAINING.learning_rate)
    assert np.array_equal(run.models, fulcrum.train(PLAN, task, model=slow, training=TRAINING).models)
    assert run.notes[-1] == heard[0]
    assert re.search(why, heard[0])


def test_buffers_of_a_module_are_not_written_to_and_not_passed_on(task):
    module = Averaging()
    fulcrum.train(PLAN, task, model=module, training=TRAINING)
    assert not module.average.any()


def test_memory_that_runs_out_halves_the_chunk_until_one_silo_does_not_fit(task):
    sizes = []

    def greedy(most):
        def make(tensors, rate):
            sizes.append(len(tensors[0]) // 2)  # under two arms
            if sizes[-1] > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
            return torch.optim.SGD(tensors, lr=rate)

        return make

    plan = fulcrum.plan("mild", rounds=1, epsilon=20.0)
    job, roomy = job_of(task, plan), torch_model(Net).on(task)
    tight = torch_model(Net, optimiser=greedy(5)).on(task)
    run = train_on_tensors(job, task, TRAINING, tight)
    assert max(sizes) > 5
    assert max(size for size in sizes if size <= 5) >= 3  # threads end their chunks in any order
    assert run.models == pytest.approx(train_on_tensors(job, task, TRAINING, roomy).models, abs=1e-5)
    with pytest.raises(ParameterError, match="one silo of Net does not fit in the memory of cpu: CUDA out of memory"):
        train_on_tensors(job, task, TRAINING, torch_model(Net, optimiser=greedy(0)).on(task))


def test_memory_that_runs_out_in_testing_halves_what_is_tested_at_once(task):
    class Greedy(Net):
        most, seen = 100, []

        def forward(self, inputs):
            if not self.training:
                self.seen.append(len(inputs))
                if len(inputs) > self.most:
                    raise torch.OutOfMemoryError("CUDA out of memory")
            return super().forward(inputs)

    job = job_of(task, PLAN)
    tight, roomy = (
        train_on_tensors(job, task, TRAINING, torch_model(model).on(task)).accuracy for model in (Greedy, Net)
    )
    assert np.array_equal(tight, roomy)
    assert max(size for size in Greedy.seen if size <= 100) > 50
    fitted = torch_model(Greedy).on(task)
    Greedy.most = 0
    with pytest.raises(ParameterError, match="one record of Greedy does not fit in the memory of cpu: CUDA out of mem"):
        train_on_tensors(job, task, TRAINING, fitted)


def test_records_that_do_not_fit_in_memory_are_told_in_one_line(task, monkeypatch):
    fitted = torch_model(Net).on(task)

    def full(*given):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(type(fitted), "as_tensor", full)
    with pytest.raises(ParameterError, match=r"Net with the records of digits .* of cpu: CUDA out of memory\. Train"):
        train_on_tensors(job_of(task, PLAN), task, TRAINING, fitted)


def test_what_is_tested_at_once_is_of_one_size(task, monkeypatch):
    class Normed(Net):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(16)

        def forward(self, inputs):
            return super().forward(self.norm(inputs))

    monkeypatch.setattr(torch_engine, "_TESTED_AT_ONCE", len(task.labels_test) - 1)  # and one more, without a spread
    fulcrum.train(PLAN, task, model=Normed, training=TRAINING)


def test_a_device_may_be_one_of_torch(task):
    runs = [
        fulcrum.train(PLAN, task, model=Net, device=name, training=TRAINING) for name in ("cpu", torch.device("cpu"))
    ]
    assert np.array_equal(runs[0].models, runs[1].models)


@pytest.mark.parametrize("slow", [False, True])
def test_parts_of_rounds_are_told_over_all_seeds(task, slow):
    plan = fulcrum.plan("isic-paper", rounds=2, epsilon=20.0)
    model = torch_model(Net).on(task).as_model(learning_rate=0.3) if slow else Net
    heard = []
    device = None if slow else TorchDevice(chunk=2)
    fulcrum.train(plan, task, seeds=2, model=model, device=device, training=TRAINING, on_part=heard.append)
    chunks = -(-len(plan.federation) // (1 if slow else 2))
    assert len(heard) == 4 * chunks
    assert heard == sorted(heard)
    assert heard[chunks - 1 :: chunks] == [0.5, 1.0, 1.5, 2.0]


def test_an_interrupted_run_ends_after_the_step_it_is_in(task, monkeypatch):
    begun, steps = threading.Event(), []

    class Slow(torch.optim.SGD):
        def step(self):
            if threading.current_thread() is not threading.main_thread():
                steps.append(1)
                begun.set()
                time.sleep(0.01)
            super().step()

    def interrupt():
        begun.wait(60)
        time.sleep(0.2)  # until the run waits for its chunks
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    model = torch_model(Net, optimiser=lambda tensors, rate: Slow(tensors, lr=rate))
    long = LocalTraining(learning_rate=0.1, steps=1_000, batch=8)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            fulcrum.train(PLAN, task, model=model, training=long, device=TorchDevice(chunk=2))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(steps) < 1_000  # of one chunk


def test_a_silo_that_diverges_is_named(task):
    wild = LocalTraining(learning_rate=1e38, steps=4, batch=8)
    with pytest.raises(DivergedUpdateError, match=r"silo 'region-1-1' diverged in round 1.*Lower the learning rate"):
        fulcrum.train(PLAN, task, model=Net, training=wild)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_is_refused(task):
    with pytest.raises(ParameterError, check=coded("training.device-missing", device="cuda")):
        fulcrum.train(PLAN, task, model=Net, device="cuda")
    with pytest.raises(ParameterError, check=coded("training.device-missing", device="abacus")):
        fulcrum.train(PLAN, task, model=Net, device="abacus")
    with pytest.raises(ParameterError, check=coded("training.device-missing", device="hpu")):
        fulcrum.train(PLAN, task, model=Net, device="hpu")
    for bad in (TorchDevice(draws="lots"), TorchDevice(chunk=0)):
        with pytest.raises(ParameterError, match=r"draws|chunk"):
            fulcrum.train(PLAN, task, model=Net, device=bad)
    with pytest.raises(ParameterError, match="a device is for a PyTorch module"):
        fulcrum.train(PLAN, task, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_processor_and_gpu_agree(task):
    for model in (Head, Net, Convolving):
        fitted, job = torch_model(model).on(task), job_of(task, PLAN)
        runs = [
            train_on_tensors(job, task, TRAINING, fitted, device=TorchDevice(name=name, draws="shared")).models
            for name in ("cpu", "cuda")
        ]
        assert np.abs(runs[0] - runs[1]).max() < 1e-4


def test_a_linear_module_is_shrunk_by_the_spectrum_prior_as_the_built_in_head():
    public = fulcrum.Spectrum(variances=np.geomspace(4, 0.1, 16).tolist(), origin="public", source="public.npz")
    options = {"rounds": 3, "epsilon": 20.0, "recipe": "joint", "parameters": 34}
    models = {}
    for name, settings in (("prior", {"public": public}), ("plain", {})):
        plan = fulcrum.plan("isic-paper", **options, **settings)
        models[name] = fulcrum.train(plan, "digits", model=Head, training=TRAINING).models
        built_in = fulcrum.train(plan, "digits", training=TRAINING).models
        assert models[name].reshape(built_in.shape) == pytest.approx(built_in, abs=1e-6)
    assert np.abs(models["prior"] - models["plain"]).max() > 1e-3
