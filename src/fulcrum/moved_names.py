"""Names that moved to a new module: the old module answers for a version longer, with a warning.

>>> __getattr__ = names_in("fulcrum.noise", {"clip": "core.noise.mechanism"}, until="0.3")
>>> import warnings
>>> with warnings.catch_warnings(record=True) as caught:
...     warnings.simplefilter("always")
...     __getattr__("clip").__name__, str(caught[0].message)
('clip', 'fulcrum.noise.clip goes with version 0.3. Use fulcrum.core.noise.mechanism.clip')
"""

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def names_in(module: str, places: Mapping[str, str], *, until: str) -> Callable[[str], Any]:
    """Returns the function `__getattr__` of a module with moved names; a name is imported at the first use.

    Args:
        module: The old module of the names.
        places: By name, the new module, without the package; a new name follows after a colon.
        until: The version that removes the old names.
    """

    def look_up(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new_name = f"fulcrum.{places[name]}".partition(":")
        new_name = new_name or name
        warnings.warn(
            f"{module}.{name} goes with version {until}. Use {place}.{new_name}", DeprecationWarning, stacklevel=2
        )
        return getattr(importlib.import_module(place), new_name)

    return look_up
