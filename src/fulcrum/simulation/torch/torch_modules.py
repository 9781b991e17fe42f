"""Preparation of a user's PyTorch module: a copy, the choice of trained parameters, and the treatment of statistics."""

import copy
import fnmatch
from collections.abc import Sequence
from typing import Any

from fulcrum.errors import ParameterError, in_one_line, listing


def copy_module(module: Any) -> Any:
    """Returns a copy of a user's module; threads, trials and silos need copies of their own.

    Raises `ParameterError` for a module without a copy, without shapes or without numbers.
    """
    import torch

    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise ParameterError("model.module-scripted")
    tensors = [*module.named_parameters(), *module.named_buffers()]
    shapeless = next(
        (name for name, tensor in tensors if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)), None
    )
    if shapeless is not None:
        raise ParameterError("model.parameter-shapeless", model=kind, parameter=shapeless)
    without_numbers = next((name for name, tensor in tensors if tensor.is_meta), None)
    if without_numbers is not None:
        raise ParameterError("model.parameter-meta", parameter=without_numbers, model=kind)
    try:
        return copy.deepcopy(module)
    except Exception as error:  # a lock, an open file, a tensor that was computed
        reason = in_one_line(str(error).partition(".  ")[0])
        raise ParameterError("model.module-not-copied", model=kind, reason=reason) from error


def choose_parameters(module: Any, patterns: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the trained parameters, all of the same dtype."""
    import torch

    kind = type(module).__name__
    trainable = {name: value for name, value in module.named_parameters() if value.requires_grad}
    unmatched = [pattern for pattern in patterns if not fnmatch.filter(trainable, pattern)]
    if unmatched:
        raise ParameterError(
            "model.pattern-unknown", model=kind, pattern=unmatched[0], known=listing(trainable) or "none"
        )
    chosen = tuple(name for name in trainable if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))
    if not chosen:
        raise ParameterError("model.patterns-missing", model=kind, known=listing(trainable))
    kinds = {trainable[name].dtype for name in chosen}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        types = ", ".join(sorted(map(str, kinds)))
        raise ParameterError("model.parameter-type", model=kind, types=types)
    return chosen


def only_layer(module: Any, trained: Sequence[str]) -> str | None:
    """Returns the linear layer whose weight and bias are all trained parameters, or None."""
    import torch

    for name, part in module.named_modules():
        names = tuple(f"{name}.{parameter}" if name else parameter for parameter in ("weight", "bias"))
        if isinstance(part, torch.nn.Linear) and names == tuple(trained):
            return str(name)
    return None


def keep_statistics_home(module: Any, trained: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Stops layers from writing batch statistics; returns the names of frozen layers, and notes for the user.

    Batch statistics are made from records, and no plan counts them, so statistics must not travel. A normalisation
    layer that is trained, or has seen no batch yet, loses its running statistics and normalises every batch by the
    batch's own mean and variance. A frozen layer with running statistics keeps the running statistics.
    """
    import torch

    kind = type(module).__name__
    buffers = list(dict(module.named_buffers()))
    frozen, by_batch = [], []
    for name, part in module.named_modules():
        if not isinstance(part, torch.nn.modules.batchnorm._NormBase) or not part.track_running_stats:
            continue
        names = [f"{name}.{parameter}" if name else parameter for parameter, _ in part.named_parameters(recurse=False)]
        if part.num_batches_tracked and not set(names) & set(trained):
            frozen.append(name)
            continue
        part.track_running_stats = False
        part.running_mean = part.running_var = part.num_batches_tracked = None
        by_batch.append(name)
    notes = []
    if buffers:
        notes.append(f"Buffers of {kind}, such as {buffers[0]}, do not travel: the plan does not count them.")
    if by_batch:
        notes.append(f"Batch normalisation of {kind} goes by each batch alone, in training and in testing.")
    return tuple(frozen), notes
