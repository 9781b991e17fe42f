r"""What the pages are made of: templates, the style and script that they share, and data that can stand in a page.

>>> inline_json({"name": "</script>"})
Markup('{"name":"\\u003c/script\\u003e"}')
"""

import re
from importlib import resources
from typing import Any

import msgspec
from jinja2 import BaseLoader, Environment, StrictUndefined, TemplateNotFound
from markupsafe import Markup, escape

from fulcrum.display import figure
from fulcrum.drawing import PALETTE, shown_epsilon
from fulcrum.plans import Plan


class _Templates(BaseLoader):
    """Templates of the package, whatever it was installed as."""

    def get_source(self, environment: Environment, template: str) -> tuple[str, str | None, Any]:  # noqa: ARG002
        try:
            return template_text(template), None, None
        except FileNotFoundError:
            raise TemplateNotFound(template) from None


def template_text(name: str) -> str:
    """Returns a file of the templates as it stands."""
    return resources.files("fulcrum").joinpath("templates", name).read_text(encoding="utf-8")


def environment() -> Environment:
    """Returns what renders templates: everything that a name or number holds is text, and a missing name an error."""
    made = Environment(
        loader=_Templates(), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"figure": figure, "epsilon": shown_epsilon}
    return made


def style(*names: str) -> str:
    """Returns style sheets as one: the colours, what all pages share, and those named."""
    return _variables() + "\n".join(map(template_text, ("base.css", *names)))


def script(*names: str) -> str:
    """Returns scripts as one: what all pages share, and those named."""
    return "\n".join(map(template_text, ("base.js", *names)))


def inline_script(source: str) -> Markup:
    """Returns a script that can stand in a page: nothing in it ends its element."""
    safe = re.sub(r"<(?=/script|!--)", r"\\x3c", source, flags=re.IGNORECASE)
    return Markup(safe.replace("\r\n", "\n"))  # noqa: S704, ours and Vega's


def inline_json(data: Any) -> Markup:
    """Returns JSON that can stand in a page, whatever names it holds."""
    text = msgspec.json.encode(data).decode()
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704


def claim(plan: Plan) -> Markup:
    """Returns the guarantee with its epsilons set off."""
    said = str(escape(plan.statement.removesuffix(".")))
    return Markup(re.sub(r"(epsilon [\d.e+-]+|no guarantee)(?= against)", r"<strong>\1</strong>", said))  # noqa: S704


def _variables() -> str:
    """Returns the colours as custom properties: by the system's wish, by the reader's choice, and light on paper."""
    light, dark = ("".join(f"--{role}:{pair[side]};" for role, pair in PALETTE.items()) for side in (0, 1))
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}\n"
        f"@media print{{:root,:root[data-theme],:root:not([data-theme=light]){{color-scheme:light;{light}}}}}\n"
    )
