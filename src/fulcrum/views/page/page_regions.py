"""The regions of the page's federation as a table to edit, with noise and influence of every region."""

from typing import Any

import numpy as np

from fulcrum.core.remaining_noise import largest_by
from fulcrum.core.topology import Topology
from fulcrum.planning.plan import Plan
from fulcrum.readers.editing import MOST_SILOS
from fulcrum.views.html import render
from fulcrum.words.numbers import percent, span
from fulcrum.words.person_words import size_word

REGIONS_SHOWN = 60
"""The most regions in the table; a federation with more shows its largest regions."""


def regions(plan: Plan) -> str:
    """Returns the table of regions to edit as HTML, at most the `REGIONS_SHOWN` largest regions."""
    federation = plan.federation
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
        for node, (noise, influence) in zip(_regions_in_table(federation), region_figures(plan), strict=True)
    ]
    more = len(inner.nodes) - len(rows)
    return render(
        "serve_regions.html",
        rows=rows,
        inner=inner.name,
        outer=", ".join(tier.name for tier in outer),
        more=more,
        most=MOST_SILOS,
        size_word=size_word(plan.unit),
    )


def region_figures(plan: Plan) -> list[tuple[str, str]]:
    """Returns noise multiplier and influence of every region in the table, as texts."""
    federation = plan.federation
    inner = federation.innermost
    most = largest_by(inner.parent_of, plan.noise_multiplier, len(inner.nodes))
    least = np.full(len(inner.nodes), np.inf)
    np.minimum.at(least, inner.parent_of, plan.noise_multiplier)
    influence = plan.node_influence(inner.name)
    return [
        (span(float(least[node]), float(most[node])), percent(float(influence[node])))
        for node in _regions_in_table(federation)
    ]


def _regions_in_table(federation: Topology) -> list[int]:
    """Returns the regions of the table, in the order of the federation."""
    silos = np.bincount(federation.innermost.parent_of)
    regions: list[int] = np.sort(np.argsort(-silos, kind="stable")[:REGIONS_SHOWN]).tolist()
    return regions


def _outer(federation: Topology, node: int) -> str:
    """Returns the nodes around a region, from its country outward."""
    path = []
    for tier in federation.tiers[1:]:
        node = int(tier.parent_of[node])
        path.append(tier.nodes[node])
    return ", ".join(path)
