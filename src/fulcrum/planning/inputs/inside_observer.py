"""The observer inside a region: the name that users write in a target, and the key that plans store.

>>> from fulcrum.readers.profiles import profile
>>> stored_epsilon(profile("severe"), {"region": 1.0, "aggregator": 8.0}, "trusted")
{'region': 1.0, 'silo': 8.0}

A target names the party that looks. With trusted sums the aggregator of a region sees single releases. With masked sums
no party sees a single release; the server together with colluding silos of the region sees most. Plan files and ledgers
keep the key `silo` for both observers, so that files and digests stay as they are.
"""

import warnings
from collections.abc import Mapping
from typing import Any

from fulcrum.core.topology import SILO, Topology
from fulcrum.errors import ParameterError

INSIDE_OBSERVERS: Mapping[str, str] = {"trusted": "aggregator", "masked": "server+silo"}
"""By aggregation, the name of the observer inside a region."""


def inside_observer(federation: Topology, aggregation: str) -> str:
    """Returns the name of the observer inside a region, as a target names the observer.

    Edge case: a federation may have a tier called `aggregator`. A target of this name is then a target on the tier, and
    the observer inside keeps the stored key `silo`.
    """
    name = INSIDE_OBSERVERS.get(aggregation, SILO)
    return SILO if name in federation.tier_names else name


def observer_names(federation: Topology, aggregation: str) -> list[str]:
    """Returns the names that an epsilon target may have: the observer inside, then the tiers."""
    return [inside_observer(federation, aggregation), *federation.tier_names[1:]]


def stored_epsilon(federation: Topology, epsilon: Mapping[str, float], aggregation: str) -> dict[str, float]:
    """Returns epsilon targets under the keys that a plan stores, in the same order.

    Args:
        federation: The federation of the targets.
        epsilon: The targets by name of an observer, or by stored key.
        aggregation: The way sums are made, which decides on the observer inside.

    Raises:
        ParameterError: A target names the observer of the other aggregation, or two targets are for one observer.
    """
    names = set(INSIDE_OBSERVERS.values()) - set(federation.tier_names)
    stored: dict[str, float] = {}
    for name, value in epsilon.items():
        expected = INSIDE_OBSERVERS.get(aggregation, name)
        if name in names and name != expected:
            raise ParameterError(
                "target.observer-of-other-aggregation", observer=name, aggregation=aggregation, expected=expected
            )
        key = SILO if name in names else name
        if key in stored:
            raise ParameterError("target.observer-repeated", observer=inside_observer(federation, aggregation))
        stored[key] = value
    return stored


def with_observer_name(federation: Topology, epsilon: Any, aggregation: str, *, stacklevel: int) -> Any:
    """Returns epsilon targets with the name of the observer inside in place of the earlier word `silo`.

    Args:
        federation: The federation of the targets.
        epsilon: The targets as a user gave them: a number, a mapping or None.
        aggregation: The way sums are made.
        stacklevel: The number of frames from here to the user's line, for the warning.
    """
    name = inside_observer(federation, aggregation)
    if not isinstance(epsilon, Mapping) or SILO not in epsilon or name == SILO:
        return epsilon
    stored_epsilon(federation, epsilon, aggregation)  # refuses both names at once
    message = f"epsilon={{'silo': ..}} goes with version 0.3. Use epsilon={{{name!r}: ..}}"
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)
    return {name if tier == SILO else tier: value for tier, value in epsilon.items()}
