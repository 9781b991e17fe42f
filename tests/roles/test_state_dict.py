"""A PyTorch state dict goes into a training module and out of it as it is; run where torch is installed."""

import logging

import numpy as np
import pytest

from fulcrum.core.messages.layout import flatten_arrays
from fulcrum.core.training.assignment import Assignment
from fulcrum.core.training.model_form import as_array, form_of
from fulcrum.core.training.training_module import TrainingModule
from fulcrum.errors import DataError, ExchangeError

torch = pytest.importorskip("torch", reason="state dicts are PyTorch's")
pytestmark = pytest.mark.torch


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))


TRAVELLING = [
    *("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "2.weight", "2.bias"),
]
ASSIGNMENT = Assignment(silo="a", round_number=1, plan=None, seed=0, options={})


def learner(train, start=lambda options: network().state_dict(), **settings):
    return TrainingModule(start=start, train=train, may_have_tensors=True, **settings)


def in_double(arrays):
    """A model as it travels."""
    layout, flat = flatten_arrays(arrays)
    return layout.arrays(flat)


def step(model, assignment):
    """One step of a strict network: what it is given must be its own state dict, name for name and type for type."""
    net = network()
    net.load_state_dict(model, strict=True)
    assert {name: value.dtype for name, value in model.items()} == {
        name: value.dtype for name, value in net.state_dict().items()
    }
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.nn.functional.cross_entropy(net(torch.ones(5, 4)), torch.tensor([0, 1, 0, 1, 1])).backward()
    optimizer.step()
    return net.state_dict()


def test_a_network_takes_its_state_dict_strictly_and_gives_it_back():
    made = learner(step)
    start = made.starting_model({})
    assert list(start) == TRAVELLING
    update = made.update(in_double(start), ASSIGNMENT)
    trained = step(network().state_dict(), ASSIGNMENT)
    for name in TRAVELLING:
        expected = trained[name].numpy().astype(np.float64) - start[name]
        assert np.array_equal(update[name], expected), name
    assert np.abs(update["2.bias"]).max() > 0.01


def test_integers_stay_and_whoever_trains_is_told():
    made = learner(step)
    made.starting_model({})
    form = made.form({})
    assert form.stay == ("1.num_batches_tracked",)
    told = form.remarks()
    assert "1.num_batches_tracked" in told[0]
    assert "1.running_var" in told[1]
    assert form.to_module(in_double(form.to_arrays(network().state_dict())))["1.num_batches_tracked"] == 0


def test_a_silo_that_never_ran_start_learns_the_form_from_it():
    made = learner(step)
    start = learner(step).starting_model({})
    assert list(made.update(in_double(start), ASSIGNMENT)) == TRAVELLING


def test_evaluate_is_given_a_state_dict_and_may_answer_in_tensors():
    def evaluate(model, assignment):
        net = network()
        net.load_state_dict(model)
        net.eval()
        return {"mean": net(torch.ones(1, 4)).mean(), "all": net(torch.ones(1, 4)), "count": torch.tensor(3)}

    made = learner(step, evaluate=evaluate)
    found, left_out = made.metrics_of(in_double(made.starting_model({})), ASSIGNMENT)
    assert set(found) == {"mean", "count"}
    assert found["count"] == 3.0
    assert left_out[0].startswith("'all' is left out")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_floating_type_travels_exactly_and_comes_back_as_it_was(dtype):
    held = torch.tensor([1 / 3, -2.5, 0.0, 1e-3]).to(getattr(torch, dtype))
    scalar = torch.tensor(0.125).to(held.dtype)
    form = form_of({"w": held, "scale": scalar})
    travelled = in_double(form.to_arrays({"w": held, "scale": scalar}))
    assert travelled["scale"].shape == ()
    assert travelled["w"].tolist() == held.double().tolist()
    back = form.to_module(travelled)
    assert back["w"].dtype == held.dtype
    assert torch.equal(back["w"], held)
    assert torch.equal(back["scale"], scalar)


def test_tensors_that_require_a_gradient_and_parameters_are_taken():
    held = torch.nn.Parameter(torch.ones(2))
    assert as_array(held).tolist() == [1, 1]
    assert as_array(torch.ones(2, requires_grad=True) * 2).tolist() == [2, 2]
    back = form_of({"w": held}).to_module({"w": np.ones(2)})["w"]
    assert not back.requires_grad


def test_complex_tensors_are_refused_as_complex_arrays_are():
    made = learner(step, start=lambda options: {"w": torch.ones(2, dtype=torch.complex64)})
    with pytest.raises(ExchangeError, match="'w' is complex64, not floating point"):
        flatten_arrays(made.starting_model({}), what="model", error=ExchangeError)


def test_arrays_beside_tensors_stay_arrays():
    form = form_of({"w": torch.ones(2), "b": np.zeros(3)})
    back = form.to_module({"w": np.ones(2), "b": np.ones(3)})
    assert isinstance(back["b"], np.ndarray)
    assert torch.is_tensor(back["w"])


def test_a_start_that_names_other_tensors_than_the_model_has_is_refused():
    made = learner(step, start=lambda options: torch.nn.Linear(4, 3).state_dict())
    with pytest.raises(DataError, match="Install the same training module everywhere"):
        made.update(in_double(learner(step).starting_model({})), ASSIGNMENT)


def test_a_module_that_imports_torch_late_is_told_to_import_it_at_the_top():
    made = TrainingModule(start=lambda options: network().state_dict(), train=step, may_have_tensors=False)
    with pytest.raises(DataError, match="Import torch at the top of the module"):
        made.starting_model({})


def test_training_does_not_reach_the_model_that_it_was_given(caplog):
    def spoil(model, assignment):
        for value in model.values():
            value.fill_(7)
        return network().state_dict()

    made = learner(spoil)
    model = in_double(made.starting_model({}))
    before = {name: array.copy() for name, array in model.items()}
    with caplog.at_level(logging.WARNING):
        made.update(model, ASSIGNMENT)
        again = made.form({}).to_module(model)
    assert all(np.array_equal(model[name], before[name]) for name in model)
    assert again["1.num_batches_tracked"] == 0  # nor the integers that the site keeps
