"""The regions of the page's federation as a table to edit, with what the plan gives each of them."""

from typing import Any

import numpy as np

from fulcrum.core.remaining_noise import largest_by
from fulcrum.core.topology import Topology
from fulcrum.planning.plan import Plan
from fulcrum.readers.editing import MOST_SILOS
from fulcrum.views.html import rendered
from fulcrum.words.numbers import percent, span

REGIONS_SHOWN = 60
"""Regions that can be edited in the page; the largest, where there are more."""


def regions(made: Plan) -> str:
    """Returns the table of regions to edit as HTML, the largest where there are many."""
    federation = made.federation
    inner, outer = federation.innermost, federation.tiers[1:]
    silos = np.bincount(inner.parent_of)
    records = np.bincount(inner.parent_of, weights=federation.sizes)
    rows: list[dict[str, Any]] = [
        {
            "name": inner.nodes[node],
            "outer": _outer(federation, node),
            "silos": int(silos[node]),
            "mean": f"{records[node] / silos[node]:.6g}" if federation.sizes_known else "",
            "records": f"{records[node]:,.6g}" if federation.sizes_known else "not given",
            "noise": noise,
            "influence": influence,
        }
        for node, (noise, influence) in zip(_shown(federation), region_figures(made), strict=True)
    ]
    more = len(inner.nodes) - len(rows)
    return rendered(
        "serve_regions.html",
        rows=rows,
        inner=inner.name,
        outer=", ".join(tier.name for tier in outer),
        more=more,
        most=MOST_SILOS,
    )


def region_figures(made: Plan) -> list[tuple[str, str]]:
    """Returns for each region of the table its noise multiplier and its share of the model, as they are shown."""
    federation = made.federation
    inner = federation.innermost
    most = largest_by(inner.parent_of, made.noise_multiplier, len(inner.nodes))
    least = np.full(len(inner.nodes), np.inf)
    np.minimum.at(least, inner.parent_of, made.noise_multiplier)
    influence = made.node_influence(inner.name)
    return [
        (span(float(least[node]), float(most[node])), percent(float(influence[node]))) for node in _shown(federation)
    ]


def _shown(federation: Topology) -> list[int]:
    """Returns the regions of the table, in the order of the federation."""
    silos = np.bincount(federation.innermost.parent_of)
    found: list[int] = np.sort(np.argsort(-silos, kind="stable")[:REGIONS_SHOWN]).tolist()
    return found


def _outer(federation: Topology, node: int) -> str:
    """Returns where a region lies, from its country outward."""
    path = []
    for tier in federation.tiers[1:]:
        node = int(tier.parent_of[node])
        path.append(tier.nodes[node])
    return ", ".join(path)
