"""A local step of all silos of a chunk at once: the gradients of a user's module, mapped over silos by `torch.func`.

Mapping runs the module's Python code at every step. In a long run the operations of a step are recorded once and then
replayed: the same kernels in the same order, to the bit, without the Python code. Python code may depend on more than
its arguments, so every round begins with a comparison, for a single silo, of the code and its recording.
"""

import copy
import hashlib
import inspect
import pickle
import random
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fulcrum.simulation.torch.torch_model import TorchModel
from fulcrum.simulation.torch.torch_products import layers_by_products
from fulcrum.simulation.torch.torch_state import Tensors, require_torch, use_seed

_RUNS_UNTIL_SETTLED = 3  # torch observes the first runs of a recording to prepare later runs


class SiloSteps:
    """The gradients of many silos, with parameters and a batch for every silo; for a single thread at a time.

    Args:
        model: The model of silos.
        fixed: The tensors of the model that do not travel, on the device.
    """

    def __init__(self, model: TorchModel, fixed: Tensors) -> None:
        self.model, self.fixed = model, fixed
        self._recorded: dict[tuple[int, ...], Callable[..., Sequence[Any]]] = {}
        self._moving: dict[tuple[int, ...], Callable[..., Any]] = {}
        self._recorded_single: Callable[..., Sequence[Any]] | None = None

    def twin(self) -> "SiloSteps":
        """Returns the same steps for another thread: with a module of its own, and the same recordings."""
        other = SiloSteps(replace(self.model, module=copy.deepcopy(self.model.module)), self.fixed)
        other._recorded, other._moving = self._recorded, self._moving
        return other

    def changed_by_calls(self, parameters: Tensors, inputs: Any, targets: Any) -> tuple[Sequence[Any], str]:
        """Returns gradients, and the name of a state that calls change and silos would share, or an empty name.

        A first call may prepare a state, such as a table of positions, if the state does not depend on records.
        """
        states = [python_state(self.model)]
        for _ in range(2):
            gradients = self._mapped_gradients(parameters, inputs, targets)
            states.append(python_state(self.model))
        before, prepared, after = states
        for name in after:
            first, last = prepared.get(name), after[name]
            if not same_state(first, last) or not (isinstance(last, bytes) or same_state(before.get(name), last)):
                return gradients, name
        return gradients, ""

    def loss(self, parameters: Tensors, inputs: Any, targets: Any) -> Any:
        """Returns the loss of one silo, by the module's own code."""
        return self.model.loss(self.model.outputs(parameters, self.fixed, inputs), targets)  # type: ignore[misc]

    def mapped_loss(self, parameters: Tensors, inputs: Any, targets: Any) -> Any:
        """Returns the loss of a single silo, by layers that are fast if mapped over silos."""
        with layers_by_products(shared=self.fixed.values()):
            return self.loss(parameters, inputs, targets)

    def same_alone(self, parameters: Tensors, inputs: Any, targets: Any) -> bool:
        """Returns true if mapped gradients equal those of single silos, by the module's own code, up to rounding.

        Layers that draw are compared in testing mode, without draws. Layers that draw in testing mode are not compared.
        """
        for training in (True, False):
            with self.model.mode(training=training):
                stood = random_state(inputs.device)
                mapped = self._mapped_gradients(_fresh(parameters), inputs.clone(), targets)
                alone = self._single_gradients(_fresh(parameters), inputs.clone(), targets)
                if require_torch().equal(stood, random_state(inputs.device)):
                    return _near(mapped, alone)
        return True

    def moves_by_element(self, parameters: Tensors, gradients: Sequence[Any], learning_rate: float) -> bool:
        """Returns true if the optimiser moves stacked silos like single silos, by gradients large and small."""
        began = [leaf.detach() for leaf in parameters.values()]
        size = sum(float(gradient.norm()) for gradient in gradients) or 1.0

        def moves_of(silos: Any, scale: float) -> list[Any]:
            own = [leaf[silos].clone().requires_grad_() for leaf in began]
            move = self.model.stepper(own, learning_rate)
            for _ in range(2):
                move([gradient[silos] * scale for gradient in gradients])
            return [leaf.detach() - start[silos] for leaf, start in zip(own, began, strict=True)]

        for scale in (1.0, 1e3 / size, 1e-3 / size):
            together = moves_of(slice(None), scale)
            for silo in range(len(began[0])):
                for alone, all_of_it, start in zip(moves_of(silo, scale), together, began, strict=True):
                    near = 1e-3 * float(alone.norm()) + 1e-6 * float(start[silo].norm())
                    if float((alone - all_of_it[silo]).norm()) > near:
                        return False
        return True

    def losses(self, parameters: Tensors, inputs: Any, targets: Any) -> Any:
        """Returns the loss of every silo; silos are on the first axis of all arguments."""
        return require_torch().func.vmap(self.mapped_loss, randomness="different")(parameters, inputs, targets)

    def step(
        self, parameters: Tensors, inputs: Any, targets: Any, chosen: Any, move: Callable[[Sequence[Any]], None]
    ) -> None:
        """Moves the parameters of every silo, in place, by one step of training on the silo's batch.

        Args:
            parameters: By name the parameters of all silos; silos are on the first axis.
            inputs: The inputs of the records of all silos.
            targets: The targets of the same records.
            chosen: The indices of the records in every silo's batch, (silos, batch).
            move: The step of the optimizer, which receives the gradients. A recorded step includes the move.
        """
        moving = self._moving.get(tuple(chosen.shape))
        if moving is None:
            move(self.gradients(parameters, rows(inputs, chosen), rows(targets, chosen)))
        else:
            with require_torch().no_grad():
                moving(*parameters.values(), inputs, targets, chosen)

    def gradients(self, parameters: Tensors, inputs: Any, targets: Any) -> Sequence[Any]:
        """Returns the gradients of the parameters, in order."""
        replay = self._recorded.get(_shape(inputs))
        if replay is None:
            return self._mapped_gradients(parameters, inputs, targets)
        with require_torch().no_grad():
            return replay(*parameters.values(), inputs, targets)

    def begin_round(self, parameters: Tensors, inputs: Any, targets: Any) -> None:
        """Deletes all recordings if the module's own code no longer gives the recorded gradients, to the bit.

        Code and recording compute the gradients of a single silo as the round begins, with the same draws; all
        arguments have a single silo on the first axis.
        """
        if self._recorded_single is None:
            return
        arguments = *parameters.values(), inputs, targets
        if not _alike(_answers([_flat(self._single_gradients, parameters), self._recorded_single], arguments)):
            self._recorded.clear()
            self._moving.clear()
            self._recorded_single = None

    def record(self, parameters: Tensors, inputs: Any, targets: Any) -> bool:
        """Records a step for all batches of a shape, and returns true on success; no training may run meanwhile.

        A module may act differently at every call, and a recording would repeat a single call. A recording is therefore
        kept only if the recording gives the results of mapping.
        """
        single = {name: values[:1] for name, values in parameters.items()}
        try:
            mapped = self._recording_of(self._mapped_gradients, parameters, inputs, targets, in_python=inputs.is_cuda)
            alone = self._recording_of(self._single_gradients, single, inputs[:1], targets[:1], in_python=True)
        except Exception:  # a step without a recording is mapped
            return False
        if mapped is not None and alone is not None:
            self._recorded[_shape(inputs)], self._recorded_single = mapped, alone
        return _shape(inputs) in self._recorded

    def _recording_of(
        self,
        gradients: Callable[[Tensors, Any, Any], Sequence[Any]],
        parameters: Tensors,
        inputs: Any,
        targets: Any,
        *,
        in_python: bool,
    ) -> Callable[..., Sequence[Any]] | None:
        """Returns a recording of a function of gradients, or None if calls change a state or results differ."""
        torch, step = require_torch(), _flat(gradients, parameters)
        from torch.fx.experimental.proxy_tensor import make_fx

        arguments = [*(values.detach() for values in parameters.values()), inputs, targets]
        answers = _answers([step], arguments)  # a first call may prepare something
        before = python_state(self.model)
        with torch.no_grad(), use_seed(0, inputs.device):
            replay = _replay(torch, make_fx(step)(*_copies(arguments)))
            replay = replay if in_python else _without_python(torch, replay, _copies(arguments))
        if not _alike(answers + _answers([replay] * _RUNS_UNTIL_SETTLED, arguments)):
            return None
        same = all(same_state(before.get(name), state) for name, state in python_state(self.model).items())
        return replay if same else None

    def record_moves(self, parameters: Tensors, inputs: Any, targets: Any, chosen: Any, learning_rate: float) -> None:
        """Records a step and, for plain SGD on the processor, the choice of the batch and the move with the step."""
        torch = require_torch()
        if not self.record(parameters, rows(inputs, chosen), rows(targets, chosen)):
            return
        if self.model.optimiser is not None or inputs.is_cuda:
            return
        replay = self._recorded[tuple(chosen.shape)]

        def move_by_replay(*arguments: Any) -> tuple[Any, ...]:
            *tensors, inputs, targets, chosen = arguments
            gradients = replay(*tensors, rows(inputs, chosen), rows(targets, chosen))
            return tuple(
                tensor.add_(gradient, alpha=-learning_rate) for tensor, gradient in zip(tensors, gradients, strict=True)
            )

        leaves, batch_source = list(parameters.values()), (inputs, targets, chosen)
        with torch.no_grad(), use_seed(0):
            recorded_move = _without_python(torch, move_by_replay, [*_copies(leaves), *batch_source])
        if _alike(_answers([move_by_replay, *[recorded_move] * _RUNS_UNTIL_SETTLED], leaves, batch_source)):
            self._moving[tuple(chosen.shape)] = recorded_move

    def _mapped_gradients(self, parameters: Tensors, inputs: Any, targets: Any) -> Sequence[Any]:
        losses = self.losses(parameters, inputs, targets)
        tensors = list(parameters.values())
        return require_torch().autograd.grad(losses.sum(), tensors, materialize_grads=True)  # type: ignore[no-any-return]

    def _single_gradients(self, parameters: Tensors, inputs: Any, targets: Any) -> Sequence[Any]:
        """Returns the gradients of silo after silo, stacked."""
        torch, by_silo = require_torch(), []
        for silo in range(len(inputs)):
            leaves = _fresh({name: values[silo] for name, values in parameters.items()})
            loss = self.loss(leaves, inputs[silo], targets[silo])
            by_silo.append(torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True))
        return [torch.stack(values) for values in zip(*by_silo, strict=True)]


def _fresh(parameters: Tensors) -> Tensors:
    """Returns copies of parameters, for a module that may write to parameters."""
    return {name: values.detach().clone().requires_grad_() for name, values in parameters.items()}


def _flat(gradients: Callable[[Tensors, Any, Any], Sequence[Any]], parameters: Tensors) -> Callable[..., Sequence[Any]]:
    """Returns a function of gradients as a function of tensors in a row, parameters first, like a recording."""
    torch = require_torch()

    def step(*arguments: Any) -> Sequence[Any]:
        *tensors, inputs, targets = arguments
        with torch.enable_grad():
            leaves = {name: values.detach().requires_grad_() for name, values in zip(parameters, tensors, strict=True)}
            return gradients(leaves, inputs, targets)

    return step


def _answers(
    steps: Iterable[Callable[..., Sequence[Any]]], written: Sequence[Any], read: Sequence[Any] = ()
) -> list[Sequence[Any]]:
    """Returns the results of several steps with the same draws.

    Args:
        steps: The steps to call.
        written: Tensors that a step may write to; every step gets copies.
        read: Tensors that steps only read.
    """
    torch, answers = require_torch(), []
    for step in steps:
        with torch.no_grad(), use_seed(0, written[0].device):
            answers.append(step(*_copies(written), *read))
    return answers


def _copies(tensors: Sequence[Any]) -> list[Any]:
    return [tensor.detach().clone() for tensor in tensors]


def _alike(answers: Sequence[Sequence[Any]]) -> bool:
    """Returns true if the first answer equals all further answers to the bit; NaN equals NaN."""
    torch, (first, *others) = require_torch(), answers
    return all(
        torch.allclose(expected, actual, rtol=0, atol=0, equal_nan=True)
        for answer in others
        for expected, actual in zip(first, answer, strict=True)
    )


def _near(mapped: Sequence[Any], alone: Sequence[Any]) -> bool:
    """Returns true if gradients agree in every tensor, up to the rounding of half precision within a module."""
    whole = sum(float(gradient.norm()) for gradient in alone)
    return all(
        float((first - second).norm()) <= 0.02 * float(second.norm()) + 1e-5 * whole
        for first, second in zip(mapped, alone, strict=True)
    )


def random_state(device: Any) -> Any:
    """Returns the state of the generator used by random layers."""
    torch = require_torch()
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def rows(values: Any, places: Any) -> Any:
    """Returns rows at places, (silos, batch, ...): a faster `values[places]`."""
    return values.index_select(0, places.flatten()).unflatten(0, places.shape)


def _shape(inputs: Any) -> tuple[int, ...]:
    return tuple(inputs.shape[:2])


def _replay(torch: Any, recorded: Any) -> Callable[..., Sequence[Any]]:
    """Returns a recording as a plain function, without operations that return their input."""
    aten = torch.ops.aten
    views = {aten.expand.default, aten.view.default, aten._unsafe_view.default}
    for node in recorded.graph.nodes:
        if node.op != "call_function" or "val" not in node.meta:
            continue
        as_before = node.target in views and node.args[0].meta["val"].shape == node.meta["val"].shape
        if as_before or node.target is aten.detach.default:
            node.replace_all_uses_with(node.args[0])
    recorded.graph.eliminate_dead_code()
    recorded.graph.set_codegen(torch.fx.graph.CodeGen())
    recorded.recompile()
    return recorded.forward  # type: ignore[no-any-return]


def _without_python(torch: Any, replay: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """Returns a recording that runs outside Python, so that threads do not wait; or the recording itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch recommends its successor, which needs a compiler on the machine
        try:
            return torch.jit.trace(lambda *tensors: tuple(replay(*tensors)), tuple(arguments), check_trace=False)  # type: ignore[no-any-return]
        except (AttributeError, RuntimeError):  # a torch without it, or an operation that it does not know
            return replay


def python_state(model: TorchModel) -> dict[str, Any]:
    """Returns by name the state that a call could change besides its tensors: a digest, or an object without bytes."""
    _, words, place, *_ = np.random.get_state()  # noqa: NPY002  # a user's module may draw from it
    state: dict[str, Any] = {
        "Python's random numbers": random.getstate(),
        "NumPy's random numbers": (np.asarray(words).tobytes(), place),
    }
    for path, part in model.module.named_modules():
        own = {name: value for name, value in vars(part).items() if name not in ("_parameters", "_buffers", "_modules")}
        of_class = {
            name: value
            for kind in reversed(type(part).__mro__)
            if not kind.__module__.startswith(("torch.", "builtins"))
            for name, value in vars(kind).items()
            if not name.startswith("__") and not callable(value)
        }
        for name, value in {**of_class, **own}.items():
            state[f"its attribute {path}{'.' if path else ''}{name}"] = value
        if not type(part).__module__.startswith("torch."):
            state.update({f"the variable {name}": value for name, value in _used_by(type(part).forward).items()})
    loss = model.loss
    code = loss if inspect.isroutine(loss) else type(loss).__call__
    of_loss = {**_used_by(code), **getattr(getattr(loss, "__self__", loss), "__dict__", {})}
    state.update({f"{name} of its loss": value for name, value in of_loss.items()})
    return {name: _as_bytes(value) for name, value in state.items()}


def _used_by(function: Any) -> dict[str, Any]:
    """Returns by name the globals and outer variables that a function uses."""
    if not hasattr(function, "__code__"):  # not of Python
        return {}
    try:
        used = inspect.getclosurevars(function)
    except ValueError:  # of a name that has no value yet
        return {}
    return {**used.globals, **used.nonlocals}


def _as_bytes(value: Any) -> Any:
    """Returns a digest of a value, or the value itself if the value cannot be pickled."""
    try:
        return hashlib.blake2b(pickle.dumps(value)).digest()
    except Exception:  # a lambda, a lock, a tensor of a mapped call
        return value


def same_state(first: Any, second: Any) -> bool:
    """Returns true for the same object, or equal bytes."""
    return first is second or (isinstance(first, bytes) and isinstance(second, bytes) and first == second)
