"""Every format gives the same federation; every wrong file is refused in one line that says where and what to do."""

import os
import random
import re
import string
import sys
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fulcrum.errors import FederationError, FulcrumError, MissingExtraError, OverlapError
from fulcrum.federation import reading
from fulcrum.federation.profiles import PROFILES, profile
from fulcrum.federation.reading import read_federation
from fulcrum.federation.structure import Federation

DOC = Path(__file__).parents[2] / "docs" / "federation-files.md"
FUZZ = settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
COLUMNS = {"silo": ["lille", "paris", "lyon"], "records": [800, 2400, 1200], "region": ["north", "north", "south"]}
CSV = "silo,records,region\nlille,800,north\nparis,2400,north\nlyon,1200,south\n"
TOML = "[region.north]\nlille = 800\nparis = 2400\n[region.south]\nlyon = 1200\n"
YAML = """participants:
- {name: server, type: server}
- {name: north, type: relay}
- {name: south, type: client}
- {name: lille, type: client, parent: north, records: 800}
- {name: paris, type: client, parent: north, records: 2400}
- {name: lyon, type: client, parent: south, records: 1200}
"""


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
    table = pa.table(columns)
    return {
        "pandas": pd.DataFrame(columns),
        "polars": pl.DataFrame(columns),
        "polars lazy": pl.LazyFrame(columns),
        "pyarrow": table,
        "duckdb": duckdb.from_arrow(table),
    }


FRAMES = tuple(frames(COLUMNS))


@pytest.fixture
def expected():
    regions = {"north": {"lille": 800, "paris": 2400}, "south": {"lyon": 1200}}
    return Federation.from_sizes(regions).digest


# ------------------------------------------------------------------------------------------------ what is read


@pytest.mark.parametrize("name", PROFILES)
def test_a_built_in_name_gives_its_profile(name):
    assert read_federation(name).digest == profile(name).digest


def test_a_federation_passes_through_unchanged():
    federation = profile("mild")
    assert read_federation(federation) is federation


@pytest.mark.parametrize(("name", "text"), [("a.csv", CSV), ("a.toml", TOML), ("a.yml", YAML), ("a.YAML", YAML)])
@pytest.mark.parametrize("convert", [Path, str])
def test_text_files_give_the_same_federation(tmp_path, expected, name, text, convert):
    federation = read_federation(convert(written(tmp_path, name, text)))
    assert federation.digest == expected
    assert federation.name == "a"
    assert federation.group is None
    assert federation.preferences is None


@pytest.mark.parametrize("name", ["a.csv", "a.toml", "a.yml"])
def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path, expected, name):
    text = {"a.csv": CSV, "a.toml": TOML, "a.yml": YAML}[name].replace("\n", "\r\n")
    assert read_federation(written(tmp_path, name, b"\xef\xbb\xbf" + text.encode())).digest == expected


@pytest.mark.parametrize("library", FRAMES)
def test_every_frame_gives_the_same_federation(expected, library):
    assert read_federation(frames(COLUMNS)[library]).digest == expected


def parquet(folder, columns, **options):
    path = folder / "silos.parquet"
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_parquet_gives_the_same_federation(tmp_path, expected):
    federation = read_federation(parquet(tmp_path, COLUMNS, row_group_size=1))
    assert federation.digest == expected
    assert federation.name == "silos"


def test_parquet_dictionaries_do_not_change_the_order_of_regions(tmp_path, expected):
    region = pa.DictionaryArray.from_arrays(pa.array([2, 2, 0]), pa.array(["south", "unused", "north"]))
    assert read_federation(parquet(tmp_path, {**COLUMNS, "region": region})).digest == expected


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.binary()])
def test_parquet_takes_every_type_of_text(tmp_path, expected, kind):
    silo = pa.array([name.encode() if kind == pa.binary() else name for name in COLUMNS["silo"]], kind)
    assert read_federation(parquet(tmp_path, {**COLUMNS, "silo": silo})).digest == expected


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint64(), pa.float32(), pa.decimal128(10, 2), pa.string()])
def test_parquet_takes_every_type_of_number(tmp_path, expected, kind):
    records = pa.array(list(map(str, COLUMNS["records"]))).cast(kind)
    assert read_federation(parquet(tmp_path, {**COLUMNS, "records": records})).digest == expected


def test_whole_numbers_are_fine_as_names(tmp_path):
    columns = {"silo": [7, 8], "records": [1, 2], "region": [1, 2]}
    csv = read_federation(written(tmp_path, "a.csv", "silo,records,region\n7,1,1\n8,2,2\n"))
    assert csv.silo_names.tolist() == ["7", "8"]
    assert read_federation(parquet(tmp_path, columns)).digest == csv.digest
    for frame in frames(columns).values():
        assert read_federation(frame).digest == csv.digest


def test_several_batches_are_joined_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "_BATCH", 1_000)
    rows = 2_600
    silo = [f"s{k}" for k in range(rows)]
    region = [f"r{k // 900 if k % 2 else 0}" for k in range(rows)]
    columns = {"silo": silo, "records": np.arange(1, rows + 1), "region": region}
    federation = read_federation(parquet(tmp_path, columns))
    assert len(federation) == rows
    assert federation.sizes[-1] == rows
    assert federation.silo_name(rows - 1) == f"s{rows - 1}"
    assert federation.innermost.nodes == ("r0", "r1", "r2")
    csv = "silo,records,region\n" + "".join(
        f"{s},{k},{r}\n" for k, (s, r) in enumerate(zip(silo, region, strict=True), 1)
    )
    assert read_federation(written(tmp_path, "a.csv", csv)).digest == federation.digest
    assert read_federation(pl.DataFrame(columns)).digest == federation.digest
    bad = written(tmp_path, "a.csv", csv + "last,0,r0\n")
    assert refusal(bad) == f"a.csv line {rows + 2}: records=0 must be at least 1"


def test_the_examples_of_the_documentation_give_the_same_federation(tmp_path):
    toml = read_federation(written(tmp_path, "a.toml", doc_example("toml")))
    assert toml.name == "hospitals"
    assert toml.silo_names.tolist() == ["lille", "paris", "lyon"]
    assert toml.sizes.tolist() == [800, 2400, 1200]
    assert toml.tier_names == ("silo", "region", "country", "federation")
    assert toml.membership("country").tolist() == [0, 0, 0]
    assert toml.preferences.tolist()[1] == 0.5
    assert np.isnan(toml.preferences).tolist() == [True, False, True]
    assert toml.group.nodes == ("lille", "university")
    assert toml.group.parent_of.tolist() == [0, 1, 1]
    csv = read_federation(written(tmp_path, "a.csv", doc_example("csv")))
    assert csv.digest == toml.digest
    flare = read_federation(written(tmp_path, "a.yml", doc_example("yaml")))
    assert flare.name == "hospitals"
    assert flare.tier_names == ("silo", "region", "tier-2", "federation")
    assert flare.innermost.nodes == ("north", "south")
    assert flare.sizes.tolist() == toml.sizes.tolist()


@pytest.mark.parametrize("library", FRAMES)
def test_preferences_groups_and_outer_tiers_survive_every_format(tmp_path, library):
    columns = {
        "group": [None, "university", "university"],
        **COLUMNS,
        "epsilon": [None, 0.5, None],
        "country": ["france"] * 3,
        "continent": ["europe"] * 3,
    }
    pl.DataFrame(columns).write_csv(tmp_path / "a.csv")
    csv = read_federation(tmp_path / "a.csv")
    assert csv.tier_names == ("silo", "region", "country", "continent", "federation")
    assert csv.group.nodes == ("lille", "university")
    assert read_federation(frames(columns)[library]).digest == csv.digest
    assert read_federation(parquet(tmp_path, columns)).digest == csv.digest


def test_empty_epsilon_and_group_columns_count_as_absent(tmp_path, expected):
    text = "silo,records,region,epsilon,group\nlille,800,north,,\nparis,2400,north,,\nlyon,1200,south,,\n"
    assert read_federation(written(tmp_path, "a.csv", text)).digest == expected


def test_space_around_cells_and_blank_lines_are_skipped(tmp_path, expected):
    text = "\n silo , records,region\n\n lille ,800 ,\tnorth\n   \nparis,2400,north\n\nlyon,1200,south\n\n"
    assert read_federation(written(tmp_path, "a.csv", text)).digest == expected
    padded = {**COLUMNS, "silo": [" lille", "paris ", "lyon\t"]}
    assert read_federation(pl.DataFrame(padded)).digest == expected
    assert read_federation(parquet(tmp_path, padded)).digest == expected


def test_quoted_cells_may_hold_commas(tmp_path):
    federation = read_federation(written(tmp_path, "a.csv", 'silo,records,region\n"Lyon, Est",3,"a ""b"""\n'))
    assert federation.silo_name(0) == "Lyon, Est"
    assert federation.innermost.nodes == ('a "b"',)


def test_toml_takes_any_name_for_the_innermost_tier(tmp_path):
    text = 'tiers = ["ward"]\n[ward]\n"my ward" = { a = 1, b = { records = 2.0 } }\n'
    federation = read_federation(written(tmp_path, "a.toml", text))
    assert federation.innermost.nodes == ("my ward",)
    assert federation.sizes.tolist() == [1, 2]


def test_a_project_without_records_has_equal_silos_of_1_record(tmp_path):
    federation = read_federation(written(tmp_path, "a.yml", re.sub(r", records: \d+", "", YAML)))
    assert federation.sizes.tolist() == [1, 1, 1]


def test_a_client_without_a_parent_is_a_region_of_its_own_at_every_tier(tmp_path):
    text = doc_example("yaml") + "  - {name: nice, type: client, parent: server, records: 5}\n"
    federation = read_federation(written(tmp_path, "a.yml", text))
    assert federation.innermost.nodes == ("north", "south", "nice")
    assert federation.tier("tier-2").nodes == ("france", "nice")


def test_a_real_project_file_with_other_keys_is_read(tmp_path):
    text = """api_version: 3
name: example_project
participants:
  - name: overseer
    type: overseer
    org: nvidia
  - name: server1
    type: server
    org: nvidia
    fl_port: 8002
    admin_port: 8003
  - name: site-1
    type: client
    org: nvidia
  - name: 2
    type: client
    org: nvidia
  - name: admin@nvidia.com
    type: admin
    org: nvidia
    role: project_admin
builders: []
"""
    federation = read_federation(written(tmp_path, "project.yml", text))
    assert federation.name == "example_project"
    assert federation.innermost.nodes == ("site-1", "2")


# ------------------------------------------------------------------------------------------- what is refused: sources


def test_an_unknown_name_is_refused_with_the_nearest():
    known = ", ".join(PROFILES)
    assert refusal("sevre") == f"no built-in federation or file 'sevre'. Known: {known}. Did you mean 'severe'?"


@pytest.mark.parametrize("source", ["", "a\0b", Path("nowhere.csv"), "nowhere/silos.csv", "two\nlines"])
def test_a_missing_file_is_refused(source):
    assert refusal(source).startswith(f"no built-in federation or file {str(source)!r}. Known: balanced, ")


def test_a_name_too_long_for_a_file_is_refused():
    assert refusal("x" * 5000).endswith("cannot be read: File name too long")


def test_a_directory_is_refused(tmp_path):
    assert refusal(tmp_path) == f"{str(tmp_path)!r} is a directory. Give a file: .toml, .csv, .parquet, .yml, .yaml"


def test_an_unknown_extension_is_refused(tmp_path):
    known = ".toml, .csv, .parquet, .yml, .yaml"
    message = f"silos.xlsx: files that end in '.xlsx' cannot be read. Known: {known}. Save it as CSV"
    assert refusal(written(tmp_path, "silos.xlsx", b"")) == message


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
@pytest.mark.parametrize("name", ["a.csv", "a.toml", "a.yml", "a.parquet"])
def test_an_unreadable_file_is_refused(tmp_path, name):
    path = written(tmp_path, name, CSV)
    path.chmod(0)
    assert refusal(path) == f"{name} cannot be read: Permission denied"


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file whose first byte cannot be read")
@pytest.mark.parametrize("name", ["a.csv", "a.toml", "a.yml"])
def test_a_file_that_fails_while_it_is_read_is_refused(tmp_path, name):
    (tmp_path / name).symlink_to("/proc/self/mem")
    assert refusal(tmp_path / name) == f"{name} cannot be read: Input/output error"


@pytest.mark.parametrize(
    ("name", "package", "message"),
    [
        ("a.parquet", "pyarrow", "reading Parquet needs pyarrow. Run: pip install 'fulcrum-dp[parquet]'"),
        ("a.yml", "yaml", "reading project.yml needs pyyaml. Run: pip install 'fulcrum-dp[nvflare]'"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, name, package, message):
    monkeypatch.setitem(sys.modules, package, None)
    assert refusal(written(tmp_path, name, b""), MissingExtraError) == message


@pytest.mark.parametrize("source", [3, None, {"silo": ["a"]}, b"severe", [1], pl.Series([1])])
def test_what_is_not_a_frame_is_refused(source):
    kind = type(source).__name__
    assert refusal(source) == (f"a federation cannot be read from {kind}. Give a built-in name, a path or a data frame")


# ----------------------------------------------------------------------------------------- what is refused: the columns

HEADERS = [
    ("silo,region", "the column 'records' is missing. Every table needs silo, records, region"),
    ("silo,size,region", "the column 'records' is missing. Did you mean the column 'size' to be 'records'?"),
    ("silo,recrods,region", "the column 'records' is missing. Did you mean the column 'recrods' to be 'records'?"),
    ("client,records,region", "the column 'silo' is missing. Did you mean the column 'client' to be 'silo'?"),
    ("silo,records,Region", "the column 'region' is missing. Did you mean the column 'Region' to be 'region'?"),
    ("silo,records,cluster", "the column 'region' is missing. Did you mean the column 'cluster' to be 'region'?"),
    ("silo,records,region,epsilom", "unknown column 'epsilom'. Did you mean 'epsilon'?"),
    ("silo,records,region,eps", "unknown column 'eps'. Did you mean 'epsilon'?"),
    ("silo,records,region,record", "unknown column 'record'. Did you mean 'records'?"),
    ("silo,records,region,Group", "unknown column 'Group'. Did you mean 'group'?"),
    (
        "silo,records,note,region",
        "unknown column 'note'. Known: silo, records, epsilon, group, region. "
        "An outer tier stands after 'region'; remove the column if it is none",
    ),
    (
        "silo,records,region,federation",
        "a tier cannot be called 'federation': that name has a meaning of its own. Rename the column",
    ),
    ("silo,records,region,", "column 4 has no name. Name it or remove it"),
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


def test_a_column_that_stands_twice_is_refused(tmp_path):
    twice = ["silo", "records", "region", "records"]
    message = "the column 'records' stands there twice. Remove or rename one"
    assert refusal(written(tmp_path, "a.csv", ",".join(twice) + "\n")) == f"a.csv line 1: {message}"
    table = pa.table([["a"], [1], ["r"], [2]], names=twice)
    pq.write_table(table, tmp_path / "a.parquet")
    assert refusal(tmp_path / "a.parquet") == f"a.parquet: {message}"
    for frame in (table, pd.DataFrame([["a", 1, "r", 2]], columns=twice)):
        assert refusal(frame) == "data frame: a column name stands there twice. Remove or rename one"


# ------------------------------------------------------------------------------------------- what is refused: CSV

HEAD = "silo,records,region"
WRONG_CSV = [
    ("", "a.csv is empty. Its first line must be: silo,records,region"),
    ("\n  \n\n", "a.csv is empty. Its first line must be: silo,records,region"),
    (HEAD, "a.csv has no silos. Add a row for each silo"),
    (f"{HEAD}\n\n", "a.csv has no silos. Add a row for each silo"),
    ("silo;records;region\na;1;r\n", "a.csv line 1: columns are separated by semicolons. Separate them by commas"),
    ("\nsilo\trecords\tregion\n", "a.csv line 2: columns are separated by tabs. Separate them by commas"),
    (
        f"{HEAD}\na,1,r\nb,2\n",
        "a.csv line 3: 2 cells in place of 3. Give one to each column, and quote a name that holds a comma",
    ),
    (
        f"{HEAD}\na,1,r\n\n\nb,2,r,x\n",
        "a.csv line 5: 4 cells in place of 3. Give one to each column, and quote a name that holds a comma",
    ),
    (f"{HEAD}\na,-3,r\n", "a.csv line 2: records=-3 must be at least 1"),
    (f"{HEAD}\na,0,r\n", "a.csv line 2: records=0 must be at least 1"),
    (f"{HEAD}\na,0.5,r\n", "a.csv line 2: records=0.5 must be at least 1"),
    (f"{HEAD}\na,nan,r\n", "a.csv line 2: records=nan must be a finite number"),
    (f"{HEAD}\na,inf,r\n", "a.csv line 2: records=inf must be a finite number"),
    (f"{HEAD}\na,-inf,r\n", "a.csv line 2: records=-inf must be a finite number"),
    (f"{HEAD}\na,1e300,r\n", "a.csv line 2: records=1e300 must be at most 9007199254740992"),
    (f"{HEAD}\na,many,r\n", "a.csv line 2: records='many' is not a number. Write it in plain digits, such as 1200"),
    (f'{HEAD}\na,"1,200",r\n', "a.csv line 2: records='1,200' is not a number. Write it in plain digits, such as 1200"),
    (f"{HEAD}\nlyon, ,r\n", "a.csv line 2: records is missing. Give the number of records of silo 'lyon'"),
    (f"{HEAD}\n\n,5,r\n", "a.csv line 3: silo is missing. Give it a name"),
    (f"{HEAD}\na,5,\n", "a.csv line 2: region is missing. Name the region of silo 'a'"),
    (f"{HEAD},country\na,5,r,\n", "a.csv line 2: country is missing. Name the country of silo 'a'"),
    (f'{HEAD}\n"a\n",5,r\n\n"b\n\n",6,r\nc,0,r\n', "a.csv line 8: records=0 must be at least 1"),
    (f'{HEAD}\n"a\nb",5,r\n', "a.csv line 2: a silo's name must be printable and not empty, got 'a\\nb'"),
    (f'{HEAD}\na,5,"r\x07s"\n', "a.csv line 2: a region's name must be printable and not empty, got 'r\\x07s'"),
    (f'{HEAD},group\na,5,r,"x\x07"\n', "a.csv line 2: a group's name must be printable and not empty, got 'x\\x07'"),
    (f'{HEAD}\na,5,r\n"b,6,r\nc,7,r\n', "a.csv line 3: unexpected end of data. Check the quotes"),
    (
        f"{HEAD},epsilon\na,5,r,1\nb,5,r,low\n",
        "a.csv line 3: epsilon='low' is not a number. Give a number above 0, or nothing",
    ),
    (f"{HEAD},epsilon\na,5,r,nan\n", "a.csv line 2: epsilon=nan is not a number. Give a number above 0, or nothing"),
    (f"{HEAD},epsilon\na,5,r,\nb,5,r,-1\n", "a.csv line 3: epsilon must be a finite number above 0, got -1"),
    (f"{HEAD},epsilon\na,5,r,inf\n", "a.csv line 2: epsilon must be a finite number above 0, got inf"),
    (
        f"{HEAD}\na,5,r\n\na,5,r\n",
        "a.csv line 4: silo a stands there a second time, first at a.csv line 2. Remove one",
    ),
    (
        f"{HEAD},group\na,5,r,b\nb,5,r,\n",
        "a.csv line 3: silo 'b' has no group, and a group bears its name. Name its group",
    ),
    (f"{HEAD}\na,5,r\nb\xe9,5,r\n".encode("latin-1"), "a.csv line 3 is not UTF-8. Save it as UTF-8"),
    (f"{HEAD}\r\na,5,r\r\nb\xe9,5,r\r\n".encode("latin-1"), "a.csv line 3 is not UTF-8. Save it as UTF-8"),
    (f"{HEAD}\na,5,r\n".encode("utf-16"), "a.csv line 1 is not UTF-8. Save it as UTF-8"),
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
        "a.csv line 3: region 'north' is in two of the tier 'country', 'france' and 'spain'."
    )


# ------------------------------------------------------------------------------- what is refused: Parquet and frames

WRONG_ROWS = [
    ({"records": [800, -3, 5]}, "row 2: records=-3 must be at least 1"),
    ({"records": [800.0, 0.0, 5.0]}, "row 2: records=0 must be at least 1"),
    ({"records": [800.0, float("inf"), 5.0]}, "row 2: records=inf must be a finite number"),
    ({"records": [800, None, 5]}, "row 2: records is missing. Give the number of records of silo 'paris'"),
    ({"records": [800.0, float("nan"), 5.0]}, "row 2: records is missing. Give the number of records of silo 'paris'"),
    ({"records": ["800", " x ", "5"]}, "row 2: records='x' is not a number. Write it in plain digits, such as 1200"),
    ({"records": [True, True, False]}, "row 1: records=True is not a number. Write it in plain digits, such as 1200"),
    ({"silo": ["lille", None, "lyon"]}, "row 2: silo is missing. Give it a name"),
    ({"silo": ["lille", "paris", " "]}, "row 3: silo is missing. Give it a name"),
    ({"region": ["north", None, "south"]}, "row 2: region is missing. Name the region of silo 'paris'"),
    ({"region": [None, None, None]}, "row 1: region is missing. Name the region of silo 'lille'"),
    ({"country": ["france", "france", None]}, "row 3: country is missing. Name the country of silo 'lyon'"),
    ({"epsilon": [0.5, None, -1.0]}, "row 3: epsilon must be a finite number above 0, got -1"),
    ({"epsilon": ["0.5", "low", None]}, "row 2: epsilon='low' is not a number. Give a number above 0, or nothing"),
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
    frame = pd.DataFrame({**COLUMNS, "records": pd.Series([800, None, 5], dtype=dtype)})
    assert refusal(frame) == "data frame row 2: records is missing. Give the number of records of silo 'paris'"


def test_half_a_surrogate_pair_in_a_frame_is_refused():
    frame = pd.DataFrame({**COLUMNS, "silo": pd.Series(["a", "b\ud800", "c"], dtype=object)})
    assert refusal(frame) == "data frame row 2: a silo's name must be printable"


@pytest.mark.parametrize("library", FRAMES)
def test_a_frame_without_rows_is_refused(library):
    columns = {name: pa.array([], pa.string()) for name in COLUMNS}
    table = pa.table(columns)
    source = {"pandas": table.to_pandas(), "polars": pl.from_arrow(table), "polars lazy": pl.from_arrow(table).lazy()}
    frame = source.get(library, table if library == "pyarrow" else duckdb.from_arrow(table))
    assert refusal(frame) == "data frame has no silos. Add a row for each silo"


@pytest.mark.parametrize("content", [b"", b"PAR1", CSV.encode(), b"PAR1" + bytes(100) + b"PAR1"])
def test_what_is_not_parquet_is_refused(tmp_path, content):
    path = written(tmp_path, "a.parquet", content)
    assert refusal(path) == "a.parquet is not a Parquet file, or it is damaged. Write it again"


def test_a_parquet_file_without_rows_is_refused(tmp_path):
    path = parquet(tmp_path, {name: pa.array([], pa.string()) for name in COLUMNS})
    assert refusal(path) == "silos.parquet has no silos. Add a row for each silo"


# ------------------------------------------------------------------------------------------- what is refused: TOML

OUTER = 'tiers = ["region", "country"]\n'
WRONG_TOML = [
    ("", "a.toml: the table [region] is missing. Add it, with the nodes of that tier"),
    ("[region.north\n", "a.toml line 1: not valid TOML: Expected ']' at the end of a table declaration"),
    ("[region.north]\na = 1\n\nb = \n", "a.toml line 4: not valid TOML: Invalid value"),
    ("[region.north]\na = 1\na = 2\n", "a.toml line 3: not valid TOML: Cannot overwrite a value"),
    ("a = " + "[" * 5000, "a.toml is nested too deeply to be read"),
    (
        "[regoin.north]\na = 1\n",
        "a.toml line 1: unknown key 'regoin'. Known: name, tiers, region, group. Did you mean 'region'?",
    ),
    (
        "[region.north]\na = 1\n\n[country]\nfrance = ['north']\n",
        "a.toml line 4: unknown key 'country'. Known: name, tiers, region, group. "
        "An outer tier must be listed in tiers",
    ),
    (
        "[region.north]\na = { record = 1 }\n",
        "a.toml line 2: unknown key 'record' of silo 'a'. Known: records, epsilon. Did you mean 'records'?",
    ),
    ("name = 3\n", "a.toml line 1: name must be printable text, got a number"),
    ('\ntiers = "region"\n', 'a.toml line 2: tiers must be a list of names, inner to outer: ["region", "country"]'),
    ("tiers = []\n", 'a.toml line 1: tiers must be a list of names, inner to outer: ["region", "country"]'),
    ('tiers = ["region", "region"]\n', "a.toml line 1: tier 'region' is listed twice. Remove one"),
    ('tiers = ["silo"]\n', "a.toml line 1: a tier cannot be called 'silo': that name has a meaning of its own"),
    ('tiers = ["name"]\n', "a.toml line 1: a tier cannot be called 'name'"),
    ("region = 3\n", "a.toml line 1: region must be a table, got a number"),
    ("[region]\n", "a.toml line 1: the table [region] is empty. Give it at least one entry or remove it"),
    (
        "[region]\nnorth = 3\n",
        "a.toml line 2: region 'north' must hold its silos, one line each: lille = 800",
    ),
    ("[region.north]\n", "a.toml line 1: region 'north' must hold its silos, one line each: lille = 800"),
    ("[region.north]\na = -3\n", "a.toml line 2: records=-3 must be at least 1"),
    ("[region.north]\na = nan\n", "a.toml line 2: records=nan must be a finite number"),
    ("[region.north]\na = 1\nb = inf\n", "a.toml line 3: records=inf must be a finite number"),
    (
        "[region.north]\na = true\n",
        "a.toml line 2: records=True is not a number. Write it in plain digits, such as 1200",
    ),
    (
        "[region.north]\na = [1]\n",
        "a.toml line 2: records=(list) is not a number. Write it in plain digits, such as 1200",
    ),
    (
        "[region.north]\na = { epsilon = 1 }\n",
        "a.toml line 2: records is missing. Give the number of records of silo 'a'",
    ),
    (
        "[region.north.a]\nrecords = 5\nepsilon = 'low'\n",
        "a.toml line 1: epsilon='low' is not a number. Give a number above 0, or nothing",
    ),
    (
        "[region.north]\na = { records = 5, epsilon = 0 }\n",
        "a.toml line 2: epsilon must be a finite number above 0, got 0",
    ),
    (
        "[region.north]\na = 1\n[region.south]\na = 1\n",
        "a.toml line 4: overlap: silo a is in two regions, 'north' and 'south'. "
        "Keep one of the two rows, or split it into two silos with disjoint records",
    ),
    (
        OUTER + "[region.north]\na = 1\n",
        "a.toml line 1: the table [country] is missing. Add it, with the nodes of that tier",
    ),
    (
        OUTER + "[region.north]\na = 1\n[country]\nfrance = []\n",
        'a.toml line 5: country \'france\' must list its regions: ["north", "south"]',
    ),
    (
        OUTER + "[region.north]\na = 1\n[country]\nfrance = ['nort']\n",
        "a.toml line 5: country 'france' names region 'nort'. Known regions: north. Did you mean 'north'?",
    ),
    (
        OUTER + "[region]\nnorth.a = 1\nsouth.b = 1\n[country]\nfrance = ['north']\n",
        "a.toml line 5: region 'south' is in no country. Name it under one: france",
    ),
    (
        OUTER + "[region.north]\na = 1\n[country]\nfrance = ['north']\nspain = ['north']\n",
        "a.toml line 6: region 'north' is listed under country 'france' and 'spain'. Keep one of the two",
    ),
    (
        "[region.north]\nparis = 1\n[group]\nuniversity = ['pariss']\n",
        "a.toml line 4: group 'university' names silo 'pariss'. Known silos: paris. Did you mean 'paris'?",
    ),
    (
        "[region.north]\nparis = 1\n[group]\nx = ['paris']\ny = ['paris']\n",
        "a.toml line 5: silo 'paris' is listed under group 'x' and 'y'. Keep one of the two",
    ),
    (b"name = 'a'\n[region.caf\xe9]\n", "a.toml line 2 is not UTF-8. Save it as UTF-8"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_TOML)
def test_a_wrong_toml_is_refused_in_one_line(tmp_path, text, message):
    assert refusal(written(tmp_path, "a.toml", text)).startswith(message)


# ------------------------------------------------------------------------------------------- what is refused: NVFLARE


def project(*participants):
    return "participants:\n" + "".join(f"- {{{entry}}}\n" for entry in participants)


SITE = "name: a, type: client"
WRONG_YAML = [
    ("", "a.yml: the list 'participants' is missing. Is it an NVFLARE project file?"),
    ("- 1\n", "a.yml: the list 'participants' is missing. Is it an NVFLARE project file?"),
    (
        "partcipants: []\n",
        "a.yml: the list 'participants' is missing. Did you mean 'partcipants' to be 'participants'?",
    ),
    ("participants: []\n", "a.yml has no clients. Add participants of type client, one a silo"),
    ("participants:\n- {name: [\n", "a.yml line 3: not valid YAML: "),
    ("a: 2024-13-45\n", "a.yml: not valid YAML: a value does not fit its type: month must be in 1..12"),
    ("[" * 5000, "a.yml is nested too deeply to be read"),
    ("participants: [5]\n", "a.yml line 1: a participant must have a name and a type, got a number"),
    (project("type: client"), "a.yml line 2: the participant has no name, or it is not printable. Give it a name"),
    (project(SITE, SITE), "a.yml line 3: participant 'a' stands there twice, first at line 2"),
    (
        project("name: a, type: cleint"),
        "a.yml line 2: the type of 'a' must be one of server, client, relay, admin, overseer, got 'cleint'. "
        "Did you mean 'client'?",
    ),
    (
        project("name: a"),
        "a.yml line 2: the type of 'a' must be one of server, client, relay, admin, overseer, got nothing",
    ),
    (project(f"{SITE}, record: 5"), "a.yml line 2: unknown key 'record' of 'a'. Did you mean 'records'?"),
    (project(f"{SITE}, parents: b"), "a.yml line 2: unknown key 'parents' of 'a'. Did you mean 'parent'?"),
    (
        project("name: north, type: relay", f"{SITE}, parent: nort"),
        "a.yml line 3: 'a' names parent 'nort', which is no participant. Did you mean 'north'?",
    ),
    (
        project("name: boss, type: admin", f"{SITE}, parent: boss"),
        "a.yml line 3: 'a' names parent 'boss', an admin. Name a client or relay",
    ),
    (
        project("name: r, type: relay, parent: s", "name: s, type: relay, parent: r", f"{SITE}, parent: r"),
        "a.yml line 2: the parents form a cycle: r -> s -> r. Remove one of them",
    ),
    (project(f"{SITE}, parent: a"), "a.yml line 2: the parents form a cycle: a -> a. Remove one of them"),
    (
        project(
            "name: r, type: relay",
            "name: s, type: relay, parent: r",
            f"{SITE}, parent: r",
            "name: b, type: client, parent: s",
        ),
        "a.yml line 5: silo 'b' has 2 parents above it and silo 'a' has 1. "
        "Give every silo with a parent the same number of levels",
    ),
    (
        project("name: r, type: client, records: 5", f"{SITE}, parent: r"),
        "a.yml line 2: 'r' has records but is the parent of 'a', and only silos hold data. "
        "Remove its records, or add a client for them",
    ),
    (
        project(f"{SITE}, records: 5", "name: b, type: client"),
        "a.yml line 3: records is missing. Give the number of records of silo 'b'",
    ),
    (project(f"{SITE}, records: -3"), "a.yml line 2: records=-3 must be at least 1"),
    (project(f"{SITE}, records: .nan"), "a.yml line 2: records=nan must be a finite number"),
    (
        project(f"{SITE}, records: many"),
        "a.yml line 2: records='many' is not a number. Write it in plain digits, such as 1200",
    ),
    (project(f"{SITE}, records: 0x{'f' * 5000}"), "a.yml line 2: records=inf must be a finite number"),
    (project(f"{SITE}, epsilon: 0"), "a.yml line 2: epsilon must be a finite number above 0, got 0"),
    ("a: 1\nb: caf\xe9\n".encode("latin-1"), "a.yml line 2 is not UTF-8. Save it as UTF-8"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_YAML)
def test_a_wrong_project_file_is_refused_in_one_line(tmp_path, text, message):
    assert refusal(written(tmp_path, "a.yml", text)).startswith(message)


# ------------------------------------------------------------------------------------------------------- fuzzing


def reads_or_refuses(folder, name, content):
    """Either a federation, or one line of a FulcrumError: any other exception fails the test."""
    try:
        outcome = read_federation(written(folder, name, content)).digest
    except FulcrumError as error:
        outcome = str(error)
    assert outcome.isprintable()


def mangled(text):
    """Valid text with a few pieces deleted, doubled or replaced."""
    pieces = st.sampled_from(
        ["", ",", '"', "\n", "=", "[", "]", "{", "}", ":", "- ", "nan", "1e308", "-1", "é", "\0", "x"]
    )

    def apply(edits):
        result = text
        for where, length, piece in edits:
            at = int(where * len(result))
            result = result[:at] + piece + result[at + length :]
        return result

    places = st.floats(0, 1, exclude_max=True)
    return st.lists(st.tuples(places, st.integers(0, 6), pieces), min_size=1, max_size=5).map(apply)


VALID = {"a.csv": doc_example("csv"), "a.toml": doc_example("toml"), "a.yml": doc_example("yaml")}


@pytest.mark.parametrize("name", [*VALID, "a.parquet"])
@FUZZ
@given(content=st.binary(max_size=200))
@example(content=b"\xff\xfe")
def test_arbitrary_bytes_are_read_or_refused(tmp_path, name, content):
    reads_or_refuses(tmp_path, name, content)


@pytest.mark.parametrize("name", VALID)
@FUZZ
@given(content=st.text(st.characters(codec="utf-8"), max_size=200))
def test_arbitrary_text_is_read_or_refused(tmp_path, name, content):
    reads_or_refuses(tmp_path, name, content)
    start = {"a.csv": f"{HEAD}\n", "a.toml": "[region.north]\n", "a.yml": "participants:\n- "}[name]
    reads_or_refuses(tmp_path, name, start + content)


@pytest.mark.parametrize("name", VALID)
@FUZZ
@given(data=st.data())
def test_mangled_files_are_read_or_refused(tmp_path, name, data):
    reads_or_refuses(tmp_path, name, data.draw(mangled(VALID[name])))


@FUZZ
@given(
    participants=st.lists(
        st.dictionaries(
            st.sampled_from(["name", "type", "parent", "records", "epsilon"]),
            st.one_of(st.sampled_from(["a", "b", "c", "client", "relay"]), st.integers(-1, 9), st.none(), st.floats()),
        ),
        max_size=6,
    )
)
def test_arbitrary_projects_are_read_or_refused(tmp_path, participants):
    reads_or_refuses(tmp_path, "a.yml", yaml.safe_dump({"participants": participants}))


@pytest.mark.parametrize(
    "tag", ["!!int", "!!float", "!!bool", "!!timestamp", "!!binary", "!!python/name:os.system", "!!set"]
)
def test_yaml_tags_that_do_not_fit_are_refused(tmp_path, tag):
    assert refusal(written(tmp_path, "a.yml", f'participants: {tag} ""\n')).startswith("a.yml")


def test_a_damaged_parquet_file_is_read_or_refused(tmp_path):
    rng = random.Random(0)
    content = bytearray(parquet(tmp_path, COLUMNS).read_bytes())
    for _ in range(60):
        at = rng.randrange(len(content) // 3)  # the pages; a damaged footer can claim any number of rows
        reads_or_refuses(tmp_path, "a.parquet", bytes(content[:at] + b"\xff" + content[at + 1 :]))


NAMES = st.text(string.ascii_letters + string.digits + "-_ é.", min_size=1, max_size=8).map(str.strip).filter(bool)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    regions=st.dictionaries(NAMES, st.integers(1, 4), min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 10**6), min_size=16, max_size=16),
)
def test_any_federation_is_the_same_after_every_format(tmp_path, regions, sizes):
    rows = [(f"{region}/{k}", region) for region, count in regions.items() for k in range(count)]
    columns = {"silo": [r[0] for r in rows], "records": sizes[: len(rows)], "region": [r[1] for r in rows]}
    entries = list(zip(columns["silo"], columns["records"], columns["region"], strict=True))
    nested = {region: {s: n for s, n, r in entries if r == region} for region in regions}
    expected = Federation.from_sizes(nested).digest
    pl.DataFrame(columns).write_csv(tmp_path / "a.csv")
    toml = "".join(
        f'[region."{region}"]\n' + "".join(f'"{silo}" = {size}\n' for silo, size in silos.items())
        for region, silos in nested.items()
    )
    people = [{"name": f"to {region}", "type": "relay"} for region in regions]
    people += [{"name": s, "type": "client", "parent": f"to {r}", "records": n} for s, n, r in entries]
    flare = Federation.from_sizes({f"to {region}": silos for region, silos in nested.items()}).digest
    assert read_federation(tmp_path / "a.csv").digest == expected
    assert read_federation(written(tmp_path, "a.toml", toml)).digest == expected
    assert read_federation(written(tmp_path, "a.yml", yaml.safe_dump({"participants": people}))).digest == flare
    assert read_federation(parquet(tmp_path, columns)).digest == expected
    assert read_federation(pd.DataFrame(columns)).digest == expected
