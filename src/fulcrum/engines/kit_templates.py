"""The texts of kits: a README for each operator, and the scripts that start a site, from template files.

The templates of an engine are in `engines/templates`, in a folder of the engine's name.
"""

import shlex
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def kit_text(template: str, **values: Any) -> str:
    """Returns the text of a template; a value that the template names and the caller omits is an error."""
    return _environment().get_template(template).render(**values)


def write_text(path: Path, template: str, **values: Any) -> None:
    """Writes the text of a template to a file."""
    path.write_text(kit_text(template, **values), encoding="utf-8")


def write_script(path: Path, template: str, **values: Any) -> None:
    """Writes the text of a template to an executable file."""
    write_text(path, template, **values)
    path.chmod(0o755)


@cache
def _environment() -> Environment:
    # Markdown and shell have no markup to escape. Texts in a script pass the filter `quoted`.
    environment = Environment(  # noqa: S701
        loader=PackageLoader("fulcrum.engines", "templates"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["quoted"] = shlex.quote
    return environment
