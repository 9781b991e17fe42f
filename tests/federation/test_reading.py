"""Every format gives the same federation."""

import gc
import re
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from error_codes import coded
from sources import COLUMNS, CSV, FRAMES, doc_example, frames, parquet, pyarrow, refusal, written

import fulcrum
from fulcrum.errors import FederationError
from fulcrum.planning.engine_limits import refusals
from fulcrum.readers import federation_reader as reading
from fulcrum.readers import sheets
from fulcrum.readers.federation_reader import read_federation, reading_of
from fulcrum.readers.profiles import PROFILES, profile
from fulcrum.readers.tree_files import toml_federation

TOML = "[region.north]\nlille = 800\nparis = 2400\n[region.south]\nlyon = 1200\n"


YAML = """participants:
- {name: server, type: server}
- {name: north, type: relay}
- {name: south, type: client}
- {name: lille, type: client, parent: north, records: 800}
- {name: paris, type: client, parent: north, records: 2400}
- {name: lyon, type: client, parent: south, records: 1200}
"""


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


def test_parquet_gives_the_same_federation(tmp_path, expected):
    federation = read_federation(parquet(tmp_path, COLUMNS, row_group_size=1))
    assert federation.digest == expected
    assert federation.name == "silos"


def test_parquet_dictionaries_do_not_change_the_order_of_regions(tmp_path, expected):
    pa = pyarrow()
    region = pa.DictionaryArray.from_arrays(pa.array([2, 2, 0]), pa.array(["south", "unused", "north"]))
    assert read_federation(parquet(tmp_path, {**COLUMNS, "region": region})).digest == expected


@pytest.mark.parametrize("kind", ["large_string", "string_view", "binary"])
def test_parquet_takes_every_type_of_text(tmp_path, expected, kind):
    pa = pyarrow()
    names = [name.encode() if kind == "binary" else name for name in COLUMNS["silo"]]
    silo = pa.array(names, getattr(pa, kind)())
    assert read_federation(parquet(tmp_path, {**COLUMNS, "silo": silo})).digest == expected


@pytest.mark.parametrize(
    ("kind", "digits"), [("int32", ()), ("uint64", ()), ("float32", ()), ("decimal128", (10, 2)), ("string", ())]
)
def test_parquet_takes_every_type_of_number(tmp_path, expected, kind, digits):
    pa = pyarrow()
    records = pa.array(list(map(str, COLUMNS["records"]))).cast(getattr(pa, kind)(*digits))
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
    monkeypatch.setattr(sheets, "BATCH", 1_000)
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


def test_a_project_without_records_has_equal_silos_of_1_record_and_a_note_says_so(tmp_path):
    reading = reading_of(written(tmp_path, "a.yml", re.sub(r", records: \d+", "", YAML)))
    assert reading.federation.sizes.tolist() == [1, 1, 1]
    assert sum("no client has records" in note for note in reading.notes) == 1
    assert not any("records" in note for note in reading_of(written(tmp_path, "a.yml", YAML)).notes)


def test_a_client_without_a_parent_is_a_region_of_its_own_at_every_tier(tmp_path):
    text = doc_example("yaml") + "  - {name: nice, type: client, parent: server, records: 5}\n"
    reading = reading_of(written(tmp_path, "a.yml", text))
    assert reading.federation.innermost.nodes == ("north", "south", "nice-region")
    assert reading.federation.tier("tier-2").nodes == ("france", "nice-region")
    assert sum("1 of the clients have no parent" in note for note in reading.notes) == 1


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
    reading = reading_of(written(tmp_path, "project.yml", text))
    assert reading.federation.name == "example_project"
    assert reading.federation.innermost.nodes == ("site-1-region", "2-region")
    flat, unsized = reading.notes
    assert "no topology to gain from" in flat
    assert "--aggregation masked --epsilon federation=" in flat
    assert "1 record each" in unsized
    plan = fulcrum.plan(reading.federation, rounds=3, epsilon=5.0, parameters=34, purpose="deployment")
    assert refusals(plan) == ()


def test_the_own_region_of_a_client_has_the_name_of_no_other_client(tmp_path):
    text = "participants:\n- {name: a, type: client}\n- {name: a-region, type: client}\n"
    federation = read_federation(written(tmp_path, "a.yml", text))
    assert federation.innermost.nodes == ("a-region-2", "a-region-region")


@pytest.mark.parametrize(("ending", "read"), [("", True), ("[", False)])
def test_a_large_toml_file_is_parsed_without_looking_for_garbage_and_the_collector_stays_as_it_was(ending, read):
    text = "".join(f"[region.r{k}]\ns{k} = 5\n" for k in range(20_000)) + ending
    collections = []

    def seen(phase, about):
        frame = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") != "tomllib._parser":
            frame = frame.f_back
        if frame is not None:
            collections.append(phase)

    gc.callbacks.append(seen)
    try:
        for enabled in (True, False):
            (gc.enable if enabled else gc.disable)()
            if read:
                assert len(toml_federation(text, "a.toml", "a")) == 20_000
            else:
                with pytest.raises(FederationError, check=coded("tree.toml-syntax", file="a.toml", line=40001)):
                    toml_federation(text, "a.toml", "a")
            assert gc.isenabled() == enabled
    finally:
        gc.callbacks.remove(seen)
        gc.enable()
    assert not collections
