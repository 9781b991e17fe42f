"""Columns kept free for later use are refused by every way into a federation, and never become tiers by accident."""

import msgspec
import numpy as np
import pytest
from sources import frames, parquet, written

import fulcrum
from fulcrum.core.topology import KNOWN_COLUMNS, RESERVED_COLUMNS, Tier
from fulcrum.errors import FederationError
from fulcrum.planning.files.exports import export_plan
from fulcrum.readers.federation_json import Roster, federation_of, roster_of
from fulcrum.readers.federation_reader import read_federation, reading_of_bytes

NAMES = [*RESERVED_COLUMNS, "Share", "SHARE"]
COLUMNS = {"silo": ["lille", "lyon"], "records": [800, 1200], "region": ["north", "south"]}
REMEDY = "that name is reserved for later use. Rename it or leave it out"


def refused(read, *arguments):
    with pytest.raises(FederationError) as caught:
        read(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_reserved_names_are_these_and_have_no_meaning_yet():
    assert RESERVED_COLUMNS == ("share",)
    assert not set(RESERVED_COLUMNS) & set(KNOWN_COLUMNS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", [0, 2, 3])
def test_a_reserved_column_of_any_table_is_refused_wherever_it_stands(tmp_path, name, place):
    order = list(COLUMNS)
    order.insert(place, name)
    columns = {key: COLUMNS.get(key, ["a", "b"]) for key in order}
    text = (
        ",".join(columns)
        + "\n"
        + "".join(",".join(map(str, row)) + "\n" for row in zip(*columns.values(), strict=True))
    )
    expected = f"a column cannot be called {name!r}: {REMEDY}"
    assert refused(read_federation, written(tmp_path, "a.csv", text)) == f"a.csv line 1: {expected}"
    assert refused(reading_of_bytes, text.encode(), "a.csv") == f"a.csv line 1: {expected}"
    assert refused(read_federation, parquet(tmp_path, columns)).endswith(f".parquet: {expected}")
    for frame in frames(columns).values():
        assert refused(read_federation, frame) == f"data frame: {expected}"


@pytest.mark.parametrize("name", NAMES)
def test_a_reserved_tier_is_refused_by_every_tree(tmp_path, name):
    expected = f"a tier cannot be called {name!r}: {REMEDY}"
    sizes = {"north": [800], "south": [1200]}
    assert refused(lambda: fulcrum.Federation.from_sizes(sizes, outer={name: {"x": ["north", "south"]}})) == expected
    tier = Tier(name=name, nodes=("a",), parent_of=np.zeros(2, dtype=np.intp))
    assert refused(lambda: fulcrum.Federation(name="x", sizes=np.ones(2), tiers=(tier,))) == expected
    tree = f'tiers = ["region", "{name}"]\n[region.north]\nlille = 800\n[{name}]\nx = ["north"]\n'
    assert refused(read_federation, written(tmp_path, "a.toml", tree)) == f"a.toml line 1: {expected}"
    assert refused(reading_of_bytes, tree.encode(), "a.toml") == f"a.toml line 1: {expected}"
    roster = msgspec.to_builtins(roster_of(fulcrum.Federation.from_sizes(sizes)))
    roster["tiers"][0]["name"] = name
    assert refused(federation_of, msgspec.convert(roster, Roster)) == expected


@pytest.mark.parametrize("name", NAMES)
def test_a_reserved_key_of_a_silo_is_refused(tmp_path, name):
    inside = f"[region.north]\nlille = {{ records = 800, {name} = 2 }}\n"
    assert refused(read_federation, written(tmp_path, "a.toml", inside)) == (
        f"a.toml line 2: silo 'lille' has an entry {name!r}: {REMEDY}"
    )
    above = f"{name} = 2\n[region.north]\nlille = 800\n"
    assert refused(read_federation, written(tmp_path, "b.toml", above)) == (
        f"b.toml line 1: a key cannot be called {name!r}: {REMEDY}"
    )
    pytest.importorskip("yaml", reason="project files need pyyaml")
    project = f"participants:\n  - {{name: server, type: server}}\n  - {{name: lille, type: client, records: 800, {name}: 2}}\n"
    assert refused(read_federation, written(tmp_path, "a.yml", project)) == (
        f"a.yml line 3: 'lille' has a key {name!r}: {REMEDY}"
    )


def test_a_plan_exported_as_csv_is_not_taken_for_a_federation(tmp_path):
    table = export_plan(fulcrum.plan("consortium", rounds=3, epsilon=1.0), "csv")
    assert refused(read_federation, written(tmp_path, "plan.csv", table)) == (
        "plan.csv line 1: the column 'noise_multiplier' is a column of an exported plan, so the file is no federation. "
        "Give the file of silos and regions from which the plan was made"
    )


def test_nodes_and_silos_may_bear_any_name(tmp_path):
    sizes = {name: {name: 800} for name in RESERVED_COLUMNS}
    federation = fulcrum.Federation.from_sizes(sizes)
    assert federation.innermost.nodes == RESERVED_COLUMNS
    text = "silo,records,region\n" + "".join(f"{name},800,{name}\n" for name in RESERVED_COLUMNS)
    assert read_federation(written(tmp_path, "a.csv", text)).digest == federation.digest
