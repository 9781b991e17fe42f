"""An audit in the terminal."""

from rich.console import RenderableType

from fulcrum.audit.evidence.findings import Audit
from fulcrum.views.terminal.audit_tables import (
    COLUMNS,
    PROPERTY_COLUMNS,
    RECORD_COLUMNS,
    RECORD_NOTE,
    probe_rows,
    property_note,
    property_rows,
    reasons_of,
    record_rows,
    table_rows,
    verdict_lines,
)
from fulcrum.views.terminal.screen import facts, remarks, table
from fulcrum.views.terminal.table_columns import Column


def audit_picture(audit: Audit) -> list[RenderableType]:
    """Returns the tables and remarks of an audit for the terminal."""
    title = f"{audit.federation}: {len(audit.findings)} observers played by replay"
    note = "ε ≥ is a proven lower bound: any holds for any mechanism, Gauss for a Gaussian trade-off."
    picture = [table(title, COLUMNS, table_rows(audit), note=note), facts(verdict_lines(audit))]
    if audit.probes:
        picture.append(
            table(
                "Noise of real parts, after subtraction of their updates"
                + ("" if audit.unit == "silo" else f", and sums of {audit.unit}s without noise"),
                (
                    Column(key="of", heading="what", figures=False),
                    Column(key="node", heading="whose", figures=False),
                    Column(key="values", heading="values"),
                    Column(key="noise", heading="noise %"),
                    Column(key="verdict", heading="verdict", figures=False),
                ),
                probe_rows(audit),
            )
        )
    if audit.properties:
        title = "A silo's class concentration, as observers estimate it"
        picture.append(table(title, PROPERTY_COLUMNS, property_rows(audit), note=property_note(audit)))
    if audit.records:
        title = "One record of a silo, against the observer inside, who knows all other records of the silo"
        picture.append(table(title, RECORD_COLUMNS, record_rows(audit), note=RECORD_NOTE))
    picture.append(remarks([*reasons_of(audit), *((False, note) for note in audit.notes)]))
    return picture
