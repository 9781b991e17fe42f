"""The noise that chosen regions save, for real federations: beside the regions of today, or beside regions by lot.

Target epsilon 1 over ten rounds on regional sums; the savings do not depend on the target. Every silo may be placed in
any region unless a row names a limit. If the limits allow today's regions, the saving is against these; otherwise it is
against the mean over 200 divisions by lot into regions of the same sizes. "To 20" is at most 20 silos a region, "by
region" within a region of the source, and "least noise" weights of least noise in place of weights by size.
"""

import sys
from typing import Any

import numpy as np
from _printed import Printed, Row, main

from fulcrum.planning.regions.region_costs import PlannedNoise
from fulcrum.planning.regions.region_design import RegionDesign, design
from fulcrum.readers.profiles import profile

TARGET: dict[str, Any] = {"rounds": 10, "epsilon": 1.0}
DRAWS = 200
WITHIN_TWENTY: dict[str, Any] = {"within": "region", "most": 20}

BESIDE_TODAY: dict[tuple[str, str], dict[str, Any]] = {
    ("tcga-brca", "by region, to 20"): WITHIN_TWENTY,
    ("tcga-brca", "3 moved"): {"move_at_most": 3},
    ("tcga-brca", "to 20"): {"most": 20},
    ("tcga-brca", "3 moved, least noise"): {"move_at_most": 3, "weights": "least-noise"},
    ("tcga-brca", "to 20, least noise"): {"most": 20, "weights": "least-noise"},
    ("eicu", "3 moved"): {"move_at_most": 3},
    ("eicu", "3 moved, least noise"): {"move_at_most": 3, "weights": "least-noise"},
}
"""Limits that today's regions keep, by federation and name."""

BESIDE_LOTS: dict[tuple[str, str], dict[str, Any]] = {
    ("eicu", "by region, to 20"): WITHIN_TWENTY,
    ("eicu", "to 20"): {"most": 20},
    ("fets", "3 to 8"): {"most": 8, "least": 3},
    ("kits19", "3 to 20"): {"most": 20, "least": 3},
}
"""Limits that today's regions break, by federation and name."""


def rows() -> list[Row]:
    """Returns the saving and the proven gap for every federation and its limits, in percent."""
    printed = Printed(__file__)
    measured: list[Row] = []
    for (name, limit), settings in {**BESIDE_TODAY, **BESIDE_LOTS}.items():
        proposal = design(name, **{**TARGET, **settings})
        saving = proposal.saving
        if (name, limit) in BESIDE_LOTS:
            saving = 1 - proposal.proposed.model_noise / by_lot(proposal)
        by_theory = (name, limit) in BESIDE_TODAY
        quantity = f"{name}, {limit}"
        measured.append(printed.row(quantity, 100 * saving) if by_theory else Row(quantity=quantity, ours=100 * saving))
        measured.append(printed.row(f"{quantity}, gap", 100 * proposal.gap))
    return measured


def by_lot(proposal: RegionDesign) -> float:
    """Returns the mean noise of silos dealt by lot to regions of the proposed sizes, within the regions of today."""
    today, inner = profile(proposal.federation.name), proposal.federation.innermost
    noise, random = PlannedNoise(today, TARGET), np.random.default_rng(0)
    now, stays = today.innermost.parent_of, _stays(proposal)
    draws = []
    for _ in range(DRAWS):
        dealt = inner.parent_of.copy()
        for region in range(len(today.innermost.nodes)) if stays else [-1]:
            members = np.flatnonzero(now == region) if stays else np.arange(len(now))
            dealt[members] = dealt[random.permutation(members)]
        draws.append(noise.structure.noise(dealt))
    return float(np.mean(draws))


def _stays(proposal: RegionDesign) -> bool:
    """Returns True if every proposed region has silos of a single region of today."""
    now = proposal.today.federation.innermost.parent_of
    proposed = proposal.federation.innermost.parent_of
    several = len(proposal.today.federation.innermost.nodes) > 1
    return several and all(len(set(now[proposed == region].tolist())) == 1 for region in set(proposed.tolist()))


if __name__ == "__main__":
    sys.exit(main(__doc__, rows))
