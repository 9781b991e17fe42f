"""In what form a training module takes and gives its model: named arrays, or a PyTorch state dict as it is.

>>> form = form_of({"weights": np.zeros(3)})
>>> form.given({"weights": np.ones(3)}), form.stay
({'weights': array([1., 1., 1.])}, ())

Of a state dict the tensors of floating point travel. Integers and truth values, such as the `num_batches_tracked` of a
batch norm, do not: no clip and no noise is for them. Every site keeps those that its own `start` gives.

PyTorch is not imported here: who has tensors has imported it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.errors import DataError, listing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelForm:
    """How a training module names and types its model.

    Attributes:
        like: Of a state dict, by name in its order: a tensor of the same type and device, empty where its values
            travel, whole where they stay, and None for an array among them. Nothing for named arrays alone.
        stay: The names whose values stay at a site.
    """

    like: Mapping[str, Any] = field(default_factory=dict)
    stay: tuple[str, ...] = ()

    def remarks(self) -> list[str]:
        """Returns what whoever trains such a model should know, in sentences."""
        told = []
        if self.stay:
            told.append(f"Integers of the model stay at every site as its own start gives them: {listing(self.stay)}.")
        if variances := [name for name in self.like if name.endswith("running_var")]:
            told.append(
                f"Running variances get noise as all of the model does, and may fall below 0: {listing(variances)}. "
                "Use group norm or layer norm in the place of batch norm."
            )
        return told

    def given(self, arrays: Mapping[str, FloatArray]) -> dict[str, Any]:
        """Returns a copy of a model as the module's functions take it."""
        if not self.like:
            return {name: array.copy() for name, array in arrays.items()}
        travelling = [name for name in self.like if name not in self.stay]
        if travelling != list(arrays):
            raise DataError("training.tensors-differ", tensors=listing(travelling), model=listing(arrays))
        return {
            name: like.clone() if name in self.stay else _like(like, arrays[name]) for name, like in self.like.items()
        }

    def taken(self, given: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Returns what travels of a model that the module's functions gave, as arrays by name."""
        return {name: as_array(given[name]) for name in given if name not in self.stay}


def form_of(given: Mapping[str, Any]) -> ModelForm:
    """Returns the form of a model that a module's function start gave: a state dict if there is a tensor in it."""
    if not any(is_tensor(value) for value in given.values()):
        return ModelForm()
    stay = tuple(
        name
        for name, value in given.items()
        if is_tensor(value) and not value.is_floating_point() and not value.is_complex()
    )
    like = {name: value.detach() if is_tensor(value) else None for name, value in given.items()}
    kept = {
        name: None if one is None else one.clone() if name in stay else one.new_empty(0) for name, one in like.items()
    }
    return ModelForm(like=kept, stay=stay)


def _like(like: Any, array: FloatArray) -> Any:
    return array.copy() if like is None else like.new_tensor(array)


def is_tensor(value: Any) -> bool:
    """Returns whether something is a tensor of PyTorch's, or of a class made from it."""
    return any(f"{base.__module__}.{base.__name__}" == "torch.Tensor" for base in type(value).__mro__)


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """Returns a tensor, wherever it is, or whatever NumPy takes for an array, as one.

    NumPy has no bfloat16, nor any narrower type; single precision holds all of them exactly.
    """
    if not is_tensor(value):
        return np.asarray(value)
    here = value.detach().cpu()
    if here.is_floating_point() and here.element_size() <= 2:
        here = here.float()
    return np.asarray(here.numpy())
