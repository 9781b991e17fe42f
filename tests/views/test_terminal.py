import json

import numpy as np
import pytest
from rich.cells import cell_len

from fulcrum.views.terminal.screen import (
    Result,
    counting,
    facts,
    progress,
    remarks,
    show,
    steps,
    table,
    working,
)
from fulcrum.views.terminal.table_columns import Column


def test_long_tables_are_cut_in_the_picture_alone(capsys):
    rows = [{"name": f"r{k}", "value": float(k)} for k in range(100)]
    columns = (Column(key="name", heading="name", figures=False), Column(key="value", heading="value"))
    result = Result(data=rows, rows=rows, picture=[table("long", columns, rows)])
    show(result, "table")
    pictured = capsys.readouterr().out
    assert "r29" in pictured
    assert "r30" not in pictured
    assert "70 more not shown; --format csv lists all of them." in pictured
    show(result, "csv")
    assert len(capsys.readouterr().out.splitlines()) == 101
    show(result, "json")
    assert len(json.loads(capsys.readouterr().out)) == 100


def test_a_long_name_breaks_after_its_hyphen_and_no_earlier_than_headings_do(capsys, monkeypatch):
    columns = (
        Column(key="region", heading="region", figures=False),
        *(Column(key=f"{k}", heading="noise multiplier") for k in range(5)),
    )
    rows = [{"region": name, **dict.fromkeys("01234", 123456)} for name in ("Baden-Württemberg", "Nord")]
    for width, lines in (("100", ["Baden-Württemberg"]), ("80", ["Baden-", "Württemberg"])):
        monkeypatch.setenv("COLUMNS", width)
        show(Result(data=rows, rows=rows, picture=[table("regions", columns, rows)]), "table")
        shown = [line.split("  ")[0].strip() for line in capsys.readouterr().out.splitlines()]
        assert [line for line in shown if "emberg" in line or "Baden" in line] == lines


def test_infinities_have_no_word_in_json(capsys):
    show(Result(data={"a": [float("inf"), (1.0, float("nan"))]}, rows=()), "json")
    assert json.loads(capsys.readouterr().out) == {"a": [None, [1.0, None]]}


ORDERS = "a\x1b[2J\x1b]0;b\x07c\x9b31m\r\x7f\u202e\u2066[red]d"


@pytest.mark.parametrize("style", ["table", "json"])
def test_no_text_of_a_stranger_reaches_the_terminal_as_an_order(capsys, monkeypatch, style):
    monkeypatch.setenv("COLUMNS", "200")
    columns = (Column(key="name", heading=f"name\n{ORDERS}", figures=False), Column(key="value", heading="value"))
    rows = [{"name": ORDERS, "value": ORDERS}]
    picture = [table(ORDERS, columns, rows, note=ORDERS), facts([(ORDERS, ORDERS)]), remarks([(True, ORDERS)])]
    show(Result(data={ORDERS: [ORDERS]}, rows=rows, picture=picture), style)
    shown = capsys.readouterr().out
    assert all(char == "\n" or char.isprintable() for char in shown)
    if style == "json":
        assert json.loads(shown) == {ORDERS: [ORDERS]}
    else:
        assert shown.count("[red]d") == 8


def test_no_text_of_a_stranger_reaches_the_terminal_while_work_is_under_way(capsys):
    with working(ORDERS), counting(ORDERS) as count, steps(ORDERS) as tell, progress(ORDERS, 2) as trained:
        count(1, 2)
        tell(ORDERS)
        trained(1, [np.array([0.5])])
    shown = capsys.readouterr().err
    assert "[red]d" in shown
    assert all(char == "\n" or char.isprintable() for char in shown)


def test_a_long_round_tells_how_far_it_is_and_the_time_left(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("fulcrum.views.terminal.screen.time.monotonic", lambda: clock[-1])
    with progress("Training", 4) as tell:
        for now, done in ((5.0, 0.1), (30.0, 0.25), (35.0, 0.3), (50.0, 0.999), (600.0, 3.5), (9_000.0, 4.0)):
            clock.append(now)
            tell.within(done)
    assert capsys.readouterr().err == (
        "Training: round 1 of 4, 25% of it done, about 7.5 min left\n"
        "Training: round 1 of 4, 99% of it done, about 2.6 min left\n"
        "Training: round 4 of 4, 50% of it done, about 1.5 min left\n"
    )


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_epsilon_is_cut_however_long_names_are_and_narrow_the_screen(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    keys = ("silos", "effective size", "noise multiplier", "influence", "ε above", "ε inside")
    shape = [Column(key="region", heading="region", figures=False), *(Column(key=key, heading=key) for key in keys)]
    rows = [
        {"region": name, **{key: 1.111 + line / 10 + place / 1000 for place, key in enumerate(keys)}}
        for line, name in enumerate(["Norddeutschland und Schleswig-Holstein", "日本" * 30, "x"])
    ]
    show(Result(data=rows, rows=rows, picture=[table("long names", shape, rows)]), "table")
    drawn = capsys.readouterr().out
    for row in rows:
        [line] = [line for line in drawn.splitlines() if f"{row['silos']:.3f}" in line]
        assert line.split()[-6:] == [f"{row[key]:.3f}" for key in keys]
    assert max(map(cell_len, drawn.splitlines())) <= max(columns, 80)  # the least that six figures and a name take
    assert "日本日本" in drawn


@pytest.mark.parametrize("picture", [lambda text: facts([("source", text)]), lambda text: remarks([(True, text)])])
def test_an_address_that_is_longer_than_the_screen_is_shown_whole(capsys, monkeypatch, picture):
    monkeypatch.setenv("COLUMNS", "60")
    address = f"https://example.org/{'tables/' * 12}end"
    show(Result(data={}, rows=[], picture=[picture(address)]), "table")
    drawn = capsys.readouterr().out
    assert address in "".join(line.removeprefix("source").removeprefix("!").strip() for line in drawn.splitlines())
