"""The command that shows the information floor of a silo's group."""

from dataclasses import asdict
from typing import Annotated, Any

import numpy as np

from fulcrum.cli.shared_options.federations import ColumnOption, ThousandsOption, federation_argument
from fulcrum.cli.shared_options.options import INPUT, TARGET, FormatOption, argument, option, whole_numbers
from fulcrum.errors import ParameterError
from fulcrum.planning.inputs.targets import group_by_silo
from fulcrum.planning.theory.leakage import cost_of_coupling, informativeness_of
from fulcrum.planning.theory.prior import Coupling, lateral_floor
from fulcrum.readers.federation_reader import FederationReading
from fulcrum.views.terminal.screen import Result, show, table
from fulcrum.views.terminal.table_columns import Column


def floor(
    federation: Annotated[
        str | None, argument("Federation to take group sizes from: a file or a built-in name. Default: --sizes.")
    ] = None,
    *,
    column: ColumnOption = (),
    thousands: ThousandsOption = None,
    coupling: Annotated[
        float, option("Coupling kappa of the prior: the larger, the more alike silos of one group are.", TARGET)
    ] = 20.0,
    sizes: Annotated[
        str | None, option("Group sizes, separated by commas. Default: 1 to 60 in nine steps.", INPUT)
    ] = None,
    information: Annotated[float | None, option("Information bound K in nats to judge. Default: none.", TARGET)] = None,
    true_coupling: Annotated[
        float | None,
        option(
            "Coupling that holds in truth, to show by how much the bound of --information misses. Default: none.",
            TARGET,
        ),
    ] = None,
    levels: Annotated[
        str, option("Numbers of levels R of the class concentration to judge at, separated by commas.", TARGET)
    ] = "4,10,20,50",
    style: FormatOption = "table",
) -> int:
    """Show the information floor, the information about a silo without any release, and the worth of a bound."""
    if federation is not None and sizes is not None:
        raise ParameterError("cli.group-sizes-twice")
    reading = None if federation is None else federation_argument(federation, column, thousands)
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
            f"Information floor at coupling {strength:g}",
            (Column(key="group_size", heading="group size"), Column(key="floor", heading="floor, nats")),
            rows,
            note=f"The floor saturates at {saturation:.4f} nats. No noise lowers the floor.",
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
    picture.append(table("Information that the prior leaves to learn", columns, judged))
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
            Column(key="noise_ratio", heading="noise, × the noise needed"),
        ]
        table_rows = [row | {"noise_ratio": row["noise_ratio"] or "never enough"} for row in rows]
        picture.append(table(f"If the coupling is {true_coupling:g} and not {strength:g}", columns, table_rows))
    show(Result(data=data, rows=rows, picture=picture), style)
    return 0


def _group_sizes(reading: FederationReading | None, sizes: str | None) -> tuple[list[int], int | None]:
    """Returns the distinct group sizes, and the records of the smallest silo; None without a federation or sizes."""
    if reading is None:
        return whole_numbers(sizes or "1,2,4,8,12,20,24,30,60", "--sizes"), None
    federation = reading.federation
    records = int(federation.sizes.min()) if federation.sizes_known else None
    return sorted(set(np.bincount(group_by_silo(federation)).tolist())), records
