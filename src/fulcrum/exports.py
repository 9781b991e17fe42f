"""A plan in the settings of other tools: a table, Flower's configuration, NVIDIA FLARE's sites.

>>> from fulcrum.planning import plan
>>> print(exported(plan("isic-paper", rounds=10, epsilon=1.0), "csv").splitlines()[0])
silo,records,region,weight,noise_multiplier,epsilon_silo,epsilon_region,epsilon_federation

An export carries the plan's digest, so that whoever reads it can tell which plan it came from. Noise is drawn by
Fulcrum: these are settings, not switches of an engine's own privacy code.
"""

import csv
import io
import json

from fulcrum.errors import ParameterError, listing, suggestion
from fulcrum.planning import Plan

EXPORTS = ("csv", "flower", "nvflare")
"""Where a plan can go."""


def exported(plan: Plan, to: str) -> str:
    """Returns the plan as text for another tool, one of `EXPORTS`."""
    writers = {"csv": _csv, "flower": _flower, "nvflare": _nvflare}
    if to not in writers:
        raise ParameterError(f"unknown export {to!r}. Known: {listing(EXPORTS)}.{suggestion(to, EXPORTS)}")
    return writers[to](plan)


def _csv(plan: Plan) -> str:
    """One row a silo: its place, its noise, its epsilon against an observer of each tier."""
    content, federation = plan.content(), plan.federation
    places = [federation.membership(tier.name).tolist() for tier in federation.tiers]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    tiers = federation.tier_names
    names = [tier.name for tier in federation.tiers]
    writer.writerow(["silo", "records", *names, "weight", "noise_multiplier", *(f"epsilon_{tier}" for tier in tiers)])
    for index, entry in enumerate(content.silos):
        nodes = [tier.nodes[place[index]] for tier, place in zip(federation.tiers, places, strict=True)]
        epsilon = ["inf" if entry.epsilon[tier] is None else entry.epsilon[tier] for tier in tiers]
        weight = float(federation.weights[index])
        writer.writerow([entry.silo, entry.records, *nodes, weight, entry.noise_multiplier, *epsilon])
    return text.getvalue()


def _flower(plan: Plan) -> str:
    """A fragment for the app's pyproject.toml, and for every silo the --node-config of its SuperNode."""
    inner = plan.federation.innermost
    lines = [
        "# For the app's pyproject.toml.",
        "[tool.flwr.app.config]",
        f"num-server-rounds = {plan.rounds}",
        f"fulcrum-clip-norm = {plan.clip_norm!r}",
        f'fulcrum-injection = "{plan.injection}"',
        f'fulcrum-plan-digest = "{plan.digest}"',
        "",
        "# One SuperNode a silo: flower-supernode --node-config followed by the value.",
        "[tool.fulcrum.node-config]",
    ]
    for index, name in enumerate(plan.federation.silo_names.tolist()):
        settings = {
            "silo": name,
            inner.name: inner.nodes[inner.parent_of[index]],
            "weight": float(plan.federation.weights[index]),
            "noise-multiplier": float(plan.noise_multiplier[index]),
        }
        value = " ".join(f"{key}={json.dumps(item, ensure_ascii=False)}" for key, item in settings.items())
        lines.append(f"{json.dumps(name, ensure_ascii=False)} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _nvflare(plan: Plan) -> str:
    """The sites by name: leaves with their parent, weight and noise; aggregators with the members they must see."""
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
        "injection": plan.injection,
        "sites": sites,
        "aggregators": aggregators,
    }
    return json.dumps(settings, indent=1, ensure_ascii=False) + "\n"
