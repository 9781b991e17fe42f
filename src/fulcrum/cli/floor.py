"""The command that shows what a silo's group reveals of it."""

from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from fulcrum.cli.federations import ColumnOption, given_federation
from fulcrum.cli.options import FormatOption, option, whole_numbers
from fulcrum.errors import ParameterError
from fulcrum.planning.targets import group_by_silo
from fulcrum.planning.theory.leakage import cost_of_coupling, informativeness_of
from fulcrum.planning.theory.prior import Coupling, lateral_floor
from fulcrum.readers.federation_reader import FederationReading
from fulcrum.views.terminal.screen import Result, check_format, show, table
from fulcrum.views.terminal.table_columns import Column


def floor(
    federation: Annotated[str | None, Parameter(help="Take group sizes from this federation.")] = None,
    *,
    column: ColumnOption = (),
    coupling: Annotated[float, option("Within-group coupling kappa of the prior.")] = 20.0,
    sizes: Annotated[str | None, option("Group sizes, comma separated.")] = None,
    information: Annotated[float | None, option("A bound K in nats to judge.")] = None,
    true_coupling: Annotated[float | None, option("With --information: what if this is the true coupling?")] = None,
    levels: Annotated[str, option("Resolutions R to judge at, comma separated.")] = "4,10,20,50",
    style: FormatOption = "table",
) -> int:
    """Show what a silo's group reveals of it with no update sent, and whether a bound says anything."""
    check_format(style)
    if federation is not None and sizes is not None:
        raise ParameterError("cli.group-sizes-twice")
    reading = None if federation is None else given_federation(federation, column)
    groups, records = _group_sizes(reading, sizes)
    strength = Coupling(coupling).strength
    floors = np.atleast_1d(lateral_floor(np.array(groups), coupling=strength)).tolist()
    rows: list[dict[str, Any]] = [
        {"group_size": size, "floor": value} for size, value in zip(groups, floors, strict=True)
    ]
    saturation = float(lateral_floor(np.inf, coupling=strength))
    judged = [
        asdict(informativeness_of(information, floor=max(floors), coupling=strength, levels=count, records=records))
        for count in whole_numbers(levels, "--levels")
    ]
    data: dict[str, Any] = {"coupling": strength, "saturation": saturation, "floors": rows, "levels": judged}
    data |= {} if reading is None else {"notes": list(reading.notes)}
    picture = [
        table(
            f"Lateral floor at coupling {strength:g}",
            (Column(key="group_size", heading="group size"), Column(key="floor", heading="floor, nats")),
            rows,
            note=f"It saturates at {saturation:.4f} nats. No noise lowers it.",
        )
    ]
    columns = [
        Column(key="levels", heading="levels R"),
        Column(key="entropy", heading="entropy, nats"),
        Column(key="margin", heading="margin, nats"),
    ]
    if information is not None:
        columns += [
            Column(key="mechanism", heading="mechanism, nats"),
            Column(key="informative", heading="informative"),
        ]
    picture.append(table("What there is to learn under the prior", columns, judged))
    if true_coupling is not None:
        if information is None:
            raise ParameterError("cli.true-coupling-without-information")
        cost = cost_of_coupling(groups, assumed=strength, true=true_coupling, information=information)
        for row, overshoot, ratio in zip(rows, cost.overshoot.tolist(), cost.noise_ratio.tolist(), strict=True):
            row |= {"overshoot": overshoot, "noise_ratio": ratio}
        data["worst_overshoot"] = cost.worst_overshoot
        columns = [
            Column(key="group_size", heading="group size"),
            Column(key="overshoot", heading="bound missed by, nats"),
            Column(key="noise_ratio", heading="noise, × what truth needs"),
        ]
        told = [row | {"noise_ratio": row["noise_ratio"] or "never enough"} for row in rows]
        picture.append(table(f"If the coupling is {true_coupling:g} and not {strength:g}", columns, told))
    show(Result(data=data, rows=rows, picture=picture), style)
    return 0


def _group_sizes(reading: FederationReading | None, sizes: str | None) -> tuple[list[int], int | None]:
    """Returns the distinct group sizes to look at, and the records of the smallest silo where there are silos."""
    if reading is None:
        return whole_numbers(sizes or "1,2,4,8,12,20,24,30,60", "--sizes"), None
    found = reading.federation
    records = int(found.sizes.min()) if found.sizes_known else None
    return sorted(set(np.bincount(group_by_silo(found)).tolist())), records
