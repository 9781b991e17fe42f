"""A user's own PyTorch module as what a silo trains: which parameters travel, the loss, the local optimiser.

Parameters travel as one flat vector, those that are trained, in the order of `named_parameters`. Frozen parameters and
buffers stay as the module has them: batch statistics are never sent, because no plan counts them.
"""

import copy
import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.errors import DataError, FulcrumError, MissingExtraError, ParameterError, in_one_line
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.metrics import Metric
from fulcrum.simulation.embedded.models import Model
from fulcrum.simulation.torch.torch_modules import chosen_parameters, copied, keep_statistics_home, only_layer

Tensors = dict[str, Any]
"""Tensors by name."""

Loss = Callable[[Any, Any], Any]
"""Outputs (batch, ...) and targets (batch, ...) to a scalar tensor."""

Optimiser = Callable[[list[Any], float], Any]
"""Makes a `torch.optim` optimiser of tensors and a learning rate; it must treat every element alike."""


def require_torch() -> Any:
    """Returns torch, or raises `MissingExtraError`."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("model.torch-missing") from None
    return torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Has no operation begin threads of its own meanwhile: those of silos are small, and waiting would take longer."""
    torch = require_torch()
    before = torch.get_num_threads()
    if before == 1:  # chosen by a user, or for another training, which sets it back
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int, device: str = "cpu") -> Iterator[None]:
    """Has what layers draw of their own, such as dropout, depend on a seed meanwhile, and then go on where it stood."""
    torch = require_torch()
    where, devices = torch.device(device), []
    if where.type == "cuda":
        devices = [torch.cuda.current_device() if where.index is None else where.index]
    with torch.random.fork_rng(devices):  # torch.manual_seed also walks the stack for every kind of device not in use
        for generator in (torch.default_generator, *(torch.cuda.default_generators[each] for each in devices)):
            generator.manual_seed(seed)
        yield


@contextmanager
def as_by_default(device: str = "cpu") -> Iterator[None]:
    """Has torch behave as where nobody chose otherwise: threads do not pass on what a caller chose for itself."""
    torch = require_torch()
    with ExitStack() as held:
        held.enter_context(torch.inference_mode(False))
        held.enter_context(torch.enable_grad())
        for kind in filter(torch.amp.is_autocast_available, {"cpu", torch.device(device).type}):
            held.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            held.enter_context(torch.device(device))
        yield


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchModel:
    """A module, and how silos train it; made by `torch_model`.

    Attributes:
        module: A copy of the user's; only its mode, training or not, is ever changed.
        trained: The names of the parameters that are trained and travel.
        loss: Of a batch; None for the one that fits the task.
        optimiser: Made anew for every silo and round; None for plain SGD.
        metric: Outputs and targets of the test split, as NumPy arrays, to one number; None for the task's.
        frozen_layers: The normalisation layers that keep the statistics they came with.
        layer: The linear layer that alone is trained, weight and bias, where it is so. Its parameters then travel as
            (inputs + 1, outputs) in one row, as those of the built-in head.
        classes: Where that layer is a softmax head on the task, how many classes; see `Model.classes`.
        notes: What a user should know of the module.
    """

    module: Any
    trained: tuple[str, ...]
    loss: Loss | None
    optimiser: Optimiser | None
    metric: Metric | None
    frozen_layers: tuple[str, ...]
    layer: str | None
    notes: tuple[str, ...]
    classes: int | None = None

    @property
    def name(self) -> str:
        """What the module's class is called."""
        return type(self.module).__name__

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every trained parameter."""
        named = dict(self.module.named_parameters())
        return {name: tuple(named[name].shape) for name in self.trained}

    @property
    def parameters(self) -> int:
        """The length d of the vector that travels."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def dtype(self) -> Any:
        """In what the trained parameters are kept, a `torch.dtype`."""
        return self.module.get_parameter(self.trained[0]).dtype

    @property
    def start(self) -> FloatArray:
        """The trained parameters as the module has them, in one row."""
        named = {name: self.module.get_parameter(name).detach().cpu().double() for name in self.trained}
        return np.asarray(self.joined(named).numpy())

    def fixed(self, device: str = "cpu") -> Tensors:
        """Returns copies of what does not travel, on a device: frozen parameters and buffers."""
        every = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return {name: value.detach().clone().to(device) for name, value in every.items() if name not in self.trained}

    def split(self, flat: Any) -> Tensors:
        """Returns the parameters by name of vectors on the last axis; leading axes stay."""
        shapes = self.shapes
        if self.layer is not None:
            weight, bias = self.trained
            rows = flat.unflatten(-1, (shapes[weight][1] + 1, shapes[weight][0]))
            return {weight: rows[..., :-1, :].transpose(-1, -2), bias: rows[..., -1, :]}
        parts = flat.split([math.prod(shape) for shape in shapes.values()], dim=-1)
        return {
            name: part.reshape((*flat.shape[:-1], *shape))
            for (name, shape), part in zip(shapes.items(), parts, strict=True)
        }

    def joined(self, parts: Tensors, leading: int = 0) -> Any:
        """Returns parameters by name as vectors on the last axis, after some leading axes: what `split` undoes."""
        torch = require_torch()
        if self.layer is not None:
            weight, bias = (parts[name] for name in self.trained)
            return torch.cat([weight.transpose(-1, -2), bias.unsqueeze(-2)], dim=-2).flatten(leading)
        return torch.cat(
            [
                parts[name].flatten(leading) if parts[name].ndim > leading else parts[name].unsqueeze(-1)
                for name in self.trained
            ],
            dim=-1,
        )

    def as_tensor(self, values: Any, device: str = "cpu") -> Any:
        """Returns records or targets on a device; whole numbers stay, others get the dtype of the parameters."""
        tensor = require_torch().as_tensor(values)
        return tensor.to(device, self.dtype) if tensor.is_floating_point() else tensor.to(device)

    def outputs(self, parameters: Tensors, fixed: Tensors, inputs: Any) -> Any:
        """Returns what the module says of inputs under some parameters, in the mode that it is in."""
        return require_torch().func.functional_call(self.module, {**fixed, **parameters}, (inputs,))

    @contextmanager
    def mode(self, *, training: bool) -> Iterator[None]:
        """Has the module train or test meanwhile; layers that keep their statistics test in both."""
        self.module.train(training)
        for name in self.frozen_layers:
            self.module.get_submodule(name).eval()
        yield

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Tells in one line what goes wrong meanwhile in the user's code; what runs out of memory is told elsewhere."""
        try:
            yield
        except (FulcrumError, MemoryError, require_torch().OutOfMemoryError):
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {in_one_line(error)}"
            raise ParameterError("model.code-failed", model=self.name, phase=what, reason=told) from error

    @as_by_default()
    def on(self, task: Task) -> "TorchModel":
        """Returns the model with a module of its own and the loss that fits a task, tried on a few of its records.

        Records that do not fit the module, or outputs that do not fit the task, raise `DataError`.

        Args:
            task: What is to be learnt.
        """
        torch = require_torch()
        fitted = replace(self, module=copy.deepcopy(self.module), loss=self.loss or _losses()[task.targets])
        count = len(task.classes)
        few = slice(0, min(4, len(task.labels_train)))
        inputs, targets = self.as_tensor(task.features_train[few]), self.as_tensor(task.labels_train[few])
        shape = tuple(inputs.shape[1:])
        trial = replace(self, module=copy.deepcopy(self.module))  # which keeps what its calls change
        with torch.random.fork_rng(devices=[]), trial.mode(training=True):
            begun = torch.as_tensor(self.start).to(self.dtype)
            leaves = {name: part.clone().requires_grad_() for name, part in self.split(begun).items()}
            try:
                said = trial.outputs(leaves, self.fixed(), inputs.clone())
            except Exception as error:  # whatever a user's module does
                reason = f"{type(error).__name__}: {in_one_line(error)}"
                raise DataError(
                    "model.records-unfit", model=self.name, data=task.name, shape=shape, reason=reason
                ) from error
            self._check_outputs(said, task, targets, by_default=self.loss is None)
            given = tuple(said.shape)
            try:
                value = fitted.loss(said, targets)  # type: ignore[misc]  # it was set above
            except Exception as error:  # whatever a user's loss does
                reason = f"{type(error).__name__}: {in_one_line(error)}"
                raise DataError(
                    "model.loss-unfit",
                    model=self.name,
                    outputs=given,
                    targets=tuple(targets.shape),
                    data=task.name,
                    reason=reason,
                ) from error
        if not isinstance(value, torch.Tensor) or value.ndim:
            got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise ParameterError("model.loss-type", model=self.name, result=got)
        if not torch.isfinite(value):
            raise DataError("model.loss-not-finite", model=self.name, loss=value.item(), data=task.name)
        self._try_step(leaves, value)
        trial._try_testing(task)
        if self.loss is None and task.targets == "classes" and trial._ends_in_head(inputs, count):
            return replace(fitted, classes=count)
        return fitted

    def _check_outputs(self, said: Any, task: Task, targets: Any, *, by_default: bool) -> None:
        """Raises `DataError` for outputs that are no tensor, or do not fit the task's own loss or metric."""
        torch = require_torch()
        if not isinstance(said, torch.Tensor):
            raise DataError("model.output-type", model=self.name, type=type(said).__name__)
        if not by_default:
            return
        wanted = (len(targets), len(task.classes)) if task.targets == "classes" else tuple(targets.shape)
        alike = task.targets == "numbers" and said.shape[:1] == targets.shape[:1] and said.numel() == targets.numel()
        if tuple(said.shape) != wanted and not alike:
            what = f"{len(task.classes)} classes" if task.targets == "classes" else task.targets
            own = "" if self.loss is None else ", or come with a metric of its own (metric=)"
            raise DataError(
                "model.output-shape",
                model=self.name,
                shape=tuple(said.shape),
                records=len(targets),
                data=task.name,
                targets=what,
                expected=wanted,
                alternative=own,
            )

    def _try_testing(self, task: Task) -> None:
        """Raises for a module that cannot be tested on the task's records; nothing is trained before."""
        torch = require_torch()
        few = slice(0, 4)
        inputs, targets = self.as_tensor(task.features_test[few]), self.as_tensor(task.labels_test[few])
        with torch.no_grad(), torch.random.fork_rng(devices=[]), self.mode(training=False):
            parts = self.split(torch.as_tensor(self.start).to(self.dtype))
            with self.telling("testing"):
                said = self.outputs(parts, self.fixed(), inputs.clone())
        self._check_outputs(said, task, targets, by_default=self.metric is None)

    def _try_step(self, leaves: Tensors, loss: Any) -> None:
        """Raises `ParameterError` for a loss without gradients, or an optimiser that cannot use them."""
        torch, tensors = require_torch(), list(leaves.values())
        if not loss.requires_grad:
            raise ParameterError("model.loss-detached", model=self.name)
        try:
            with self.telling("a local step"):
                self.stepping(tensors, 0.01)(torch.autograd.grad(loss, tensors, materialize_grads=True))
        except (MemoryError, torch.OutOfMemoryError):  # the engine tells what does not fit
            return

    def _ends_in_head(self, inputs: Any, classes: int) -> bool:
        """Whether the layer that is trained is a softmax head: what is common to all its classes changes no answer."""
        torch = require_torch()
        if self.layer is None or self.shapes[self.trained[0]][0] != classes:
            return False
        with torch.no_grad(), self.mode(training=False):
            begun = torch.as_tensor(self.start).to(self.dtype)
            common = torch.linspace(-1, 1, len(begun) // classes, dtype=self.dtype).repeat_interleave(classes)
            before, after = (
                self.outputs(self.split(flat), self.fixed(), inputs.clone()).log_softmax(dim=1)
                for flat in (begun, begun + common)
            )
        return bool(torch.allclose(before, after, atol=1e-4))

    def as_model(self, *, learning_rate: float) -> Model:
        """Returns the model as functions of one silo, for the slow engine: plain autograd, one silo at a time."""
        torch = require_torch()

        def init(flat: FloatArray) -> tuple[Tensors, Tensors, Callable[[Sequence[Any]], None]]:
            parts = self.split(torch.as_tensor(flat).to(self.dtype))
            leaves = {name: part.clone().requires_grad_() for name, part in parts.items()}
            return leaves, self.fixed(), self.stepping(list(leaves.values()), learning_rate)

        def step(state: Any, features: FloatArray, labels: IntArray) -> Any:
            leaves, fixed, move = state
            with self.telling("training"), self.mode(training=True):
                said = self.outputs(leaves, fixed, self.as_tensor(features))
                loss = self.loss(said, self.as_tensor(labels))  # type: ignore[misc]  # `on` has set it
                move(torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True))
            return state

        def final(state: Any) -> FloatArray:
            return np.asarray(self.joined({name: leaf.detach().double() for name, leaf in state[0].items()}).numpy())

        def scores(flat: FloatArray, features: FloatArray) -> FloatArray:
            with self.telling("testing"), torch.no_grad(), self.mode(training=False):
                parts = self.split(torch.as_tensor(flat).to(self.dtype))
                inputs = self.as_tensor(features).clone()  # a module may write to what it is given
                return np.asarray(self.outputs(parts, self.fixed(), inputs).double().numpy())

        return Model(
            parameters=self.parameters,
            init=init,
            step=step,
            final=final,
            scores=scores,
            start=self.start,
            classes=self.classes,
            metric=self.metric,
        )

    def stepping(self, leaves: list[Any], learning_rate: float) -> Callable[[Sequence[Any]], None]:
        """Returns a function that moves the leaves by their gradients: the user's optimiser, or plain SGD."""
        torch = require_torch()
        if self.optimiser is None:

            def move(gradients: Sequence[Any]) -> None:
                with torch.no_grad():
                    torch._foreach_add_(leaves, list(gradients), alpha=-learning_rate)

            return move
        optimiser = self.optimiser(leaves, learning_rate)

        def moved(gradients: Sequence[Any]) -> None:
            for leaf, gradient in zip(leaves, gradients, strict=True):
                leaf.grad = gradient
            optimiser.step()

        return moved


def torch_model(
    model: Any,
    *,
    trained: str | Sequence[str] = "*",
    loss: Loss | None = None,
    optimiser: Optimiser | None = None,
    metric: Metric | None = None,
    seed: int = 0,
) -> TorchModel:
    """Returns a PyTorch module as what a silo trains.

    Args:
        model: A `torch.nn.Module`, or what makes one when called without arguments, such as its class. A `TorchModel`,
            or what makes one, is taken as it is; then nothing else may be given.
        trained: Patterns of the names of parameters that are trained, such as "head.*"; all by default. Parameters
            that do not require gradients stay frozen.
        loss: Outputs and targets of a batch, as tensors, to a scalar; by default the cross-entropy for classes, the
            squared error for numbers, the binary cross-entropy for labels.
        optimiser: Tensors and learning rate to a `torch.optim` optimiser, made anew for every silo and round; it must
            treat every element alike, as SGD and Adam do. Plain SGD by default.
        metric: Outputs and targets of the test split, as NumPy arrays, to one number.
        seed: Of the module's own start, where it is made here.
    """
    torch = require_torch()
    patterns = [trained] if isinstance(trained, str) else list(trained or ())
    given = model if isinstance(model, (TorchModel, torch.nn.Module)) else _made(model, seed)
    if isinstance(given, TorchModel):
        if patterns != ["*"] or loss or optimiser or metric:
            raise ParameterError("model.settings-twice", model=given.name)
        return given
    if not isinstance(given, torch.nn.Module):
        raise ParameterError("model.factory-type", model=_called(model), type=type(given).__name__)
    module = copied(given)
    chosen = chosen_parameters(module, patterns)
    frozen, notes = keep_statistics_home(module, chosen)
    total, count = (
        sum(math.prod(module.get_parameter(name).shape) for name in names)
        for names in (dict(module.named_parameters()), chosen)
    )
    if count < total:
        notes.append(f"{count:,} of {total:,} parameters of {type(module).__name__} are trained; the others stay.")
    return TorchModel(
        module=module,
        trained=chosen,
        loss=loss,
        optimiser=optimiser,
        metric=metric,
        frozen_layers=frozen,
        layer=only_layer(module, chosen),
        notes=tuple(notes),
    )


def load_torch_model(name: str, *, trained: str | Sequence[str] = "*") -> TorchModel:
    """Returns the model that "module:name" names: a module's class, what makes one, or a `TorchModel`."""
    module_name, _, attribute = name.partition(":")
    require_torch()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's module does when it is imported
        told = in_one_line(error)
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise ParameterError("model.import-failed", model=name, reason=f"{kind}{told}") from error
    if not hasattr(module, attribute):
        where = getattr(module, "__file__", None) or "a folder"
        raise ParameterError("model.attribute-missing", model=name, module=module_name, file=where, attribute=attribute)
    found = getattr(module, attribute)
    return torch_model(found, trained=trained)


def _made(model: Any, seed: int) -> Any:
    """Makes a module, or says what was wrong with what should have made it."""
    torch = require_torch()
    if not callable(model):
        raise ParameterError("model.type-unusable", type=type(model).__name__)
    try:
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with torch.random.fork_rng(devices):  # on whatever device it makes its parameters
            torch.manual_seed(seed)
            return model()
    except (Exception, SystemExit) as error:  # whatever the user's code does
        told = f"{type(error).__name__}: {in_one_line(error)}"
        raise ParameterError("model.factory-failed", model=_called(model), reason=told) from error


def _called(model: Any) -> str:
    return str(getattr(model, "__name__", type(model).__name__))


def _losses() -> Mapping[str, Loss]:
    """The losses by kind of target."""
    functional = require_torch().nn.functional

    def squared_error(outputs: Any, targets: Any) -> Any:
        return functional.mse_loss(outputs.reshape(targets.shape), targets)

    def cross_entropy(outputs: Any, targets: Any) -> Any:
        # Classes on the first axis: torch is slow in normalising over a last axis of few.
        return -outputs.T.log_softmax(dim=0).gather(0, targets.unsqueeze(0)).mean()

    return {
        "classes": cross_entropy,
        "numbers": squared_error,
        "labels": functional.binary_cross_entropy_with_logits,
    }
