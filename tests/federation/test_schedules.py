"""Rounds of silos from tables, frames, schedule files and mappings, and the refusal of every mistake."""

import pytest
from error_codes import coded
from sources import frames, parquet, written

import fulcrum
from fulcrum.errors import FederationError
from fulcrum.planning.theory.scheduling import with_rosters
from fulcrum.readers.editing import merge_regions, split_region
from fulcrum.readers.federation_csv import federation_csv
from fulcrum.readers.federation_json import roster_of
from fulcrum.readers.federation_reader import read_federation, reading_of_bytes
from fulcrum.readers.schedule_file import parsed_rounds, with_schedule

COLUMNS = {
    "silo": ["lille", "metz", "nice"],
    "records": [120, 90, 60],
    "region": ["north", "north", "south"],
    "from": [None, 4, 1],
    "until": [6, None, None],
    "every": [None, None, 2],
}
STAYS = (((1, 6, 1),), ((4, 0, 1),), ((1, 0, 2),))
TABLE = "silo,records,region,from,until,every\nlille,120,north,,6,\nmetz,90,north,4,,\nnice,60,south,1,,2\n"
PLAIN = fulcrum.Federation.from_sizes({"north": {"lille": 120, "metz": 90}, "south": {"nice": 60}})


def test_from_until_and_every_are_read_from_every_kind_of_table(tmp_path):
    assert read_federation(written(tmp_path, "a.csv", TABLE)).stays == STAYS
    assert reading_of_bytes(TABLE.replace(",", ";").encode(), "a.csv").federation.stays == STAYS
    assert (
        reading_of_bytes(TABLE.replace("from", "From").replace("until", "UNTIL").encode(), "a.csv").federation.stays
        == STAYS
    )
    assert read_federation(parquet(tmp_path, COLUMNS)).stays == STAYS
    for frame in frames(COLUMNS).values():
        assert read_federation(frame).stays == STAYS


def test_columns_without_a_limit_are_no_schedule():
    text = "silo,records,region,from,until\nlille,120,north,,\nmetz,90,north,1,\n"
    assert reading_of_bytes(text.encode(), "a.csv").federation.stays is None


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("metz,90,north,0,,", "sheet.stay-range"),
        ("metz,90,north,2.5,,", "sheet.stay-range"),
        ("metz,90,north,spring,,", "sheet.stay-range"),
        ("metz,90,north,,,0", "sheet.stay-range"),
        ("metz,90,north,,-3,", "sheet.stay-range"),
        ("metz,90,north,5,4,", "sheet.stay-order"),
    ],
)
def test_a_wrong_round_is_refused_with_its_line(row, code):
    text = TABLE.replace("metz,90,north,4,,", row)
    with pytest.raises(FederationError, check=coded(code), match="line 3"):
        reading_of_bytes(text.encode(), "a.csv")


SCHEDULE = "silo;region;rounds\nlille;north;1-6\nmetz;north;4-\nnice;south;1-/2\n"


def test_a_schedule_file_or_a_mapping_says_the_same(tmp_path):
    assert with_schedule(PLAIN, written(tmp_path, "s.csv", SCHEDULE)).stays == STAYS
    assert with_schedule(PLAIN, written(tmp_path, "t.csv", SCHEDULE.replace(";", ","))).stays == STAYS
    assert fulcrum.with_schedule(PLAIN, {"lille": "1-6", "metz": "4-", "nice": "1-/2"}).stays == STAYS
    several = "silo,rounds\nlille,1-2\nlille,5\nmetz,1-\nnice,1-\n"
    assert with_schedule(PLAIN, written(tmp_path, "u.csv", several)).stays[0] == ((1, 2, 1), (5, 5, 1))
    always = written(tmp_path, "v.csv", SCHEDULE.replace("1-/2", "1-")), TABLE.replace("1,,2", "1,,")
    same = [fulcrum.plan(with_schedule(PLAIN, always[0]), rounds=7, epsilon=1.0)]
    same.append(fulcrum.plan(read_federation(written(tmp_path, "fed.csv", always[1])), rounds=7, epsilon=1.0))
    assert same[0].federation.digest == same[1].federation.digest
    assert (same[0].phase_multiplier == same[1].phase_multiplier).all()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("lille", "lile"), "schedule.silo-unknown"),
        (("metz;north", "metz;south"), "schedule.region-differs"),
        (("metz;north;4-\n", ""), "schedule.silo-unlisted"),
        (("4-", ""), "schedule.rounds-missing"),
        (("4-", "April"), "schedule.rounds-malformed"),
        (("4-", "4--6"), "schedule.rounds-malformed"),
        (("4-", "6-4"), "schedule.rounds-order"),
        (("4-", "0-4"), "schedule.rounds-order"),
        (("4-", "4-/0"), "schedule.rounds-order"),
        (("4-", "4-6 5"), "schedule.stays-overlap"),
        (("4-", "4- 9"), "schedule.stays-overlap"),
        (("rounds", "months"), "schedule.header"),
        (("metz;north;4-", "metz;north"), "schedule.cells"),
        (("metz", '"metz'), "schedule.not-table"),
    ],
)
def test_a_mistake_in_a_schedule_file_is_refused_in_one_line(tmp_path, change, code):
    path = written(tmp_path, "s.csv", SCHEDULE.replace(*change))
    with pytest.raises(FederationError, check=coded(code)):
        with_schedule(PLAIN, path)


def test_a_schedule_of_a_federation_that_has_one_is_refused(tmp_path):
    federation = reading_of_bytes(TABLE.encode(), "a.csv").federation
    with pytest.raises(FederationError, check=coded("schedule.twice")):
        with_schedule(federation, {"lille": "1-", "metz": "1-", "nice": "1-"})


def test_huge_steps_and_many_parts_are_read_at_once():
    assert parsed_rounds("1-/999999", "x") == [(1, 0, 999999)]
    with pytest.raises(FederationError, check=coded("schedule.rounds-malformed")):
        parsed_rounds("1-/9999999999", "x")


@pytest.mark.parametrize("name", ["from", "until", "every", "Until"])
def test_a_tree_file_refuses_rounds_in_place_of_ignoring_them(tmp_path, name):
    inside = f"[region.north]\nlille = {{ records = 800, {name} = 2 }}\n"
    with pytest.raises(FederationError, check=coded("tree.silo-key-reserved"), match="--schedule"):
        read_federation(written(tmp_path, "a.toml", inside))
    pytest.importorskip("yaml", reason="project files need pyyaml")
    project = f"participants:\n  - {{name: server, type: server}}\n  - {{name: lille, type: client, records: 800, {name}: 2}}\n"
    with pytest.raises(FederationError, check=coded("project.key-reserved"), match="--schedule"):
        read_federation(written(tmp_path, "a.yml", project))


def test_what_cannot_carry_rounds_refuses_them_and_edits_keep_them():
    federation = reading_of_bytes(TABLE.encode(), "a.csv").federation
    for work in (roster_of, federation_csv):
        with pytest.raises(FederationError, check=coded("schedule.not-in-columns")):
            work(federation)
    for changed in (merge_regions(federation, ["north", "south"]), split_region(federation, "north")):
        kept = dict(zip(changed.silo_names.tolist(), changed.stays, strict=True))
        assert kept == dict(zip(COLUMNS["silo"], STAYS, strict=True))


def test_a_changed_schedule_is_another_federation():
    first = with_rosters(with_schedule(PLAIN, {"lille": "1-6", "metz": "1-", "nice": "1-"}), 7)
    other = with_rosters(with_schedule(PLAIN, {"lille": "1-5", "metz": "1-", "nice": "1-"}), 7)
    assert len({first.digest, other.digest, PLAIN.digest}) == 3
    assert with_rosters(with_schedule(PLAIN, dict.fromkeys(COLUMNS["silo"], "1-7")), 7).digest == PLAIN.digest
