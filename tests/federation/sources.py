"""One federation as files and frames of every kind, and how they are written, read and refused."""

import re
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pytest

from fulcrum.errors import FederationError
from fulcrum.readers.federation_reader import read_federation

DOC = Path(__file__).parents[2] / "docs" / "federation-files.md"
COLUMNS = {"silo": ["lille", "paris", "lyon"], "records": [800, 2400, 1200], "region": ["north", "north", "south"]}
HEAD = "silo,records,region"
FRAMES = ("pandas", "polars", "polars lazy", "pyarrow", "duckdb")
CSV = "silo,records,region\nlille,800,north\nparis,2400,north\nlyon,1200,south\n"


def doc_example(language):
    return re.search(rf"```{language}\n(.*?)```", DOC.read_text("utf-8"), re.DOTALL)[1]


def written(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(source, kind=FederationError):
    """The message of the error, which must be one line."""
    with pytest.raises(kind) as caught:
        read_federation(source)
    message = str(caught.value)
    assert message.isprintable()
    return message


def frames(columns):
    """Returns the columns as a frame of every library; skips the test where PyArrow is not installed."""
    table = pyarrow().table(columns)
    made = (pd.DataFrame(columns), pl.DataFrame(columns), pl.LazyFrame(columns), table, duckdb.from_arrow(table))
    return dict(zip(FRAMES, made, strict=True))


def parquet(folder, columns, **options):
    """Writes the columns to a Parquet file; skips the test where PyArrow is not installed."""
    path = folder / "silos.parquet"
    pyarrow().parquet.write_table(pyarrow().table(columns), path, **options)
    return path


def pyarrow():
    """Returns PyArrow with its Parquet files; skips the test where it is not installed."""
    pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")
    return pytest.importorskip("pyarrow")
