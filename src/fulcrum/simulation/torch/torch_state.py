"""PyTorch for this package: the import, and torch's threads, seeds and modes inside a context.

Every context restores the former state, because a caller may use torch for work of its own.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from fulcrum.errors import MissingExtraError

Tensors = dict[str, Any]
"""Tensors by name."""


def require_torch() -> Any:
    """Returns torch, or raises `MissingExtraError`."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("model.torch-missing") from None
    return torch


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Keeps torch to a single thread inside the context: operations of silos are small, and threads would wait."""
    torch = require_torch()
    before = torch.get_num_threads()
    if before == 1:  # chosen by a user, or by another training that restores the number
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def use_seed(seed: int, device: str = "cpu") -> Iterator[None]:
    """Makes random layers, such as dropout, depend on a seed inside the context, and restores the state afterwards."""
    torch = require_torch()
    torch_device, devices = torch.device(device), []
    if torch_device.type == "cuda":
        devices = [torch.cuda.current_device() if torch_device.index is None else torch_device.index]
    with torch.random.fork_rng(devices):  # torch.manual_seed also walks the stack for every kind of device not in use
        for generator in (torch.default_generator, *(torch.cuda.default_generators[index] for index in devices)):
            generator.manual_seed(seed)
        yield


@contextmanager
def use_default_modes(device: str = "cpu") -> Iterator[None]:
    """Resets torch to default modes inside the context; threads do not inherit the modes of a caller."""
    torch = require_torch()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in filter(torch.amp.is_autocast_available, {"cpu", torch.device(device).type}):
            stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device(device))
        yield
