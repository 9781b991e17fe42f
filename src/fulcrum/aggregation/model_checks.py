"""Checks of a model against a plan, before a server or a region sums updates of the model.

>>> import numpy as np
>>> from fulcrum.planning.planner import plan
>>> layout, flat = checked_model(plan("isic-paper", rounds=2, epsilon=1.0), {"head": np.zeros((2, 3))})
>>> layout.parameters, flat.shape
(6, (6,))
"""

from fulcrum.arrays import FloatArray
from fulcrum.core.messages.layout import Layout, flatten_arrays
from fulcrum.core.messages.model_message import Model
from fulcrum.core.plan.plan_data import PlanData
from fulcrum.errors import ExchangeError


def checked_model(plan: PlanData, model: Model) -> tuple[Layout, FloatArray]:
    """Returns a model's layout and coordinates; raises `ExchangeError` as `check_model_layout` does."""
    layout, flat = flatten_arrays(model, what="model", error=ExchangeError)
    check_model_layout(plan, layout)
    return layout, flat


def check_model_layout(plan: PlanData, layout: Layout) -> None:
    """Raises `ExchangeError` for a layout that no arrays have, without parameters, or not of the plan's parameters."""
    layout.check("the model")
    if not layout.parameters:
        raise ExchangeError("model.parameters-missing")
    if plan.parameters not in (None, layout.parameters):
        raise ExchangeError("model.parameters-differ", parameters=layout.parameters, expected=plan.parameters)
