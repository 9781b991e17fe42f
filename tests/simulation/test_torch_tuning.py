"""A PyTorch module is tuned like a head, with scaled inputs and without the prior of a head."""

import pytest

import fulcrum

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
pytestmark = pytest.mark.torch

GRID = {"learning_rates": [0.3], "clip_norms": [1.0], "least_influences": [0.5], "seeds": 2}


def test_a_module_of_a_users_own_is_tuned_with_scaled_inputs_and_without_prior():
    small = torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    own = fulcrum.plan("consortium", rounds=2, epsilon=8.0)
    found = fulcrum.tune(own, "digits", model=small, rounds=[2], input_powers=[1], **GRID)
    tried = {(one.recipe, one.prior, one.input_power) for one in found.tries}
    assert tried == {(recipe, False, power) for recipe in ("paper", "joint") for power in (0.0, 1.0)}
    assert found.confirmation.seeds == (0, 1)
