"""Names that another module has now: the module they were in answers for one version, with a warning.

>>> __getattr__ = names_in("fulcrum.noise", {"clip": "core.noise.mechanism"}, until="0.3")
>>> import warnings
>>> with warnings.catch_warnings(record=True) as told:
...     warnings.simplefilter("always")
...     __getattr__("clip").__name__, str(told[0].message)
('clip', 'fulcrum.noise.clip goes with version 0.3. Use fulcrum.core.noise.mechanism.clip')
"""

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def names_in(module: str, places: Mapping[str, str], *, until: str) -> Callable[[str], Any]:
    """Returns the function `__getattr__` of a module whose names have moved; each is imported when it is asked for.

    Args:
        module: The module that had the names.
        places: By name, the module that has it now, without the package.
        until: The version in which the old names go.
    """

    def moved(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place = f"fulcrum.{places[name]}"
        warnings.warn(
            f"{module}.{name} goes with version {until}. Use {place}.{name}", DeprecationWarning, stacklevel=2
        )
        return getattr(importlib.import_module(place), name)

    return moved
