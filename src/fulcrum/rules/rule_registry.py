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
        raise ParameterError("rule.name-invalid", name=rule.name)
    if rule.adds_up and rule is not SumRule:  # checkpoint, exports and targets on outer tiers take it for "sum"
        raise ParameterError("rule.adds-up", name=rule.name)
    if _RULES.setdefault(rule.name, rule) is not rule:
        raise ParameterError("rule.name-taken", name=rule.name)
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
        raise ParameterError("rule.entry-point-name", name=point.name, group=GROUP, target=point.value)
    register_server_rule(rule)
