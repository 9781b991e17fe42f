"""Results in a notebook: the base of plans, comparisons, runs and audits.

A result is data. The module `fulcrum.views.notebook` draws a result and makes its data frame, and is loaded by name at
the first display: neither a plan nor a silo's process imports a view.
"""

import importlib
from typing import Any


class NotebookDisplay:
    """The base class of results with a display in notebooks and a data frame."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Returns the result as HTML for a notebook: verdict, table and chart."""
        text: str = importlib.import_module("fulcrum.views.notebook.result_html").html_of(self)
        return text

    def frame(self, library: str | None = None) -> Any:
        """Returns the figures as a data frame of Polars or pandas.

        A plan has a row for every silo, a comparison for every allocation, a run for every seed and round, an audit for
        every measurement.

        Args:
            library: "polars" or "pandas"; by default the imported library, else the installed library. Polars comes
                first if both are there.
        """
        return importlib.import_module("fulcrum.views.notebook.data_frames").frame_of(self, library)
