r"""What the pages are made of: templates, the style and script that they share, and data that can stand in a page.

>>> inline_json({"name": "</script>"})
Markup('{"name":"\\u003c/script\\u003e"}')
"""

import math
import re
from functools import cache
from importlib import resources
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from fulcrum.core.topology import SILO
from fulcrum.planning.comparison import least_influence
from fulcrum.planning.plan import Plan
from fulcrum.planning.plan_document import guarantee_of
from fulcrum.rounding import rounded_up
from fulcrum.views.charts.chart_style import PALETTE
from fulcrum.words.numbers import figure, percent, shown_epsilon, shown_rate
from fulcrum.words.recipe_words import proviso


def template_text(name: str) -> str:
    """Returns a file of the templates as it stands."""
    return resources.files("fulcrum.views").joinpath("templates", name).read_text(encoding="utf-8")


def rendered(template: str, **values: Any) -> str:
    """Returns a template filled in: everything that a name or number holds is text, and a missing name an error."""
    return _environment().get_template(template).render(**values)


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
    """Returns the guarantee with its epsilons set off, rounded up to the digits that a page shows of them."""

    def set_off(found: re.Match[str]) -> str:
        epsilon = found["epsilon"]
        return f"<strong>{f'epsilon {shown_epsilon(float(epsilon))}' if epsilon else found[0]}</strong>"

    said = str(escape(guarantee_of(plan).statement.removesuffix(".")))
    number = r"\d+(?:\.\d+)?(?:e[+-]\d+)?"
    return Markup(re.sub(rf"(?:epsilon (?P<epsilon>{number})|no guarantee)(?= against)", set_off, said))  # noqa: S704


def promise(plan: Plan) -> dict[str, Any]:
    """Returns what `promise.html` shows: the claim with its terms, and the figures of the first screen."""
    guarantee = guarantee_of(plan)
    return {
        "plan": plan,
        "name": plan.federation.name,
        "inner": plan.federation.innermost.name,
        "one_group": plan.one_group,
        "alone": plan.aggregation == "masked" and plan.smallest_group == 1,
        "claim": claim(plan),
        "terms": f"neighbouring federations {guarantee.adjacency}; {guarantee.assumptions[-2]}",
        "above": plan.worst_epsilon(),
        "inside": plan.worst_epsilon(SILO),
        "infinite": math.inf,
        "saving": plan.model_saving,
        "fourth": _fourth_figure(plan),
        "baseline": "uniform silo noise" if plan.injection == "aggregator" else "uniform",
    }


def _fourth_figure(plan: Plan) -> tuple[str, str]:
    """Returns what stands beside the saving: what can be saved or, where weights quieten anyone, who pays for it."""
    inner = plan.federation.innermost.name
    if plan.weights_rule == "sizes" and plan.server_rule.adds_up:
        return "of the noise of one multiplier for all can be saved at most", percent(plan.attainable_saving)
    by = "size" if plan.federation.sizes_known else "number of silos"
    return f"of its share by {by} is left to the quietest {inner}", percent(least_influence(plan))


def _whole_options(text: str) -> Markup:
    """Returns a text in which no option, such as `--epsilon-inside`, is broken at a hyphen."""
    return Markup(re.sub("--[a-z-]+", r'<span class="option">\g<0></span>', str(escape(text))))  # noqa: S704


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("fulcrum.views"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "figure": figure,
        "epsilon": shown_epsilon,
        "percent": percent,
        "proviso": proviso,
        "rate": shown_rate,
        "rounded_up": rounded_up,
        "whole_options": _whole_options,
    }
    return made


def _variables() -> str:
    """Returns the colours as custom properties: by the system's wish, by the reader's choice, and light on paper."""
    light, dark = ("".join(f"--{role}:{pair[side]};" for role, pair in PALETTE.items()) for side in (0, 1))
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}\n"
        f"@media print{{:root,:root[data-theme],:root:not([data-theme=light]){{color-scheme:light;{light}}}}}\n"
    )
