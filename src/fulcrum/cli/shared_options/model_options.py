"""The options of a user's own PyTorch model."""

import shlex
import sys
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from fulcrum.cli.shared_options.options import TRAINING, look_here_for, option, words_of
from fulcrum.errors import ParameterError
from fulcrum.simulation.torch.torch_model import TorchModel, load_torch_model

DeviceOption = Annotated[
    str | None, option("Device that trains your own PyTorch model: cpu, cuda, cuda:1, ... Default: cpu.", TRAINING)
]


def prints_to_stderr() -> AbstractContextManager[object]:
    """Returns a context that sends prints of a user's own code to stderr: stdout is for results."""
    return redirect_stdout(sys.stderr)


@Parameter(name="*")
@dataclass(kw_only=True)
class ModelOptions:
    """The options of a user's own model."""

    model: Annotated[
        str | None,
        option(
            "Your own PyTorch module, as module:Net for the class Net in module.py. Default: a softmax head.", TRAINING
        ),
    ] = None
    trained: Annotated[
        str | None,
        option(
            "Parameters of --model that are trained, as patterns separated by commas, such as 'head.*'. Default: all.",
            TRAINING,
        ),
    ] = None

    def load(self) -> TorchModel | None:
        """Returns the model; None for the softmax head."""
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
    """Returns the options of model and device in the form of a command line, with a blank after every option."""
    words = [*([words_of(own)] if own is not None else []), *([f"--device {shlex.quote(device)}"] if device else [])]
    return "".join(f"{word} " for word in words if word)
