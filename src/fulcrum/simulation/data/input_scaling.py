"""Inputs multiplied by public factors, so that directions with more variance count for more in training.

>>> inputs = scaled_inputs(Spectrum(variances=[4.0, 1.0], origin="public", source="texts"), power=1.0)
>>> [round(factor, 3) for factor in inputs.factors], [round(variance, 2) for variance in inputs.variances]
([1.085, 0.542], [4.71, 0.29])

An input with the public variance l is multiplied by l to the power gamma / 2, up to a common factor that leaves the
mean squared length of inputs as it is. Clip and noise treat all parameters of a model alike. With larger inputs in the
directions that vary most, these directions take a larger part of a clipped update, so less noise falls on them. The
factors are public constants: every silo multiplies its inputs by the factors before training, and no epsilon changes.
"""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from msgspec import structs

from fulcrum.core.plan.plan_file import Spectrum
from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import DataError, ParameterError
from fulcrum.parsing import json_of
from fulcrum.regular_files import regular_file
from fulcrum.simulation.data.tasks import Task

LARGEST_POWER = 8.0
"""The largest gamma: beyond, one input alone would be left."""

_LEAST = 1e-6
"""Of the largest factor: an input that hardly varies is not removed, and no variance underflows."""


class ScaledInputs(Spectrum, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The variances of scaled inputs, and the factors that scale the inputs; as a file, `fulcrum tune` writes it.

    `variances` are those after scaling, as the model sees the inputs. `power` is gamma; 0 leaves the inputs unscaled.
    """

    factors: list[float]
    power: float = 0.0

    @property
    def spectrum(self) -> Spectrum:
        """The variances alone, for the server's prior."""
        return Spectrum(variances=self.variances, origin=self.origin, source=self.source, embedding=self.embedding)


def scaled_inputs(spectrum: Spectrum, *, power: float) -> ScaledInputs:
    """Returns factors of inputs and the variances after scaling.

    Args:
        spectrum: The public variances of the inputs before scaling.
        power: gamma, the power of the variances in the variances of scaled inputs beyond the first; 0 for no scaling.
    """
    if isinstance(power, str) or not 0 <= power <= LARGEST_POWER:
        raise ParameterError("scaling.power-range", most=LARGEST_POWER, power=power)
    variances = np.array(spectrum.variances)
    factors = np.maximum((variances / variances.max()) ** (power / 2), _LEAST)
    factors *= np.sqrt(variances.sum() / (variances * factors**2).sum())
    return ScaledInputs(
        variances=(variances * factors**2).tolist(),
        origin=spectrum.origin,
        source=spectrum.source,
        embedding=spectrum.embedding,
        factors=factors.tolist(),
        power=float(power),
    )


def scale_inputs(task: Task, inputs: ScaledInputs) -> Task:
    """Returns the task with every input multiplied by its factor."""
    if task.features_train.ndim != 2 or task.features_train.shape[1] != len(inputs.factors):
        raise DataError(
            "scaling.factors-number", factors=len(inputs.factors), data=task.name, shape=task.features_train.shape[1:]
        )
    factors = np.array(inputs.factors)
    return replace(task, features_train=task.features_train * factors, features_test=task.features_test * factors)


def save_inputs(inputs: ScaledInputs, path: str | Path) -> None:
    """Writes variances and factors of inputs as JSON, for `--public` and `--input-factors`."""
    write_whole(Path(path), msgspec.json.format(msgspec.json.encode(inputs), indent=1) + b"\n")


def read_inputs(path: str | Path) -> ScaledInputs:
    """Returns the variances and factors of a file of `save_inputs`; `source` is the name of the file."""
    file = Path(path)
    try:
        inputs = json_of(regular_file(file).read_bytes(), ScaledInputs)
    except OSError as error:
        raise DataError("file.unreadable", file=error.filename or str(path), reason=error.strerror or error) from None
    except msgspec.DecodeError as error:
        raise DataError("scaling.file-form", file=file.name, reason=error) from None
    if len(inputs.factors) != len(inputs.variances):
        raise DataError(
            "scaling.file-lengths", file=file.name, factors=len(inputs.factors), variances=len(inputs.variances)
        )
    if not all(0 < number < np.inf for number in inputs.factors):
        raise DataError("scaling.file-range", file=file.name)
    return structs.replace(inputs, source=file.name)
