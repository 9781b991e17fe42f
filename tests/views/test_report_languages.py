"""The report's first page in German and French: every number as in English, and no English sentence left."""

import re
from collections import Counter
from datetime import date
from functools import cache
from html import unescape

import numpy as np
import pytest

import fulcrum
from fulcrum.cli import command_line as cli
from fulcrum.planning.inputs.execution import Execution
from fulcrum.planning.inputs.past_releases import Past
from fulcrum.planning.inputs.targets import Target
from fulcrum.planning.planner import make_plan
from fulcrum.readers.profiles import profile
from fulcrum.views.html import render
from fulcrum.views.report.html_report import first_page_values, report
from fulcrum.words.languages.phrases import phrases_of

pytest.importorskip("vl_convert", reason="reports need vl-convert-python")

TIERS = fulcrum.Federation.from_sizes(
    {"n1": [800, 700, 600], "n2": [1200, 900], "e1": [1500], "e2": [300, 200]},
    outer={"country": {"fr": ["n1", "n2"], "de": ["e1", "e2"]}, "continent": {"eu": ["fr", "de"]}},
    name="Versuch 2.5 <b>",
)
DEPLOYED = {"rounds": 10, "purpose": "deployment", "parameters": 1234}
PERSONS = {**DEPLOYED, "unit": "person", "unit_name": "patient", "epsilon": {"region": 1.25, "aggregator": 4.0}}
PLANS = {
    "silos": lambda: fulcrum.plan("severe", epsilon={"region": 0.99, "aggregator": 3.0}, **DEPLOYED),
    "tiers": lambda: fulcrum.plan(TIERS, epsilon={"region": 2.0, "country": 1.0, "continent": 0.75}, **DEPLOYED),
    "federation": lambda: fulcrum.plan("severe", rounds=1, epsilon={"federation": 0.5, "region": 1.0}),
    "colluders": lambda: fulcrum.plan("severe", rounds=12, epsilon=1.0, colluders=2, dropouts=3),
    "one of each": lambda: fulcrum.plan("severe", rounds=1, epsilon=1.0, colluders=1, dropouts=1),
    "masked": lambda: fulcrum.plan("severe", epsilon=1.0, aggregation="masked", colluders=2, **DEPLOYED),
    "one group": lambda: fulcrum.plan("severe", epsilon={"federation": 1.0}, aggregation="masked", **DEPLOYED),
    "aggregators draw": lambda: fulcrum.plan("severe", rounds=10, epsilon=1.0, injection="aggregator"),
    "joint": lambda: fulcrum.plan("tcga-brca", rounds=10, epsilon=8.0, recipe="joint", parameters=258),
    "between": lambda: fulcrum.plan("consortium", rounds=1000, epsilon=20.0, weights=0.7, parameters=10**6),
    "later": lambda: make_plan(
        profile("mild"),
        Target(rounds=5, epsilon={"region": 1.0, "aggregator": 8.0}, colluders=2),
        Execution(),
        Past(spent={"region": np.linspace(0, 0.01, 96), "silo": np.full(96, 0.02)}),
    ),
    "persons": lambda: fulcrum.plan("severe", **PERSONS),
    "persons in three silos": lambda: fulcrum.plan("severe", **PERSONS, silos_per_person=3, neighbours="add-remove"),
    "records": lambda: fulcrum.plan("severe", rounds=10, epsilon=0.5, unit="record"),
    "masked persons": lambda: fulcrum.plan(
        "severe", rounds=10, epsilon=1.0, unit="person", aggregation="masked", silos_per_person=2
    ),
}

NUMBER = re.compile(r"(?<![\w.,])\d+(?:[.,\u202f]\d+)*(?:e[+-]?\d+)?")
TAG = re.compile(r"<[^>]+>")


@cache
def plan_of(name):
    return PLANS[name]()


def first_page(name, language="en"):
    """The first page of a report, without the rest, whose charts take longer."""
    values = first_page_values(plan_of(name), language, issuer="a" * 64, written=date(2026, 3, 14))
    return render("report_first_page.html", **values)


def without_english(text, plan):
    """The translation without the plan's own words: the name, and the warning, which is marked as English."""
    return re.sub(r'<span lang="en">.*?</span></p>', "</p>", text, flags=re.DOTALL).replace(plan.federation.name, "")


def blocks(text):
    """The numbers of every part of the first page, by the part's class."""
    parts = re.split(r'(?=<(?:p|dl|ul|div|section) class=")', text)
    counted = {}
    for part in parts:
        name = re.match(r'<\w+ class="([\w-]+)', part)
        if name is not None and name[1] not in ("warning", "note", "small", "status"):
            written = unescape(TAG.sub(" ", part))
            counted.setdefault(name[1], Counter()).update(NUMBER.findall(written))
    return counted


def in_english(number):
    return number.replace(",", ".").replace("\u202f", ",")


@pytest.mark.parametrize("name", PLANS)
def test_every_number_of_the_first_page_is_the_number_in_english(name):
    english = blocks(first_page(name).replace("Versuch 2.5", ""))
    assert sum(sum(counts.values()) for counts in english.values()) >= 18
    for language in ("de", "fr"):
        other = blocks(without_english(first_page(name, language), plan_of(name)).replace("Versuch 2.5", ""))
        assert other.keys() == english.keys()
        for part, numbers in other.items():
            read = Counter()
            for number, count in numbers.items():
                read[in_english(number)] += count
            assert read == english[part], part


def test_a_wrong_number_in_a_translation_is_noticed():
    right = first_page("silos", "de")
    wrong = right.replace("epsilon 0,99", "epsilon 0,98", 1)
    assert wrong != right
    assert blocks(wrong) != blocks(right)


@pytest.mark.parametrize(("language", "word"), [("de", "englisch"), ("fr", "anglais")])
def test_the_page_says_that_the_plan_stays_english_and_only_the_first_page_differs(language, word):
    plan = plan_of("tiers")
    english, other = report(plan), report(plan, language=language)
    assert word in re.search(r'<p class="small language">(.*?)</p>', other)[1]
    assert first_page("tiers", language).partition('id="title"')[0] in other
    assert f'lang="{language}"' in first_page("tiers", language)
    rest = '<section aria-labelledby="federation">'
    assert (
        other[other.index(rest) : other.index('id="again"')]
        == english[english.index(rest) : english.index('id="again"')]
    )
    assert plan.digest in other[: other.index(rest)]
    assert f"--language</span> {language}" in other
    assert "<b>" not in re.search(r'<h1 id="title">(.*?)</h1>', other)[1]  # names are text


@pytest.mark.parametrize("name", PLANS)
def test_no_english_sentence_is_left(name):
    for language in ("de", "fr"):
        text = unescape(TAG.sub(" ", without_english(first_page(name, language), plan_of(name))))
        assert not re.findall(r"\b(?:the|against|silo's|rounds|guesses|observer|whoever|{\w+})\b", text)


def test_both_tables_have_the_same_phrases():
    german, french = phrases_of("de"), phrases_of("fr")
    assert german.texts.keys() == french.texts.keys()
    assert all(german.tiers[tier].keys() == forms.keys() for tier, forms in french.tiers.items())
    for name, text in german.texts.items():
        held = [set(re.findall(r"{(\w+)}", table.texts[name])) for table in (german, french)]
        assert held[0] == held[1], (name, text)


def test_numbers_have_a_decimal_comma_and_names_keep_theirs():
    german = phrases_of("de")
    assert german.number("1,234.5 and 0.99, 1e-05") == "1\u202f234,5 and 0,99, 1e-05"


def test_the_command_takes_a_language_and_refuses_an_unknown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["plan", "consortium", "--rounds", "10", "--epsilon", "1", "-o", "plan.json"]) == 0
    assert cli.run(["report", "plan.json", "--language", "de", "-o", "report.html"]) == 0
    assert "Plan für Forschung" in (tmp_path / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert cli.run(["report", "plan.json", "--language", "it", "-o", "other.html"]) == 2
    said = capsys.readouterr().err
    assert "it" in said
    assert "fr" in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "other.html").exists()


def test_no_line_of_french_begins_with_a_colon_a_semicolon_or_a_closing_quotation_mark():
    for name in ("persons", "tiers", "silos"):
        text = unescape(TAG.sub("", without_english(first_page(name, "fr"), plan_of(name))))
        assert re.search(r"[\w)]\u00a0[:;]", text)
        assert not re.search(r"[ \n][:;?!»]|« ", text)
        assert not re.search(r"\w[;?!]", text)
