"""The command that chooses the regions of least noise within limits."""

from pathlib import Path
from typing import Annotated

from cyclopts import Group

from fulcrum.cli.shared_options.federations import ColumnOption, NameOption, ThousandsOption, federation_argument
from fulcrum.cli.shared_options.options import (
    FederationArgument,
    FormatOption,
    check_output,
    number,
    option,
    output_option,
)
from fulcrum.cli.shared_options.target_options import TargetOptions
from fulcrum.core.store.durable_files import write_whole
from fulcrum.planning.regions.region_design import SECONDS, RegionDesign, design
from fulcrum.readers.federation_csv import federation_csv
from fulcrum.readers.region_pairs import read_pairs
from fulcrum.views.terminal.design_tables import design_data, design_picture, silo_rows
from fulcrum.views.terminal.screen import Result, show, working

LIMITS = Group("Limits on regions", sort_key=1.5)


def design_command(
    federation: FederationArgument,
    *,
    column: ColumnOption = (),
    thousands: ThousandsOption = None,
    name: NameOption = None,
    most: Annotated[int | None, number("Most silos of a region. Default: no limit.", LIMITS)] = None,
    least: Annotated[int, number("Fewest silos of a region.", LIMITS)] = 1,
    allowed: Annotated[
        Path | None,
        option(
            "CSV file with the columns silo and region: a line for every region that a silo may belong to. A silo "
            "without a line keeps its region. Default: every region is allowed.",
            LIMITS,
        ),
    ] = None,
    within: Annotated[
        str | None,
        option(
            "Tier within whose nodes silos stay, such as country. Default: the first tier above the regions.", LIMITS
        ),
    ] = None,
    move_at_most: Annotated[
        int | None, number("Most silos that change their region. Default: no limit.", LIMITS)
    ] = None,
    cost_of_aggregator: Annotated[
        float,
        option(
            "Cost of a region, as a share of the noise of today's regions: with 0.01 a further region must save 1 % of "
            "that noise.",
            LIMITS,
        ),
    ] = 0.0,
    seconds: Annotated[float, option("Time for the integer program and the local search.", LIMITS)] = SECONDS,
    target: TargetOptions,
    output: Annotated[
        Path | None,
        output_option("CSV file to write the federation with the proposed regions to. Default: none."),
    ] = None,
    style: FormatOption = "table",
) -> int:
    """Choose the regions of least noise at a target, with the proven gap to the optimum."""
    check_output(output)
    topology = federation_argument(federation, column, thousands, name).federation
    pairs = None if allowed is None else read_pairs(allowed)
    with working("Choosing regions"):
        result: RegionDesign = design(
            topology,
            most=most,
            least=least,
            allowed=pairs,
            within=within,
            move_at_most=move_at_most,
            cost_of_aggregator=cost_of_aggregator,
            seconds=seconds,
            allocation=target.allocation,
            **target.arguments(topology),
        )
    if output is not None:
        write_whole(output, federation_csv(result.federation).encode())
    show(
        Result(
            data=design_data(result, output),
            rows=silo_rows(result),
            fields=("silo", "today", "proposed"),
            picture=design_picture(result, output),
        ),
        style,
    )
    return 0
