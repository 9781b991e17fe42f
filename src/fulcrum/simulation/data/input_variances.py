"""Variances of a model's inputs for the server's prior, from public data or from the training split of a task.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     np.savez(f"{folder}/public.npz", X=np.array([[1.0, 0.0], [3.0, 1.0], [5.0, 2.0]]))
...     public = public_spectrum(f"{folder}/public.npz")
>>> public.origin, [round(variance, 3) for variance in public.variances]
('public', [2.667, 0.667])

Public data must not contain records of the silos: a variance that is counted in the silos is a release, and no epsilon
here counts the release. The training split of a simulation is such data, so its variances are for research alone.
"""

from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from fulcrum.core.plan.plan_file import Spectrum
from fulcrum.errors import DataError
from fulcrum.npz import read_npz
from fulcrum.simulation.data.input_scaling import read_inputs
from fulcrum.simulation.data.sources.record_columns import csv_columns, parquet_columns
from fulcrum.simulation.data.sources.record_files import number_columns
from fulcrum.simulation.data.tasks import BUILT_IN, Task, load_task

_NO_INPUTS = ("label", "silo", "split")
"""Columns of a table of records that are no inputs."""

_LEAST = 1e-12
"""Of the largest variance: the variance of a constant input, so that every variance is above 0."""


def public_spectrum(source: str | Path, *, embedding: bool = False) -> Spectrum:
    """Returns the variances of a model's inputs, computed from a file of public data.

    Args:
        source: An .npz file with the array X_train or X, a row for each record and a column for each input, scaled as
            the model sees the inputs; or a CSV or Parquet file with a column for each input (the columns label, silo
            and split are ignored); or the file of variances that `fulcrum tune` writes. Or the name of built-in data,
            whose training split then gives the variances, for research plans alone.
        embedding: True if the inputs are the output of a frozen public network.
    """
    name = str(source)
    if name in BUILT_IN:
        return spectrum_of_task(load_task(name))
    path = Path(name)
    if path.suffix.lower() == ".json":
        inputs = read_inputs(path).spectrum
        return structs.replace(inputs, embedding=embedding or inputs.embedding)
    try:
        rows = _rows(path)
    except OSError as error:
        raise DataError("file.unreadable", file=error.filename or name, reason=error.strerror or error) from None
    return Spectrum(variances=_variances(rows, path.name), origin="public", source=path.name, embedding=embedding)


def spectrum_of_task(task: Task) -> Spectrum:
    """Returns the variances of a task's inputs over its training split, for research plans alone."""
    if task.features_train.ndim != 2:
        raise DataError("spectrum.rows-missing", data=task.name, shape=task.features_train.shape)
    variances = _variances(task.features_train, task.name)
    return Spectrum(variances=variances, origin="training-split", source=task.name, embedding=task.embedding)


def _rows(path: Path) -> np.ndarray[Any, Any]:
    """Returns the rows of inputs in a file."""
    kind = path.suffix.lower()
    if kind in (".csv", ".parquet"):
        path.stat()  # raises an OSError that names a missing file
        columns = csv_columns(path) if kind == ".csv" else parquet_columns(path)
        inputs = {name: cells for name, cells in columns.items() if name not in _NO_INPUTS}
        if not inputs:
            raise DataError("data.features-missing", data=path)
        return number_columns(path, inputs)
    if kind != ".npz":
        raise DataError("spectrum.file-kind", file=path)
    arrays = read_npz(path)
    rows = arrays.get("X_train", arrays.get("X"))
    if rows is None:
        raise DataError("spectrum.array-missing", file=path)
    return rows


def _variances(rows: np.ndarray[Any, Any], source: str) -> list[float]:
    """Returns the variance of each column; a constant column has a variance far below all others."""
    if rows.ndim != 2 or len(rows) < 2 or rows.dtype.kind not in "fiu":
        raise DataError("spectrum.rows-missing", data=source, shape=rows.shape)
    with np.errstate(all="ignore"):  # values that are not finite are refused below
        variances = rows.astype(np.float64).var(axis=0)
    if not np.isfinite(variances).all() or not variances.any():
        raise DataError("spectrum.variances-unusable", data=source)
    return np.maximum(variances, _LEAST * variances.max()).tolist()  # type: ignore[no-any-return]
