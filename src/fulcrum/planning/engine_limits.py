"""The rules of engines that a plan may break, known before deployment.

>>> from fulcrum.planning.planner import plan
>>> refusals(plan("severe", rounds=10, epsilon=1.0))
()

The machines of sites and the access to them are the engine's affair: the rules here follow from the plan alone.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fulcrum.planning.plan import Plan

SERVER = "server"
"""The name of the server's site, which no silo and no region may have."""

_OF_FLOWER_KITS = {SERVER, "app", "ca.crt", "flwr", "issuer.key", "issuer.key.pub", "plan.json", "plan.json.sig"}
_OF_FLOWER_KITS |= {"readme.md", "register.sh", "run.sh"}
"""File names in the folder of all kits for Flower, in small letters. A silo's folder may not have such a name.

Flower packs the folder `app` and sends the package to every SuperNode: a silo named `app` had private keys in there.
"""

_OF_FLARE_KITS = {"admin", "authority", "job", "provisioned"}
"""File names in the folder of all kits for NVIDIA FLARE. The folder `server` is a site, and refused elsewhere."""

_SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def refusals(plan: "Plan") -> tuple[str, ...]:
    """Returns the reasons why NVIDIA FLARE will not run a plan, a sentence with a remedy each; empty if it will."""
    reasons = (
        _on_tiers(plan),
        _on_injection(plan),
        _on_aggregation(plan),
        _on_letters(plan),
        _on_taken(plan),
        _on_twins(plan),
        _on_keys(plan),
    )
    return tuple(reason for reason in reasons if reason)


def refusals_on_flower(plan: "Plan") -> tuple[str, ...]:
    """Returns the reasons why Flower will not run a plan, as `refusals` does for NVIDIA FLARE."""
    return tuple(_on_flower(plan))


def _on_flower(plan: "Plan") -> Iterator[str]:
    silos, tiers = plan.federation.silo_names.tolist(), ", ".join(tier.name for tier in plan.federation.tiers)
    if len(plan.federation.tiers) > 1:
        yield f"this engine runs plans with one tier of regions, this one has {tiers}. Plan one tier"
    if not plan.is_masked:
        yield "Flower has no aggregator in a region, so sums must be masked. Plan with --aggregation masked"
    wrong = next((name for name in silos if not _FOLDER_NAME.fullmatch(name)), None)
    if wrong is not None:
        yield f"{wrong!r} cannot name a site's folder: letters, digits, - . and _ only. Rename it"
    if taken := next((name for name in silos if name.lower() in _OF_FLOWER_KITS), None):
        yield f"{taken!r} cannot name a site's folder: the kits have a file or folder of that name. Rename it"
    missing = next((name for name in silos if name not in plan.keys), None)
    if plan.keys and missing is not None:
        yield f"the plan carries keys, but none of {missing!r}. Give every silo a key, or none"


def _on_tiers(plan: "Plan") -> str:
    tiers = [tier.name for tier in plan.federation.tiers]
    if len(tiers) == 1:
        return ""
    return (
        f"this engine runs plans with one tier of aggregators, this one has {', '.join(tiers)}. "
        f"Plan one tier: leave {', '.join(tiers[1:])} out of the federation"
    )


def _on_injection(plan: "Plan") -> str:
    if plan.silos_draw_noise:
        return ""
    return "this engine runs plans in which silos draw their own noise. Plan with --injection silo"


def _on_aggregation(plan: "Plan") -> str:
    if not plan.is_masked:
        return ""
    return "the aggregators of this engine see the releases that they add up. Plan with --aggregation trusted"


def _on_letters(plan: "Plan") -> str:
    wrong = [name for name in _sites(plan) if not _SITE_NAME.fullmatch(name)]
    if not wrong:
        return ""
    rule = "letters without accents, digits, - and _ only, 63 at most"
    if len(wrong) == 1:
        return f"{wrong[0]!r} cannot name a site of NVIDIA FLARE: {rule}. Rename it"
    others = "1 other" if len(wrong) == 2 else f"{len(wrong) - 1:,} others"
    return f"{wrong[0]!r} cannot name a site of NVIDIA FLARE, nor can {others}: {rule}. Rename them"


def _on_taken(plan: "Plan") -> str:
    taken = next((name for name in _sites(plan) if name.lower() in _OF_FLARE_KITS), None)
    if taken is None:
        return ""
    return f"{taken!r} cannot name a site of NVIDIA FLARE: the kits have a folder of that name. Rename it"


def _on_twins(plan: "Plan") -> str:
    seen = {SERVER}
    for name in _sites(plan):
        if name in seen:
            return f"{name!r} names two sites. Silos, regions and {SERVER!r} need names of their own"
        seen.add(name)
    return ""


def _on_keys(plan: "Plan") -> str:
    missing = next((name for name in _sites(plan) if name not in plan.keys), None)
    if not plan.keys or missing is None:
        return ""
    return f"the plan carries keys, but none of {missing!r}. Give every silo and region a key, or none"


def _sites(plan: "Plan") -> list[str]:
    """Returns the names of all sites but the server's."""
    return [*plan.federation.innermost.nodes, *plan.federation.silo_names.tolist()]
