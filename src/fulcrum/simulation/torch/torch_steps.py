"""A local step of all silos of a chunk at once: the gradients of a user's module, mapped over silos by `torch.func`.

Mapping goes through the module's Python code at every step. In a long run the operations of a step are recorded once
and then replayed: the same kernels in the same order, to the bit, without the Python code. What that code does may
depend on more than it is given, so every round begins by comparing it, for one silo, with a record of that.
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

from fulcrum.simulation.torch.torch_model import Tensors, TorchModel, require_torch, seeded
from fulcrum.simulation.torch.torch_products import layers_by_products

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
        self._recorded_alone: Callable[..., Sequence[Any]] | None = None

    def twin(self) -> "SiloSteps":
        """Returns the same steps for another thread: with a module of its own, and the same records."""
        other = SiloSteps(replace(self.model, module=copy.deepcopy(self.model.module)), self.fixed)
        other._recorded, other._moving = self._recorded, self._moving
        return other

    def changed_by_calls(self, parameters: Tensors, inputs: Any, targets: Any) -> tuple[Sequence[Any], str]:
        """Returns gradients, and the name of what calls change that silos would share, or an empty one.

        A first call may prepare something, such as a table of positions, so long as it does not depend on records.
        """
        states = [_python_state(self.model)]
        for _ in range(2):
            found = self._mapped(parameters, inputs, targets)
            states.append(_python_state(self.model))
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

    def moves_by_element(self, parameters: Tensors, gradients: Sequence[Any], learning_rate: float) -> bool:
        """Whether the optimiser moves stacked silos as it moves each of them alone, by gradients large and small."""
        began = [leaf.detach() for leaf in parameters.values()]
        size = sum(float(each.norm()) for each in gradients) or 1.0

        def moved(silos: Any, scale: float) -> list[Any]:
            own = [leaf[silos].clone().requires_grad_() for leaf in began]
            move = self.model.stepping(own, learning_rate)
            for _ in range(2):
                move([each[silos] * scale for each in gradients])
            return [leaf.detach() - start[silos] for leaf, start in zip(own, began, strict=True)]

        for scale in (1.0, 1e3 / size, 1e-3 / size):
            together = moved(slice(None), scale)
            for silo in range(len(began[0])):
                for alone, all_of_it, start in zip(moved(silo, scale), together, began, strict=True):
                    near = 1e-3 * float(alone.norm()) + 1e-6 * float(start[silo].norm())
                    if float((alone - all_of_it[silo]).norm()) > near:
                        return False
        return True

    def losses(self, parameters: Tensors, inputs: Any, targets: Any) -> Any:
        """Returns the loss of every silo; silos are on the first axis of all that is given."""
        return require_torch().func.vmap(self.mapped_loss, randomness="different")(parameters, inputs, targets)

    def step(
        self, parameters: Tensors, inputs: Any, targets: Any, chosen: Any, move: Callable[[Sequence[Any]], None]
    ) -> None:
        """Moves the parameters of every silo by one step on the records chosen for it, (silos, batch)."""
        moving = self._moving.get(tuple(chosen.shape))
        if moving is None:
            move(self.gradients(parameters, rows(inputs, chosen), rows(targets, chosen)))
        else:
            with require_torch().no_grad():
                moving(*parameters.values(), inputs, targets, chosen)

    def gradients(self, parameters: Tensors, inputs: Any, targets: Any) -> Sequence[Any]:
        """Returns the gradients of the parameters, in their order."""
        replay = self._recorded.get(_shape(inputs))
        if replay is None:
            return self._mapped(parameters, inputs, targets)
        with require_torch().no_grad():
            return replay(*parameters.values(), inputs, targets)

    def begin_round(self, parameters: Tensors, inputs: Any, targets: Any) -> None:
        """Forgets all records where the module's own code no longer gives what was recorded of it, to the bit.

        Both are asked for the gradients of one silo, as the round begins and with the same draws; so what is given has
        one silo on its first axis.
        """
        if self._recorded_alone is None:
            return
        asked = *parameters.values(), inputs, targets
        if not _alike(_answers([_flat(self._alone, parameters), self._recorded_alone], asked)):
            self._recorded.clear()
            self._moving.clear()
            self._recorded_alone = None

    def record(self, parameters: Tensors, inputs: Any, targets: Any) -> bool:
        """Records a step for all batches of this shape, and returns whether it could; nothing else may train meanwhile.

        A module may do something else at each call. A record would repeat what happened once, so there is none where it
        does not do what mapping does.
        """
        one = {name: each[:1] for name, each in parameters.items()}
        try:
            mapped = self._record_of(self._mapped, parameters, inputs, targets, in_python=inputs.is_cuda)
            alone = self._record_of(self._alone, one, inputs[:1], targets[:1], in_python=True)
        except Exception:  # whatever cannot be recorded is mapped
            return False
        if mapped is not None and alone is not None:
            self._recorded[_shape(inputs)], self._recorded_alone = mapped, alone
        return _shape(inputs) in self._recorded

    def _record_of(
        self,
        gradients: Callable[[Tensors, Any, Any], Sequence[Any]],
        parameters: Tensors,
        inputs: Any,
        targets: Any,
        *,
        in_python: bool,
    ) -> Callable[..., Sequence[Any]] | None:
        """Returns a record of what gives gradients, or None where calls change something or it gives others."""
        torch, step = require_torch(), _flat(gradients, parameters)
        from torch.fx.experimental.proxy_tensor import make_fx

        given = [*(each.detach() for each in parameters.values()), inputs, targets]
        found = _answers([step], given)  # a first call may prepare something
        before = _python_state(self.model)
        with torch.no_grad(), seeded(0, inputs.device):
            replay = _replay(torch, make_fx(step)(*_copies(given)))
            replay = replay if in_python else _without_python(torch, replay, _copies(given))
        if not _alike(found + _answers([replay] * _RUNS_UNTIL_SETTLED, given)):
            return None
        same = all(_same(before.get(name), kept) for name, kept in _python_state(self.model).items())
        return replay if same else None

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

        leaves, records = list(parameters.values()), (inputs, targets, chosen)
        with torch.no_grad(), seeded(0):
            whole = _without_python(torch, moved, [*_copies(leaves), *records])
        if _alike(_answers([moved, *[whole] * _RUNS_UNTIL_SETTLED], leaves, records)):
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


def _flat(gradients: Callable[[Tensors, Any, Any], Sequence[Any]], parameters: Tensors) -> Callable[..., Sequence[Any]]:
    """Returns what gives gradients as a function of the tensors in a row, parameters first, as a record is one."""
    torch = require_torch()

    def step(*given: Any) -> Sequence[Any]:
        *tensors, inputs, targets = given
        with torch.enable_grad():
            leaves = {name: each.detach().requires_grad_() for name, each in zip(parameters, tensors, strict=True)}
            return gradients(leaves, inputs, targets)

    return step


def _answers(
    steps: Iterable[Callable[..., Sequence[Any]]], written: Sequence[Any], read: Sequence[Any] = ()
) -> list[Sequence[Any]]:
    """Returns what each gives with the same draws, of copies of what it may write to and of what it only reads."""
    torch, found = require_torch(), []
    for step in steps:
        with torch.no_grad(), seeded(0, written[0].device):
            found.append(step(*_copies(written), *read))
    return found


def _copies(given: Sequence[Any]) -> list[Any]:
    return [each.detach().clone() for each in given]


def _alike(answers: Sequence[Sequence[Any]]) -> bool:
    """Whether the first answer is that of each other to the bit; what is no number is like itself."""
    torch, (first, *others) = require_torch(), answers
    return all(
        torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        for answer in others
        for one, other in zip(first, answer, strict=True)
    )


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


def _replay(torch: Any, recorded: Any) -> Callable[..., Sequence[Any]]:
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


def _without_python(torch: Any, replay: Callable[..., Any], given: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """Returns a record that runs outside Python, so that threads do not wait for each other; or the record itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch recommends its successor, which needs a compiler on the machine
        try:
            return torch.jit.trace(lambda *each: tuple(replay(*each)), tuple(given), check_trace=False)  # type: ignore[no-any-return]
        except (AttributeError, RuntimeError):  # a torch without it, or an operation that it does not know
            return replay


def _python_state(model: TorchModel) -> dict[str, Any]:
    """Returns by name what a call could change besides tensors that it is given: bytes, or what bytes cannot hold."""
    _, words, place, *_ = np.random.get_state()  # noqa: NPY002  # a user's module may draw from it
    found: dict[str, Any] = {
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
            found[f"its attribute {path}{'.' if path else ''}{name}"] = value
        if not type(part).__module__.startswith("torch."):
            found.update({f"the variable {name}": value for name, value in _used_by(type(part).forward).items()})
    loss = model.loss
    code = loss if inspect.isroutine(loss) else type(loss).__call__
    of_loss = {**_used_by(code), **getattr(getattr(loss, "__self__", loss), "__dict__", {})}
    found.update({f"{name} of its loss": value for name, value in of_loss.items()})
    return {name: _as_bytes(value) for name, value in found.items()}


def _used_by(function: Any) -> dict[str, Any]:
    """Returns by name what of its surroundings a function uses."""
    if not hasattr(function, "__code__"):  # not of Python
        return {}
    try:
        used = inspect.getclosurevars(function)
    except ValueError:  # of a name that has no value yet
        return {}
    return {**used.globals, **used.nonlocals}


def _as_bytes(value: Any) -> Any:
    """Returns what tells a value from others in a few bytes, or the value itself."""
    try:
        return hashlib.blake2b(pickle.dumps(value)).digest()
    except Exception:  # a lambda, a lock, a tensor of a mapped call
        return value


def _same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, bytes) and isinstance(other, bytes) and one == other)
