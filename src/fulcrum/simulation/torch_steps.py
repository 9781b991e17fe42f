"""A local step of all silos of a chunk at once: the gradients of a user's module, mapped over silos by `torch.func`.

Mapping goes through the module's Python code at every step. In a long run the operations of a step are recorded once
and then replayed: the same kernels in the same order, to the bit, without the Python code. Every round begins by
comparing the two, since what the Python code does may depend on more than it is given.
"""

import copy
import pickle
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fulcrum.simulation.torch_model import Tensors, TorchModel, require_torch
from fulcrum.simulation.torch_products import layers_by_products

_RUNS_UNTIL_SETTLED = 3  # torch looks at the first runs of a record to prepare the next ones


class SiloSteps:
    """The gradients of many silos, each with parameters and a batch of its own; for one thread at a time.

    Args:
        model: What silos train.
        fixed: What of it does not travel, on the device.
    """

    def __init__(self, model: TorchModel, fixed: Tensors) -> None:
        self.model, self.fixed = model, fixed
        self._recorded: dict[tuple[int, ...], Callable[..., Sequence[Any]]] = {}
        self._moving: dict[tuple[int, ...], Callable[..., Any]] = {}
        self._proven: set[tuple[int, ...]] = set()
        self._unproven: set[tuple[int, ...]] = set()

    def twin(self) -> "SiloSteps":
        """Returns the same steps for another thread: with a module of its own, and the same records."""
        other = SiloSteps(replace(self.model, module=copy.deepcopy(self.model.module)), self.fixed)
        other._recorded, other._moving = self._recorded, self._moving
        other._proven, other._unproven = self._proven, self._unproven
        return other

    def changed_by_calls(self, parameters: Tensors, inputs: Any, targets: Any) -> tuple[Sequence[Any], str]:
        """Returns gradients, and the name of what calls change that silos would share, or an empty one.

        A first call may prepare something, such as a table of positions, so long as it does not depend on records.
        """
        states = [_python_state(self.model.module)]
        for _ in range(2):
            found = self._mapped(parameters, inputs, targets)
            states.append(_python_state(self.model.module))
        before, prepared, after = states
        for name in after:
            first, last = prepared.get(name), after[name]
            if not _same(first, last) or not (isinstance(last, bytes) or _same(before.get(name), last)):
                return found, name
        return found, ""

    def loss(self, parameters: Tensors, inputs: Any, targets: Any) -> Any:
        """Returns the loss of one silo, by the module's own code."""
        return self.model.loss(self.model.outputs(parameters, self.fixed, inputs), targets)  # type: ignore[misc]

    def mapped_loss(self, parameters: Tensors, inputs: Any, targets: Any) -> Any:
        """Returns the loss of one silo, by layers that are fast where silos are mapped over."""
        with layers_by_products(shared=self.fixed.values()):
            return self.loss(parameters, inputs, targets)

    def same_alone(self, parameters: Tensors, inputs: Any, targets: Any) -> bool:
        """Whether mapped gradients are those that each silo finds alone, by the module's own code, up to rounding.

        Layers that draw are compared as they test, where they draw nothing. What draws there too is not compared.
        """
        for training in (True, False):
            with self.model.mode(training=training):
                stood = _random_state(inputs.device)
                mapped = self._mapped(_fresh(parameters), inputs.clone(), targets)
                alone = self._alone(_fresh(parameters), inputs.clone(), targets)
                if require_torch().equal(stood, _random_state(inputs.device)):
                    return _near(mapped, alone)
        return True

    def losses(self, parameters: Tensors, inputs: Any, targets: Any) -> Any:
        """Returns the loss of every silo; silos are on the first axis of all that is given."""
        return require_torch().func.vmap(self.mapped_loss, randomness="different")(parameters, inputs, targets)

    def step(
        self, parameters: Tensors, inputs: Any, targets: Any, chosen: Any, move: Callable[[Sequence[Any]], None]
    ) -> None:
        """Moves the parameters of every silo by one step on the records chosen for it, (silos, batch)."""
        shape = tuple(chosen.shape)
        if shape in self._moving and shape in self._proven:
            with require_torch().no_grad():
                self._moving[shape](*parameters.values(), inputs, targets, chosen)
        else:
            move(self.gradients(parameters, rows(inputs, chosen), rows(targets, chosen)))

    def gradients(self, parameters: Tensors, inputs: Any, targets: Any) -> Sequence[Any]:
        """Returns the gradients of the parameters, in their order."""
        shape = _shape(inputs)
        replay = self._recorded.get(shape)
        if replay is None:
            return self._mapped(parameters, inputs, targets)
        if shape in self._proven:
            with require_torch().no_grad():
                return replay(*parameters.values(), inputs, targets)
        try:
            self._unproven.remove(shape)
        except KeyError:  # another thread compares
            return self._mapped(parameters, inputs, targets)
        return self._compared(replay, parameters, inputs, targets)

    def begin_round(self) -> None:
        """Has every record compared with mapping once more before it is used."""
        self._proven.clear()
        self._unproven.update(self._recorded)

    def _compared(
        self, replay: Callable[..., Sequence[Any]], parameters: Tensors, inputs: Any, targets: Any
    ) -> Sequence[Any]:
        """Returns the mapped gradients; where replaying does not give the same, there are no records any more."""
        torch = require_torch()
        with torch.random.fork_rng([inputs.device] if inputs.device.type == "cuda" else []), torch.no_grad():
            replayed = replay(*parameters.values(), inputs, targets)
        mapped = self._mapped(parameters, inputs, targets)
        if all(torch.equal(one, other) for one, other in zip(replayed, mapped, strict=True)):
            self._proven.add(_shape(inputs))
        else:
            self._recorded.clear()
            self._unproven.clear()
            self._proven.clear()
        return mapped

    def record(self, parameters: Tensors, inputs: Any, targets: Any) -> bool:
        """Records a step for all batches of this shape, and returns whether it could; nothing else may train meanwhile.

        A module may do something else at each call. A record would repeat what happened once, so there is none where it
        does not do what mapping does.
        """
        torch, names = require_torch(), list(parameters)
        from torch.fx.experimental.proxy_tensor import make_fx

        def step(*given: Any) -> Sequence[Any]:
            *tensors, inputs, targets = given
            with torch.enable_grad():
                leaves = {name: each.detach().requires_grad_() for name, each in zip(names, tensors, strict=True)}
                return self._mapped(leaves, inputs, targets)

        given = [*(each.detach() for each in parameters.values()), inputs, targets]
        before, found = _python_state(self.model.module), []
        try:
            with torch.random.fork_rng([inputs.device] if inputs.device.type == "cuda" else []), torch.no_grad():
                replay = _replay(torch, make_fx(step)(*given), given)
                for run in (step, replay):
                    torch.manual_seed(0)
                    found.append(run(*given))
        except Exception:  # whatever cannot be recorded is mapped
            return False
        same = all(torch.equal(one, other) for one, other in zip(*found, strict=True))
        if same and all(_same(before.get(name), kept) for name, kept in _python_state(self.model.module).items()):
            self._recorded[_shape(inputs)] = replay
            self._proven.add(_shape(inputs))
        return _shape(inputs) in self._recorded

    def record_moves(self, parameters: Tensors, inputs: Any, targets: Any, chosen: Any, learning_rate: float) -> None:
        """Records a step and, on the processor where plain SGD moves the parameters, its batch and the move with it."""
        torch = require_torch()
        if not self.record(parameters, rows(inputs, chosen), rows(targets, chosen)):
            return
        if self.model.optimiser is not None or inputs.is_cuda:
            return
        replay = self._recorded[tuple(chosen.shape)]

        def moved(*given: Any) -> tuple[Any, ...]:
            *tensors, inputs, targets, chosen = given
            found = replay(*tensors, rows(inputs, chosen), rows(targets, chosen))
            return tuple(
                tensor.add_(gradient, alpha=-learning_rate) for tensor, gradient in zip(tensors, found, strict=True)
            )

        def given() -> list[Any]:
            return [*(each.detach().clone() for each in parameters.values()), inputs, targets, chosen]

        with torch.random.fork_rng(devices=[]), torch.no_grad():
            whole, ends = _without_python(torch, moved, given()), []
            for run in (moved, *[whole] * _RUNS_UNTIL_SETTLED):
                torch.manual_seed(0)
                ends.append(run(*given()))
        if all(torch.equal(one, other) for end in ends[1:] for one, other in zip(ends[0], end, strict=True)):
            self._moving[tuple(chosen.shape)] = whole

    def _mapped(self, parameters: Tensors, inputs: Any, targets: Any) -> Sequence[Any]:
        losses = self.losses(parameters, inputs, targets)
        tensors = list(parameters.values())
        return require_torch().autograd.grad(losses.sum(), tensors, materialize_grads=True)  # type: ignore[no-any-return]

    def _alone(self, parameters: Tensors, inputs: Any, targets: Any) -> Sequence[Any]:
        """Returns the gradients of one silo after the other, stacked."""
        torch, found = require_torch(), []
        for silo in range(len(inputs)):
            leaves = _fresh({name: each[silo] for name, each in parameters.items()})
            loss = self.loss(leaves, inputs[silo], targets[silo])
            found.append(torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True))
        return [torch.stack(each) for each in zip(*found, strict=True)]


def _fresh(parameters: Tensors) -> Tensors:
    """Returns parameters that a module may write to."""
    return {name: each.detach().clone().requires_grad_() for name, each in parameters.items()}


def _near(mapped: Sequence[Any], alone: Sequence[Any]) -> bool:
    """Whether gradients are alike in every tensor, up to the rounding of half precision within a module."""
    whole = sum(float(each.norm()) for each in alone)
    return all(
        float((one - other).norm()) <= 0.02 * float(other.norm()) + 1e-5 * whole
        for one, other in zip(mapped, alone, strict=True)
    )


def _random_state(device: Any) -> Any:
    """Returns where the random numbers stand that layers draw from."""
    torch = require_torch()
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def rows(values: Any, places: Any) -> Any:
    """Returns the rows at some places, (silos, batch, ...): what `values[places]` is, which is slower."""
    return values.index_select(0, places.flatten()).unflatten(0, places.shape)


def _shape(inputs: Any) -> tuple[int, ...]:
    return tuple(inputs.shape[:2])


def _replay(torch: Any, recorded: Any, given: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """Returns a record as a plain function, without the operations that give what they are given."""
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
    return recorded.forward if given[0].is_cuda else _without_python(torch, recorded.forward, given)


def _without_python(torch: Any, replay: Callable[..., Any], given: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """Returns a record that runs outside Python, so that threads do not wait for each other; or the record itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch recommends its successor, which needs a compiler on the machine
        try:
            return torch.jit.trace(lambda *each: tuple(replay(*each)), tuple(given), check_trace=False)  # type: ignore[no-any-return]
        except (AttributeError, RuntimeError):  # a torch without it, or an operation that it does not know
            return replay


def _python_state(module: Any) -> dict[str, Any]:
    """Returns by name what a call could change besides tensors that it is given: bytes, or what bytes cannot hold."""
    _, words, place, *_ = np.random.get_state()  # noqa: NPY002  # a user's module may draw from it
    found: dict[str, Any] = {
        "Python's random numbers": pickle.dumps(random.getstate()),
        "NumPy's random numbers": pickle.dumps((np.asarray(words).tobytes(), place)),
    }
    for path, part in module.named_modules():
        own = {name: value for name, value in vars(part).items() if name not in ("_parameters", "_buffers", "_modules")}
        of_class = {
            name: value
            for kind in reversed(type(part).__mro__)
            if not kind.__module__.startswith(("torch.", "builtins"))
            for name, value in vars(kind).items()
            if not name.startswith("__") and not callable(value)
        }
        for name, value in {**of_class, **own}.items():
            try:
                found[f"its attribute {path}{'.' if path else ''}{name}"] = pickle.dumps(value)
            except Exception:  # a lambda, a lock, a tensor of a mapped call
                found[f"its attribute {path}{'.' if path else ''}{name}"] = value
    return found


def _same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, bytes) and isinstance(other, bytes) and one == other)
