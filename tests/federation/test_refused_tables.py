"""Every wrong table is refused in one line that says where and what to do."""

import duckdb
import pandas as pd
import polars as pl
import pytest
from sources import COLUMNS, CSV, FRAMES, HEAD, frames, parquet, pyarrow, refusal, written

from fulcrum.errors import OverlapError

# The columns

HEADERS = [
    (
        "silo,records",
        "the column 'region' is missing. Every table needs silo, region. "
        "Where it has another name: --column region=NAME (in Python columns={'region': 'NAME'})",
    ),
    ("silo,region,wieght", "unknown column 'wieght'. Did you mean 'weight'?"),
    ("silo,recrods,region", "the column 'records' is missing. Did you mean the column 'recrods' to be 'records'?"),
    (
        "client,site,region",
        "the columns 'client' and 'site' can both be 'silo'. Choose one: --column silo=client",
    ),
    (
        "silo,patients,Cases 2024,region",
        "the columns 'patients' and 'Cases 2024' can both be 'records'. Choose one: --column records=patients",
    ),
    ("silo,records,region,epsilom", "unknown column 'epsilom'. Did you mean 'epsilon'?"),
    ("silo,records,region,record", "unknown column 'record'. Did you mean 'records'?"),
    ("silo,records,region,group,groupe", "unknown column 'groupe'. Did you mean 'group'?"),
    (
        "silo,records,note,region",
        "unknown column 'note'. Known: silo, records, epsilon, group, weight, from, until, every, region. "
        "Put the column of an outer tier after 'region'. For a column of regions: --column region=note; "
        "for a column that is no part of the federation: --column ignore=note",
    ),
    (
        "silo,records,region,federation",
        "a tier cannot be called 'federation': that name has a meaning of its own. Rename the column",
    ),
    (
        "silo,records,phone no,region",
        "unknown column 'phone no'. Known: silo, records, epsilon, group, weight, from, until, every, region. "
        "Put the column of an outer tier after 'region'. For a column of regions: --column 'region=phone no'; "
        "for a column that is no part of the federation: --column 'ignore=phone no'",
    ),
]


@pytest.mark.parametrize(("header", "message"), HEADERS)
def test_a_wrong_column_is_refused_alike_in_every_table(tmp_path, header, message):
    names = header.split(",")
    assert refusal(written(tmp_path, "a.csv", f"{header}\n")) == f"a.csv line 1: {message}"
    columns = {name: ["1"] for name in names}
    assert refusal(parquet(tmp_path, columns)) == f"silos.parquet: {message}"
    for library, frame in frames(columns).items():
        if library != "duckdb" or all(names):  # DuckDB gives a column without a name one
            assert refusal(frame) == f"data frame: {message}"


@pytest.mark.parametrize("library", [*FRAMES, "parquet"])
def test_a_column_without_a_name_is_refused_in_parquet_and_frames(tmp_path, library):
    columns = {**COLUMNS, "": ["x", "y", "z"]}
    message = "column 4 has no name. Name or remove the column"
    if library == "parquet":
        assert refusal(parquet(tmp_path, columns)) == f"silos.parquet: {message}"
    elif library != "duckdb":  # DuckDB gives a column without a name one
        assert refusal(frames(columns)[library]) == f"data frame: {message}"


def test_a_column_that_stands_twice_is_refused(tmp_path):
    twice = ["silo", "records", "region", "records"]
    message = "two columns have the name 'records'. Remove or rename one of the two"
    assert refusal(written(tmp_path, "a.csv", ",".join(twice) + "\n")) == f"a.csv line 1: {message}"
    pa = pyarrow()
    table = pa.table([["a"], [1], ["r"], [2]], names=twice)
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    assert refusal(tmp_path / "a.parquet") == f"a.parquet: {message}"
    for frame in (table, pd.DataFrame([["a", 1, "r", 2]], columns=twice)):
        assert refusal(frame) == "data frame: two columns have the same name. Remove or rename one of the two"


# CSV

SAVE = "Save it as UTF-8 (in Excel: 'CSV UTF-8'; in LibreOffice: Text CSV, character set Unicode (UTF-8))"

WRONG_CSV = [
    ("", "a.csv is empty. Its first line must be: silo,records,region"),
    ("\n  \n\n", "a.csv is empty. Its first line must be: silo,records,region"),
    (HEAD, "a.csv has no silos. Add a row for each silo"),
    (f"{HEAD}\n\n", "a.csv has no silos. Add a row for each silo"),
    ("\nsilo\trecords\tregion\n", "a.csv has no silos. Add a row for each silo"),
    ("sep=:\nsilo:region\na:r\n", "a.csv line 1: cells are separated by ':'. Separate cells by commas"),
    (
        "silo;records;region\na;1;r;s\n",
        "a.csv line 2 has 4 cells, and the header has 3. Give one cell to each column, and quote a name that holds a semicolon",
    ),
    (
        "silo;region;weight\na;r;850\nb;r;2.631\n",
        "a.csv line 3: weight=2.631 can be 2631 or 2.631. Write the intended number without a separator of thousands, "
        "or give --thousands dot or --thousands comma",
    ),
    (
        "silo;region;epsilon\na;r;0,5\nb;r;1.125\n",
        "a.csv line 3: epsilon=1.125 can be 1125 or 1.125. Write the intended number without a separator of thousands, "
        "or give --thousands dot or --thousands comma",
    ),
    (
        "silo;region;epsilon\na;r;0,5\nb;r;1.25\n",
        "a.csv line 2: epsilon=0,5 has a decimal comma, and 1.25 (a.csv line 3) has a decimal point. Write both "
        "numbers with a decimal point",
    ),
    (
        "silo;region;epsilon\na;r;1.234.567\nb;r;1.25\n",
        "a.csv line 3: epsilon=1.25 has '.' as the decimal sign, and 1.234.567 (a.csv line 2) has '.' between thousands. "
        "Write both numbers in plain digits",
    ),
    ("silo,region\na,r\nsilo,region\nb,r\n", "a.csv line 3: the line repeats the header. Remove the line"),
    (
        "'silo';'region'\n'a';'r'\n",
        "a.csv line 1: cells are quoted with apostrophes. Quote cells with double quotes, or without quotes",
    ),
    (f"{HEAD}\n,5,\n", "a.csv line 2: the name of the silo is missing. Name the silo"),
    (f"{HEAD}\na,5,r\nb,6,r\n,12,\n", "a.csv line 4: the name of the silo is missing. Name the silo"),
    (
        f"{HEAD}\nTotal,5,\n",
        ("a.csv line 2: 'Total' has no region and looks like the sum of other lines. Remove the line"),
    ),
    (f"{HEAD},\na,5,r,x\n", "a.csv line 1: column 4 has no name. Name or remove the column"),
    (
        f"Nr,{HEAD}\n7a,a,5,r\n",
        "a.csv line 1: column 1, 'Nr', must be empty or number the rows. Rename or remove the column",
    ),
    (
        f"{HEAD}\na,1,r\nb,2\n",
        "a.csv line 3 has 2 cells, and the header has 3. Give one cell to each column, and quote a name that holds a comma",
    ),
    (
        f"{HEAD}\na,1,r\n\n\nb,2,r,x\n",
        "a.csv line 5 has 4 cells, and the header has 3. Give one cell to each column, and quote a name that holds a comma",
    ),
    (f"{HEAD}\na,-3,r\n", "a.csv line 2: records=-3 must be at least 1"),
    (f"{HEAD}\na,0,r\n", "a.csv line 2: records=0 must be at least 1"),
    (f"{HEAD}\na,0.5,r\n", "a.csv line 2: records=0.5 must be at least 1"),
    (f"{HEAD}\na,nan,r\n", "a.csv line 2: records=nan must be a finite number"),
    (f"{HEAD}\na,inf,r\n", "a.csv line 2: records=inf must be a finite number"),
    (f"{HEAD}\na,-inf,r\n", "a.csv line 2: records=-inf must be a finite number"),
    (f"{HEAD}\na,1e300,r\n", "a.csv line 2: records=1e300 must be at most 9007199254740992"),
    (
        f"{HEAD}\na,many,r\n",
        ("a.csv line 2: records='many' is not a number. Write the number in plain digits, such as 1200"),
    ),
    (
        f'{HEAD}\na,"1,000",r\n',
        "a.csv line 2: records=1,000 can be 1000 or 1.000. Write the intended number without a separator of thousands, "
        "or give --thousands dot or --thousands comma",
    ),
    (
        f'{HEAD}\na,"1,850",r\nb,2.631,r\n',
        "a.csv line 2: records=1,850 can be 1850 or 1.850. Write the intended number without a separator of thousands, "
        "or give --thousands dot or --thousands comma",
    ),
    (
        f"{HEAD}\na,850,r\nb,80.5,r\n",
        "a.csv line 3: records=80.5 must be a whole number. If a dot or comma separates thousands, remove the dot or "
        "comma",
    ),
    (f"{HEAD}\nlyon, ,r\n", "a.csv line 2: records is missing. Give the number of records of silo 'lyon'"),
    (f"{HEAD}\n\n,5,r\n", "a.csv line 3: the name of the silo is missing. Name the silo"),
    (f"{HEAD}\na,5,\n", "a.csv line 2: region is missing. Name the region of silo 'a'"),
    (f"{HEAD},country\na,5,r,\n", "a.csv line 2: country is missing. Name the country of silo 'a'"),
    (f'{HEAD}\n"a\n",5,r\n\n"b\n\n",6,r\nc,0,r\n', "a.csv line 8: records=0 must be at least 1"),
    (f'{HEAD}\n"a\nb",5,r\n', "a.csv line 2: a silo's name must be printable and not empty, got 'a\\nb'"),
    (f'{HEAD}\na,5,"r\x07s"\n', "a.csv line 2: a region's name must be printable and not empty, got 'r\\x07s'"),
    (f'{HEAD},group\na,5,r,"x\x07"\n', "a.csv line 2: a group's name must be printable and not empty, got 'x\\x07'"),
    ('silo\tregion\n"a"b\tr\n', "a.csv line 2: 'tab' expected after '\"'. Check the quotes"),
    (f'{HEAD}\na,5,r\n"b,6,r\nc,7,r\n', "a.csv line 3: unexpected end of data. Check the quotes"),
    (
        f"{HEAD},epsilon\na,5,r,1\nb,5,r,low\n",
        "a.csv line 3: epsilon='low' is not a number. Give a number above 0, or leave the cell empty",
    ),
    (
        f"{HEAD},epsilon\na,5,r,nan\n",
        ("a.csv line 2: epsilon=nan is not a number. Give a number above 0, or leave the cell empty"),
    ),
    (f"{HEAD},epsilon\na,5,r,\nb,5,r,-1\n", "a.csv line 3: epsilon must be a finite number above 0, got -1"),
    (f"{HEAD},epsilon\na,5,r,inf\n", "a.csv line 2: epsilon must be a finite number above 0, got inf"),
    (
        f"{HEAD}\na,5,r\n\na,5,r\n",
        "a.csv line 4: silo a is listed a second time, first at a.csv line 2. Remove one of the two",
    ),
    (
        f"{HEAD},group\na,5,r,b\nb,5,r,\n",
        "a.csv line 3: silo 'b' has no group, and a group has the name 'b'. Name the group of silo 'b'",
    ),
    (f"{HEAD}\r\na,5,r\r\nKöln,5,r\r\n".encode("cp850"), f"a.csv line 3 is neither UTF-8 nor Windows-1252. {SAVE}"),
    (f"{HEAD}\na,5,r\nMünchen,5,r\n".encode("mac-roman"), f"a.csv line 3 is neither UTF-8 nor Windows-1252. {SAVE}"),
    (f"{HEAD}\na,5,r\n".encode("utf-32"), f"a.csv is neither UTF-8 nor UTF-16 text. {SAVE}"),
    (
        b"PK\x03\x04 and so on",
        "a.csv holds a workbook, not text. "
        "In Excel: File, Save As, 'CSV UTF-8 (Comma delimited)'; then give that .csv file",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG_CSV)
def test_a_wrong_csv_is_refused_in_one_line(tmp_path, text, message):
    assert refusal(written(tmp_path, "a.csv", text)) == message


def test_a_silo_in_two_regions_is_an_overlap(tmp_path):
    path = written(tmp_path, "a.csv", f"{HEAD}\na,5,north\na,5,south\n")
    assert refusal(path, OverlapError).startswith(
        "a.csv line 3: overlap: silo a is in two regions, 'north' and 'south'."
    )


def test_a_region_in_two_countries_is_refused(tmp_path):
    path = written(tmp_path, "a.csv", f"{HEAD},country\na,5,north,france\nb,5,north,spain\n")
    assert refusal(path).startswith(
        "a.csv line 3: region 'north' is in two nodes of the tier 'country', 'france' and 'spain'."
    )


# Parquet and frames

WRONG_ROWS = [
    ({"records": [800, -3, 5]}, "row 2: records=-3 must be at least 1"),
    ({"records": [800.0, 0.0, 5.0]}, "row 2: records=0 must be at least 1"),
    (
        {"records": [850.0, 2.631, 5.0]},
        "row 2: records=2.631 must be a whole number. If a dot or comma separates thousands, remove the dot or comma",
    ),
    ({"records": [800.0, float("inf"), 5.0]}, "row 2: records=inf must be a finite number"),
    ({"records": [800, None, 5]}, "row 2: records is missing. Give the number of records of silo 'paris'"),
    ({"records": [800.0, float("nan"), 5.0]}, "row 2: records is missing. Give the number of records of silo 'paris'"),
    (
        {"records": ["800", " x ", "5"]},
        ("row 2: records='x' is not a number. Write the number in plain digits, such as 1200"),
    ),
    (
        {"records": [True, True, False]},
        ("row 1: records=True is not a number. Write the number in plain digits, such as 1200"),
    ),
    ({"silo": ["lille", None, "lyon"]}, "row 2: the name of the silo is missing. Name the silo"),
    ({"silo": ["lille", "paris", " "]}, "row 3: the name of the silo is missing. Name the silo"),
    ({"region": ["north", None, "south"]}, "row 2: region is missing. Name the region of silo 'paris'"),
    ({"region": [None, None, None]}, "row 1: region is missing. Name the region of silo 'lille'"),
    ({"country": ["france", "france", None]}, "row 3: country is missing. Name the country of silo 'lyon'"),
    ({"epsilon": [0.5, None, -1.0]}, "row 3: epsilon must be a finite number above 0, got -1"),
    (
        {"epsilon": ["0.5", "low", None]},
        ("row 2: epsilon='low' is not a number. Give a number above 0, or leave the cell empty"),
    ),
    ({"silo": ["a", "b\n", "c\nd"]}, "row 3: a silo's name must be printable and not empty, got 'c\\nd'"),
]


@pytest.mark.parametrize(("change", "message"), WRONG_ROWS)
@pytest.mark.parametrize("library", [*FRAMES, "parquet"])
def test_a_wrong_row_is_refused_in_one_line(tmp_path, change, message, library):
    columns = {**COLUMNS, **change}
    if library == "parquet":
        assert refusal(parquet(tmp_path, columns)) == f"silos.parquet {message}"
    else:
        assert refusal(frames(columns)[library]) == f"data frame {message}"


@pytest.mark.parametrize("dtype", ["str", "object", "category", "string"])
def test_missing_text_of_every_pandas_type_is_refused(dtype):
    frame = pd.DataFrame({**COLUMNS, "region": pd.Series(["north", None, "south"], dtype=dtype)})
    assert refusal(frame) == "data frame row 2: region is missing. Name the region of silo 'paris'"


@pytest.mark.parametrize("dtype", ["Int64", "Float64", "int64[pyarrow]", "object"])
def test_missing_numbers_of_every_pandas_type_are_refused(dtype):
    if "pyarrow" in dtype:
        pyarrow()
    frame = pd.DataFrame({**COLUMNS, "records": pd.Series([800, None, 5], dtype=dtype)})
    assert refusal(frame) == "data frame row 2: records is missing. Give the number of records of silo 'paris'"


def test_half_a_surrogate_pair_in_a_frame_is_refused():
    frame = pd.DataFrame({**COLUMNS, "silo": pd.Series(["a", "b\ud800", "c"], dtype=object)})
    assert refusal(frame) == "data frame row 2: a silo's name must be printable"


@pytest.mark.parametrize("library", FRAMES)
def test_a_frame_without_rows_is_refused(library):
    pa = pyarrow()
    columns = {name: pa.array([], pa.string()) for name in COLUMNS}
    table = pa.table(columns)
    source = {"pandas": table.to_pandas(), "polars": pl.from_arrow(table), "polars lazy": pl.from_arrow(table).lazy()}
    frame = source.get(library, table if library == "pyarrow" else duckdb.from_arrow(table))
    assert refusal(frame) == "data frame has no silos. Add a row for each silo"


@pytest.mark.parametrize("content", [b"", b"PAR1", CSV.encode(), b"PAR1" + bytes(100) + b"PAR1"])
def test_what_is_not_parquet_is_refused(tmp_path, content):
    path = written(tmp_path, "a.parquet", content)
    assert refusal(path) == "a.parquet is damaged, or is not a Parquet file. Write the file again"


def test_a_parquet_file_without_rows_is_refused(tmp_path):
    pa = pyarrow()
    path = parquet(tmp_path, {name: pa.array([], pa.string()) for name in COLUMNS})
    assert refusal(path) == "silos.parquet has no silos. Add a row for each silo"
