"""Pictures are laid out on one machine and drawn on another, whose fonts may be others: nothing may be cut."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from browsers import installed_browser, launched
from test_charts import SEVERE, charts_of
from test_paper import load

import fulcrum
from fulcrum.views.charts.chart_style import STILL_FONT, fitted_svg, svg
from fulcrum.views.report.html_report import report

pytest.importorskip("vl_convert", reason="pictures need vl-convert-python")

GENERIC = ("sans-serif", "serif", "monospace")
MOST_ALONE = 8  # families that a browser is started with alone; every one is tried in a browser that has them all
NAMES = [f"A region with a rather long administrative name, number {k}" for k in range(1, 6)]
LONG = {f"A region with a r…ve name, number {k}" for k in range(1, 6)}
OUTSIDE = """
(pictures) => pictures.flatMap((picture) => {
  const frame = picture.getBoundingClientRect();
  return [...picture.querySelectorAll("text")].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - 1 || box.right > frame.right + 1;
  }).map((text) => text.textContent);
})
"""
EACH_TEXT = "(pictures) => pictures.forEach((p) => p.querySelectorAll('text').forEach((text) => { %s; }))"
IN_FONT = "(pictures, family) => pictures.forEach((picture) => picture.style.setProperty('font-family', family))"


def installed_families():
    """The font families of this machine with their files; none where fontconfig's tools are missing."""
    return {} if shutil.which("fc-list") is None else listed_families(os.environ)


def listed_families(env):
    """The families with the letters of English that fontconfig offers under some variables, with their files."""
    command = ["fc-list", ":lang=en", "file", "family"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    found = {}
    for line in sorted(listed.splitlines()):
        file, _, names = line.partition(": ")
        found.setdefault(names.partition(",")[0].strip(), []).append(Path(file))
    return found


def quoted(family):
    return family if family in GENERIC else '"' + family.replace("\\", "\\\\").replace('"', '\\"') + '"'


@pytest.fixture(scope="module")
def long_names(tmp_path_factory):
    federation = fulcrum.Federation.from_sizes({name: [100.0, 70, 9] for name in NAMES}, name="long")
    path = tmp_path_factory.mktemp("long") / "report.html"
    path.write_text(report(fulcrum.plan(federation, rounds=3, epsilon=1.0)), encoding="utf-8")
    return path.as_uri()


def on_paper(page):
    page.wait_for_selector("html[data-drawn]")
    page.set_viewport_size({"width": 673, "height": 900})
    page.emulate_media(media="print")
    pictures = page.locator(".still svg")
    assert pictures.count() >= 3
    return pictures


def test_every_text_says_the_width_that_it_was_measured_to_have():
    for chart in charts_of(SEVERE):
        drawn = svg(chart, font=STILL_FONT)
        fitted = re.findall(r'<text [^>]*textLength="([\d.]+)" lengthAdjust="spacingAndGlyphs">', drawn)
        assert len(fitted) == drawn.count("<text") > 0
        assert drawn.count("<tspan") == 0
        assert all(float(width) >= 1 for width in fitted)


def test_widths_are_those_of_the_letters_in_their_size_and_weight():
    def width(text, **mark):
        spec = {
            "data": {"values": [{"text": text}]},
            "mark": {"type": "text", "font": "Liberation Sans", "fontSize": 10, **mark},
            "encoding": {"text": {"field": "text"}},
        }
        [found] = re.findall(r'textLength="([\d.]+)"', fitted_svg(spec))
        return float(found)

    # The widths of Liberation Sans, in thousandths of its size: those of Helvetica.
    assert width("AAAA") == pytest.approx(4 * 6.67, abs=0.1)
    assert width("iiii") == pytest.approx(4 * 2.22, abs=0.1)
    assert width("AAAA", fontSize=30) == pytest.approx(4 * 20.01, abs=0.1)
    assert width("iiii", fontWeight="bold") == pytest.approx(4 * 2.78, abs=0.1)
    assert width("<&>") == pytest.approx(5.84 + 6.67 + 5.84, abs=0.1)


def test_on_paper_nothing_is_cut_in_any_font_of_this_machine(visit, long_names):
    pictures = on_paper(visit(long_names))
    for family in (*GENERIC, *installed_families()):
        pictures.evaluate_all(IN_FONT, quoted(family))
        assert pictures.evaluate_all(OUTSIDE) == [], family


def test_text_that_is_not_fitted_is_found_outside_in_any_font(visit, long_names):
    pictures = on_paper(visit(long_names))
    # Letters of three times their size are wider than those of the layout, whatever fonts this machine has.
    pictures.evaluate_all(EACH_TEXT % "text.style.fontSize = `${3 * parseFloat(text.getAttribute('font-size'))}px`")
    assert not LONG & set(pictures.evaluate_all(OUTSIDE))
    pictures.evaluate_all(EACH_TEXT % "text.removeAttribute('textLength')")
    assert set(pictures.evaluate_all(OUTSIDE)) >= LONG


def test_on_paper_nothing_is_cut_where_there_is_one_font_alone(browser, long_names, tmp_path):
    families = installed_families()
    if not families:
        pytest.skip("fontconfig lists no fonts, so a machine with one alone cannot be made")
    for family in sorted(families)[:: -(-len(families) // MOST_ALONE)]:
        folder = tmp_path / f"fonts of {family}"
        folder.mkdir()
        for number, file in enumerate(families[family]):
            (folder / f"{number}{file.suffix}").symlink_to(file)
        config = tmp_path / f"{family}.conf"
        config.write_text(
            f"<fontconfig><dir>{folder}</dir><cachedir>{tmp_path}/cache</cachedir></fontconfig>", encoding="utf-8"
        )
        env = {**os.environ, "FONTCONFIG_FILE": str(config)}
        assert set(listed_families(env)) == {family}
        with launched(browser.browser_type, installed_browser(), env=env) as alone:
            page = alone.new_page()
            page.goto(long_names)
            assert on_paper(page).evaluate_all(OUTSIDE) == [], family


def test_a_figure_of_the_paper_is_whole_in_any_font(visit, tmp_path):
    points = [{"task": "a task of a rather long name", "epsilon": 1.0, "accuracy": 0.7, "error": 0.1}]
    references = [{"task": "a task of a rather long name", "accuracy": 0.9, "whose": "ours"}]
    figures = load("_figures")
    spec = figures.privacy_utility_figure(points, references, operating_point=0.99)
    _, path = figures.write_figure(spec, tmp_path, "figure")
    picture = visit(path.as_uri()).locator("svg").first
    for family in (*GENERIC, *installed_families()):
        picture.evaluate(
            "(picture, family) => picture.querySelectorAll('text').forEach((text) => { text.style.fontFamily = family; })",
            quoted(family),
        )
        assert picture.evaluate(f"(picture) => ({OUTSIDE.strip()})([picture])") == [], family
