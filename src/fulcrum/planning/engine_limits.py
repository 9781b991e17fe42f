"""The rules of engines that a plan may break, known before deployment.

>>> from fulcrum.planning.planner import plan
>>> refusals(plan("severe", rounds=10, epsilon=1.0))
()

The machines of sites and the access to them are the engine's affair: the rules here follow from the plan alone.
"""

import shlex
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING

from fulcrum.core.messages.aggregation_tree import levels_of
from fulcrum.core.plan.figures import unmet_tiers
from fulcrum.core.store.database import MOST_BYTES
from fulcrum.planning.site_names import is_technical, technical_names

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

_OTHER_NAME = "Name another site for the silo in a column site of the federation's table, or rename it"
_BYTES_OF_A_COORDINATE = 8
_LONGEST_FILE = 200  # bytes; the files of a silo's records have endings of their own


def refusals(plan: "Plan") -> tuple[str, ...]:
    """Returns the reasons why NVIDIA FLARE will not run a plan, a sentence with a remedy each; empty if it will."""
    reasons = (
        _on_tiers(plan),
        _on_injection(plan),
        _on_size(plan),
        _on_letters(plan),
        _on_taken(plan, _sites(plan), _OF_FLARE_KITS),
        _on_twins(plan, _sites(plan)),
        _on_keys(plan),
    )
    return tuple(reason for reason in reasons if reason)


def refusals_on_flower(plan: "Plan") -> tuple[str, ...]:
    """Returns the reasons why Flower will not run a plan, as `refusals` does for NVIDIA FLARE."""
    return tuple(_on_flower(plan))


def _on_flower(plan: "Plan") -> Iterator[str]:
    silos = plan.federation.silo_names.tolist()
    if unmet := ", ".join(unmet_tiers(plan)):
        yield (
            f"Flower has no aggregators, so its server sees the sums of regions, and the plan has a target against a "
            f"server that sees the sums of {unmet} alone. Run the plan on NVIDIA FLARE, or plan without the "
            f"target of {unmet}"
        )
    if plan.federation.rosters is not None and (several := _several_tiers(plan)):
        yield f"this engine runs plans whose membership changes with one tier of regions, {several}"
    if not plan.is_masked:
        yield "Flower has no aggregator in a region, so sums must be masked. Plan with --aggregation masked"
    names = (
        _on_size(plan),
        _on_letters(plan),
        _on_taken(plan, silos, _OF_FLOWER_KITS - {SERVER}),
        _on_twins(plan, silos),
    )
    yield from filter(None, names)
    missing = next((name for name in silos if name not in plan.keys), None)
    if plan.keys and missing is not None:
        yield f"the plan carries keys, but none of {missing!r}. Give every silo a key, or none"


def _on_tiers(plan: "Plan") -> str:
    """Returns a refusal of changing membership in a federation with tiers above the regions."""
    several = _several_tiers(plan) if plan.federation.rosters is not None else ""
    return several and f"this engine runs plans whose membership changes with one tier of regions, {several}"


def _several_tiers(plan: "Plan") -> str:
    """Returns the tiers of a plan with more than one, and how to plan one; "" for a plan with one tier."""
    tiers = [tier.name for tier in plan.federation.tiers]
    if len(tiers) == 1:
        return ""
    options = " ".join(f"--column {shlex.quote(f'ignore={tier}')}" for tier in tiers[1:])
    return (
        f"this one has {', '.join(tiers)}. Plan one tier: leave {', '.join(tiers[1:])} out of the federation; "
        f"for a table: {options}"
    )


def _on_size(plan: "Plan") -> str:
    """Refuses a model whose release no ledger stores; without this check the first release would be refused."""
    most = MOST_BYTES // _BYTES_OF_A_COORDINATE - 1_000_000  # room for names and shapes of arrays
    if plan.parameters is None or plan.parameters <= most:
        return ""
    return (
        f"a release of {plan.parameters:,} parameters is larger than a ledger stores, {MOST_BYTES:,} bytes. "
        f"Train at most {most:,} parameters"
    )


def _on_injection(plan: "Plan") -> str:
    if plan.silos_draw_noise:
        return ""
    return "this engine runs plans in which silos draw their own noise. Plan with --injection silo"


def _on_letters(plan: "Plan") -> str:
    """Returns a refusal of declared sites that are no technical names, and of names that no ledger's file can have."""
    declared = plan.federation.declared_sites
    wrong = [] if declared is None else [site for site in declared.tolist() if site and not is_technical(site)]
    if wrong:
        return (
            f"{wrong[0]!r} in the column site cannot name a site: letters without accents, digits, - and _ only, 63 at "
            "most. Change it"
        )
    odd = next((name for name in _sites(plan) if _is_no_file_name(name)), None)
    if odd is None:
        return ""
    return (
        f"{odd!r} cannot name the files of a site: no / or \\, no . at the start, and at most {_LONGEST_FILE} bytes. "
        "Rename it"
    )


def _is_no_file_name(name: str) -> bool:
    """Returns True for a name that leaves the folder of a site's records, or is too long for a file."""
    return "/" in name or "\\" in name or name.startswith(".") or len(name.encode()) > _LONGEST_FILE


def _on_taken(plan: "Plan", sites: Sequence[str], taken: Container[str]) -> str:
    names = technical_names(plan.federation)
    name = next((name for name in sites if names[name].lower() in taken), None)
    if name is None:
        return ""
    return (
        f"the site of {name!r} would have the name {names[name]!r}, and the kits have a file or folder of that name. "
        f"{_OTHER_NAME}"
    )


def _on_twins(plan: "Plan", sites: Sequence[str]) -> str:
    """Returns a refusal of two sites with one name; many file systems and host names ignore capital letters."""
    names, seen = technical_names(plan.federation), {SERVER: SERVER}
    for name in sites:
        site = names[name]
        # A silo with the server's name is the server in every list by name, even if its site has another name.
        if name == SERVER or seen.get(site.lower()) == name:
            return f"{name!r} names two sites. Silos, regions and {SERVER!r} need names of their own"
        if (twin := seen.get(site.lower())) is not None:
            return f"the sites of {twin!r} and {name!r} would both have the name {site!r}. {_OTHER_NAME}"
        seen[site.lower()] = name
    return ""


def _on_keys(plan: "Plan") -> str:
    # A region of masked sums opens no release. The region needs a key if an outer aggregator adds up its sum.
    keyless = plan.is_masked and len(levels_of(plan)) == 1
    keyed = plan.federation.silo_names.tolist() if keyless else _sites(plan)
    missing = next((name for name in keyed if name not in plan.keys), None)
    if not plan.keys or missing is None:
        return ""
    sites = "silo" if keyless else "silo and region" if len(levels_of(plan)) == 1 else "silo and aggregator"
    return f"the plan carries keys, but none of {missing!r}. Give every {sites} a key, or none"


def _sites(plan: "Plan") -> list[str]:
    """Returns the names of all sites but the server's."""
    nodes = [node for tier in levels_of(plan) for node in tier.nodes]
    return [*nodes, *plan.federation.silo_names.tolist()]
