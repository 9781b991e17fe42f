"""Layers as batched matrix products, for a user's module that is mapped over silos.

Every silo has weights of its own. By default a mapped convolution becomes a grouped convolution with a group for every
silo, and grouped convolutions are slow, above all on a GPU. Here a convolution is a few products of matrices for every
silo. Outputs lie in memory with the batch innermost: activations, pooling and linear layers continue in this order,
without copies.

Every layer computes the result of torch's own function, up to the order of additions. Cases not covered go to torch's
own function.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from fulcrum.simulation.torch.torch_state import require_torch

_PLACES_AT_ONCE = 9


def layers_by_products(shared: Iterable[Any] = ()) -> Any:
    """Returns a mode in which layers take the forms of this module.

    Args:
        shared: Weights common to all silos: for shared weights torch's own function takes all silos as a single batch.
    """
    return _mode()({id(weight) for weight in shared})


@cache
def _mode() -> Any:
    """Returns the class of the mode."""
    torch = require_torch()
    functional = torch.nn.functional
    forms: dict[Any, Callable[..., Any]] = {
        functional.linear: _linear,
        functional.embedding: _embedding,
        torch.conv1d: _convolution,
        torch.conv2d: _convolution,
        torch.conv3d: _convolution,
        functional.max_pool2d: partial(_pooling, functional.max_pool2d),
        functional.avg_pool2d: partial(_pooling, functional.avg_pool2d),
        functional.group_norm: _group_norm,
    }

    class LayersByProducts(torch.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]
        def __init__(self, shared: set[int]) -> None:
            super().__init__()
            self.shared = shared

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            form, named = forms.get(func), dict(kwargs or {})
            if form is not None and self.shared.isdisjoint(map(id, (*args, *named.values()))):
                inputs = (named.pop("input"),) if "input" in named else ()
                result = form(*inputs, *args, **named)
                if result is not None:
                    return result
            return func(*args, **(kwargs or {}))

    return LayersByProducts


def _linear(inputs: Any, weight: Any, bias: Any = None) -> Any:
    """Returns a linear layer that multiplies weights from the left, or None for torch's own function.

    The product is the same. Mapped over silos, the gradient of the weights then lies in memory like the weights, and
    adding the gradient is several times as fast as adding the transpose.
    """
    if inputs.ndim != 2:
        return None
    product = weight.mm(inputs.T)
    return (product if bias is None else product + bias.unsqueeze(1)).T


def _embedding(places: Any, weight: Any, padding_idx: int | None = None, *args: Any, **kwargs: Any) -> Any:
    """Returns rows of a table without a gradient for the padding row, or None without a padding row.

    Mapped over silos, torch's own function gives the padding row a gradient.
    """
    if padding_idx is None:
        return None
    table_rows = require_torch().nn.functional.embedding(places, weight, None, *args, **kwargs)
    pads = places == padding_idx % len(weight)
    return require_torch().where(pads.unsqueeze(-1), table_rows.detach(), table_rows)


def _pooling(pool: Callable[..., Any], images: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns pooled images for a batch innermost in memory, or None for any other order.

    Every image is pooled by itself. With batch and channels exchanged the images lie in memory as torch's
    `channels_last`, and torch has faster forms for `channels_last`.
    """
    if images.ndim != 4 or images.stride(0) != 1:
        return None
    pooled = pool(images.transpose(0, 1), *args, **kwargs)
    return tuple(output.transpose(0, 1) for output in pooled) if isinstance(pooled, tuple) else pooled.transpose(0, 1)


def _group_norm(images: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Returns images with normalised groups of channels, or None unless the batch is innermost in memory."""
    if not _alike(images, weight, bias) or images.ndim < 3 or images.stride(0) != 1 or images.shape[1] % groups:
        return None
    channels = images.shape[1]
    weight = images.new_ones(channels) if weight is None else weight
    bias = images.new_zeros(channels) if bias is None else bias
    return _functions().normalised(images[None], weight[None], bias[None], groups, eps).squeeze(0)


def _convolution(
    images: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """Returns the convolution of a batch, or None for torch to compute, or to refuse."""
    if not _alike(images, weight, bias) or images.ndim != weight.ndim or not images.numel():
        return None
    by_channel = groups > 1 and weight.shape[1] == 1  # silos are then more channels: torch has a form for these
    if by_channel or images.shape[1] != groups * weight.shape[1] or weight.shape[0] % groups:
        return None
    whole = images.ndim == 3 or _unfolds_wholly(images, weight)
    sliding = _Sliding.of(images.shape[2:], weight.shape[2:], stride, padding, dilation, whole=whole)
    if min(sliding.outputs) < 1:
        return None
    batch, outputs = len(images), len(weight)
    stacked = images.reshape(1, batch, -1, *sliding.image)
    columns = sliding.columns(stacked) if sliding.is_by_place else _functions().unfolded(stacked, sliding)
    product = _functions().products(
        columns.reshape(groups, -1, columns.shape[2]),
        weight.reshape(groups, outputs // groups, weight.shape[1], sliding.kernel[0], -1),
        None if bias is None else bias.reshape(groups, -1, 1),
        sliding,
    )
    return product.reshape(outputs, *sliding.outputs[2 - images.ndim :], batch).movedim(-1, 0)


def _alike(*tensors: Any) -> bool:
    """Returns true for tensors of equal precision, single or double: in half precision sums would lose digits."""
    torch = require_torch()
    return {tensor.dtype for tensor in tensors if tensor is not None} in ({torch.float32}, {torch.float64})


def _unfolds_wholly(images: Any, weight: Any) -> bool:
    """Returns true to multiply a whole kernel at once, not row by row: up to 1.6 times as fast on a GPU.

    Processors are slower with a whole kernel. The unfolded image has a copy for every place of the kernel, so the
    kernel must be small.
    """
    return bool(images.is_cuda) and math.prod(weight.shape[2:]) <= _PLACES_AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sliding:
    """The steps of a kernel over an image, axis by axis, with at least two axes.

    Every row of the kernel is a product of its own, with a range of the unfolded image. The image is unfolded along the
    remaining axes alone, with a copy for every place in a row of the kernel. If a stride skips rows, the image rows met
    by the first row of the kernel stand together, then the following image rows, and so on: every row of the kernel
    meets a single range.
    """

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(
        cls, image: Sequence[int], kernel: Sequence[int], stride: Any, padding: Any, dilation: Any, *, whole: bool
    ) -> "_Sliding":
        """Returns the steps for the arguments of a convolution; `whole` makes the image a row, wholly unfolded."""
        axes = len(kernel)

        def by_axis(value: Any) -> tuple[int, ...]:
            values = (value,) if isinstance(value, int) else tuple(value)
            return values * axes if len(values) == 1 else values

        stride, dilation = by_axis(stride), by_axis(dilation)
        around = [apart * (places - 1) for apart, places in zip(dilation, kernel, strict=True)]
        if padding == "same":
            before = tuple(both // 2 for both in around)
            after = tuple(both - both // 2 for both in around)
        else:
            before = after = by_axis(0 if padding == "valid" else padding)
        return cls(
            image=(1,) * whole + tuple(image),
            kernel=(1,) * whole + tuple(kernel),
            stride=(1,) * whole + stride,
            dilation=(1,) * whole + dilation,
            before=(0,) * whole + before,
            after=(0,) * whole + after,
        )

    @property
    def padded_image(self) -> tuple[int, ...]:
        """The shape of the padded image; the number of rows is rounded up to a multiple of the stride."""
        rows, *others = map(sum, zip(self.image, self.before, self.after, strict=True))
        return (rows + -rows % self.stride[0], *others)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The shape of the output image."""
        sides = map(sum, zip(self.image, self.before, self.after, strict=True))
        axes = zip(sides, self.kernel, self.stride, self.dilation, strict=True)
        return tuple((side - apart * (places - 1) - 1) // step + 1 for side, places, step, apart in axes)

    @property
    def is_by_place(self) -> bool:
        """True for a kernel of a single place that meets every place of the image: no copy is needed."""
        return set(self.kernel) == {1} and self.padded_image == self.image == self.outputs

    def columns(self, images: Any) -> Any:
        """Returns unfolded images, (stack, channels and places in a row, rows and other axes and batch).

        Args:
            images: (stack, batch, channels, image).
        """
        seen, axes = images.movedim(1, -1), len(self.kernel)
        if self.is_by_place:
            return seen.reshape(*seen.shape[:2], -1)
        if self.padded_image != self.image:
            sides = list(zip(self.before, self.image, self.padded_image, strict=True))
            pads = [pad for before, side, whole in reversed(sides) for pad in (before, whole - side - before)]
            seen = require_torch().nn.functional.pad(seen, [0, 0, *pads])
        for axis in range(1, axes):
            window = self.dilation[axis] * (self.kernel[axis] - 1) + 1
            seen = seen.unfold(2 + axis, window, self.stride[axis])[..., :: self.dilation[axis]]
        seen = seen.unflatten(2, (-1, self.stride[0])).transpose(2, 3)
        seen = seen.movedim(tuple(range(4 + axes, seen.ndim)), tuple(range(2, 1 + axes)))
        return seen.reshape(len(seen), math.prod(seen.shape[1 : 1 + axes]), -1)

    def images_of(self, columns: Any, channels: int) -> Any:
        """Returns the sum of unfolded images, with every value in its place, (stack, batch, channels, image)."""
        step, (rows, *others) = self.stride[0], self.padded_image
        parts = columns.reshape(len(columns), channels, *self.kernel[1:], step, rows // step, *self.outputs[1:], -1)
        images = columns.new_zeros(len(columns), channels, rows, *others, parts.shape[-1])
        for place in itertools.product(*map(range, self.kernel[1:])):
            met = images.unflatten(2, (-1, step)).transpose(2, 3)
            for axis, index in enumerate(place, start=1):
                first, every = index * self.dilation[axis], self.stride[axis]
                last = first + every * (self.outputs[axis] - 1) + 1
                met = met[(slice(None),) * (3 + axis) + (slice(first, last, every),)]
            met += parts[(slice(None), slice(None), *place)]
        for axis, (before, side) in enumerate(zip(self.before, self.image, strict=True), start=2):
            images = images.narrow(axis, before, side)
        return images.movedim(-1, 1)

    def ranges(self, columns: int) -> Iterator[slice]:
        """Yields the range of columns that every row of the kernel meets."""
        step, rows = self.stride[0], self.padded_image[0]
        wide = columns // rows
        for row in range(self.kernel[0]):
            down, skipped = divmod(row * self.dilation[0], step)
            first = skipped * (rows // step) + down
            yield slice(first * wide, (first + self.outputs[0]) * wide)


@cache
def _functions() -> SimpleNamespace:
    """Returns functions of tensors whose first axis stacks silos.

    The functions keep only their inputs for gradients, so gradients can be differentiated in turn.
    """
    torch = require_torch()

    class Stacked(torch.autograd.Function):  # type: ignore[misc,name-defined]
        """A function of stacked tensors: `vmap` joins the mapped axis (silos) to the first axis, and calls it once."""

        @classmethod
        def vmap(cls, info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, int]:
            def stack_silos(argument: Any, axis: int | None) -> Any:
                if not isinstance(argument, torch.Tensor):
                    return argument
                silos = argument.expand(info.batch_size, *argument.shape) if axis is None else argument.movedim(axis, 0)
                return silos.flatten(0, 1)

            result = cls.apply(*map(stack_silos, args, in_dims))
            return result.unflatten(0, (info.batch_size, -1)), 0

    class Unfolded(Stacked):
        @staticmethod
        def forward(images: Any, sliding: _Sliding) -> Any:
            return sliding.columns(images)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, _Sliding], output: Any) -> None:  # noqa: ARG004
            images, ctx.sliding = inputs
            ctx.channels = images.shape[2]

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
            return ctx.sliding.images_of(gradient, ctx.channels), None

    class Products(Stacked):
        @staticmethod
        def forward(columns: Any, weight: Any, bias: Any, sliding: _Sliding) -> Any:
            product = None
            for row, met in zip(_rows(weight), sliding.ranges(columns.shape[2]), strict=True):
                part = columns[:, :, met]
                if product is not None:
                    product.baddbmm_(row, part)
                else:
                    product = row.bmm(part) if bias is None else torch.baddbmm(bias, row, part)
            return product

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, Any, Any, _Sliding], output: Any) -> None:  # noqa: ARG004
            columns, weight, _, ctx.sliding = inputs
            ctx.save_for_backward(columns, weight)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> tuple[Any, Any, Any, None]:
            columns, weight = ctx.saved_tensors
            of_columns = of_weight = of_bias = None
            ranges = list(ctx.sliding.ranges(columns.shape[2]))
            if ctx.needs_input_grad[0]:
                of_columns = gradient.new_zeros(columns.shape)
                for row, met in zip(_rows(weight), ranges, strict=True):
                    of_columns[:, :, met].baddbmm_(row.mT, gradient)
            if ctx.needs_input_grad[1]:
                by_row = [gradient.bmm(columns[:, :, met].mT) for met in ranges]
                of_weight = torch.stack([row.unflatten(2, (weight.shape[2], -1)) for row in by_row], dim=3)
            if ctx.needs_input_grad[2]:
                of_bias = gradient.sum(dim=2, keepdim=True)
            return of_columns, of_weight, of_bias, None

    class Normalised(Stacked):
        @staticmethod
        def forward(images: Any, weight: Any, bias: Any, groups: int, eps: float) -> Any:
            centred, scale = _standardise(_by_group(images, groups), eps)
            weight, bias = (values.reshape(*centred.shape[:3], 1, 1) for values in (weight, bias))
            scaled = torch.addcmul((bias + torch.zeros_like(scale)), centred, scale * weight)
            return _by_batch(scaled, images.shape)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, Any, Any, int, float], output: Any) -> None:  # noqa: ARG004
            images, weight, _, ctx.groups, ctx.eps = inputs
            ctx.save_for_backward(images, weight)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> tuple[Any, Any, Any, None, None]:
            images, weight = ctx.saved_tensors
            centred, scale = _standardise(_by_group(images, ctx.groups), ctx.eps)
            arriving, by_channel = _by_group(gradient, ctx.groups), weight.reshape(*centred.shape[:3], 1, 1)
            added = arriving.sum(dim=3, keepdim=True)
            along = (arriving * centred).sum(dim=3, keepdim=True)
            places = centred.shape[2] * centred.shape[3]
            shift = (added * by_channel).sum(dim=2, keepdim=True) * scale / -places
            pull = (along * by_channel).sum(dim=2, keepdim=True) * scale**3 / -places
            leaving = torch.addcmul(torch.addcmul(shift, centred, pull), arriving, scale * by_channel)
            of_weight = (along * scale).sum(dim=(3, 4)).reshape(weight.shape)
            of_bias = added.sum(dim=(3, 4)).reshape(weight.shape)
            return _by_batch(leaving, images.shape), of_weight, of_bias, None, None

    return SimpleNamespace(unfolded=Unfolded.apply, products=Products.apply, normalised=Normalised.apply)


def _by_group(images: Any, groups: int) -> Any:
    """Returns images (stack, batch, channels, image) as (stack, groups, channels of a group, image, batch)."""
    return images.movedim(1, -1).reshape(len(images), groups, images.shape[2] // groups, -1, images.shape[1])


def _by_batch(grouped: Any, shape: Sequence[int]) -> Any:
    """Returns images of a shape, (stack, batch, channels, image), from a result of `_by_group`."""
    stack, batch, *others = shape
    return grouped.reshape(stack, *others, batch).movedim(-1, 1)


def _standardise(grouped: Any, eps: float) -> tuple[Any, Any]:
    """Returns groups less their mean, and the inverse of their spread."""
    centred = grouped - grouped.mean(dim=(2, 3), keepdim=True)
    return centred, (centred.square().mean(dim=(2, 3), keepdim=True) + eps).rsqrt()


def _rows(weight: Any) -> Any:
    """Returns kernels (stack, outputs, channels, rows, places in a row) as matrices, row by row."""
    return weight.movedim(3, 0).flatten(3)
