import json

import pytest

from fulcrum.display import Column, Result, check_format, figure, show, table
from fulcrum.errors import ParameterError


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0"), (0.99, "0.99"), (1234567.0, "1,234,567"), (1e-7, "1e-07"), (-float("inf"), "-∞")]
)
def test_figures_are_short(value, shown):
    assert figure(value) == shown


def test_long_tables_are_cut_in_the_picture_alone(capsys):
    rows = [{"name": f"r{k}", "value": float(k)} for k in range(100)]
    columns = (Column(key="name", heading="name", figures=False), Column(key="value", heading="value"))
    result = Result(data=rows, rows=rows, picture=[table("long", columns, rows)])
    show(result, "table")
    pictured = capsys.readouterr().out
    assert "r29" in pictured
    assert "r30" not in pictured
    assert "70 more not shown; see them all with --format csv." in pictured
    show(result, "csv")
    assert len(capsys.readouterr().out.splitlines()) == 101
    show(result, "json")
    assert len(json.loads(capsys.readouterr().out)) == 100


def test_infinities_have_no_word_in_json(capsys):
    show(Result(data={"a": [float("inf"), (1.0, float("nan"))]}, rows=()), "json")
    assert json.loads(capsys.readouterr().out) == {"a": [None, [1.0, None]]}


def test_unknown_formats_are_refused_before_any_work():
    with pytest.raises(ParameterError, match=r"unknown format 'xml'. Known: table, json, csv."):
        check_format("xml")
