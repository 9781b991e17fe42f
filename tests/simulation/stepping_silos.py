"""Training steps of a few silos, for the tests that compare them; skipped where PyTorch is missing."""

import pytest

from fulcrum.simulation.torch.torch_model import torch_model
from fulcrum.simulation.torch.torch_steps import SiloSteps

torch = pytest.importorskip("torch")

SILOS, BATCH = 3, 5


def steps_of(model, task):
    """Steps, and what they take for a few silos."""
    fitted = torch_model(model).on(task)
    chosen = torch.arange(SILOS * BATCH).reshape(SILOS, BATCH)
    leaves = {
        name: (part + torch.randn(SILOS, *part.shape) / 10).requires_grad_()
        for name, part in fitted.split(torch.as_tensor(fitted.start).to(fitted.dtype)).items()
    }
    inputs, targets = fitted.as_tensor(task.features_train)[chosen], fitted.as_tensor(task.labels_train)[chosen]
    return SiloSteps(fitted, fitted.fixed_tensors()), (leaves, inputs, targets)
