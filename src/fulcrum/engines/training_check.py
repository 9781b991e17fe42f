"""Checks that a training module fits a plan, before any process starts."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from fulcrum.aggregation.model_checks import checked_model
from fulcrum.core.training.training_module import TrainingModule, load_training_module
from fulcrum.errors import DataError
from fulcrum.planning.plan import Plan


def loaded_module(train: str) -> TrainingModule:
    """Returns the functions of a training module, which may be in the current folder."""
    if "" not in sys.path:
        sys.path.append("")
    return load_training_module(train)


def check_fits(training_module: TrainingModule, plan: Plan, start: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Raises unless the module has the functions for the plan's unit, and the model fits the plan and is finite."""
    training_module.check_unit(plan.unit)
    size = sum(array.size for array in start.values())
    if size and plan.parameters not in (None, size):
        raise DataError("engine.model-size", size=size, parameters=plan.parameters)
    layout, flat = checked_model(plan, start)
    training_module.classes(start)  # refused here where it is declared wrongly
    for name, array in layout.arrays(flat).items():
        if not np.isfinite(array).all():
            raise DataError("engine.model-not-finite", array=name)
