"""A run on a federation in the terminal: sums and metrics of every round."""

from rich.console import RenderableType

from fulcrum.server.run_results import ROUND_COLUMNS, RunResult
from fulcrum.views.terminal.screen import table
from fulcrum.views.terminal.table_columns import Column


def round_table(title: str, run: RunResult) -> RenderableType:
    """Returns the table of a run's rounds."""
    rows = run.round_rows()
    headings = {"regions": "sums", "silos": "silos in them"}
    keys = list(rows[0]) if rows else list(ROUND_COLUMNS)
    columns = [Column(key=key, heading=headings.get(key, key), figures=key != "withheld") for key in keys]
    return table(title, columns, rows)
