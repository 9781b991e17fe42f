"""A user's PyTorch module as it comes: copied, and looked through for what is trained and what stays at home."""

import copy
import fnmatch
from collections.abc import Sequence
from typing import Any

from fulcrum.errors import ParameterError, in_one_line, listing


def copied(module: Any) -> Any:
    """Returns a copy of a user's module; threads, trials and silos each need one of their own."""
    import torch

    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise ParameterError("model.module-scripted")
    every = [*module.named_parameters(), *module.named_buffers()]
    lazy = next((name for name, each in every if isinstance(each, torch.nn.parameter.UninitializedTensorMixin)), None)
    if lazy is not None:
        raise ParameterError("model.parameter-shapeless", model=kind, parameter=lazy)
    bare = next((name for name, each in every if each.is_meta), None)
    if bare is not None:
        raise ParameterError("model.parameter-meta", parameter=bare, model=kind)
    try:
        return copy.deepcopy(module)
    except Exception as error:  # a lock, an open file, a tensor that was computed
        told = in_one_line(str(error).partition(".  ")[0])
        raise ParameterError("model.module-not-copied", model=kind, reason=told) from error


def chosen_parameters(module: Any, patterns: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the parameters that are trained; all of them must be of one kind of number."""
    import torch

    kind = type(module).__name__
    named = {name: value for name, value in module.named_parameters() if value.requires_grad}
    idle = [pattern for pattern in patterns if not fnmatch.filter(named, pattern)]
    if idle:
        raise ParameterError("model.pattern-unknown", model=kind, pattern=idle[0], known=listing(named) or "none")
    chosen = tuple(name for name in named if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))
    if not chosen:
        raise ParameterError("model.patterns-missing", model=kind, known=listing(named))
    kinds = {named[name].dtype for name in chosen}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        met = ", ".join(sorted(map(str, kinds)))
        raise ParameterError("model.parameter-type", model=kind, types=met)
    return chosen


def only_layer(module: Any, trained: Sequence[str]) -> str | None:
    """Returns the linear layer whose weight and bias are all that is trained, where it is so."""
    import torch

    for name, part in module.named_modules():
        own = tuple(f"{name}.{each}" if name else each for each in ("weight", "bias"))
        if isinstance(part, torch.nn.Linear) and own == tuple(trained):
            return str(name)
    return None


def keep_statistics_home(module: Any, trained: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Has no layer write batch statistics, which would have to travel; returns the layers that keep theirs, and notes.

    A normalisation layer that is trained, or has seen nothing yet, goes by each batch alone. A frozen one that comes
    with statistics keeps them.
    """
    import torch

    kind = type(module).__name__
    buffers = list(dict(module.named_buffers()))
    keeps, by_batch = [], []
    for name, part in module.named_modules():
        if not isinstance(part, torch.nn.modules.batchnorm._NormBase) or not part.track_running_stats:
            continue
        own = [f"{name}.{each}" if name else each for each, _ in part.named_parameters(recurse=False)]
        if part.num_batches_tracked and not set(own) & set(trained):
            keeps.append(name)
            continue
        part.track_running_stats = False
        part.running_mean = part.running_var = part.num_batches_tracked = None
        by_batch.append(name)
    notes = []
    if buffers:
        notes.append(f"Buffers of {kind}, such as {buffers[0]}, do not travel: the plan does not count them.")
    if by_batch:
        notes.append(f"Batch normalisation of {kind} goes by each batch alone, in training and in testing.")
    return tuple(keeps), notes
