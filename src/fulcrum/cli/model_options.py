"""A user's own PyTorch model, as options."""

import shlex
import sys
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from fulcrum.cli.options import look_here_for, option, words_of
from fulcrum.errors import ParameterError
from fulcrum.simulation.torch.torch_model import TorchModel, load_torch_model

DeviceOption = Annotated[str | None, option("Where your own PyTorch model trains: cpu (default), cuda, cuda:1, ...")]


def prints_to_stderr() -> AbstractContextManager[object]:
    """Has what a user's own code prints go to stderr meanwhile: stdout is for results."""
    return redirect_stdout(sys.stderr)


@Parameter(name="*")
@dataclass(kw_only=True)
class ModelOptions:
    """A user's own model."""

    model: Annotated[str | None, option("Your own PyTorch module, module:Net, in place of the softmax head.")] = None
    trained: Annotated[
        str | None, option("Parameters of --model that are trained, such as 'head.*'; all by default.")
    ] = None

    def loaded(self) -> TorchModel | None:
        """Returns the model, or None for the softmax head."""
        if self.model is None:
            if self.trained is not None:
                raise ParameterError("cli.trained-without-model", trained=self.trained)
            return None
        if ":" not in self.model:
            raise ParameterError("cli.model-form", model=self.model)
        look_here_for(self.model)
        patterns = [pattern.strip() for pattern in ("*" if self.trained is None else self.trained).split(",")]
        with prints_to_stderr():
            return load_torch_model(self.model, trained=patterns)


def model_words(own: ModelOptions | None, device: str | None) -> str:
    """Returns a model and its device as they are typed, with a blank after each."""
    words = [*([words_of(own)] if own is not None else []), *([f"--device {shlex.quote(device)}"] if device else [])]
    return "".join(f"{word} " for word in words if word)
