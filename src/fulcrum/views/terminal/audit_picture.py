"""An audit as a terminal shows it."""

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
    shown_rows,
    verdict_lines,
)
from fulcrum.views.terminal.screen import facts, remarks, table
from fulcrum.views.terminal.table_columns import Column


def audit_picture(audit: Audit) -> list[RenderableType]:
    """Returns the audit as a terminal shows it."""
    title = f"{audit.federation}: {len(audit.findings)} observers played by replay"
    note = "ε ≥ is what was proven: whatever the mechanism, and on a Gaussian trade-off."
    picture = [table(title, COLUMNS, shown_rows(audit), note=note), facts(verdict_lines(audit))]
    if audit.probes:
        picture.append(
            table(
                "Noise that real parts drew, their updates taken off",
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
        title = "One record of a silo, for the observer inside, who knows all its other records"
        picture.append(table(title, RECORD_COLUMNS, record_rows(audit), note=RECORD_NOTE))
    picture.append(remarks([*reasons_of(audit), *((False, note) for note in audit.notes)]))
    return picture
