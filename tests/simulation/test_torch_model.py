import sys
import threading

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.errors import DataError, ParameterError
from fulcrum.simulation.data.tasks import load_task
from fulcrum.simulation.embedded.training_settings import LocalTraining
from fulcrum.simulation.torch.torch_model import load_torch_model, torch_model
from fulcrum.simulation.trials import compare_trained

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

TRAINING = LocalTraining(learning_rate=0.1, steps=4, batch=8)
PLAN = fulcrum.plan("isic-paper", rounds=2, epsilon=50.0)


def net(outputs=2):
    return torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Tanh(), torch.nn.Linear(8, outputs))


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(16)
        self.head = torch.nn.Linear(16, 2)

    def forward(self, inputs):
        return self.head(self.norm(inputs))


class Keeping(torch.nn.Linear):
    def __init__(self, kept):
        super().__init__(16, 2)
        self.kept = kept


class TestingOtherwise(torch.nn.Linear):
    __test__ = False

    def __init__(self):
        super().__init__(16, 2)

    def forward(self, inputs):
        said = super().forward(inputs)
        return said if self.training else said[:, :1]


@pytest.fixture(scope="module")
def task():
    return load_task("digits")


def test_parameters_travel_as_one_row_and_come_back():
    for model in (torch_model(net), torch_model(net, trained=["0.*", "2.bias"]), torch_model(net, trained="2.*")):
        flat = torch.arange(6.0 * model.parameters).reshape(2, 3, -1)
        parts = model.split(flat)
        assert {name: tuple(part.shape[2:]) for name, part in parts.items()} == dict(model.shapes)
        assert torch.equal(model.join(parts, 2), flat)
        start = model.split(torch.as_tensor(model.start))
        for name, part in start.items():
            assert torch.equal(part.float(), model.module.get_parameter(name))


def test_former_names_of_methods_still_work_with_a_warning():
    model, device = torch_model(net), fulcrum.TorchDevice(name="cpu")
    parts = model.split(torch.as_tensor(model.start))
    with pytest.warns(DeprecationWarning, match="TorchModel.joined goes with version 0.3. Use join"):
        assert torch.equal(model.joined(parts), torch.as_tensor(model.start))
    for former, name in (("fixed", "fixed_tensors"), ("stepping", "stepper"), ("telling", "report_failures")):
        with pytest.warns(DeprecationWarning, match=f"Use {name}"):
            assert getattr(model, former) == getattr(model, name)
    with pytest.warns(DeprecationWarning, match="Use draws_kind"):
        assert device.drawn == device.draws_kind == "shared"
    for owner in (model, device):
        with pytest.raises(AttributeError, match="has no attribute 'colour'"):
            owner.colour  # noqa: B018


def test_a_class_makes_the_same_start_for_everybody_and_touches_no_other_draws():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = torch_model(net), torch_model(net), torch_model(net, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert np.array_equal(first.start, again.start)
    assert not np.array_equal(first.start, other.start)


def test_what_is_frozen_stays_and_readers_are_told(task):
    module = net()
    module[0].weight.requires_grad_(requires_grad=False)
    model = torch_model(module)
    assert model.trained == ("0.bias", "2.weight", "2.bias")
    assert model.notes == ("26 of 154 parameters of Sequential are trained; the others stay.",)
    with pytest.raises(ParameterError, match=r"no parameter .* is called 'hat\.\*'\. Known: 0\.bias, 2\.weight"):
        torch_model(module, trained="hat.*")


def test_statistics_of_batches_do_not_travel_and_a_frozen_layer_keeps_those_it_came_with(task):
    module = Normed()
    for _ in range(3):
        module(torch.randn(50, 16) * 4 + 2)
    trained, frozen = torch_model(module), torch_model(module, trained="head.*")
    assert "do not travel: the plan does not count them" in trained.notes[0]
    assert "by each batch alone" in trained.notes[1]
    assert frozen.frozen_layers == ("norm",)
    assert not any("each batch" in note for note in frozen.notes)
    run = fulcrum.train(PLAN, task, model=frozen, training=TRAINING)
    seen = frozen.as_model(learning_rate=0.1).scores(run.models[0, :, 0], task.features_test[:5])
    alone = frozen.as_model(learning_rate=0.1).scores(run.models[0, :, 0], task.features_test[:1])
    assert seen[0] == pytest.approx(alone[0])
    assert module.norm.num_batches_tracked == 3


def test_instance_normalisation_tests_as_it_trains(task):
    def normed(tracked):
        norm = torch.nn.InstanceNorm1d(4, affine=True, track_running_stats=tracked)
        return torch.nn.Sequential(torch.nn.Unflatten(1, (4, 4)), norm, torch.nn.Flatten(), torch.nn.Linear(16, 2))

    tracked, plain = (
        fulcrum.train(PLAN, task, model=lambda kept=kept: normed(kept), training=TRAINING) for kept in (True, False)
    )
    assert np.array_equal(tracked.models, plain.models)
    assert np.array_equal(tracked.accuracy, plain.accuracy)
    assert "do not travel" in tracked.notes[-2]


def test_dropout_trains_and_does_not_test(task):
    module = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(16, 2))
    first, again = (fulcrum.train(PLAN, task, model=module, training=TRAINING) for _ in range(2))
    assert np.array_equal(first.models, again.models)
    scores = torch_model(module).as_model(learning_rate=0.1).scores
    assert np.array_equal(
        scores(first.models[0, :, 0], task.features_test), scores(first.models[0, :, 0], task.features_test)
    )
    plain = fulcrum.train(PLAN, task, model=module[1], training=TRAINING)
    assert np.abs(first.models - plain.models).max() > 1e-4


def test_only_a_softmax_head_is_pooled_as_one(task):
    assert torch_model(net, trained="2.*").on(task).classes == 2
    assert torch_model(net).on(task).classes is None
    assert torch_model(net, trained="0.*").on(task).classes is None
    scaled = torch.nn.Sequential(torch.nn.Linear(16, 2), torch.nn.Tanh())
    assert torch_model(scaled, trained="0.*").on(task).classes is None


@pytest.mark.parametrize(
    ("model", "options", "error", "told"),
    [
        (
            lambda: torch.nn.Linear(7, 2),
            {},
            DataError,
            r"does not accept the records of digits, of shape \(16,\): Runtime",
        ),
        (lambda: net(3), {}, DataError, r"outputs of shape \(4, 3\) for 4 records of digits, which has 2 classes"),
        (lambda: net(), {"loss": lambda said, true: said - true}, DataError, "the loss of Sequential does not accept"),
        (
            lambda: net(),
            {"loss": lambda said, true: said.mean(dim=1)},
            ParameterError,
            "must be a scalar tensor, got a",
        ),
        (lambda: net(), {"loss": lambda said, true: 1.0}, ParameterError, "must be a scalar tensor, got float"),
        (
            lambda: net(),
            {"loss": lambda said, true: said.detach().mean()},
            ParameterError,
            "does not depend on the trained parameters. Look for detach",
        ),
        (
            lambda: net(),
            {"optimiser": lambda tensors, rate: torch.optim.LBFGS(tensors, lr=rate)},
            ParameterError,
            "Sequential failed in a local step: TypeError: .*closure",
        ),
        (
            lambda: net(),
            {"optimiser": lambda tensors, rate: None},
            ParameterError,
            "Sequential failed in a local step: Attr",
        ),
        (lambda: net().half(), {}, ParameterError, r"must all be float32 or all float64, got torch\.float16"),
        (lambda: 1 / 0, {}, ParameterError, "and raised ZeroDivisionError: division by zero"),
        (lambda: torch.nn.LazyLinear(2), {}, ParameterError, "LazyLinear has no shape for weight yet"),
        (
            lambda: torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.Linear(4, 2)),
            {"trained": "1.*"},
            ParameterError,
            r"Sequential has no shape for 0\.weight yet",
        ),
        (lambda: net().to("meta"), {}, ParameterError, r"0\.weight of Sequential is on the device meta"),
        (lambda: Keeping(threading.Lock()), {}, ParameterError, "Keeping cannot be copied: cannot pickle '_thread.loc"),
        (lambda: Keeping(net()(torch.ones(1, 16))), {}, ParameterError, "Keeping cannot be copied: Only Tensors crea"),
        (
            lambda: net(),
            {"trained": []},
            ParameterError,
            "the setting .trained. must hold at least one name or pattern",
        ),
        (lambda: sys.exit(3), {}, ParameterError, "raised SystemExit: 3"),
        (
            lambda: net(1),
            {"loss": lambda said, true: (said[:, 0] - true).square().mean()},
            DataError,
            r"outputs of shape \(4, 1\) for 4 records of digits, which has 2 classes: the outputs must have the shape \(4, 2\), or come with",
        ),
        (
            lambda: TestingOtherwise(),
            {},
            DataError,
            r"outputs of shape \(4, 1\) for 4 records of digits, which has 2 cl",
        ),
        (lambda: "net", {}, ParameterError, r"must return a torch\.nn\.Module, got str"),
        (lambda width: net(), {}, ParameterError, "when called without arguments, and raised TypeError"),
        ("net", {}, ParameterError, r"model must be a torch\.nn\.Module or a function that makes a module, got str"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(task, model, options, error, told):
    with pytest.raises(error, match=told) as caught:
        torch_model(model, **options).on(task)
    assert "\n" not in str(caught.value)


def test_a_scripted_module_is_refused():
    module = net()
    with (
        pytest.warns(DeprecationWarning, match="torch.jit"),
        pytest.raises(ParameterError, match="a scripted or traced module cannot"),
    ):
        torch_model(torch.jit.script(module))


def test_a_metric_of_its_own_takes_outputs_of_any_shape(task):
    def right(outputs, targets):
        outputs[:], targets[:] = outputs > 0, targets  # which is its own affair
        return (outputs[:, 0] == targets).mean()

    def loss(said, true):
        return torch.nn.functional.binary_cross_entropy_with_logits(said[:, 0], true.to(said))

    labels = task.labels_test.copy()
    model = torch_model(lambda: net(1), loss=loss, metric=right)
    rows = compare_trained("isic-paper", task, seeds=1, training=TRAINING, model=model, rounds=2, epsilon=50.0)
    assert rows[0].reference > 0.6
    assert np.isnan(rows[0].worst_region)  # no classes are said
    assert np.array_equal(task.labels_test, labels)


def test_a_batch_that_the_module_does_not_take_is_told_in_one_line(task):
    with pytest.raises(
        ParameterError, match="Normed failed in a step on a batch of 1: ValueError: Expected more than 1"
    ):
        fulcrum.train(PLAN, task, model=Normed, training=LocalTraining(learning_rate=0.1, batch=1))


def test_a_model_is_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "own_nets.py").write_text(
        "import fulcrum, torch\n"
        "def head():\n    return fulcrum.torch_model(lambda: torch.nn.Linear(16, 2), metric=max)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load_torch_model("own_nets:head").metric is max
    with pytest.raises(ParameterError, check=coded("model.settings-twice")):
        load_torch_model("own_nets:head", trained="bias")
    with pytest.raises(
        ParameterError, match=r"model 'own_nets:tail' cannot be loaded: .*own_nets\.py\) has no attribute"
    ):
        load_torch_model("own_nets:tail")
    (tmp_path / "own_script.py").write_text("import sys\nsys.exit('usage: own_script FILE')\n")
    with pytest.raises(ParameterError, match="model 'own_script:Net' cannot be loaded: SystemExit: usage: own_script"):
        load_torch_model("own_script:Net")
    with pytest.raises(ParameterError, check=coded("model.import-failed")):
        load_torch_model("own_nets.py:head")


def test_a_plan_for_other_parameters_is_refused(task):
    plan = fulcrum.plan("isic-paper", rounds=2, epsilon=50.0, parameters=34)
    with pytest.raises(ParameterError, match="the plan is for 34 parameters, and the model trains 154"):
        fulcrum.train(plan, task, model=net)


def test_every_allocation_is_trained_with_a_users_own_model(task):
    heard = []
    rows = compare_trained(
        "isic-paper",
        task,
        seeds=2,
        training=TRAINING,
        model=net,
        on_round=lambda done, found: heard.append(done),
        rounds=2,
        epsilon=50.0,
    )
    assert {"optimal", "uniform", "least-noise", "joint"} <= {row.allocation for row in rows}
    assert rows[0].reference > 0.6
    assert heard == [0, 1, 1, 2]
    alone = fulcrum.train(PLAN, task, model=net, training=TRAINING, seeds=2)
    assert rows[0].accuracy == pytest.approx(alone.accuracy[:, -1].mean(), abs=0.01)
    assert rows[0].reference == pytest.approx(alone.reference.mean(), abs=0.01)


def test_a_users_own_loss_and_metric_are_what_is_trained_and_told(task):
    def hinge(outputs, targets):
        return torch.nn.functional.multi_margin_loss(outputs, targets)

    def worst_class(outputs, targets):
        return min((outputs.argmax(axis=1) == targets)[targets == number].mean() for number in (0, 1))

    model = torch_model(net, loss=hinge, metric=worst_class)
    run, plain = (fulcrum.train(PLAN, task, model=each, training=TRAINING) for each in (model, net))
    assert run.metric == "worst class"
    assert run.summary()["metric"] == "worst class"
    assert not np.allclose(run.models, plain.models)
    scores = model.as_model(learning_rate=0.1).scores(run.models[0, :, 0], task.features_test)
    assert run.accuracy[0, -1] == pytest.approx(worst_class(scores, task.labels_test))
    with pytest.raises(ParameterError, check=coded("metric.shape-wrong", shape=(359, 2))):
        fulcrum.train(PLAN, task, model=torch_model(net, metric=lambda said, true: said), training=TRAINING)
