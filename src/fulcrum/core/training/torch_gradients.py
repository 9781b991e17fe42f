"""Gradients of a PyTorch module by person, a row for each person: the rows that a silo clips, adds up and releases.

    gradients = fulcrum.TorchGradients(Net(), torch.nn.functional.cross_entropy)  # in a training module

`torch.func` maps the module over records: every call of the module sees a batch of one record. So no layer and no loss
can mix records, whatever the module computes, and a row is a function of the records of one person.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.core.training.training_result import error_in_words
from fulcrum.errors import MissingExtraError, ParameterError

_logger = logging.getLogger(__name__)

_BYTES = 1 << 26
"""Memory for the gradients of a chunk of records; a single record may need more."""


def map_gradients(
    loss: Callable[[Any, Any, Any], Any], parameters: Mapping[str, Any], inputs: Any, targets: Any
) -> dict[str, Any]:
    """Returns by parameter the gradients of all records, (records, ...), each record in a batch of its own.

    Args:
        loss: Parameters, inputs (1, ...) and targets (1, ...) to a scalar.
        parameters: The parameters at which gradients are taken.
        inputs: The inputs of all records, (records, ...).
        targets: The targets of all records, (records, ...).
    """
    func = _require_torch().func

    def loss_of_record(tensors: Any, record: Any, target: Any) -> Any:
        return loss(tensors, record.unsqueeze(0), target.unsqueeze(0))

    # Draws within the map are an error. A mask that depends on the place of a record in a seeded stream would change
    # for all later persons when one person comes or goes, and no clip bounds such a change.
    mapped = func.vmap(func.grad(loss_of_record), in_dims=(None, 0, 0), randomness="error")
    with _padding_without_gradient()():
        gradients: dict[str, Any] = mapped(dict(parameters), inputs, targets)
    return gradients


@cache
def _padding_without_gradient() -> Any:
    """Returns a mode in which the padding row of a table has no gradient: under a map torch gives the row one."""
    torch = _require_torch()
    embedding = torch.nn.functional.embedding

    class PaddingWithoutGradient(torch.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is not embedding:
                return function(*args, **(kwargs or {}))
            return looked_up(*args, **(kwargs or {}))

    def looked_up(input: Any, weight: Any, padding_idx: int | None = None, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        rows = embedding(input, weight, None, *args, **kwargs)
        if padding_idx is None:
            return rows
        return torch.where((input == padding_idx % len(weight)).unsqueeze(-1), rows.detach(), rows)

    return PaddingWithoutGradient


def check_records_apart(module: Any, loss: Any = None) -> None:
    """Raises `ParameterError` for layers and losses that tie the records of a batch to each other, or that draw.

    Args:
        module: The module, in the mode of training.
        loss: The loss of a batch.
    """
    torch = _require_torch()
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) and (
            layer.training or layer.running_mean is None or layer.running_var is None
        ):
            raise ParameterError("model.person-batch-norm", layer=name or type(module).__name__)
        if isinstance(layer, torch.nn.modules.dropout._DropoutNd) and layer.training and layer.p > 0:
            raise ParameterError("model.person-random", model=type(module).__name__, layer=f" (layer {name!r})")
    weighted = getattr(loss, "weight", None) is not None and getattr(loss, "reduction", "") == "mean"
    if weighted and isinstance(loss, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)):
        raise ParameterError("model.person-loss-weighted", loss=type(loss).__name__)


class TorchGradients:
    """The gradients of a module's loss by person, in the place of the function `gradients` of a training module.

    Neighbouring relation: all records of one person. Guarantees:

    - a row is a function of the model and of one person's records, summed over the records;
    - records of different types or shapes are never joined, so no person changes the type of another's records;
    - records are copied, so an array that `persons` fills again for the next person changes no earlier row;
    - a person whose records fail, by their shape or in the module's code, has a row of NaN, which the silo counts as
      zero for the person alone;
    - rows come in the order of the persons, and no state is kept between calls.

    Args:
        module: The module, in the mode in which gradients are taken. Parameters that require no gradient, and buffers,
            have a gradient of zero.
        loss: Outputs and targets of a batch to a scalar; called with a batch of one record.
        device: The device in torch's words; the processor by default.
        bytes_at_once: Memory for the gradients of a chunk of records.

    Raises:
        ParameterError: The module has batch normalisation or dropout, or the loss divides by class weights of a batch.
    """

    def __init__(
        self, module: Any, loss: Callable[[Any, Any], Any], *, device: str = "cpu", bytes_at_once: int = _BYTES
    ) -> None:
        check_records_apart(module, loss)
        self._module, self._loss, self._device = module.to(device), loss, device
        self._trained = [name for name, value in module.named_parameters() if value.requires_grad]
        size = sum(module.get_parameter(name).numel() for name in self._trained)
        self._records = max(bytes_at_once // (8 * max(size, 1)), 1)

    def __call__(self, model: Mapping[str, Any], records: Any) -> dict[str, Any]:
        """Returns the gradient of one person's records by name, as the function `gradients` of a training module.

        Args:
            model: The model as a state dict or as named arrays.
            records: Inputs and targets of the person, two arrays or tensors with the records on the first axis.
        """
        [row] = self._rows_of(self._tensors(model), [self._records_of(records)])
        ends = np.cumsum([int(np.prod(np.shape(value))) for value in model.values()])
        parts = np.split(row, ends[:-1])
        return {name: part.reshape(np.shape(value)) for (name, value), part in zip(model.items(), parts, strict=True)}

    def rows(self, model: Mapping[str, Any], persons: Iterable[Any]) -> Iterator[FloatArray]:
        """Yields matrices of gradients, a row for each person, coordinates in the order of the model's arrays.

        Args:
            model: The model as a state dict or as named arrays.
            persons: For every person inputs and targets, two arrays or tensors with the records on the first axis.
        """
        tensors, waiting, count = self._tensors(model), list[Any](), 0
        for person in persons:
            records = self._records_of(person)
            length = 1 if records is None else max(len(records[0]), 1)  # a person without records has a row too
            if waiting and count + length > self._records:
                yield self._rows_of(tensors, waiting)
                waiting, count = [], 0
            waiting.append(records)
            count += length
        if waiting:
            yield self._rows_of(tensors, waiting)

    def _tensors(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the model as tensors on the device, in the dtypes of the module."""
        torch, own = _require_torch(), self._module.state_dict()
        travelling = {name for name, value in own.items() if value.is_floating_point()}
        odd = sorted(travelling.symmetric_difference(name for name in model if name not in own or name in travelling))
        if odd:
            raise ParameterError("model.person-arrays", model=type(self._module).__name__, array=odd[0])
        return {name: torch.as_tensor(value).to(own[name]) for name, value in model.items()}

    def _records_of(self, person: Any) -> tuple[Any, Any] | None:
        """Returns inputs and targets of a person as tensors, or None for records of another form."""
        torch = _require_torch()
        dtype = self._module.get_parameter(self._trained[0]).dtype
        try:
            # Copied: `persons` may fill the same array again for the next person, and records wait for a whole chunk.
            inputs, targets = (torch.as_tensor(part).detach().to(self._device, copy=True) for part in person)
            if len(inputs) != len(targets):
                return None
        except KeyboardInterrupt:  # the operator's
            raise
        except BaseException:  # any form that the user's function gives; the row of the person is NaN
            return None
        inputs, targets = (part.to(dtype) if part.is_floating_point() else part for part in (inputs, targets))
        return inputs, targets

    def _rows_of(self, tensors: Mapping[str, Any], persons: Sequence[tuple[Any, Any] | None]) -> FloatArray:
        """Returns a row for each person; persons whose records fail have rows of NaN."""
        torch = _require_torch()
        total = torch.zeros((len(persons), sum(value.numel() for value in tensors.values())), dtype=torch.float64)
        total[[records is None for records in persons]] = torch.nan
        # Joined, records of two types become one type: one person would change the records of all others.
        if len(forms := {_form(records) for records in persons if records is not None}) > 1:
            for form in forms:
                alike = [number for number, records in enumerate(persons) if records and _form(records) == form]
                total[alike] = torch.from_numpy(self._rows_of(tensors, [persons[number] for number in alike]))
            return np.asarray(total.numpy())
        held = [(number, *records) for number, records in enumerate(persons) if records and len(records[0])]
        try:
            if held:
                numbers, inputs, targets = zip(*held, strict=True)
                counts = torch.as_tensor([len(records) for records in inputs])
                person_of = torch.as_tensor(numbers).repeat_interleave(counts)
                joined = torch.cat(inputs), torch.cat(targets)
                for begin in range(0, len(person_of), self._records):
                    part = slice(begin, begin + self._records)
                    total.index_add_(0, person_of[part], self._flat(tensors, *(values[part] for values in joined)))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of the user's module, which may fail by the records of one person alone
            if len(persons) > 1:
                # By halves: one by one, a single person would make the round as long as without chunks, perhaps longer
                # than its deadline, and the round of all persons would then be noise alone.
                halves = persons[: len(persons) // 2], persons[len(persons) // 2 :]
                return np.concatenate([self._rows_of(tensors, half) for half in halves])
            _logger.warning("the gradients of one person failed: %s", error_in_words(error))
            total[:] = torch.nan
        return np.asarray(total.numpy())

    def _flat(self, tensors: Mapping[str, Any], inputs: Any, targets: Any) -> Any:
        """Returns the gradients of records as rows in double precision, on the processor."""
        torch = _require_torch()
        trained = {name: tensors[name] for name in self._trained}
        fixed = {name: value for name, value in tensors.items() if name not in trained}

        def loss(parameters: Any, record: Any, target: Any) -> Any:
            return self._loss(torch.func.functional_call(self._module, {**fixed, **parameters}, (record,)), target)

        gradients = map_gradients(loss, trained, inputs, targets)
        parts = [gradients.get(name, value.new_zeros((len(inputs), value.numel()))) for name, value in tensors.items()]
        return torch.cat([part.reshape(len(inputs), -1).double().cpu() for part in parts], dim=1)


def _form(records: tuple[Any, Any]) -> tuple[Any, ...]:
    """Returns the types of a person's inputs and targets, and the shapes of one record."""
    return tuple((part.dtype, tuple(part.shape[1:])) for part in records)


def _require_torch() -> Any:
    """Returns torch, or raises `MissingExtraError`."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("model.torch-missing") from None
    return torch
