"""The commands that make a plan again, from its settings alone.

>>> from fulcrum.planning.making import plan
>>> reproducing_commands(plan("consortium", rounds=10, epsilon=1.0))[0]
'fulcrum plan consortium --rounds 10 --delta 1e-05 --epsilon region=1.0 --accountant exact -o plan.json'
"""

import shlex
from typing import Any

from fulcrum.federation.profiles import PROFILES, profile
from fulcrum.federation.structure import SILO
from fulcrum.planning.plan import Plan


def reproducing_commands(plan: Plan) -> list[str]:
    """Returns the commands that make the plan again, check it and write this report; FEDERATION stands for its file."""
    federation, target = plan.federation, plan.target
    built_in = federation.name in PROFILES and profile(federation.name).digest == federation.digest
    source = shlex.quote(federation.name) if built_in else "FEDERATION"
    if target.spent:
        own = f" --allocation {shlex.quote(plan.allocation)}" if ":" in plan.allocation else ""
        made = f"fulcrum replan OLD_PLAN.json --federation {source} --ledgers LEDGERS{own} -o plan.json"
    else:
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
            "clip-norm": plan.clip_norm if plan.clip_share == 1 else "auto",
            "weights": plan.weights_rule,
            "server": plan.server,
            "injection": plan.injection,
            "seed": plan.seed or None,
            "purpose": plan.purpose,
        }
        usual = {
            "bound": "paper",
            "allocation": "optimal",
            "clip-norm": 1.0,
            "weights": "sizes",
            "server": "sum",
            "injection": "silo",
            "purpose": "research",
        }
        words = [
            f"--{name} {shlex.quote(str(value))}"
            for name, value in options.items()
            if value is not None and usual.get(name) != value
        ]
        words += ["--shrink"] if plan.shrink else []
        keys = " --keys KEYS.toml" if plan.keys else ""
        made = f"fulcrum plan {source} {' '.join(words)}{keys} -o plan.json"
    return [made, "fulcrum verify plan.json", "fulcrum report plan.json -o report.html"]


def _floor_option(plan: Plan) -> str | None:
    """Returns the floor as the command line takes it; None where it has none or cannot say it."""
    floor, inner = plan.floor, plan.federation.innermost
    if plan.coupling is not None:
        return f"coupling={plan.coupling!r}"
    if floor is None or (floor == 0).all():
        return None
    if (floor == floor[0]).all():
        return repr(float(floor[0]))
    by_region = dict(zip((inner.nodes[code] for code in inner.parent_of.tolist()), floor.tolist(), strict=True))
    return ",".join(f"{name}={value!r}" for name, value in by_region.items())
