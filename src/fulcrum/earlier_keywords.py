"""Earlier keywords of public functions and methods: `fulcrum.NAME` takes them for a version more, with a warning.

>>> def digest_of(*, input_digest):
...     return input_digest
>>> accepting = _accepting(digest_of, {"basis": "input_digest"})
>>> import warnings
>>> with warnings.catch_warnings(record=True) as caught:
...     warnings.simplefilter("always")
...     accepting(basis="3f2a"), str(caught[0].message)
('3f2a', 'digest_of(basis=..) goes with version 0.3. Use input_digest=..')

The package adds the earlier keywords when a program asks for a public name. A silo's own process imports the modules of
the core themselves, so the code that a security officer reads has none of these lines.
"""

import functools
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_DIGEST = {"basis": "input_digest"}
_CONFIG = {"beside": "config_digest"}
_KEYWORDS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "Entry": {},
    "Ledger": {"record": _DIGEST, "stored_payload": _DIGEST, "would_exceed": _DIGEST},
    "MaskedRound": {"__init__": _CONFIG},
    "MaskedSilo": {"__init__": {"learner": "training"}, "masked_update": _CONFIG},
    "release": {"": _DIGEST},
}
"""By public name and method, the keyword in use for every earlier keyword."""


def with_earlier_keywords(name: str, value: Any) -> Any:
    """Returns a public function, or a public class with methods, that takes earlier keywords."""
    if name in ("Entry", "Ledger"):  # a ledger returns entries to programs that never name the class
        import_module("fulcrum.core.store.ledger_entries").Entry.basis = property(_basis)
    for method, keywords in _KEYWORDS[name].items():
        if not method:
            value = _accepting(value, keywords)
            setattr(import_module(value.__module__), name, value)  # one object under both names, so it can be pickled
            return value
        setattr(value, method, _accepting(getattr(value, method), keywords))
    return value


def _basis(entry: Any) -> Any:
    """Returns the input digest of an entry under the earlier name of the attribute."""
    warnings.warn("Entry.basis goes with version 0.3. Use input_digest", DeprecationWarning, stacklevel=2)
    return entry.input_digest


def _accepting(function: Callable[..., Any], renamed: Mapping[str, str]) -> Callable[..., Any]:
    """Returns the function with earlier keywords; an earlier keyword together with the new keyword is refused."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        earlier = {name: keywords.pop(name) for name in renamed if name in keywords}
        for name in earlier:
            place = function.__qualname__.removesuffix(".__init__")
            message = f"{place}({name}=..) goes with version 0.3. Use {renamed[name]}=.."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        return function(*arguments, **keywords, **{renamed[name]: value for name, value in earlier.items()})

    return call
