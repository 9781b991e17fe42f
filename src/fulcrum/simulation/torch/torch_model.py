"""A user's own PyTorch module as the model of silos: the parameters that travel, the loss, the local optimiser.

The trained parameters travel as a flat vector, in the order of `named_parameters`. Frozen parameters and buffers stay
in the module: batch statistics are never sent, because no plan counts them.
"""

import copy
import importlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fulcrum.arrays import FloatArray, IntArray
from fulcrum.errors import DataError, FulcrumError, ParameterError, in_one_line
from fulcrum.simulation.data.tasks import Task
from fulcrum.simulation.embedded.metrics import Metric
from fulcrum.simulation.embedded.models import Model
from fulcrum.simulation.torch.torch_modules import choose_parameters, copy_module, keep_statistics_home, only_layer
from fulcrum.simulation.torch.torch_state import Tensors, require_torch, use_default_modes

Loss = Callable[[Any, Any], Any]
"""Outputs (batch, ...) and targets (batch, ...) to a scalar tensor."""

Optimiser = Callable[[list[Any], float], Any]
"""Makes a `torch.optim` optimiser of tensors and a learning rate; the optimiser must treat every element alike."""

_RENAMED = {
    "fixed": "fixed_tensors",
    "joined": "join",
    "stepping": "stepper",
    "telling": "report_failures",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchModel:
    """A module, with the settings of silos' training; made by `torch_model`.

    Attributes:
        module: A copy of the user's module; only the mode, training or testing, is ever changed.
        trained: The names of the trained parameters, the parameters that travel.
        loss: Loss of a batch; None for the loss of the task's kind of targets.
        optimiser: Made anew for every silo and round; None for plain SGD.
        metric: Outputs and targets of the test split, as NumPy arrays, to a number; None for the task's metric.
        frozen_layers: The normalisation layers that keep their original statistics.
        layer: The linear layer whose weight and bias are all trained parameters, or None. The parameters of such a
            layer travel as (inputs + 1, outputs) in a row, like the parameters of the built-in head.
        classes: Number of classes if the layer is a softmax head on the task; see `Model.classes`.
        notes: Notes for a user on the module.
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

    def __getattr__(self, name: str) -> Any:
        """Answers the former name of a method, with a warning."""
        if name not in _RENAMED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        message = f"TorchModel.{name} goes with version 0.3. Use {_RENAMED[name]}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(self, _RENAMED[name])

    @property
    def name(self) -> str:
        """The name of the module's class."""
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
        """The `torch.dtype` of the trained parameters."""
        return self.module.get_parameter(self.trained[0]).dtype

    @property
    def start(self) -> FloatArray:
        """The trained parameters of the module, in a row."""
        named = {name: self.module.get_parameter(name).detach().cpu().double() for name in self.trained}
        return np.asarray(self.join(named).numpy())

    def fixed_tensors(self, device: str = "cpu") -> Tensors:
        """Returns copies of the tensors that do not travel, on a device: frozen parameters and buffers."""
        tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return {name: value.detach().clone().to(device) for name, value in tensors.items() if name not in self.trained}

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

    def join(self, parts: Tensors, leading: int = 0) -> Any:
        """Returns parameters by name as vectors on the last axis, after some leading axes; the inverse of `split`."""
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
        """Returns records or targets on a device; whole numbers stay, fractions get the dtype of the parameters."""
        tensor = require_torch().as_tensor(values)
        return tensor.to(device, self.dtype) if tensor.is_floating_point() else tensor.to(device)

    def outputs(self, parameters: Tensors, fixed: Tensors, inputs: Any) -> Any:
        """Returns the module's outputs for inputs under given parameters, in the current mode."""
        return require_torch().func.functional_call(self.module, {**fixed, **parameters}, (inputs,))

    @contextmanager
    def mode(self, *, training: bool) -> Iterator[None]:
        """Sets the module to training or testing; layers that keep statistics test in both modes."""
        self.module.train(training)
        for name in self.frozen_layers:
            self.module.get_submodule(name).eval()
        yield

    @contextmanager
    def report_failures(self, phase: str) -> Iterator[None]:
        """Turns an error of the user's code into an error of a single line; memory errors pass to the engine."""
        try:
            yield
        except (FulcrumError, MemoryError, require_torch().OutOfMemoryError):
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {in_one_line(error)}"
            raise ParameterError("model.code-failed", model=self.name, phase=phase, reason=reason) from error

    @use_default_modes()
    def on(self, task: Task) -> "TorchModel":
        """Returns the model with a copy of the module and the loss of a task, after a trial on a few records.

        Args:
            task: The task to learn.

        Raises:
            DataError: Records do not fit the module, or outputs do not fit the task.
        """
        torch = require_torch()
        fitted = replace(self, module=copy.deepcopy(self.module), loss=self.loss or _losses()[task.targets])
        count = len(task.classes)
        few = slice(0, min(4, len(task.labels_train)))
        inputs, targets = self.as_tensor(task.features_train[few]), self.as_tensor(task.labels_train[few])
        shape = tuple(inputs.shape[1:])
        trial = replace(self, module=copy.deepcopy(self.module))  # the trial keeps any state that its calls change
        with torch.random.fork_rng(devices=[]), trial.mode(training=True):
            start = torch.as_tensor(self.start).to(self.dtype)
            leaves = {name: part.clone().requires_grad_() for name, part in self.split(start).items()}
            try:
                outputs = trial.outputs(leaves, self.fixed_tensors(), inputs.clone())
            except Exception as error:  # a user's module may raise anything
                reason = f"{type(error).__name__}: {in_one_line(error)}"
                raise DataError(
                    "model.records-unfit", model=self.name, data=task.name, shape=shape, reason=reason
                ) from error
            self._check_outputs(outputs, task, targets, by_default=self.loss is None)
            output_shape = tuple(outputs.shape)
            try:
                value = fitted.loss(outputs, targets)  # type: ignore[misc]  # it was set above
            except Exception as error:  # a user's loss may raise anything
                reason = f"{type(error).__name__}: {in_one_line(error)}"
                raise DataError(
                    "model.loss-unfit",
                    model=self.name,
                    outputs=output_shape,
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

    def _check_outputs(self, outputs: Any, task: Task, targets: Any, *, by_default: bool) -> None:
        """Raises `DataError` for outputs that are no tensor, or do not fit the task's own loss or metric."""
        torch = require_torch()
        if not isinstance(outputs, torch.Tensor):
            raise DataError("model.output-type", model=self.name, type=type(outputs).__name__)
        if not by_default:
            return
        wanted = (len(targets), len(task.classes)) if task.targets == "classes" else tuple(targets.shape)
        same_numbers = (
            task.targets == "numbers" and outputs.shape[:1] == targets.shape[:1] and outputs.numel() == targets.numel()
        )
        if tuple(outputs.shape) != wanted and not same_numbers:
            what = f"{len(task.classes)} classes" if task.targets == "classes" else task.targets
            alternative = "" if self.loss is None else ", or come with a metric of its own (metric=)"
            raise DataError(
                "model.output-shape",
                model=self.name,
                shape=tuple(outputs.shape),
                records=len(targets),
                data=task.name,
                targets=what,
                expected=wanted,
                alternative=alternative,
            )

    def _try_testing(self, task: Task) -> None:
        """Raises for a module that cannot be tested on the task's records, before any training."""
        torch = require_torch()
        few = slice(0, 4)
        inputs, targets = self.as_tensor(task.features_test[few]), self.as_tensor(task.labels_test[few])
        with torch.no_grad(), torch.random.fork_rng(devices=[]), self.mode(training=False):
            parts = self.split(torch.as_tensor(self.start).to(self.dtype))
            with self.report_failures("testing"):
                outputs = self.outputs(parts, self.fixed_tensors(), inputs.clone())
        self._check_outputs(outputs, task, targets, by_default=self.metric is None)

    def _try_step(self, leaves: Tensors, loss: Any) -> None:
        """Raises `ParameterError` for a loss without gradients, or an optimiser that cannot use gradients."""
        torch, tensors = require_torch(), list(leaves.values())
        if not loss.requires_grad:
            raise ParameterError("model.loss-detached", model=self.name)
        try:
            with self.report_failures("a local step"):
                self.stepper(tensors, 0.01)(torch.autograd.grad(loss, tensors, materialize_grads=True))
        except (MemoryError, torch.OutOfMemoryError):  # the engine reports missing memory
            return

    def _ends_in_head(self, inputs: Any, classes: int) -> bool:
        """Returns true if the trained layer is a softmax head: a common shift of all classes changes no answer."""
        torch = require_torch()
        if self.layer is None or self.shapes[self.trained[0]][0] != classes:
            return False
        with torch.no_grad(), self.mode(training=False):
            start = torch.as_tensor(self.start).to(self.dtype)
            common = torch.linspace(-1, 1, len(start) // classes, dtype=self.dtype).repeat_interleave(classes)
            before, after = (
                self.outputs(self.split(flat), self.fixed_tensors(), inputs.clone()).log_softmax(dim=1)
                for flat in (start, start + common)
            )
        return bool(torch.allclose(before, after, atol=1e-4))

    def as_model(self, *, learning_rate: float) -> Model:
        """Returns the model as functions of a single silo, for the slow engine: plain autograd, silo by silo."""
        torch = require_torch()

        def init(flat: FloatArray) -> tuple[Tensors, Tensors, Callable[[Sequence[Any]], None]]:
            parts = self.split(torch.as_tensor(flat).to(self.dtype))
            leaves = {name: part.clone().requires_grad_() for name, part in parts.items()}
            return leaves, self.fixed_tensors(), self.stepper(list(leaves.values()), learning_rate)

        def step(state: Any, features: FloatArray, labels: IntArray) -> Any:
            leaves, fixed, move = state
            with self.report_failures("training"), self.mode(training=True):
                outputs = self.outputs(leaves, fixed, self.as_tensor(features))
                loss = self.loss(outputs, self.as_tensor(labels))  # type: ignore[misc]  # `on` has set it
                move(torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True))
            return state

        def final(state: Any) -> FloatArray:
            return np.asarray(self.join({name: leaf.detach().double() for name, leaf in state[0].items()}).numpy())

        def gradient(flat: FloatArray, features: FloatArray, labels: IntArray) -> FloatArray:
            total = np.zeros(self.parameters)
            for record in range(len(labels)):  # one by one, so that no layer or loss can mix records
                leaves, fixed, _ = init(flat)
                with self.report_failures("training"), self.mode(training=True):
                    outputs = self.outputs(leaves, fixed, self.as_tensor(features[[record]]))
                    loss = self.loss(outputs, self.as_tensor(labels[[record]]))  # type: ignore[misc]  # `on` has set it
                    parts = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
                total += self.join(dict(zip(leaves, parts, strict=True))).double().numpy()
            return total

        def scores(flat: FloatArray, features: FloatArray) -> FloatArray:
            with self.report_failures("testing"), torch.no_grad(), self.mode(training=False):
                parts = self.split(torch.as_tensor(flat).to(self.dtype))
                inputs = self.as_tensor(features).clone()  # a module may write to its input
                return np.asarray(self.outputs(parts, self.fixed_tensors(), inputs).double().numpy())

        return Model(
            parameters=self.parameters,
            init=init,
            step=step,
            final=final,
            scores=scores,
            start=self.start,
            classes=self.classes,
            metric=self.metric,
            gradient=gradient,
        )

    def stepper(self, leaves: list[Any], learning_rate: float) -> Callable[[Sequence[Any]], None]:
        """Returns a function that moves the leaves by gradients: the user's optimiser, or plain SGD."""
        torch = require_torch()
        if self.optimiser is None:

            def move(gradients: Sequence[Any]) -> None:
                with torch.no_grad():
                    torch._foreach_add_(leaves, list(gradients), alpha=-learning_rate)

            return move
        optimiser = self.optimiser(leaves, learning_rate)

        def move_by_optimiser(gradients: Sequence[Any]) -> None:
            for leaf, gradient in zip(leaves, gradients, strict=True):
                leaf.grad = gradient
            optimiser.step()

        return move_by_optimiser


def torch_model(
    model: Any,
    *,
    trained: str | Sequence[str] = "*",
    loss: Loss | None = None,
    optimiser: Optimiser | None = None,
    metric: Metric | None = None,
    seed: int = 0,
) -> TorchModel:
    """Returns a PyTorch module as a model for silos.

    Args:
        model: A `torch.nn.Module`, or a class or function that makes a module without arguments. A `TorchModel`, or a
            function that makes a `TorchModel`, is taken unchanged and allows no further argument.
        trained: Patterns of the names of trained parameters, such as "head.*"; all by default. Parameters that do not
            require gradients stay frozen.
        loss: Outputs and targets of a batch, as tensors, to a scalar; by default the cross-entropy for classes, the
            squared error for numbers, the binary cross-entropy for labels.
        optimiser: Tensors and learning rate to a `torch.optim` optimiser, made anew for every silo and round. The
            optimiser must treat every element alike, as SGD and Adam do. Plain SGD by default.
        metric: Outputs and targets of the test split, as NumPy arrays, to a number.
        seed: Seed of the module's start, if a class or function makes the module.
    """
    torch = require_torch()
    patterns = [trained] if isinstance(trained, str) else list(trained or ())
    instance = model if isinstance(model, (TorchModel, torch.nn.Module)) else _make_module(model, seed)
    if isinstance(instance, TorchModel):
        if patterns != ["*"] or loss or optimiser or metric:
            raise ParameterError("model.settings-twice", model=instance.name)
        return instance
    if not isinstance(instance, torch.nn.Module):
        raise ParameterError("model.factory-type", model=_factory_name(model), type=type(instance).__name__)
    module = copy_module(instance)
    chosen = choose_parameters(module, patterns)
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
    """Returns the model named "module:name": a module's class, a function that makes a module, or a `TorchModel`."""
    module_name, _, attribute = name.partition(":")
    require_torch()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # an import runs the user's code
        reason = in_one_line(error)
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise ParameterError("model.import-failed", model=name, reason=f"{kind}{reason}") from error
    if not hasattr(module, attribute):
        where = getattr(module, "__file__", None) or "a folder"
        raise ParameterError("model.attribute-missing", model=name, module=module_name, file=where, attribute=attribute)
    model = getattr(module, attribute)
    return torch_model(model, trained=trained)


def _make_module(model: Any, seed: int) -> Any:
    """Returns the module of a class or function, or raises `ParameterError` with the failure."""
    torch = require_torch()
    if not callable(model):
        raise ParameterError("model.type-unusable", type=type(model).__name__)
    try:
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        with torch.random.fork_rng(devices):  # the module may make parameters on any device
            torch.manual_seed(seed)
            return model()
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        reason = f"{type(error).__name__}: {in_one_line(error)}"
        raise ParameterError("model.factory-failed", model=_factory_name(model), reason=reason) from error


def _factory_name(model: Any) -> str:
    return str(getattr(model, "__name__", type(model).__name__))


def _losses() -> Mapping[str, Loss]:
    """Returns the losses by kind of target."""
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
