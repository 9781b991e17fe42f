"""Plans, comparisons, runs and audits in a notebook: a line, a display, a data frame."""

import math
import pickle
import sys
from html.parser import HTMLParser

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pytest

import fulcrum
from fulcrum.audit.evidence.findings import Audit
from fulcrum.audit.replays.canary_game import audit
from fulcrum.planning.files.exports import export_plan
from fulcrum.views.notebook import data_frames, result_html

HOSTILE = "<img src=x onerror=alert(1)>"


class Elements(HTMLParser):
    """The elements and the text of a display."""

    def __init__(self, html):
        super().__init__()
        self.names, self.texts, self.attributes = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes.append(dict(attrs))

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def results():
    plan = fulcrum.plan("isic-paper", rounds=2, epsilon={"region": 2.0, "aggregator": 3.0})
    return {
        "plan": plan,
        "comparison": fulcrum.compare("isic-paper", rounds=2, epsilon=2.0),
        "trained comparison": fulcrum.compare_trained("isic-paper", "digits", seeds=2, rounds=2, epsilon=2.0),
        "run": fulcrum.train(plan, "digits", seeds=[3, 5]),
        "audit": audit(plan, trials=1_000, seed=1),
    }


NAMES = ("plan", "comparison", "trained comparison", "run", "audit")


@pytest.mark.parametrize("name", NAMES)
def test_the_representation_is_one_line_that_names_the_thing(results, name):
    line = repr(results[name])
    assert len(line.splitlines()) == 1
    assert 40 < len(line) < 250
    assert line.startswith(f"<{type(results[name]).__name__} of ")


def test_the_line_of_a_plan_has_every_target_by_its_observer(results):
    assert "epsilon region=2, epsilon aggregator=3, 2 rounds" in repr(results["plan"])


def test_the_line_of_a_plan_computes_no_figure(results):
    plan = fulcrum.plan("isic-paper", rounds=2, epsilon=1.0)
    before = set(vars(plan))
    repr(plan)
    assert set(vars(plan)) == before


@pytest.mark.parametrize("name", NAMES)
def test_a_display_has_a_verdict_a_table_and_a_chart_with_words(results, name):
    pytest.importorskip("vl_convert", reason="draws the chart")
    shown = Elements(results[name]._repr_html_())
    assert shown.names.count("table") == shown.names.count("img") == 1
    [picture] = [attributes for attributes in shown.attributes if "src" in attributes]
    assert picture["src"].startswith("data:image/svg+xml;base64,")
    assert len(picture["alt"]) > 30
    display = result_html.display_of(results[name])
    assert display.verdict in "".join(shown.texts)
    assert {len(row) for row in display.rows} == {len(display.headings)}


@pytest.mark.parametrize("name", NAMES)
def test_a_display_runs_no_script_and_loads_nothing(results, name):
    shown = Elements(results[name]._repr_html_())
    assert set(shown.names) <= {"style", "div", "p", "table", "thead", "tbody", "tr", "th", "td", "img"}
    sources = [attributes["src"] for attributes in shown.attributes if "src" in attributes]
    assert all(source.startswith("data:") for source in sources)


def test_names_of_strangers_are_escaped():
    sizes = {HOSTILE: {"a": 10, "b": 20}, "south": {HOSTILE + "2": 10}}
    plan = fulcrum.plan(fulcrum.Federation.from_sizes(sizes, name=HOSTILE), rounds=2, epsilon=1.0)
    for shown in (plan, audit(plan, trials=1_000, seed=1)):
        text = shown._repr_html_()
        assert "onerror=alert(1)&gt;" in text
        assert "<img src=x" not in text


def test_a_display_without_the_chart_library_says_how_to_get_it(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    shown = Elements(results["plan"]._repr_html_())
    assert "img" not in shown.names
    assert any("'.[report]' in the checkout" in text for text in shown.texts)


def test_a_verdict_of_hardly_any_protection_is_marked_as_a_warning(results):
    wide = fulcrum.plan("isic-paper", rounds=2, epsilon=30.0)
    assert result_html.display_of(wide).is_warning
    assert not result_html.display_of(results["plan"]).is_warning


def test_the_table_of_a_long_run_has_the_last_rounds_and_says_so(monkeypatch, results):
    monkeypatch.setattr(result_html, "MOST_ROUNDS", 1)
    display = result_html.display_of(results["run"])
    assert [row[0] for row in display.rows] == ["2"]
    assert display.note.startswith("The first 1 rounds")


@pytest.mark.parametrize("library", [pl, pd], ids=["polars", "pandas"])
@pytest.mark.parametrize("name", NAMES)
def test_a_frame_is_of_the_library_that_the_user_names(results, name, library):
    frame = results[name].frame(library.__name__)
    assert isinstance(frame, library.DataFrame)
    assert len(frame) > 0


def test_the_frame_of_a_plan_is_its_table_by_silo(results):
    plan = results["plan"]
    frame = plan.frame("polars")
    assert frame.columns == export_plan(plan, "csv").splitlines()[0].split(",")
    assert frame["silo"].to_list() == plan.federation.silo_names.tolist()
    np.testing.assert_array_equal(frame["noise_multiplier"], plan.noise_multiplier)


def test_an_epsilon_without_a_guarantee_is_infinite_in_the_frame_and_in_the_export():
    plan = fulcrum.plan("isic-paper", rounds=2, epsilon=1.0, injection="aggregator")
    assert set(plan.frame("polars")["epsilon_silo"].to_list()) == {math.inf}
    assert ",inf," in export_plan(plan, "csv")


def test_the_frame_of_a_run_has_a_row_for_every_seed_and_round(results):
    run = results["run"]
    frame = run.frame("polars")
    assert frame.select("seed", "round").rows() == [(3, 1), (3, 2), (5, 1), (5, 2)]
    np.testing.assert_array_equal(frame["accuracy"], run.accuracy.ravel())


def test_the_frame_of_a_comparison_and_an_audit_has_their_rows(results):
    rows = results["comparison"]
    assert rows.frame("polars")["noise_budget"].to_list() == [row.noise_budget for row in rows]
    audited = results["audit"]
    assert results["audit"].frame("pandas")["stated"].tolist() == [finding.stated for finding in audited.findings]


def found(*installed):
    return lambda name: object() if name in installed else None


@pytest.mark.parametrize(
    ("imported", "installed", "library"),
    [
        ((), ("polars", "pandas"), "polars"),
        ((), ("pandas",), "pandas"),
        (("pandas",), ("polars", "pandas"), "pandas"),
        (("polars", "pandas"), ("polars", "pandas"), "polars"),
    ],
)
def test_an_imported_library_comes_before_an_installed_one(monkeypatch, imported, installed, library):
    for name in {"polars", "pandas"} - set(imported):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(data_frames, "find_spec", found(*installed))
    assert data_frames.library_of(None) == library


@pytest.mark.parametrize("library", [None, "pandas"])
def test_a_missing_library_is_refused_with_both_names(monkeypatch, library):
    for name in ("polars", "pandas"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(data_frames, "find_spec", found())
    with pytest.raises(fulcrum.MissingExtraError) as refusal:
        data_frames.library_of(library)
    assert refusal.value.code == "frame.library-missing"
    assert all(name in str(refusal.value) for name in ("polars", "pandas"))


def test_an_unknown_library_is_refused(results):
    with pytest.raises(fulcrum.ParameterError) as refusal:
        results["plan"].frame("panda")
    assert refusal.value.code == "errors.name-unknown"


def test_results_stay_the_data_that_they_were(results):
    rows, audited = results["comparison"], results["audit"]
    assert rows == tuple(rows)
    assert isinstance(rows[:2], tuple)
    assert pickle.loads(pickle.dumps(rows)) == rows
    assert msgspec.json.decode(msgspec.json.encode(audited), type=Audit) == audited
