"""Proposed regions beside the regions of today, as tables in the terminal and as data."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import RenderableType

from fulcrum.core.topology import SILO
from fulcrum.planning.plan import Plan
from fulcrum.planning.regions.region_design import RegionDesign
from fulcrum.planning.theory.weights import region_shares
from fulcrum.views.terminal.screen import remarks, table
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.design_words import design_sentence
from fulcrum.words.numbers import epsilon_text, figure, percent

_SIDES = (Column(key="today", heading="today"), Column(key="proposed", heading="proposed"))


def plan_sides(design: RegionDesign) -> dict[str, dict[str, float]]:
    """Returns the figures of both plans."""
    return {name: _figures(plan) | design.costs[name] for name, plan in _plans(design).items()}


def silo_rows(design: RegionDesign) -> list[dict[str, str]]:
    """Returns by silo both regions."""
    sides = {name: plan.federation.innermost for name, plan in _plans(design).items()}
    return [
        {"silo": str(silo)} | {name: inner.nodes[int(inner.parent_of[row])] for name, inner in sides.items()}
        for row, silo in enumerate(design.federation.silo_names.tolist())
    ]


def design_data(design: RegionDesign, output: Path | None) -> dict[str, Any]:
    """Returns the design as plain data."""
    return {
        "federation": design.federation.name,
        "method": design.method,
        "saving": design.saving,
        "gap": design.gap,
        "bound": design.bound,
        "cost_of_aggregator": design.price,
        "violation": design.violation,
        **plan_sides(design),
        "moves": [{"silo": move.silo, "left": move.left, "joined": move.joined} for move in design.moves],
        "silos": silo_rows(design),
        "output": None if output is None else str(output),
    }


def design_picture(design: RegionDesign, output: Path | None) -> list[RenderableType]:
    """Returns both plans side by side, the silos that move, and remarks on proof and trust."""
    federation, inner = design.federation, design.federation.innermost.name
    sides = plan_sides(design)
    rows = [
        {"figure": heading} | {name: text(side[key]) for name, side in sides.items()}
        for key, heading, text in (
            ("regions", f"number of {inner}s", figure),
            ("noise", "noise in the model, C²", figure),
            ("epsilon_above_worst", "worst ε above", epsilon_text),
            ("epsilon_above_mean", "mean ε above", epsilon_text),
            ("epsilon_inside_worst", "worst ε inside", epsilon_text),
            ("epsilon_inside_mean", "mean ε inside", epsilon_text),
            ("most_silos", f"most silos of a {inner}", figure),
            ("largest_influence", f"largest share of the model of a {inner}", percent),
            ("least_influence", f"least share of a {inner}, divided by its share by size", figure),
        )
    ]
    picture = [
        table(
            f"{federation.name}: {len(federation):,} silos, {inner}s of today and proposed",
            (Column(key="figure", heading="", figures=False), *_SIDES),
            rows,
        )
    ]
    if design.moves:
        moves: Sequence[Mapping[str, Any]] = [
            {"silo": move.silo, "left": move.left, "joined": move.joined} for move in design.moves
        ]
        columns = [Column(key=key, heading=heading, figures=False) for key, heading in _MOVES]
        picture.append(table(f"{len(moves):,} silos change their {inner}", columns, moves))
    picture.append(remarks(_remarks(design, output)))
    return picture


_MOVES = (("silo", "silo"), ("left", "leaves"), ("joined", "joins"))


def _remarks(design: RegionDesign, output: Path | None) -> list[tuple[bool, str]]:
    inner, costs = design.federation.innermost.name, design.costs
    lines = [(False, design_sentence(design))]
    if design.violation:
        lines.append((True, f"The {inner}s of today break a limit: {design.violation}."))
    today, proposed = costs["today"], costs["proposed"]
    if proposed["most_silos"] > today["most_silos"] or proposed["largest_influence"] > today["largest_influence"]:
        lines.append(
            (
                True,
                f"The largest {inner} grows: one aggregator sees the updates of up to "
                f"{proposed['most_silos']:.0f} silos (today {today['most_silos']:.0f}), and "
                f"{percent(proposed['largest_influence'])} of the model (today {percent(today['largest_influence'])}) "
                "stops with it.",
            )
        )
    if design.proposed.worst_epsilon(SILO) > design.today.worst_epsilon(SILO) * (1 + 1e-9):
        lines.append((True, "The worst ε inside rises: --epsilon-inside promises a smaller one, for more noise."))
    if output is not None:
        lines.append((False, f"Written: {output}. Plan with: fulcrum plan {shlex.quote(str(output))}"))
    elif design.moves:
        lines.append((False, f"-o FILE writes the federation with the proposed {inner}s, for fulcrum plan."))
    return lines


def _plans(design: RegionDesign) -> dict[str, Plan]:
    return {"today": design.today, "proposed": design.proposed}


def _figures(plan: Plan) -> dict[str, float]:
    inner = plan.federation.innermost.name
    return {
        "noise": float(plan.model_noise),
        "epsilon_above_worst": plan.worst_epsilon(),
        "epsilon_above_mean": float(np.mean(plan.epsilon_above)),
        "epsilon_inside_worst": plan.worst_epsilon(SILO),
        "epsilon_inside_mean": float(np.mean(plan.epsilon_inside)),
        "least_influence": float((plan.node_influence(inner) / region_shares(plan.federation)).min()),
    }
