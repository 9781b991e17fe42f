"""A plan in the settings of other tools: a table, Flower's configuration, NVIDIA FLARE's sites.

>>> from fulcrum.planning.planner import plan
>>> print(export_plan(plan("isic-paper", rounds=10, epsilon=1.0), "csv").splitlines()[0])
silo,records,region,weight,noise_multiplier,region_noise_multiplier,epsilon_silo,epsilon_region,epsilon_federation

Settings for engines carry the digest of the plan, so a reader of the settings can tell the plan. Fulcrum draws the
noise: the exports are settings, not switches of an engine's own privacy code.
"""

import json
import math
from typing import Any

from fulcrum.csv_text import csv_text
from fulcrum.errors import check_known
from fulcrum.planning.plan import Plan
from fulcrum.planning.theory.scheduling import check_one_roster

EXPORTS = ("csv", "flower", "nvflare")
"""The tools that a plan can be exported to."""


def export_plan(plan: Plan, to: str) -> str:
    """Returns the plan as text for another tool, one of `EXPORTS`."""
    check_known("export", to, EXPORTS)
    writers = {"csv": _csv, "flower": _flower, "nvflare": _nvflare}
    return writers[to](plan)


def _csv(plan: Plan) -> str:
    return csv_text(silo_rows(plan))


def silo_rows(plan: Plan) -> list[list[Any]]:
    """Returns a row for each silo after a row of headings: place, noise, noise of the region's sum, every epsilon.

    An epsilon without a guarantee is infinite.
    """
    check_one_roster(plan.federation, "a table with one noise multiplier for each silo")
    content, federation = plan.content(), plan.federation
    places = [federation.membership(tier.name).tolist() for tier in federation.tiers]
    tiers, inner = federation.tier_names, federation.innermost
    in_sum = {node.name: node.noise_multiplier for node in content.tiers[inner.name]}
    header = ["silo", "records", *(tier.name for tier in federation.tiers), "weight", "noise_multiplier"]
    rows: list[list[Any]] = [[*header, f"{inner.name}_noise_multiplier", *(f"epsilon_{tier}" for tier in tiers)]]
    for index, entry in enumerate(content.silos):
        nodes = [tier.nodes[place[index]] for tier, place in zip(federation.tiers, places, strict=True)]
        epsilon = [math.inf if (value := entry.epsilon[tier]) is None else value for tier in tiers]
        noise = [entry.noise_multiplier, in_sum[entry.node]]
        rows.append([entry.silo, entry.records, *nodes, float(federation.weights[index]), *noise, *epsilon])
    return rows


def _flower(plan: Plan) -> str:
    """Returns a fragment for the app's pyproject.toml, and for every silo the --node-config of its SuperNode."""
    check_one_roster(plan.federation, "settings with one noise multiplier for each silo")
    inner = plan.federation.innermost
    lines = [
        "# For the app's pyproject.toml.",
        "[tool.flwr.app.config]",
        f"num-server-rounds = {plan.rounds}",
        f"fulcrum-clip-norm = {plan.clip_norm!r}",
        *_flower_beyond_the_paper(plan),
        f'fulcrum-injection = "{plan.injection}"',
        f'fulcrum-plan-digest = "{plan.digest}"',
        "",
        "# One SuperNode a silo: flower-supernode --node-config followed by the value.",
        "[tool.fulcrum.node-config]",
    ]
    if plan.aggregator_noise_multiplier is not None:
        noise = zip(inner.nodes, plan.aggregator_noise_multiplier.tolist(), strict=True)
        lines[-2:-2] = [
            f"# The noise that each {inner.name} aggregator adds to its weighted sum, over the clip norm.",
            "[tool.fulcrum.aggregator-noise-multiplier]",
            *(f"{_toml_value(node)} = {multiplier!r}" for node, multiplier in noise),
            "",
        ]
    for index, name in enumerate(plan.federation.silo_names.tolist()):
        settings = {
            "silo": name,
            inner.name: inner.nodes[inner.parent_of[index]],
            "weight": float(plan.federation.weights[index]),
            "noise-multiplier": float(plan.noise_multiplier[index]),
            **({"largest-sum": float(plan.largest_sums[index])} if plan.unit.is_within_silo else {}),
        }
        value = " ".join(f"{key}={_toml_value(item)}" for key, item in settings.items())
        lines.append(f"{_toml_value(name)} = {_toml_value(value)}")
    return "\n".join(lines) + "\n"


def _flower_beyond_the_paper(plan: Plan) -> list[str]:
    """Returns the unit, the clip share, the server and the aggregation, if they are not the paper's."""
    server = {} if plan.server_rule.adds_up else {"server": plan.server, "shrink": plan.shrink}
    unit = {name.replace("_", "-"): value for name, value in _unit_settings(plan).items()}
    return [
        *(f"fulcrum-{name} = {_toml_value(value)}" for name, value in unit.items()),
        *([f"fulcrum-clip-share = {plan.clip_share!r}"] if plan.clip_share != 1 else []),
        *(f"fulcrum-{name} = {_toml_value(value)}" for name, value in server.items()),
        *([f"fulcrum-aggregation = {_toml_value(plan.aggregation)}"] if plan.is_masked else []),
    ]


def _unit_settings(plan: Plan) -> dict[str, str | int]:
    """Returns the unit of privacy, if persons or records are protected: their gradients are clipped one by one."""
    unit = plan.unit
    if not unit.is_within_silo:
        return {}
    return {"unit": unit.name, "neighbours": unit.neighbours, "silos_per_person": unit.silos_per_person}


def _toml_value(value: str | float) -> str:
    """Returns a string or number as TOML; names hold no control characters, so JSON and TOML agree."""
    return json.dumps(value, ensure_ascii=False)


def _nvflare(plan: Plan) -> str:
    """Returns the sites by name: leaves with parent, weight and noise; aggregators with their members."""
    check_one_roster(plan.federation, "settings with one noise multiplier for each silo")
    federation, inner = plan.federation, plan.federation.innermost
    names = federation.silo_names.tolist()
    members: dict[str, list[str]] = {node: [] for node in inner.nodes}
    sites = {}
    for index, name in enumerate(names):
        parent = inner.nodes[inner.parent_of[index]]
        members[parent].append(name)
        sites[name] = {
            "parent": parent,
            "weight": float(federation.weights[index]),
            "noise_multiplier": float(plan.noise_multiplier[index]),
            **({"largest_sum": float(plan.largest_sums[index])} if plan.unit.is_within_silo else {}),
        }
    injected = plan.aggregator_noise_multiplier
    aggregators = {
        node: {"members": members[node], "noise_multiplier": 0.0 if injected is None else float(injected[index])}
        for index, node in enumerate(inner.nodes)
    }
    settings = {
        "plan_digest": plan.digest,
        "rounds": plan.rounds,
        "clip_norm": plan.clip_norm,
        **_unit_settings(plan),
        **({"clip_share": plan.clip_share} if plan.clip_share != 1 else {}),
        **({} if plan.server_rule.adds_up else {"server": plan.server, "shrink": plan.shrink}),
        "injection": plan.injection,
        **({"aggregation": plan.aggregation} if plan.is_masked else {}),
        "sites": sites,
        "aggregators": aggregators,
    }
    return json.dumps(settings, indent=1, ensure_ascii=False) + "\n"
