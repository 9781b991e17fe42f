"""The arguments of Flower's `FedAvg` and of related strategies, under a plan.

>>> check_averaging({"fraction_train": 1.0, "min_train_nodes": 2})
>>> check_averaging({"fraction_train": 0.5})
Traceback (most recent call last):
fulcrum.errors.ParameterError: every silo takes part in every round. Leave out fraction_train

A plan fixes silos, weights, and the server's step. An argument with the effect that the plan has anyway is accepted.
Every other argument is refused by name: a run without the argument's effect would differ from the app's intention.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fulcrum.errors import ParameterError, suggestion

_LEAST = 2
"""Silos in every masked sum; Flower's own default for the least number of nodes."""


def _few(value: Any) -> bool:
    return bool(value <= _LEAST)


def _never(_: Any) -> bool:
    return False


def _absent(value: Any) -> bool:
    return value is None


_ARGUMENTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "fraction_train": ("silos", lambda value: value == 1),
    "min_train_nodes": ("dropouts", _few),
    "min_available_nodes": ("dropouts", _few),
    "fraction_evaluate": ("metrics", lambda value: value == 0),
    "min_evaluate_nodes": ("metrics", _few),
    "train_metrics_aggr_fn": ("metrics", _absent),
    "evaluate_metrics_aggr_fn": ("metrics", _absent),
    "weighted_by_key": ("weights", lambda value: value == "num-examples"),
    "arrayrecord_key": ("record", lambda value: value == "arrays"),
    "configrecord_key": ("record", lambda value: value == "config"),
    "proximal_mu": ("proximal", lambda value: value == 0),
}
"""By argument: the reason of a refusal, and the test for values with the effect that a plan has anyway."""

_OF_SERVER_RULES = {"eta", "eta_l", "beta_1", "beta_2", "tau", "server_learning_rate", "server_momentum"}
"""Arguments of Flower's strategies whose server moves the model by a rule of its own."""


def check_averaging(arguments: Mapping[str, Any]) -> None:
    """Raises `ParameterError` for the first argument of `FedAvg`, `FedProx` or `FedAdam` that no plan can honour."""
    for name, value in arguments.items():
        reason, holds = _ARGUMENTS.get(name, ("server", _never))
        if holds(value):
            continue
        if reason == "silos":
            raise ParameterError("flower.argument-silos", argument=name)
        if reason == "dropouts":
            raise ParameterError("flower.argument-dropouts", argument=name)
        if reason == "metrics":
            raise ParameterError("flower.argument-metrics", argument=name)
        if reason == "weights":
            raise ParameterError("flower.argument-weights", argument=name)
        if reason == "record":
            raise ParameterError("flower.argument-record", argument=name)
        if reason == "proximal":
            raise ParameterError("flower.argument-proximal", argument=name)
        near = "" if name in _OF_SERVER_RULES else suggestion(name, _ARGUMENTS)
        if near:
            raise ParameterError("flower.argument-unknown", argument=name, suggestion=near)
        raise ParameterError("flower.argument-server", argument=name)
