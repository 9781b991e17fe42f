"""The command that reads the tables of a real federation, checks them, and writes the federation as a file."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from cyclopts import Parameter

from fulcrum.cli.shared_options.options import (
    INPUT,
    FormatOption,
    UnitOption,
    argument,
    check_output,
    option,
    output_option,
)
from fulcrum.core.store.durable_files import write_whole
from fulcrum.readers.federation_csv import federation_csv
from fulcrum.simulation.data.federated_records import FederatedRecords
from fulcrum.simulation.data.real_federations import REAL, read_real_federation
from fulcrum.views.terminal.screen import Result, facts, show, table, working
from fulcrum.views.terminal.table_columns import Column

RealName: TypeAlias = Literal["eicu", "tcga-brca", "heart"]
"""The names of `real_federations.REAL`, as a type for an argument."""


def data_command(
    name: Annotated[RealName, argument("Real federation: eicu, tcga-brca or heart.")],
    *,
    folder: Annotated[
        Path | None,
        option("Folder of the source's files. Default: the folder that FULCRUM_DATA names.", INPUT, name="--from"),
    ] = None,
    check_counts: Annotated[
        bool, Parameter(help="Refuse tables without the published number of rows.", group=INPUT)
    ] = True,
    unit: UnitOption = "silo",
    output: Annotated[
        Path | None,
        output_option(
            "CSV file to write the federation to; sizes are records, or persons with --unit person. Default: no file."
        ),
    ] = None,
    style: FormatOption = "table",
) -> int:
    """Read the tables of a real federation, check them, and show its regions; -o writes the federation."""
    check_output(output)
    real = REAL[name]
    with working("Reading the tables"):
        records = read_real_federation(name, folder, check_counts=check_counts)
    federation = records.federation(unit=unit)
    if output is not None:
        write_whole(output, federation_csv(federation).encode())
    rows = _region_rows(records)
    summary: dict[str, Any] = {
        "name": name,
        "silos": len(federation),
        "persons": len(set(records.persons)),
        "records": len(records),
        "events": int(records.labels.sum()),
        "features": len(records.ranges),
        "metric": records.metric,
        "persons_in_several_silos": _shared_persons(records),
        "left_out": dict(records.left_out),
        "source": real.source.title,
        "address": real.source.address,
        "licence": real.source.licence,
        "regions": rows,
    }
    columns = [
        Column(key="region", heading="region", figures=False),
        Column(key="silos", heading=f"{real.silo_noun}s"),
        Column(key="persons", heading="persons"),
        Column(key="records", heading="records"),
        Column(key="events", heading=records.classes[1]),
    ]
    shared = f"{summary['persons_in_several_silos']}, each in up to {records.silos_per_person} {real.silo_noun}s"
    lines = [
        ("task", f"{real.task}; metric {records.metric}; {len(records.ranges)} features with public ranges"),
        ("in several", shared if summary["persons_in_several_silos"] else f"no person is in several {real.silo_noun}s"),
        *(("left out", f"{count:,}: {reason}") for reason, count in records.left_out.items() if count),
        ("source", f"{real.source.title}, {real.source.address}"),
        ("licence", f"{real.source.licence}; Fulcrum contains no data"),
        *([] if output is None else [("written to", str(output))]),
    ]
    title = f"{name}: {len(federation):,} {real.silo_noun}s, {summary['persons']:,} persons, {len(records):,} records"
    show(Result(data=summary, rows=rows, picture=[table(title, columns, rows), facts(lines)]), style)
    return 0


def _region_rows(records: FederatedRecords) -> list[dict[str, Any]]:
    """Returns silos, persons, records and events by region, in the order of the source."""
    region = np.array([records.region_of[silo] for silo in records.silos])
    persons = np.array(records.persons)
    silos = Counter(records.region_of.values())
    return [
        {
            "region": name,
            "silos": silos[name],
            "persons": len(np.unique(persons[region == name])),
            "records": int((region == name).sum()),
            "events": int(records.labels[region == name].sum()),
        }
        for name in silos
    ]


def _shared_persons(records: FederatedRecords) -> int:
    silos = Counter(person for person, _ in set(zip(records.persons, records.silos, strict=True)))
    return sum(count > 1 for count in silos.values())
