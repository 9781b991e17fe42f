"""The form of a model in a training module: named arrays, or a PyTorch state dict.

>>> form = form_of({"weights": np.zeros(3)})
>>> form.to_module({"weights": np.ones(3)}), form.stay
({'weights': array([1., 1., 1.])}, ())

The floating point tensors of a state dict travel between sites. Integers and truth values, such as the
`num_batches_tracked` of a batch norm, stay at every site with the values of the site's own `start`: clip and noise are
not defined for integers.

This module does not import PyTorch: a module with tensors has imported PyTorch already.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import DataError, listing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelForm:
    """The names and types of a training module's model.

    Attributes:
        like: Empty for named arrays. For a state dict, by name in the order of the state dict: a tensor of the same
            type and device, empty if the values travel and whole if the values stay; None for a NumPy array.
        stay: The names of the values that stay at a site.
    """

    like: Mapping[str, Any] = field(default_factory=dict)
    stay: tuple[str, ...] = ()

    def remarks(self) -> list[str]:
        """Returns notes for the person who trains the model, as sentences."""
        notes = []
        if self.stay:
            notes.append(f"Integers of the model stay at every site as its own start gives them: {listing(self.stay)}.")
        if variances := [name for name in self.like if name.endswith("running_var")]:
            notes.append(
                f"Running variances get noise as all of the model does, and may fall below 0: {listing(variances)}. "
                "Use group norm or layer norm in the place of batch norm."
            )
        return notes

    def to_module(self, arrays: Mapping[str, FloatArray]) -> dict[str, Any]:
        """Returns a copy of a model in the form of the training module."""
        if not self.like:
            return {name: array.copy() for name, array in arrays.items()}
        travelling = [name for name in self.like if name not in self.stay]
        if travelling != list(arrays):
            raise DataError("training.tensors-differ", tensors=listing(travelling), model=listing(arrays))
        return {
            name: like.clone() if name in self.stay else _like(like, arrays[name]) for name, like in self.like.items()
        }

    def to_arrays(self, model: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the values of a training module's model that travel, as arrays by name."""
        return {name: as_array(model[name]) for name in model if name not in self.stay}


def form_of(model: Mapping[str, Any]) -> ModelForm:
    """Returns the form of a model that the function `start` of a training module made; a tensor means a state dict."""
    tensors = {name: value.detach() for name, value in model.items() if is_tensor(value)}
    if not tensors:
        return ModelForm()
    stay = tuple(name for name, value in tensors.items() if not value.is_floating_point() and not value.is_complex())
    like = {name: value.clone() if name in stay else value.new_empty(0) for name, value in tensors.items()}
    return ModelForm(like={name: like.get(name) for name in model}, stay=stay)


def _like(like: Any, array: FloatArray) -> Any:
    return array.copy() if like is None else like.new_tensor(array)


def is_tensor(value: Any) -> bool:
    """Returns True for a tensor of PyTorch, or of a subclass."""
    return any(f"{base.__module__}.{base.__name__}" == "torch.Tensor" for base in type(value).__mro__)


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """Returns a tensor on any device, or any value that NumPy accepts, as an array.

    NumPy has no bfloat16 and no narrower type; single precision holds all values of these types exactly.
    """
    if not is_tensor(value):
        return np.asarray(value)
    here = value.detach().cpu()
    if here.is_floating_point() and here.element_size() <= 2:
        here = here.float()
    return np.asarray(here.numpy())
