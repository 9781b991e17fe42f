r"""The material of pages: templates, shared style and script, and data that is safe inside a page.

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
from fulcrum.planning.comparisons.comparison import least_influence
from fulcrum.planning.content.plan_document import guarantee_of
from fulcrum.planning.plan import Plan
from fulcrum.rounding import rounded_up
from fulcrum.views.charts.chart_style import PALETTE
from fulcrum.words.noise_words import noise_unit_words, trained_words
from fulcrum.words.numbers import epsilon_text, figure, percent, rate_text
from fulcrum.words.recipe_words import proviso, share_rule


def template_text(name: str) -> str:
    """Returns the text of a template file."""
    return resources.files("fulcrum.views").joinpath("templates", name).read_text(encoding="utf-8")


def render(template: str, **values: Any) -> str:
    """Returns a filled template. Every value is escaped as text, and a missing value is an error."""
    return _environment().get_template(template).render(**values)


def style(*names: str) -> str:
    """Returns a single style sheet: the colours, the shared sheet base.css, and the sheets in `names`."""
    return _variables() + "\n".join(map(template_text, ("base.css", *names)))


def script(*names: str) -> str:
    """Returns a single script: the shared script, and the named scripts."""
    return "\n".join(map(template_text, ("base.js", *names)))


def inline_script(source: str) -> Markup:
    """Returns a script that is safe inside a page: no text of the script ends its element."""
    safe = re.sub(r"<(?=/script|!--)", r"\\x3c", source, flags=re.IGNORECASE)
    return Markup(safe.replace("\r\n", "\n"))  # noqa: S704, ours and Vega's


def inline_json(data: Any) -> Markup:
    """Returns JSON that is safe inside a page, for any names in the data."""
    text = msgspec.json.encode(data).decode()
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704


def claim(plan: Plan) -> Markup:
    """Returns the first sentence of the guarantee with emphasised epsilons, rounded up to the digits of a page."""
    return _with_emphasis(_statement(plan)[0])


def further_claims(plan: Plan) -> list[Markup]:
    """Returns the remaining sentences of the guarantee: a plan for persons has several, a plan for silos none."""
    return [_with_emphasis(sentence) for sentence in _statement(plan)[1:]]


def _statement(plan: Plan) -> list[str]:
    """Returns the sentences of the guarantee without their full stops; no epsilon has a blank after its point."""
    return guarantee_of(plan).statement.removesuffix(".").split(". ")


def _with_emphasis(sentence: str) -> Markup:
    def emphasise(match: re.Match[str]) -> str:
        epsilon = match["epsilon"]
        return f"<strong>{f'epsilon {epsilon_text(float(epsilon))}' if epsilon else match[0]}</strong>"

    number = r"\d+(?:\.\d+)?(?:e[+-]\d+)?"
    ends = r"(?= against| and the second|$)"
    escaped = str(escape(sentence))
    return Markup(re.sub(rf"(?:epsilon (?P<epsilon>{number})|no guarantee){ends}", emphasise, escaped))  # noqa: S704


def promise(plan: Plan, *, control: str = "--parameters") -> dict[str, Any]:
    """Returns the values of `promise.html`: the claim with its terms, and the figures of the first screen.

    Args:
        plan: The plan.
        control: The place to give the number of parameters, in words of the reader's screen.
    """
    guarantee = guarantee_of(plan)
    return {
        "plan": plan,
        "name": plan.federation.name,
        "inner": plan.federation.innermost.name,
        "one_group": plan.one_group,
        "alone": plan.is_masked and plan.smallest_group == 1,
        "claim": claim(plan),
        "further_claims": further_claims(plan),
        "person": plan.unit.noun if plan.unit.is_within_silo else "",
        "by": share_rule(plan),
        "terms": f"neighbouring federations {guarantee.adjacency}; {guarantee.assumptions[-2]}",
        "above": plan.worst_epsilon(),
        "inside": plan.worst_epsilon(SILO),
        "infinite": math.inf,
        "saving": plan.model_saving,
        "fourth": _fourth_figure(plan),
        "trained": trained_words(plan, control=control),
        "noise_unit": noise_unit_words(plan),
        "baseline": "uniform silo noise" if not plan.silos_draw_noise else "uniform",
    }


def _fourth_figure(plan: Plan) -> tuple[str, str]:
    """Returns the figure beside the saving: the attainable saving or, with other weights, the least influence."""
    inner = plan.federation.innermost.name
    if plan.weights_rule == "sizes" and plan.server_rule.adds_up:
        return "of the noise of one multiplier for all can be saved at most", percent(plan.attainable_saving)
    return f"of its influence by {share_rule(plan)} is left to the least represented {inner}", percent(
        least_influence(plan)
    )


def _whole_options(text: str) -> Markup:
    """Returns a text without a line break inside an option such as `--epsilon-inside`."""
    return Markup(re.sub("--[a-z-]+", r'<span class="option">\g<0></span>', str(escape(text))))  # noqa: S704


def _whole_words(command: str) -> Markup:
    """Returns a command that breaks no line after a hyphen; a word longer than a line still breaks inside."""
    words = map(str, map(escape, command.split(" ")))
    return Markup(" ".join(f'<span class="word">{word}</span>' if "-" in word else word for word in words))  # noqa: S704


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fulcrum.views"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "figure": figure,
        "epsilon": epsilon_text,
        "percent": percent,
        "proviso": proviso,
        "rate": rate_text,
        "rounded_up": rounded_up,
        "whole_options": _whole_options,
        "whole_words": _whole_words,
    }
    return environment


def _variables() -> str:
    """Returns the colours as custom properties: by the system's setting, by the reader's choice, and light on paper."""
    light, dark = ("".join(f"--{role}:{pair[side]};" for role, pair in PALETTE.items()) for side in (0, 1))
    return (
        f":root{{color-scheme:light;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}\n"
        f"@media print{{:root,:root[data-theme],:root:not([data-theme=light]){{color-scheme:light;{light}}}}}\n"
    )
