"""Gradients by record of a module's layers from a single pass over a batch, without a gradient written down for each.

The gradient of a linear layer for a record is an outer product, (gradient at the layer's outputs) times (inputs). So
the norm is the product of two norms, and a weighted sum over records is a product of two matrices: "ghost clipping".
Convolutions and normalisations write down a gradient for each record, which is small beside the images.

Calls of layers are recorded while the module runs, and the gradients at the outputs of all calls come from one backward
pass. A parameter that enters the module in another way has a gradient in the graph of the pass, and the module is then
refused: `torch.func` maps the module over records instead (`fulcrum.core.training.torch_gradients`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fulcrum.simulation.torch.torch_state import Tensors, require_torch

_PATCHES_AT_ONCE = 1 << 18  # numbers, 1 MiB in single precision: about the cache of a processor core
_FEW_FILTERS = 16  # with fewer columns a product is up to twice as fast if places are innermost in memory


class UnknownLayerError(Exception):
    """A trained parameter enters the module in a way without a form here; mapping over records takes the module."""


@dataclass(slots=True, eq=False)
class LayerCall:
    """A call of a layer with trained parameters.

    Attributes:
        form: The function that gives gradients by record.
        inputs: The inputs of the call, records on the first axis.
        names: The trained parameters of the call by argument, "weight" or "bias".
        shapes: The shapes of these parameters by argument.
        settings: Further arguments of the layer.
        version: The number of writes to the inputs before the call.
        output_gradient: The gradient at the outputs after the backward pass; None for outputs without effect.
    """

    form: Callable[["LayerCall"], Tensors]
    inputs: Any
    names: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    settings: dict[str, Any]
    version: int
    output_gradient: Any = None


@dataclass(slots=True, eq=False)
class RecordGradients:
    """The gradients of a batch by record: factors of outer products, and rows.

    Attributes:
        pairs: By parameter of a linear layer, (gradients at outputs, inputs): the gradient of a record is their outer
            product.
        rows: By parameter, the gradient of every record in a row.
        groups: By weight of a convolution, the number of groups; the rows of such a weight have filters innermost.
        is_by_person: True after the rows were added up by person.
    """

    pairs: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    rows: Tensors = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    is_by_person: bool = False

    def norms(self, person_of: Any | None, persons: int) -> Any:
        """Returns the norm of every person's gradient in double precision; the rows become sums by person.

        Args:
            person_of: The person of every record, from 0; None if every record is a person.
            persons: The number of persons.
        """
        if person_of is not None:
            self.sum_by_person(person_of, persons)
        squares = [_squares(outputs) * _squares(inputs) for outputs, inputs in self.pairs.values()]
        return sum(map(_squares, self.rows.values()), start=sum(squares)).sqrt()

    def sum_by_person(self, person_of: Any, persons: int) -> None:
        """Replaces the gradients of records by sums over persons, in place."""
        for name, (outputs, inputs) in self.pairs.items():
            self.rows[name] = (outputs.unsqueeze(2) * inputs.unsqueeze(1)).flatten(1)
        self.pairs.clear()
        for name, rows in self.rows.items():
            self.rows[name] = rows.new_zeros((persons, rows.shape[1])).index_add_(0, person_of, rows)
        self.is_by_person = True

    def plus(self, further: "RecordGradients") -> "RecordGradients":
        """Returns the sum with the gradients of further records of the same persons, both added up by person."""
        rows = {name: self.rows.get(name, 0.0) + further.rows.get(name, 0.0) for name in self.rows | further.rows}
        return RecordGradients(rows=rows, groups=self.groups | further.groups, is_by_person=True)

    def drop(self, persons: Any) -> None:
        """Sets the gradients of persons to zero by a mask: NaN and infinity times a factor of zero are not zero."""
        for name, factors in self.pairs.items():
            outputs, inputs = (values.masked_fill(persons[:, None], 0.0) for values in factors)
            self.pairs[name] = outputs, inputs
        for name, rows in self.rows.items():
            self.rows[name] = rows.masked_fill(persons[:, None], 0.0)

    def weighted_sum(self, factors: Any, part: slice, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
        """Returns by parameter the sum over a part of the persons, every person times a factor."""
        own = factors[part]
        sums = {}
        for name, shape in shapes.items():
            if name in self.pairs:
                outputs, inputs = self.pairs[name]
                sums[name] = (outputs[part] * own[:, None]).T @ inputs[part]
            elif name in self.rows:
                added = own @ self.rows[name][part]
                groups = self.groups.get(name)
                sums[name] = added.reshape(shape) if groups is None else _filters_first(added, shape, groups)
            else:
                sums[name] = own.new_zeros(shape)
        return sums


def _squares(values: Any) -> Any:
    """Returns the squared norms of rows in double precision, in which no square of single precision overflows."""
    return require_torch().linalg.vector_norm(values, dim=1, dtype=require_torch().float64).square()


def gradients_by_layers(
    loss: Callable[[Tensors], Any], parameters: Tensors, records: int, *, single: bool = True
) -> RecordGradients:
    """Returns the gradients of a loss by record; no record may have an effect on the loss of another record.

    Args:
        loss: Parameters to the sum of the losses of all records.
        parameters: The trained parameters by name.
        records: The number of records; every recorded call has the records on its first axis.
        single: True keeps factors of outer products where a layer is called once.

    Raises:
        UnknownLayerError: A parameter enters the module in a way without a form here.
    """
    torch = require_torch()
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    anchor = torch.zeros((), device=next(iter(leaves.values())).device, requires_grad=True)
    calls: list[LayerCall] = []
    with _mode()({id(leaf): name for name, leaf in leaves.items()}, records, anchor, calls):
        total = loss(leaves)
    if not total.requires_grad:
        raise UnknownLayerError("no layer with trained parameters was called")
    *unrecorded, _ = torch.autograd.grad(total, [*leaves.values(), anchor], allow_unused=True)
    elsewhere = [name for name, gradient in zip(leaves, unrecorded, strict=True) if gradient is not None]
    if elsewhere:
        raise UnknownLayerError(f"{elsewhere[0]} is used outside of known layers")
    if any(call.inputs._version != call.version for call in calls):
        raise UnknownLayerError("the inputs of a layer are written to after the call")
    gradients = RecordGradients()
    uses: dict[str, list[LayerCall]] = {}
    for call in calls:
        for name in call.names.values():
            uses.setdefault(name, []).append(call)
    for name, used_by in uses.items():  # rows of one parameter must have one order
        if len({(call.form, call.settings.get("groups")) for call in used_by}) > 1:
            raise UnknownLayerError(f"{name} is used by layers of several kinds")
    for call in calls:
        if call.output_gradient is None:
            continue
        weight = call.names.get("weight", "")
        paired = single and call.form is _linear_rows and call.inputs.ndim == 2 and len(uses.get(weight, ())) == 1
        if paired:
            gradients.pairs[weight] = call.output_gradient, call.inputs
            del call.names["weight"]
        if call.form is _convolution_rows and weight:
            gradients.groups[weight] = call.settings["groups"]
        for argument, rows in call.form(call).items():
            name = call.names[argument]
            gradients.rows[name] = gradients.rows[name] + rows if name in gradients.rows else rows
    return gradients


@cache
def _tap() -> Any:
    """Returns an identity that notes the gradient at its output."""
    torch = require_torch()

    class Tap(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, outputs: Any, _anchor: Any, call: LayerCall) -> Any:
            # Marked as written in place: the module may write to the outputs, as `relu(inplace=True)` does.
            ctx.call = call
            ctx.mark_dirty(outputs)
            return outputs

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            ctx.call.output_gradient = gradient
            return gradient, None, None

    return Tap


@cache
def _mode() -> Any:
    """Returns the class of the mode that records calls."""
    torch = require_torch()
    functional = torch.nn.functional
    readers: dict[Any, Callable[..., LayerCall | None]] = {
        functional.linear: _linear_call,
        torch.conv1d: _convolution_call,
        torch.conv2d: _convolution_call,
        functional.group_norm: _group_norm_call,
        functional.layer_norm: _layer_norm_call,
    }

    class RecordCalls(torch.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]
        def __init__(self, names: dict[int, str], records: int, anchor: Any, calls: list[LayerCall]) -> None:
            super().__init__()
            self.names, self.records, self.anchor, self.calls = names, records, anchor, calls

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = dict(kwargs or {})
            reader = readers.get(func)
            if reader is None or not self.uses_parameter((*args, *named.values())):
                return func(*args, **named)
            call = reader(self.names, *args, **named)
            if call is None or not call.inputs.ndim or len(call.inputs) != self.records:
                return func(*args, **named)
            frozen = [self.freeze(value) for value in args]
            outputs = func(*frozen, **{name: self.freeze(value) for name, value in named.items()})
            self.calls.append(call)
            return _tap().apply(outputs, self.anchor, call)

        def uses_parameter(self, values: Sequence[Any]) -> bool:
            return any(id(value) in self.names for value in values)

        def freeze(self, value: Any) -> Any:
            return value.detach() if id(value) in self.names else value

    return RecordCalls


def _call(
    form: Callable[[LayerCall], Tensors], ids: Mapping[int, str], inputs: Any, weight: Any, bias: Any, **settings: Any
) -> LayerCall | None:
    arguments = {"weight": weight, "bias": bias}
    names = {argument: ids[id(value)] for argument, value in arguments.items() if id(value) in ids}
    shapes = {argument: tuple(arguments[argument].shape) for argument in names}
    held = inputs.detach()
    return LayerCall(form=form, inputs=held, names=names, shapes=shapes, settings=settings, version=held._version)


def _linear_call(ids: Mapping[int, str], input: Any, weight: Any, bias: Any = None) -> LayerCall | None:  # noqa: A002
    return _call(_linear_rows, ids, input, weight, bias) if input.ndim > 1 else None


def _linear_rows(call: LayerCall) -> Tensors:
    gradient, inputs = call.output_gradient, call.inputs
    rows = {}
    if "weight" in call.names:
        if inputs.ndim == 2:
            rows["weight"] = (gradient.unsqueeze(2) * inputs.unsqueeze(1)).flatten(1)
        else:
            rows["weight"] = (gradient.flatten(1, -2).transpose(1, 2) @ inputs.flatten(1, -2)).flatten(1)
    if "bias" in call.names:
        rows["bias"] = gradient if gradient.ndim == 2 else gradient.flatten(1, -2).sum(dim=1)
    return rows


def _convolution_call(
    ids: Mapping[int, str],
    input: Any,  # noqa: A002
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> LayerCall | None:
    if input.ndim != weight.ndim or isinstance(padding, str):
        return None
    return _call(
        _convolution_rows,
        ids,
        input,
        weight,
        bias,
        kernel=tuple(weight.shape[2:]),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )


def _convolution_rows(call: LayerCall) -> Tensors:
    """Returns the gradients of a convolution: patches of the images, times the gradients at the outputs.

    Rows of weights have the order (groups, inputs of a filter, filters of a group), in which the product comes without
    copies of the gradients at the outputs; `_filters_first` restores the order of the weights in a sum of rows.
    """
    settings, gradient = call.settings, call.output_gradient
    batch, groups = len(gradient), settings["groups"]
    by_place = gradient.movedim(1, -1).reshape(batch, -1, gradient.shape[1])  # a view if channels are innermost
    rows = {}
    if "weight" in call.names:
        outputs = by_place
        if groups > 1:
            outputs = by_place.unflatten(2, (groups, -1)).transpose(1, 2).flatten(0, 1)
        rows["weight"] = _products_of_patches(call, outputs).reshape(batch, -1)
    if "bias" in call.names:
        rows["bias"] = by_place.sum(dim=1)
    return rows


def _products_of_patches(call: LayerCall, outputs: Any) -> Any:
    """Returns by record and group the product of patches of the images and gradients at the outputs.

    A processor pads the images and copies the patches of few records at a time: both buffers stay in the processor's
    cache, and patches of a whole chunk would be many times as large as the images.

    Args:
        call: The call of the convolution.
        outputs: The gradients at the outputs, (records * groups, places, filters of a group).
    """
    torch, images, groups = require_torch(), call.inputs, call.settings["groups"]
    batch, channels, *sizes = images.shape
    places, kernel = call.output_gradient.shape[2:], call.settings["kernel"]
    stride, padding, dilation = (
        (value,) * len(sizes) if isinstance(value, int) else tuple(value) * (len(sizes) // len(value))
        for value in (call.settings["stride"], call.settings["padding"], call.settings["dilation"])
    )
    numbers = channels * math.prod(kernel) * math.prod(places)
    at_once = batch if images.is_cuda else min(max(_PATCHES_AT_ONCE // max(numbers, 1), 1), batch)
    padded = images.new_zeros((at_once, channels, *(size + 2 * pad for size, pad in zip(sizes, padding, strict=True))))
    inner = padded[:, :, *(slice(pad, pad + size) for size, pad in zip(sizes, padding, strict=True))]
    gaps, moves = (
        [step * count for step, count in zip(padded.stride()[2:], counts, strict=True)] for counts in (dilation, stride)
    )
    patches = padded.as_strided((at_once, channels, *kernel, *places), (*padded.stride()[:2], *gaps, *moves))
    buffer = patches.new_empty(patches.shape)
    flat = buffer.view(at_once * groups, -1, outputs.shape[1])
    products = outputs.new_empty((batch * groups, flat.shape[1], outputs.shape[2]))
    for begin in range(0, batch, at_once):
        count = min(at_once, batch - begin)
        part = outputs[begin * groups : (begin + count) * groups]
        if outputs.shape[2] < _FEW_FILTERS and not images.is_cuda:
            part = part.transpose(1, 2).contiguous().transpose(1, 2)
        inner[:count].copy_(images[begin : begin + count])
        buffer[:count].copy_(patches[:count])
        torch.bmm(flat[: count * groups], part, out=products[begin * groups : (begin + count) * groups])
    return products


def _filters_first(values: Any, shape: tuple[int, ...], groups: int) -> Any:
    """Returns a sum of a convolution's rows in the shape of the weights."""
    return values.reshape(groups, -1, shape[0] // groups).transpose(1, 2).reshape(shape)


def _group_norm_call(
    ids: Mapping[int, str],
    input: Any,  # noqa: A002
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> LayerCall | None:
    return _call(_group_norm_rows, ids, input, weight, bias, num_groups=num_groups, eps=eps)


def _group_norm_rows(call: LayerCall) -> Tensors:
    torch, gradient = require_torch(), call.output_gradient
    rows = {}
    if "weight" in call.names:
        normalised = torch.nn.functional.group_norm(call.inputs, **call.settings)
        rows["weight"] = (gradient * normalised).flatten(2).sum(dim=2) if gradient.ndim > 2 else gradient * normalised
    if "bias" in call.names:
        rows["bias"] = gradient.flatten(2).sum(dim=2) if gradient.ndim > 2 else gradient
    return rows


def _layer_norm_call(
    ids: Mapping[int, str],
    input: Any,  # noqa: A002
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> LayerCall | None:
    if input.ndim <= len(normalized_shape):
        return None
    return _call(_layer_norm_rows, ids, input, weight, bias, normalized_shape=normalized_shape, eps=eps)


def _layer_norm_rows(call: LayerCall) -> Tensors:
    torch, gradient = require_torch(), call.output_gradient
    axes = len(call.settings["normalized_shape"])
    rows = {}

    def add_places(values: Any) -> Any:
        return values.reshape(len(values), -1, math.prod(values.shape[-axes:])).sum(dim=1)

    if "weight" in call.names:
        rows["weight"] = add_places(gradient * torch.nn.functional.layer_norm(call.inputs, **call.settings))
    if "bias" in call.names:
        rows["bias"] = add_places(gradient)
    return rows
