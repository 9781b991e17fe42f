"""The table by silo as columns, compact enough for 10^5 silos in a page."""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from fulcrum.arrays import FloatArray
from fulcrum.planning.plan import Plan
from fulcrum.planning.site_names import technical_names
from fulcrum.rounding import display_epsilon
from fulcrum.words.alignment import align_figures, decimals
from fulcrum.words.person_words import size_word
from fulcrum.words.schedule_words import noise_by_silo, rounds_by_silo

SiloColumn: TypeAlias = dict[str, Any]


def silo_table(plan: Plan) -> dict[str, Any]:
    """Returns the table by silo as columns, compact enough for 10^5 silos in a page.

    - A column has a heading, a kind (text, number or epsilon) and its values.
    - In a column with few distinct values, `values` holds the distinct values and `codes` their index by row.
    - Epsilons are rounded up to four digits, and None is no guarantee. Figures of the kind number have six digits.
    - Both epsilons stand before noise, and outer tiers, groups and sites stand last: no reader scrolls for an epsilon.
    - `places` is the most digits after a point in a column of figures.
    """
    federation = plan.federation
    columns: list[SiloColumn] = [{"heading": "silo", "kind": "text", "values": federation.silo_names.tolist()}]
    places: list[SiloColumn] = []
    for tier in federation.tiers:
        codes = federation.membership(tier.name)
        places.append({"heading": tier.name, "kind": "text", "values": list(tier.nodes), "codes": codes.tolist()})
    columns.append(places.pop(0))
    if federation.group is not None:
        group = federation.group
        places.append(
            {"heading": "group", "kind": "text", "values": list(group.nodes), "codes": group.parent_of.tolist()}
        )
    names = technical_names(federation)
    sites = [names[silo] for silo in federation.silo_names.tolist()]
    if plan.is_deployment and sites != columns[0]["values"]:
        places.append({"heading": "site", "kind": "text", "values": sites})
    if federation.persons is not None:
        columns.append(_numbers(size_word(plan.unit), federation.persons))
    elif federation.sizes_known:
        columns.append(_numbers("records", federation.sizes))
    columns += [*silo_figures(plan), *places]
    return {"rows": len(federation), "columns": columns}


def silo_figures(plan: Plan) -> list[SiloColumn]:
    """Returns the columns by silo that follow from the plan: both epsilons, noise and influence."""
    federation = plan.federation
    columns = []
    if federation.preferences is not None:
        columns.append(_numbers("ε declared", federation.preferences))
    columns.append(_numbers("ε above", plan.epsilon_above, epsilon=True))
    columns.append(_numbers("ε inside", plan.epsilon_inside, epsilon=True))
    if federation.rosters is not None:
        columns.append({"heading": "rounds", "kind": "text", "values": rounds_by_silo(plan)})
        columns.append({"heading": "noise multiplier", "kind": "text", "values": noise_by_silo(plan)})
    elif plan.aggregator_noise_multiplier is None:
        columns.append(_numbers("noise multiplier", plan.noise_multiplier))
    else:
        drawn = plan.aggregator_noise_multiplier[federation.innermost.parent_of]
        columns.append(_numbers("noise on the sum", drawn))
    columns.append(_numbers("influence, %", 100 * plan.influence, digits=4))
    return columns


def first_rows(table: Mapping[str, Any], most: int) -> list[list[tuple[str, str]]]:
    """Returns the first rows of a table for a browser without scripts: kind and text of every cell."""
    lines = []
    for row in range(min(table["rows"], most)):
        cells = []
        for column in table["columns"]:
            value = column["values"][column["codes"][row] if "codes" in column else row]
            text = _cell_text(value, column["kind"])
            cells.append(
                (column["kind"], align_figures([text], places=column["places"])[0] if "places" in column else text)
            )
        lines.append(cells)
    return lines


def _numbers(heading: str, values: FloatArray, *, epsilon: bool = False, digits: int = 6) -> SiloColumn:
    """Returns a column of figures, with repeated figures stored once."""
    distinct, codes = np.unique(values, return_inverse=True)
    shown = [_cell_value(value, epsilon, digits) for value in distinct.tolist()]
    kind = "epsilon" if epsilon else "number"
    column = {
        "heading": heading,
        "kind": kind,
        "places": max((decimals(_cell_text(value, kind)) or 0 for value in shown), default=0),
    }
    if len(distinct) > len(values) / 2:
        return column | {"values": [shown[code] for code in codes.tolist()]}
    return column | {"values": shown, "codes": codes.tolist()}


def _cell_value(value: float, epsilon: bool, digits: int) -> float | int | None:
    if not math.isfinite(value):
        return None
    if epsilon:
        return display_epsilon(value)
    return int(value) if value.is_integer() else float(f"{value:.{digits}g}")


def _cell_text(value: Any, kind: str) -> str:
    if kind == "text":
        return str(value)
    if value is None:
        return "none" if kind == "epsilon" else ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
