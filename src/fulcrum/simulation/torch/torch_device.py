"""The device that trains tensors: its name, its source of batches and noise, and errors of missing memory.

>>> TorchDevice(name="cuda:1").kind, TorchDevice(name="cuda:1").draws_kind
('cuda', 'device')
"""

import warnings
from dataclasses import dataclass
from typing import Any

from fulcrum.errors import ParameterError, check_known, in_one_line
from fulcrum.simulation.torch.torch_draws import DRAWS
from fulcrum.simulation.torch.torch_state import require_torch


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchDevice:
    """The device for training, and the source of batches and noise.

    Attributes:
        name: Name in torch's words, such as "cpu", "cuda" or "cuda:1".
        draws: A name of `DRAWS`; None for draws shared with the NumPy engines on the processor, and the device's own
            draws on a GPU.
        chunk: Largest number of silos at a time; as many as fit by default.
    """

    name: str = "cpu"
    draws: str | None = None
    chunk: int | None = None

    def __getattr__(self, name: str) -> Any:
        """Answers the former name of a property, with a warning."""
        if name != "drawn":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        message = "TorchDevice.drawn goes with version 0.3. Use draws_kind"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.draws_kind

    @property
    def draws_kind(self) -> str:
        """The source of batches and noise, a name of `DRAWS`."""
        return self.draws or ("shared" if self.kind == "cpu" else "device")

    @property
    def kind(self) -> str:
        """The name without a number."""
        return self.name.partition(":")[0]

    def check(self) -> None:
        """Raises `ParameterError` for a missing device."""
        torch = require_torch()
        check_known("draws", self.draws_kind, DRAWS)
        if self.chunk is not None and self.chunk < 1:
            raise ParameterError("number.whole-range", name="chunk", least=1, value=self.chunk)
        try:
            torch.zeros((), device=self.name).item()
        except (RuntimeError, AssertionError, ImportError) as error:
            reason = in_one_line(str(error).partition("\n")[0]).partition(". ")[0]
            raise ParameterError("training.device-missing", device=self.name, reason=reason) from None


def too_large(what: str, device: str, error: Exception) -> ParameterError:
    """Returns the error for a load, named by `what`, that does not fit into the memory of a device."""
    reason = in_one_line(str(error).partition("\n")[0]).rstrip(". ")
    return ParameterError("training.memory-exceeded", load=what, device=device, reason=reason)


def is_out_of_memory(torch: Any, error: Exception) -> bool:
    """Returns true for an error of missing memory, on a GPU or on the processor."""
    allocation_failed = isinstance(error, RuntimeError) and "allocate memory" in str(error)
    return allocation_failed or isinstance(error, (torch.OutOfMemoryError, MemoryError))
