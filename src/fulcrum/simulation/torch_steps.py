"""A local step of all silos of a chunk at once: the gradients of a user's module, mapped over silos by `torch.func`.

Mapping goes through the module's Python code at every step. In a long run the operations of a step are recorded once
and then replayed: the same kernels in the same order, to the bit, without the Python code. Every round begins by
comparing the two, since what the Python code does may depend on more than it is given.
"""

import copy
import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fulcrum.simulation.torch_model import Tensors, TorchModel, require_torch


class SiloSteps:
    """The gradients of many silos, each with parameters and a batch of its own; for one thread at a time.

    Args:
        model: What silos train.
        fixed: What of it does not travel, on the device.
    """

    def __init__(self, model: TorchModel, fixed: Tensors) -> None:
        self.model, self.fixed = model, fixed
        self._recorded: dict[Any, Callable[..., Sequence[Any]]] = {}
        self._proven: set[Any] = set()

    def twin(self) -> "SiloSteps":
        """Returns the same steps for another thread: with a module of its own, and the same records."""
        other = SiloSteps(replace(self.model, module=copy.deepcopy(self.model.module)), self.fixed)
        other._recorded, other._proven = self._recorded, self._proven
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
        """Returns the loss of one silo."""
        return self.model.loss(self.model.outputs(parameters, self.fixed, inputs), targets)  # type: ignore[misc]

    def losses(self, parameters: Tensors, inputs: Any, targets: Any) -> Any:
        """Returns the loss of every silo; silos are on the first axis of all that is given."""
        with _linear_by_rows():
            return require_torch().func.vmap(self.loss, randomness="different")(parameters, inputs, targets)

    def gradients(self, parameters: Tensors, inputs: Any, targets: Any) -> Sequence[Any]:
        """Returns the gradients of the parameters, in their order."""
        shape = _shape(inputs, targets)
        replay = self._recorded.get(shape)
        if replay is None:
            return self._mapped(parameters, inputs, targets)
        if shape not in self._proven:
            return self._compared(replay, parameters, inputs, targets)
        with require_torch().no_grad():
            return replay(*parameters.values(), inputs, targets)

    def begin_round(self) -> None:
        """Has every record compared with mapping once more before it is used."""
        self._proven.clear()

    def _compared(
        self, replay: Callable[..., Sequence[Any]], parameters: Tensors, inputs: Any, targets: Any
    ) -> Sequence[Any]:
        """Returns the mapped gradients; where replaying does not give the same, there are no records any more."""
        torch = require_torch()
        with torch.random.fork_rng([inputs.device] if inputs.device.type == "cuda" else []), torch.no_grad():
            replayed = replay(*parameters.values(), inputs, targets)
        mapped = self._mapped(parameters, inputs, targets)
        if all(torch.equal(one, other) for one, other in zip(replayed, mapped, strict=True)):
            self._proven.add(_shape(inputs, targets))
        else:
            self._recorded.clear()
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
                replay = _flat(torch, make_fx(step)(*given))
                for run in (step, replay):
                    torch.manual_seed(0)
                    found.append(run(*given))
        except Exception:  # whatever cannot be recorded is mapped
            return False
        same = all(torch.equal(one, other) for one, other in zip(*found, strict=True))
        if same and all(_same(before.get(name), kept) for name, kept in _python_state(self.model.module).items()):
            self._recorded[_shape(inputs, targets)] = replay
            self._proven.add(_shape(inputs, targets))
        return _shape(inputs, targets) in self._recorded

    def _mapped(self, parameters: Tensors, inputs: Any, targets: Any) -> Sequence[Any]:
        losses = self.losses(parameters, inputs, targets)
        tensors = list(parameters.values())
        return require_torch().autograd.grad(losses.sum(), tensors, materialize_grads=True)  # type: ignore[no-any-return]


def _shape(inputs: Any, targets: Any) -> tuple[Any, ...]:
    return tuple(inputs.shape), tuple(targets.shape)


def _linear_by_rows() -> Any:
    """Returns a mode in which linear layers multiply weights from the left.

    The product is the same. Mapped over silos, the gradient of the weights then lies in memory as the weights do, and
    adding it is several times as fast as adding its transpose.
    """
    torch = require_torch()

    class LinearByRows(torch.overrides.TorchFunctionMode):  # type: ignore[misc,name-defined]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is not torch.nn.functional.linear or kwargs or args[0].ndim != 2:
                return func(*args, **(kwargs or {}))
            inputs, weight, *rest = args
            product = weight.mm(inputs.T)
            return (product if not rest or rest[0] is None else product + rest[0].unsqueeze(1)).T

    return LinearByRows()


def _flat(torch: Any, recorded: Any) -> Callable[..., Sequence[Any]]:
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
    return recorded.forward  # type: ignore[no-any-return]


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
