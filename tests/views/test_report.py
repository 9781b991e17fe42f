import base64
import hashlib
import html
import json
import re
import shlex
import sys
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.cli import command_line as cli
from fulcrum.errors import DataError, MissingExtraError
from fulcrum.planning.inputs.execution import Execution
from fulcrum.planning.inputs.past_releases import Past
from fulcrum.planning.inputs.targets import Target
from fulcrum.planning.planner import make_plan
from fulcrum.readers.profiles import profile
from fulcrum.rounding import rounded_up
from fulcrum.views.report.html_report import PRINTED_ROWS, report
from fulcrum.views.terminal.silo_columns import silo_table
from fulcrum.words.numbers import epsilon_text, percent
from fulcrum.words.reproduction import reproducing_commands

pytest.importorskip("vl_convert", reason="reports need vl-convert-python")

ROOT = Path(__file__).parents[2]
DAY = date(2026, 3, 14)
ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'`${alert(3)}{{ 7 * 7 }}"


def sized(regions, name="sizes"):
    return fulcrum.Federation.from_sizes(regions, name=name)


THREE = fulcrum.Federation.from_sizes(
    {"n1": [800, 700, 600], "n2": [1200, 900], "e1": [1500], "e2": [300, 200]},
    outer={"country": {"fr": ["n1", "n2"], "de": ["e1", "e2"]}, "continent": {"eu": ["fr", "de"]}},
)
WISHES = fulcrum.Federation.from_columns(
    silo=[f"s{k}" for k in range(12)],
    records=np.arange(100.0, 112.0),
    tiers={"region": [f"r{k % 3}" for k in range(12)]},
    epsilon=np.array([np.nan] * 10 + [0.5, 0.2]),
    group=[f"g{k % 2}" for k in range(12)],
)
PLANS = {
    "consortium": lambda: fulcrum.plan("consortium", rounds=10, epsilon=3.0),
    "three tiers": lambda: fulcrum.plan(THREE, rounds=20, epsilon={"region": 1.0, "country": 0.9, "aggregator": 1.5}),
    "preferences": lambda: fulcrum.plan(WISHES, rounds=3, epsilon=1.0),
    "one region": lambda: fulcrum.plan(sized({"only": [5, 6]}), rounds=1, epsilon=1.0),
    "one silo": lambda: fulcrum.plan(sized({"only": [5]}), rounds=1, epsilon=1.0),
    "one silo a region": lambda: fulcrum.plan(sized({f"r{k}": [5 + k] for k in range(5)}), rounds=1, epsilon=1.0),
    "aggregator": lambda: fulcrum.plan("severe", rounds=10, epsilon=1.0, injection="aggregator"),
    "information": lambda: fulcrum.plan("severe", rounds=10, information=1.5, floor=fulcrum.Coupling(20.0)),
    "colluders": lambda: fulcrum.plan("severe", rounds=10, epsilon=1.0, colluders=2),
    "budget": lambda: fulcrum.plan("severe", rounds=10, budget=2.0),
    "uniform": lambda: fulcrum.plan("severe", rounds=10, epsilon=1.0, allocation="uniform"),
    "inside alone": lambda: fulcrum.plan("severe", rounds=10, epsilon={"aggregator": 1.0}),
    "root alone": lambda: fulcrum.plan("severe", rounds=10, epsilon={"federation": 1.0}),
    "warned deployment": lambda: fulcrum.plan("severe", rounds=10, epsilon=1.0, purpose="deployment", parameters=66),
    "deployment": lambda: fulcrum.plan(
        "severe", rounds=10, epsilon={"region": 1.0, "aggregator": 3.0}, purpose="deployment", parameters=66
    ),
    "replanned": lambda: make_plan(
        profile("mild"),
        Target(rounds=5, epsilon={"region": 1.0, "aggregator": 8.0}),
        Execution(),
        Past(spent={"region": np.linspace(0, 0.01, 96), "silo": np.full(96, 0.02)}),
    ),
    "joint": lambda: fulcrum.plan("tcga-brca", rounds=10, epsilon=8.0, recipe="joint", parameters=258),
    "least noise": lambda: fulcrum.plan("severe", rounds=10, epsilon=1.0, weights="least-noise"),
    "least influence": lambda: fulcrum.plan(
        "tcga-brca", rounds=10, epsilon=8.0, recipe="joint", parameters=258, least_influence=0.5
    ),
    "between": lambda: fulcrum.plan("consortium", rounds=10, epsilon=1.0, weights=0.7),
    "hardly any noise": lambda: fulcrum.plan("severe", rounds=10, epsilon=1e5),
    "hardly any signal": lambda: fulcrum.plan("severe", rounds=1, epsilon=1e-6),
}


class Elements(HTMLParser):
    """The elements of a page, with their attributes and text."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text = [], {}
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        tag, attributes = self.found[-1] if self.found else ("", {})
        self.text.setdefault((tag, attributes.get("id")), []).append(data)


def data_of(page):
    return json.loads("".join(Elements(page).text["script", "data"]))


def values_of(column, rows):
    return [column["values"][column["codes"][row] if "codes" in column else row] for row in range(rows)]


def shown_commands(page):
    """The commands under "Make it again"."""
    listed = page[page.index('id="again"') :]
    code = listed[listed.index("<code>") + 6 : listed.index("</code>")]
    return html.unescape(re.sub(r"</?span[^>]*>", "", code)).splitlines()


@pytest.fixture(scope="module")
def pages():
    """The report of every plan, drawn once."""
    plans = {name: make() for name, make in PLANS.items()}
    return {name: (plan, report(plan, written=DAY)) for name, plan in plans.items()}


@pytest.mark.parametrize("name", PLANS)
def test_every_kind_of_plan_has_a_report_with_its_own_figures(name, pages):
    plan, page = pages[name]
    shown = html.unescape(re.sub(r"<[^>]+>", "", page))
    claim = re.sub(
        r"(?<=epsilon )[\d.e+-]+", lambda met: epsilon_text(float(met[0])), fulcrum.guarantee_of(plan).statement
    )
    assert claim.removesuffix(".") in shown
    assert "neighbouring federations replace one silo's whole dataset, its declared size kept" in shown
    assert percent(plan.saving) in shown
    assert percent(plan.attainable_saving) in shown
    assert "-0.0%" not in shown
    for line in fulcrum.guarantee_of(plan).assumptions:
        assert line[1:] in shown
    for advice in fulcrum.advice_on(plan):
        assert advice.text in shown
    warnings = [advice.text for advice in fulcrum.advice_on(plan) if advice.warning]
    first = html.unescape(re.sub(r"<[^>]+>", "", page[page.index("<section") : page.index("<nav")]))
    assert (warnings[0] if warnings else "No warning") in first
    assert plan.digest in page
    assert plan.federation.digest in page
    assert f"fulcrum {fulcrum.__version__}" in page


@pytest.mark.parametrize("name", PLANS)
def test_the_table_holds_every_silo_with_the_plans_figures(name, pages):
    plan, page = pages[name]
    table = data_of(page)["table"]
    silos = len(plan.federation)
    columns = {column["heading"]: values_of(column, silos) for column in table["columns"]}
    assert table["rows"] == silos
    assert columns["silo"] == plan.federation.silo_names.tolist()
    assert columns["records"] == pytest.approx(plan.federation.sizes)
    noise = plan.noise_multiplier
    if plan.aggregator_noise_multiplier is not None:
        noise = plan.aggregator_noise_multiplier[plan.federation.innermost.parent_of]
        assert columns["noise on the sum"] == pytest.approx(noise, rel=1e-5)
    else:
        assert columns["noise multiplier"] == pytest.approx(noise, rel=1e-5)
    for heading, epsilon in (("ε above", plan.epsilon_above), ("ε inside", plan.epsilon_inside)):
        assert columns[heading] == [None if np.isinf(value) else rounded_up(value, digits=4) for value in epsilon]
    for tier in plan.federation.tiers:
        where = plan.federation.membership(tier.name)
        assert columns[tier.name] == [tier.nodes[node] for node in where]


@pytest.mark.parametrize("name", PLANS)
def test_nothing_in_a_report_leads_out_of_it(name, pages):
    page = pages[name][1]
    for tag, attributes in Elements(page).found:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form", "video", "audio"), tag
        assert not [key for key in attributes if key.startswith("on")], attributes
        assert "style" not in attributes
        for key in ("src", "href", "xlink:href", "action", "data", "srcset"):
            assert attributes.get(key, "#").startswith("#"), (tag, attributes)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_admits_the_pages_own_scripts_and_style_and_nothing_else(pages):
    page = pages["consortium"][1]
    policy = next(
        attributes["content"]
        for tag, attributes in Elements(page).found
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    inlined = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", page, re.DOTALL)
    hashes = {f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}" for text in inlined}
    assert set(re.findall(r"sha256-[^']+", policy)) == hashes
    assert len(hashes) == 3


def test_hostile_names_are_text_everywhere():
    federation = fulcrum.Federation.from_columns(
        silo=[f"{ATTACK}{k}" for k in range(6)],
        records=np.full(6, 100.0),
        tiers={"region": [f"{ATTACK}r{k % 2}" for k in range(6)], f"{ATTACK}t": [f"{ATTACK}o" for _ in range(6)]},
        group=[f"{ATTACK}g" for _ in range(6)],
        name=ATTACK,
    )
    page = report(fulcrum.plan(federation, rounds=3, epsilon=1.0))
    clean = report(fulcrum.plan(sized({"r0": [100] * 3, "r1": [100] * 3}), rounds=3, epsilon=1.0))
    count = lambda text, tag: len(re.findall(f"<{tag}[ >]", text, re.IGNORECASE))  # noqa: E731
    for tag in ("script", "img", "style", "title"):
        assert count(page, tag) == count(clean, tag), tag
    assert "alert(1)</script>" not in page
    assert "{{ 7 * 7 }}" in html.unescape(page)  # a name is no template
    assert values_of(data_of(page)["table"]["columns"][0], 6) == federation.silo_names.tolist()


def test_a_report_of_a_thousand_silos_is_small_however_they_are_arranged():
    arrangements = [
        {f"region-{k}": [200 + k] * 5 for k in range(200)},
        {"all-of-them": list(range(200, 1200))},
        {f"a region with a rather long name {k}": [200 + k] for k in range(1000)},
        {f"r{k}": [100 + k * 7 + j for j in range(10 + 3 * k)] for k in range(22)},
    ]
    for regions in arrangements:
        plan = fulcrum.plan(sized(regions), rounds=10, epsilon={"region": 1.0, "aggregator": 5.0})
        assert 900 <= len(plan.federation) <= 1000
        assert len(report(plan).encode()) < 1_500_000


def test_without_scripts_the_first_silos_are_a_plain_table(pages):
    page = pages["consortium"][1]
    plain = page[page.index("<noscript>") : page.index("</noscript>")]
    assert plain.count("<tr>") == 51
    assert "country-6-1" in plain
    assert page.count('<svg aria-hidden="true"') == 7  # the tree twice: stacked for phones
    plan = fulcrum.plan(sized({f"r{k}": [200] * 120 for k in range(10)}), rounds=10, epsilon=1.0)
    page = report(plan)
    plain = page[page.index("<noscript>") : page.index("</noscript>")]
    assert plain.count("<tr>") == PRINTED_ROWS + 1
    assert "The first 1,000 of 1,200 silos; the plan file has them all." in plain


def test_columns_of_repeated_values_are_written_once():
    plan = fulcrum.plan(sized({"r": [200] * 1000, "s": [100]}), rounds=10, epsilon=1.0)
    columns = {column["heading"]: column for column in silo_table(plan)["columns"]}
    assert columns["records"]["values"] == [100, 200]
    assert len(columns["records"]["codes"]) == 1001


@pytest.mark.parametrize(
    "name",
    [
        "consortium",
        "aggregator",
        "information",
        "colluders",
        "budget",
        "deployment",
        "joint",
        "least noise",
        "between",
        "least influence",
    ],
)
def test_the_commands_that_a_report_shows_make_the_same_plan(name, pages, tmp_path, monkeypatch, capsys):
    plan, page = pages[name]
    monkeypatch.chdir(tmp_path)
    for command in shown_commands(page):
        assert cli.run(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert fulcrum.read_plan("plan.json").digest == plan.digest
    assert (
        Path("report.html").read_text(encoding="utf-8") == report(fulcrum.read_plan("plan.json"), written=DAY) == page
    )


def test_commands_name_a_file_where_the_federation_is_nobodys_built_in(pages):
    plan, _ = pages["three tiers"]
    assert reproducing_commands(plan)[0] == (
        "fulcrum plan FEDERATION --rounds 20 --delta 1e-05 --epsilon region=1.0,country=0.9 --epsilon-inside 1.5 "
        "--accountant exact -o plan.json"
    )
    assert reproducing_commands(pages["replanned"][0])[0].startswith("fulcrum replan OLD_PLAN.json --federation mild ")


@pytest.mark.parametrize("name", ["mild", "consortium"])
def test_commands_name_a_built_in_only_where_the_federation_is_that_one(name):
    mine = fulcrum.plan(sized({"north": [5, 6], "south": [7]}, name=name), rounds=3, epsilon=1.0)
    assert reproducing_commands(mine)[0].startswith("fulcrum plan FEDERATION ")
    assert reproducing_commands(fulcrum.plan(name, rounds=3, epsilon=1.0))[0].startswith(f"fulcrum plan {name} ")


@pytest.mark.parametrize("name", ["consortium", "warned deployment"])
def test_only_a_deployment_plan_is_there_to_be_signed(name, pages):
    plan, page = pages[name]
    shown = html.unescape(re.sub(r"<[^>]+>", "", page[page.index("<main") : page.index("</main>")]))
    assert any(advice.warning for advice in fulcrum.advice_on(plan))
    signed = plan.purpose == "deployment"
    for text in ("Before you sign.", "Place and date", "I have read the promise"):
        assert (text in shown) is signed, text
    for text in ("Not for signature: a research plan.", "protects nobody"):
        assert (text in shown) is not signed, text
    assert ('class="status research"' in page) is not signed


def test_a_claim_has_the_digits_of_the_headline():
    plan = fulcrum.plan("severe", rounds=7, epsilon={"region": 1.0, "aggregator": 1.8377377})
    page = report(plan)
    assert "epsilon 1.83774 against" in fulcrum.guarantee_of(plan).statement
    assert "<strong>epsilon 1.838</strong> against" in page
    assert '<dd class="inside">1.838</dd>' in page


def test_savings_of_aggregators_are_against_the_noise_of_silos(pages):
    page = pages["aggregator"][1]
    assert "noise saved against uniform silo noise" in page
    assert "where uniform silo noise would need" in page
    assert "hollow for uniform silo noise" in page


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A plan, and a folder with its run and its comparison."""
    folder = tmp_path_factory.mktemp("trained")
    arguments = ["mild", "--rounds", "3", "--epsilon", "5"]
    learning = ["--data", "digits", "--seeds", "2", "-o", str(folder / "run")]
    assert cli.run(["plan", *arguments, "-o", str(folder / "plan.json")]) == 0
    assert cli.run(["train", str(folder / "plan.json"), *learning]) == 0
    assert cli.run(["compare", *arguments, "--train", *learning]) == 0
    return folder


def test_accuracies_of_a_run_and_a_comparison_are_shown(trained):
    pytest.importorskip("sklearn")
    plan = fulcrum.read_plan(trained / "plan.json")
    page = report(plan, trained / "run")
    rows = json.loads((trained / "run" / "comparison.json").read_text())["rows"]
    run = json.loads((trained / "run" / "run.json").read_text())
    assert [row["allocation"] for row in rows][:2] == ["optimal", "uniform"]
    for row in rows:
        assert f"{row['accuracy']:.3f} ± {row['accuracy_se']:.3f}" in page
    charts = data_of(page)["charts"]
    points = charts["accuracy"]["layer"][1]["data"]["values"]
    assert [point["accuracy"] for point in points] == [row["accuracy"] for row in rows]
    assert [point["high"] - point["low"] for point in points] == pytest.approx([2 * row["accuracy_se"] for row in rows])
    assert len(charts["learning"]["layer"][1]["data"]["values"]) == 3
    assert html.escape(run["notes"][0]) in page
    assert "accuracy" not in data_of(report(plan))["charts"]


def test_results_of_another_plan_are_refused(trained, tmp_path, capsys):
    other = fulcrum.plan("mild", rounds=3, epsilon=4.0)
    with pytest.raises(DataError, check=coded("run.other-plan")):
        report(other, trained / "run")
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "comparison.json").write_bytes((trained / "run" / "comparison.json").read_bytes())
    with pytest.raises(DataError, check=coded("run.other-target")):
        report(other, alone)
    assert "accuracy" in data_of(report(fulcrum.read_plan(trained / "plan.json"), alone))["charts"]
    scaled = json.loads((alone / "comparison.json").read_text())
    scaled["rows"][0]["noise_budget"] *= 1.01
    (alone / "comparison.json").write_text(json.dumps(scaled))
    with pytest.raises(DataError, check=coded("run.other-target")):
        report(fulcrum.read_plan(trained / "plan.json"), alone)
    (alone / "comparison.json").write_text("[1]")
    with pytest.raises(DataError, check=coded("run.file-malformed")):
        report(other, alone)
    with pytest.raises(DataError, check=coded("run.results-missing")):
        report(other, tmp_path)


def test_the_command_writes_the_file_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fulcrum.save_plan(fulcrum.plan("mild", rounds=3, epsilon=1.0), "plan.json")
    assert cli.run(["report", "plan.json", "-o", "report.html", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "report": "report.html",
        "bytes": Path("report.html").stat().st_size,
        "plan_digest": fulcrum.read_plan("plan.json").digest,
    }
    assert cli.run(["report", "plan.json", "-o", "report.html", "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("report,bytes,plan_digest\nreport.html,")
    assert cli.run(["report", "plan.json", "-o", "report.html"]) == 0
    assert "report.html, 1.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan.json"], "report needs --output"),
        (["nowhere.json", "-o", "x.html"], "nowhere.json cannot be read"),
        (["plan.json", "-o", "no/where/x.html"], "x.html cannot be written"),
        (["plan.json", "-o", "x.html", "--run", "nowhere"], "nowhere holds no run.json"),
        (["plan.json", "-o", "x.html", "--format", "pdf"], "unknown format 'pdf'"),
    ],
)
def test_a_mistake_is_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fulcrum.save_plan(fulcrum.plan("mild", rounds=3, epsilon=1.0), "plan.json")
    assert cli.run(["report", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not Path("x.html").exists()


def test_a_report_without_vl_convert_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(MissingExtraError, check=coded("charts.extra-missing")):
        report(fulcrum.plan("mild", rounds=3, epsilon=1.0))


def test_an_output_of_a_comparison_needs_training(capsys):
    assert cli.run(["compare", "mild", "--rounds", "3", "--epsilon", "1", "-o", "x"]) == 2
    assert "need --train" in capsys.readouterr().err


def test_templates_travel_with_the_package():
    templates = ROOT / "src" / "fulcrum" / "views" / "templates"
    shared, report = {"base.css", "base.js"}, {"report.css", "report.html", "report.js"}
    assert shared | report <= {path.name for path in templates.iterdir()}


def test_the_sentence_on_the_observer_runs_no_two_words_into_one():
    page = fulcrum.report(fulcrum.plan("mild", rounds=3, epsilon=1.0))
    assert "The observer above guesses which of two equally likely datasets" in " ".join(page.split())
