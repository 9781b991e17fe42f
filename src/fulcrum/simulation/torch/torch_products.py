"""Layers as batched matrix products: what a user's module computes while it is mapped over silos.

Every silo has weights of its own. Mapped as they are, convolutions become grouped convolutions with a group for every
silo, which are slow, above all on a GPU. Here they are products of matrices, a few for every silo. What comes out lies
in memory with the batch innermost: activations, pooling and linear layers go on in that order, without copies.

Every layer computes what torch's own function does, up to the order in which numbers are added. Whatever is not
covered goes to torch's own function.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from fulcrum.simulation.torch.torch_model import require_torch

_PLACES_AT_ONCE = 9


def layers_by_products(shared: Iterable[Any] = ()) -> Any:
    """Returns a mode in which layers take the forms of this module.

    Args:
        shared: Weights that are the same for all silos: there torch's own function takes all silos as one batch.
    """
    return _mode()({id(each) for each in shared})


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
                found = form(*inputs, *args, **named)
                if found is not None:
                    return found
            return func(*args, **(kwargs or {}))

    return LayersByProducts


def _linear(inputs: Any, weight: Any, bias: Any = None) -> Any:
    """Returns a linear layer that multiplies weights from the left, or None where it is torch's to do.

    The product is the same. Mapped over silos, the gradient of the weights then lies in memory as the weights do, and
    adding it is several times as fast as adding its transpose.
    """
    if inputs.ndim != 2:
        return None
    product = weight.mm(inputs.T)
    return (product if bias is None else product + bias.unsqueeze(1)).T


def _embedding(places: Any, weight: Any, padding_idx: int | None = None, *args: Any, **kwargs: Any) -> Any:
    """Returns rows of a table of which the one that pads has no gradient, or None where no row pads.

    Mapped over silos, torch's own function forgets that.
    """
    if padding_idx is None:
        return None
    found = require_torch().nn.functional.embedding(places, weight, None, *args, **kwargs)
    pads = places == padding_idx % len(weight)
    return require_torch().where(pads.unsqueeze(-1), found.detach(), found)


def _pooling(pool: Callable[..., Any], images: Any, *args: Any, **kwargs: Any) -> Any:
    """Returns what is pooled of images whose batch is innermost in memory, or None for others.

    Images are pooled each by itself. With batch and channels in each other's place they lie in memory as torch calls
    `channels_last`, for which it has faster forms.
    """
    if images.ndim != 4 or images.stride(0) != 1:
        return None
    found = pool(images.transpose(0, 1), *args, **kwargs)
    return tuple(each.transpose(0, 1) for each in found) if isinstance(found, tuple) else found.transpose(0, 1)


def _group_norm(images: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Returns images with the channels of each group normalised, or None unless their batch is innermost in memory."""
    if not _alike(images, weight, bias) or images.ndim < 3 or images.stride(0) != 1 or images.shape[1] % groups:
        return None
    channels = images.shape[1]
    weight = images.new_ones(channels) if weight is None else weight
    bias = images.new_zeros(channels) if bias is None else bias
    return _functions().normalised(images[None], weight[None], bias[None], groups, eps).squeeze(0)


def _convolution(
    images: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """Returns the convolution of a batch, or None where it is torch's to do, or to refuse."""
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
    """Whether all are in the same precision, single or double: in half precision sums would lose digits on the way."""
    torch = require_torch()
    return {each.dtype for each in tensors if each is not None} in ({torch.float32}, {torch.float64})


def _unfolds_wholly(images: Any, weight: Any) -> bool:
    """Whether a kernel is multiplied at once, not row by row: up to 1.6 times as fast on a GPU, slower on processors.

    The unfolded image then has a copy for every place of the kernel, so the kernel must be small.
    """
    return bool(images.is_cuda) and math.prod(weight.shape[2:]) <= _PLACES_AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sliding:
    """How a kernel slides over an image, axis by axis; there are at least two axes.

    Every row of the kernel is a product of its own, with one range of the unfolded image. Only along the other axes is
    the image unfolded, that is copied for every place in a row of the kernel. Where a stride skips rows, those that the
    first row of the kernel meets stand together, then those that follow them, and so on: what a row meets is one range.
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
        """Returns it for the arguments of a convolution; `whole` makes the image a single row, all of it unfolded."""
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
    def padded(self) -> tuple[int, ...]:
        """The image with its padding, and rows up to a multiple of the stride."""
        rows, *others = map(sum, zip(self.image, self.before, self.after, strict=True))
        return (rows + -rows % self.stride[0], *others)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The image that comes out."""
        sides = map(sum, zip(self.image, self.before, self.after, strict=True))
        found = zip(sides, self.kernel, self.stride, self.dilation, strict=True)
        return tuple((side - apart * (places - 1) - 1) // step + 1 for side, places, step, apart in found)

    @property
    def is_by_place(self) -> bool:
        """Whether a kernel of a single place meets every place of the image: then nothing is copied."""
        return set(self.kernel) == {1} and self.padded == self.image == self.outputs

    def columns(self, images: Any) -> Any:
        """Returns unfolded images, (stack, channels and places in a row, rows and other axes and batch).

        Args:
            images: (stack, batch, channels, image).
        """
        seen, axes = images.movedim(1, -1), len(self.kernel)
        if self.is_by_place:
            return seen.reshape(*seen.shape[:2], -1)
        if self.padded != self.image:
            sides = list(zip(self.before, self.image, self.padded, strict=True))
            pads = [pad for before, side, padded in reversed(sides) for pad in (before, padded - side - before)]
            seen = require_torch().nn.functional.pad(seen, [0, 0, *pads])
        for axis in range(1, axes):
            window = self.dilation[axis] * (self.kernel[axis] - 1) + 1
            seen = seen.unfold(2 + axis, window, self.stride[axis])[..., :: self.dilation[axis]]
        seen = seen.unflatten(2, (-1, self.stride[0])).transpose(2, 3)
        seen = seen.movedim(tuple(range(4 + axes, seen.ndim)), tuple(range(2, 1 + axes)))
        return seen.reshape(len(seen), math.prod(seen.shape[1 : 1 + axes]), -1)

    def images_of(self, columns: Any, channels: int) -> Any:
        """Returns the sum of what was unfolded, each in its place, (stack, batch, channels, image)."""
        step, (rows, *others) = self.stride[0], self.padded
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
        """Yields what each row of the kernel meets of so many columns."""
        step, rows = self.stride[0], self.padded[0]
        wide = columns // rows
        for row in range(self.kernel[0]):
            down, skipped = divmod(row * self.dilation[0], step)
            first = skipped * (rows // step) + down
            yield slice(first * wide, (first + self.outputs[0]) * wide)


@cache
def _functions() -> SimpleNamespace:
    """Returns functions of tensors whose first axis stacks silos.

    They keep for gradients what they are given and no more, so that gradients can be differentiated in turn.
    """
    torch = require_torch()

    class Stacked(torch.autograd.Function):  # type: ignore[misc,name-defined]
        """What is mapped joins the stack."""

        @classmethod
        def vmap(cls, info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, int]:
            def joined(given: Any, axis: int | None) -> Any:
                if not isinstance(given, torch.Tensor):
                    return given
                silos = given.expand(info.batch_size, *given.shape) if axis is None else given.movedim(axis, 0)
                return silos.flatten(0, 1)

            found = cls.apply(*map(joined, args, in_dims))
            return found.unflatten(0, (info.batch_size, -1)), 0

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
                of_weight = torch.stack([each.unflatten(2, (weight.shape[2], -1)) for each in by_row], dim=3)
            if ctx.needs_input_grad[2]:
                of_bias = gradient.sum(dim=2, keepdim=True)
            return of_columns, of_weight, of_bias, None

    class Normalised(Stacked):
        @staticmethod
        def forward(images: Any, weight: Any, bias: Any, groups: int, eps: float) -> Any:
            centred, scale = _standardised(_by_group(images, groups), eps)
            weight, bias = (each.reshape(*centred.shape[:3], 1, 1) for each in (weight, bias))
            scaled = torch.addcmul((bias + torch.zeros_like(scale)), centred, scale * weight)
            return _by_batch(scaled, images.shape)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, Any, Any, int, float], output: Any) -> None:  # noqa: ARG004
            images, weight, _, ctx.groups, ctx.eps = inputs
            ctx.save_for_backward(images, weight)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> tuple[Any, Any, Any, None, None]:
            images, weight = ctx.saved_tensors
            centred, scale = _standardised(_by_group(images, ctx.groups), ctx.eps)
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
    """Returns images of a shape, (stack, batch, channels, image), of what `_by_group` gave."""
    stack, batch, *others = shape
    return grouped.reshape(stack, *others, batch).movedim(-1, 1)


def _standardised(grouped: Any, eps: float) -> tuple[Any, Any]:
    """Returns what groups are less their mean, and one over their spread."""
    centred = grouped - grouped.mean(dim=(2, 3), keepdim=True)
    return centred, (centred.square().mean(dim=(2, 3), keepdim=True) + eps).rsqrt()


def _rows(weight: Any) -> Any:
    """Returns kernels (stack, outputs, channels, rows, places in a row) as matrices, row by row."""
    return weight.movedim(3, 0).flatten(3)
