"""The server rules by name: those that are built in, and those that a user registers or installs.

>>> known_rules()
('sum', 'random-effects', 'momentum')

`register_server_rule` enters a rule for this process. A package that is installed beside Fulcrum enters its rules for
every command and every deployed server by an entry point of the group `fulcrum.server_rules`, whose name is the rule's.
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
"""The group of entry points by which installed packages offer rules."""

_Rule = TypeVar("_Rule", bound=ServerRule)
_RULES: dict[str, type[ServerRule]] = {rule.name: rule for rule in (SumRule, RandomEffectsRule, MomentumRule)}


def register_server_rule(rule: type[_Rule]) -> type[_Rule]:
    """Enters a rule under its name for this process, and returns it, so that it can decorate the class.

    Raises:
        ParameterError: The name is none that a plan file can carry, another rule has it, or the rule claims to add up.
    """
    if not re.search(SERVER_NAME, rule.name):
        raise ParameterError(
            f"the name of a server rule has small letters, digits and hyphens, at most 32, got {rule.name!r}"
        )
    if rule.adds_up and rule is not SumRule:  # checkpoint, exports and targets on outer tiers take it for "sum"
        raise ParameterError(
            f"the server rule {rule.name!r} has adds_up = True, which 'sum' alone may have. Leave adds_up out"
        )
    if _RULES.setdefault(rule.name, rule) is not rule:
        raise ParameterError(f"there is a server rule {rule.name!r} already. Choose another name")
    return rule


def known_rules() -> tuple[str, ...]:
    """Returns the names of all rules that are built in or registered."""
    return tuple(_RULES)


def rule_named(name: str) -> type[ServerRule]:
    """Returns the rule of a name; one that is not registered is looked for among installed packages.

    Raises:
        ParameterError: There is no rule of this name.
    """
    if name not in _RULES:
        installed = {point.name: point for point in entry_points(group=GROUP)}
        check_known("server", name, [*_RULES, *(other for other in installed if other not in _RULES)])
        _load(installed[name])
    return _RULES[name]


def _load(point: EntryPoint) -> None:
    """Registers the rule of an entry point."""
    rule = point.load()
    if getattr(rule, "name", None) != point.name:
        raise ParameterError(f"the entry point {point.name!r} of {GROUP} is {point.value}, which has another name")
    register_server_rule(rule)
