"""The commands that repeat a plan, from its settings alone.

>>> from fulcrum.planning.planner import plan
>>> reproducing_commands(plan("consortium", rounds=10, epsilon=1.0))[0]
'fulcrum plan consortium --rounds 10 --delta 1e-05 --epsilon region=1.0 --accountant exact -o plan.json'
"""

import shlex
from collections.abc import Sequence
from typing import Any

from fulcrum.core.choices import BY_SILO, EVEN, SHRINKS_OF_HEADS
from fulcrum.core.topology import SILO
from fulcrum.planning.inputs.recipes import RECIPES, recipe_for
from fulcrum.planning.plan import Plan
from fulcrum.readers.profiles import PROFILES, profile


def reproducing_commands(
    plan: Plan,
    *,
    trained: Sequence[str] = (),
    audited: str = "",
    answered: bool = False,
    written: str = "",
    language: str = "en",
) -> list[str]:
    """Returns the commands that repeat a plan, check the plan and write its report.

    FEDERATION stands for the file of the federation. FEDERATION_WITH_WEIGHTS has a column `weight` besides, for weights
    that were given by silo, and FEDERATION_WITH_ROUNDS has the columns of the rounds of silos.

    Args:
        plan: The plan to repeat.
        trained: The commands of the trained runs in the report, with results in the folder `run`.
        audited: The command of the audit in the report, with results in the folder `audit`.
        answered: True for a report with people's answers, ANSWERS.toml.
        written: The date of the report.
        language: The language of the report's first page.
    """
    report = ["fulcrum report plan.json"]
    report += ["--run run"] if trained else []
    report += ["--audit audit"] if audited else []
    report += ["--answers ANSWERS.toml"] if answered else []
    report += [f"--date {written}"] if written else []
    report += [f"--language {language}"] if language != "en" else []
    results = [*trained, *([audited] if audited else [])]
    return [_planning_command(plan), "fulcrum verify plan.json", *results, f"{' '.join(report)} -o report.html"]


def _planning_command(plan: Plan) -> str:
    federation, target = plan.federation, plan.target
    built_in = federation.name in PROFILES and profile(federation.name).digest == federation.digest
    own_weights = plan.weights_rule == BY_SILO  # the command line takes weights by silo from a column of the file
    source = shlex.quote(federation.name) if built_in and not own_weights else "FEDERATION"
    source += "_WITH_WEIGHTS" if own_weights else ""
    source += "" if federation.rosters is None else "_WITH_ROUNDS"
    if target.spent:
        own = f" --allocation {shlex.quote(plan.allocation)}" if ":" in plan.allocation else ""
        return f"fulcrum replan OLD_PLAN.json --federation {source} --ledgers LEDGERS{own} -o plan.json"
    # The recipe joint is named: no option other than --recipe has a server shrink softmax heads alone.
    recipe = "joint" if plan.shrink in SHRINKS_OF_HEADS else "paper"
    parts = recipe_for(RECIPES[recipe], plan.unit, one_group=plan.one_group)
    options: dict[str, Any] = {"rounds": plan.rounds, "delta": plan.delta}
    if target.budget is not None:
        options["budget"] = target.budget
    else:
        inside = {tier: epsilon for tier, epsilon in target.epsilon.items() if tier != SILO}
        options["epsilon"] = ",".join(f"{tier}={epsilon!r}" for tier, epsilon in inside.items()) or None
        options |= {"epsilon-inside": target.epsilon.get(SILO), "information": target.information}
    options |= {
        "floor": _floor_option(plan),
        "bound": target.bound if plan.floor is not None else "paper",
        "accountant": plan.accountant,
        "allocation": plan.allocation,
        "colluders": plan.colluders or None,
        "dropouts": plan.dropouts or None,
        "parameters": plan.parameters,
        "recipe": recipe,
        "clip-norm": plan.clip_norm if plan.clip_share == 1 else "auto",
        "weights": None if own_weights else plan.weights_rule,
        "server": plan.server,
        "least-influence": plan.least_influence,
        "disputed-influence": plan.disputed_influence,
        "injection": plan.injection,
        "aggregation": plan.aggregation,
        "unit": plan.unit.name,
        "unit-name": plan.unit.label or None,
        "neighbours": plan.unit.neighbours,
        "silos-per-person": plan.unit.silos_per_person,
        "persons-per-silo": plan.persons_per_silo,
        "silo-clip": plan.silo_clip,
        "silo-epsilon": plan.silo_epsilon,
        "seed": plan.seed or None,
        "purpose": plan.purpose,
    }
    usual = {
        "bound": "paper",
        "allocation": "optimal",
        "recipe": "paper",
        "clip-norm": parts.clip_norm,
        "weights": parts.weights if federation.declared_weights is None else "declared",
        "server": parts.server,
        "least-influence": parts.least_influence,
        "disputed-influence": parts.disputed_influence if _several_sums(plan) else 0.0,
        "injection": "silo",
        "aggregation": "trusted",
        "unit": "silo",
        "neighbours": "replace",
        "silos-per-person": 1,
        "purpose": "research",
    }
    words = [
        f"--{name} {shlex.quote(str(value))}"
        for name, value in options.items()
        if value is not None and usual.get(name) != value
    ]
    if plan.spectrum is not None:
        built_in = plan.spectrum.origin != "public"
        words.append(f"--public {shlex.quote(plan.spectrum.source) if built_in else 'PUBLIC_INPUTS'}")
        words += ["--embedding"] if plan.spectrum.embedding and not built_in else []
    elif isinstance(plan.shrink, bool) and plan.shrink != parts.shrink:
        words.append("--shrink" if plan.shrink else "--no-shrink")
    keys = " --keys KEYS.toml" if plan.keys else ""
    # The command line has no option for the shrinkage of earlier plans.
    earlier = isinstance(plan.shrink, str) and plan.shrink not in EVEN
    remark = f'  # made with shrink="{plan.shrink}", which Python alone takes' if earlier else ""
    return f"fulcrum plan {source} {' '.join(words)}{keys} -o plan.json{remark}"


def _several_sums(plan: Plan) -> bool:
    """Returns True if a server pools the sums of several regions, which alone can show a dispute."""
    return plan.server == "random-effects" and not plan.one_group and len(plan.federation.innermost.nodes) > 1


def _floor_option(plan: Plan) -> str | None:
    """Returns the information floor as a value of --floor; None without a floor."""
    floor, inner = plan.floor, plan.federation.innermost
    if plan.coupling is not None:
        return f"coupling={plan.coupling!r}"
    if floor is None or (floor == 0).all():
        return None
    if (floor == floor[0]).all():
        return repr(float(floor[0]))
    by_region = dict(zip((inner.nodes[code] for code in inner.parent_of.tolist()), floor.tolist(), strict=True))
    return ",".join(f"{name}={value!r}" for name, value in by_region.items())
