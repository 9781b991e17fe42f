"""The server rules by name: built in, registered by a user, or installed with a package.

>>> known_rules()
('sum', 'random-effects', 'momentum')

`register_server_rule` enters a rule for the current process. An installed package enters rules for every command and
every deployed server by entry points of the group `fulcrum.server_rules`, with the names of the rules.
"""

import re
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from fulcrum.core.choices import SERVER_NAME
from fulcrum.errors import ParameterError, check_known
from fulcrum.rules.momentum_rule import MomentumRule
from fulcrum.rules.random_effects_rule import RandomEffectsRule
from fulcrum.rules.server_rule import ServerRule
from fulcrum.rules.sum_rule import SumRule

GROUP = "fulcrum.server_rules"
"""The group of entry points for the rules of installed packages."""

_Rule = TypeVar("_Rule", bound=ServerRule)
_RULES: dict[str, type[ServerRule]] = {rule.name: rule for rule in (SumRule, RandomEffectsRule, MomentumRule)}


def register_server_rule(rule: type[_Rule]) -> type[_Rule]:
    """Enters a rule under the rule's name for the current process; returns the rule, for use as a decorator.

    A class of the same module and name takes the place of its earlier version, as when a cell of a notebook runs again.

    Raises:
        ParameterError: An attribute or a method is missing, the name does not fit a plan file, a different rule has the
            name, or the rule claims to add up.
    """
    for attribute in ("name", "clause", "of", "begin", "step"):
        if not any(attribute in vars(base) for base in rule.__mro__ if base is not ServerRule):
            raise ParameterError("rule.attribute-missing", rule=rule.__name__, attribute=attribute)
    if not re.search(SERVER_NAME, rule.name):
        raise ParameterError("rule.name-invalid", name=rule.name)
    if rule.adds_up and rule is not SumRule:  # checkpoint, exports and outer targets would treat it as "sum"
        raise ParameterError("rule.adds-up", name=rule.name)
    earlier = _RULES.get(rule.name, rule)
    if (earlier.__module__, earlier.__qualname__) != (rule.__module__, rule.__qualname__):
        raise ParameterError("rule.name-taken", name=rule.name)
    _RULES[rule.name] = rule
    return rule


def known_rules() -> tuple[str, ...]:
    """Returns the names of all rules, built in or registered."""
    return tuple(_RULES)


def rule_named(name: str) -> type[ServerRule]:
    """Returns the rule `name`, registered or from an installed package.

    Raises:
        ParameterError: No rule has the name.
    """
    if name not in _RULES:
        installed = {point.name: point for point in entry_points(group=GROUP)}
        check_known("server", name, [*_RULES, *(entry for entry in installed if entry not in _RULES)])
        _load(installed[name])
    return _RULES[name]


def _load(point: EntryPoint) -> None:
    """Registers the rule of an entry point."""
    rule = point.load()
    if getattr(rule, "name", None) != point.name:
        raise ParameterError("rule.entry-point-name", name=point.name, group=GROUP, target=point.value)
    register_server_rule(rule)
