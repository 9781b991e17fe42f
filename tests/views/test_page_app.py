"""The page as a web application, without a browser: what it answers, and what it never does."""

import json

import msgspec
import numpy as np
import pytest
from coroutines import run_coroutine
from page_client import FILE, HOSPITALS, JSON, SETTINGS, Client

import fulcrum
from fulcrum.cli import command_line as cli
from fulcrum.planning.comparisons.weight_tradeoff import MOST_SILOS_BETWEEN
from fulcrum.planning.content.region_merges import best_merge
from fulcrum.readers.federation_json import roster_of
from fulcrum.readers.federation_reader import read_federation, reading_of_bytes
from fulcrum.readers.profiles import PROFILES, profile
from fulcrum.views.page.page_answers import PageAnswer, PageQuestion
from fulcrum.views.page.page_app import application
from fulcrum.views.page.page_guard import HEADERS, LARGEST_BODY, hosts_of
from fulcrum.views.page.page_settings import PageSettings
from fulcrum.views.page.page_work import Job, answer

pytest.importorskip("starlette", reason="the page needs starlette")
pytest.importorskip("vl_convert", reason="the page needs vl-convert-python")


def test_the_page_and_its_files_are_served(client):
    page = client("GET", "/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "88.0%" in page.body.decode()
    for path, kind in {"/style.css": "text/css", "/page.js": "text/javascript", "/vega.js": "text/javascript"}.items():
        file = client("GET", path)
        assert (file.status, file.headers["content-type"]) == (200, f"{kind}; charset=utf-8")
    assert client("HEAD", "/").status == 200
    assert "<script>" not in page.body.decode()  # every script is a file of its own
    assert "style=" not in page.body.decode()


def test_every_response_has_the_headers_and_none_a_cookie(client):
    replies = [
        client("GET", "/"),
        client("GET", "/vega.js"),
        client.plan(),
        client.plan(path="/download/report.html"),
        client("GET", "/nowhere"),
        client("DELETE", "/plan"),
        client("POST", "/plan", b"{", JSON),
        client("GET", "/", host="evil.example"),
        client("POST", "/plan", b"{}", {**JSON, "origin": "https://evil.example"}),
        client("POST", "/read", b"", {**FILE, "content-length": str(LARGEST_BODY + 1)}),
    ]
    for reply in replies:
        assert {name: reply.headers.get(name.lower()) for name in HEADERS} == dict(HEADERS)
        assert "set-cookie" not in reply.headers
        assert len(reply.pairs) == len(reply.headers)  # none twice
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "*" not in policy


def test_an_answer_has_the_figures_of_the_plan(client):
    answer = client.plan(epsilon=3.0).json()
    made = fulcrum.plan("consortium", rounds=10, epsilon=3.0)
    assert answer["saving"] == f"{100 * made.saving:.1f}%"
    assert fulcrum.guarantee_of(made).statement.split(" epsilon ")[0] in answer["head"].replace("&#39;", "'")
    assert set(answer["charts"]) == {"tree", "tree-narrow", "epsilon", "trade", "price", "information"}
    assert [column["heading"] for column in answer["columns"]] == [
        "ε above",
        "ε inside",
        "noise multiplier",
        "influence, %",
    ]
    assert "federation" not in answer  # the page has it
    assert "regions" not in answer
    assert "country-6" in client.plan(more={"whole": True}).json()["regions"]


def test_noise_against_voice_is_answered_by_itself(client):
    chart = client.plan("severe", path="/later", weights="least-noise").json()["weights"]
    assert "region-4 loses most" in chart["description"]
    assert client.plan("balanced", path="/later").json() == {"weights": None, "advice": ""}


def test_a_deployment_plan_says_what_the_engine_will_refuse(client):
    federation = fulcrum.Federation.from_sizes({"Köln/Bonn": [100, 200], "b": [300, 100]})
    settings = {"purpose": "deployment", "parameters": 50, "accountant": "renyi"}
    head = client.plan(federation, **settings).json()["head"]
    assert "NVIDIA FLARE will refuse this plan: &#39;Köln/Bonn&#39; cannot name the files of a site" in head
    assert "NVIDIA FLARE will refuse" not in client.plan(**settings).json()["head"]
    assert "NVIDIA FLARE will refuse" not in client.plan(federation).json()["head"]


@pytest.mark.parametrize("name", ["consortium", "tcga-brca"])
def test_advice_names_no_option_of_the_command_line(name, client):
    """At tcga-brca one masked group would save more with equal weights, which the command line names as an option."""
    head = client.plan(name).json()["head"]
    assert "all silos masked as one group would save" in head
    assert "; with equal weights too, " in head or name != "tcga-brca"
    assert "--" not in head


def test_merges_are_looked_at_later_where_weights_are_not_by_size(client):
    both = best_merge(fulcrum.plan("consortium", rounds=10, epsilon=1.0)).regions
    assert f"Merge {' and '.join(both)}" in client.plan().json()["head"]
    assert client.plan(path="/later").json()["advice"] == ""
    assert "Merge " not in client.plan(weights="least-noise").json()["head"]
    later = best_merge(fulcrum.plan("consortium", rounds=10, epsilon=1.0, weights="least-noise")).regions
    assert f"Merge {' and '.join(later)}" in client.plan(path="/later", weights="least-noise").json()["advice"]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"recipe": "joints"}, "unknown recipe 'joints'"),
        ({"recipe": "joint"}, "needs the number of trainable parameters. Give: parameters"),
        (
            {"clip_norm": "auto"},
            ("clip norm 'auto': the clip norm needs the number of trainable parameters. Give: parameters"),
        ),
        ({"purpose": "deployment"}, "a deployment plan needs the number of trainable parameters. Give: parameters"),
        ({"weights": "most"}, "unknown weights 'most'"),
        ({"weights": 1.5}, "weights must be one of"),
        ({"weights": {"a": 1}}, "the request cannot be read"),
        ({"server": "mean"}, "unknown server 'mean'. Known: sum, random-effects, momentum."),
        ({"least_influence": 2}, "least_influence must be a number from 0 to 1, got 2.0"),
        ({"clip_norm": -1}, "clip_norm must be 'auto' or from"),
        ({"purpose": "fun"}, "Invalid enum value 'fun' - at `$.settings.purpose`"),
    ],
)
def test_wrong_choices_are_told_in_one_line(settings, reason, client):
    for path in ("/plan", "/later", "/download/plan.json"):
        reply = client.plan(path=path, **settings)
        assert reply.status == 422
        assert reason in reply.error


def test_weights_that_would_take_minutes_are_refused_at_once(client):
    sizes = {f"r{k}": list(range(10, 10 + MOST_SILOS_BETWEEN // 10)) for k in range(11)}
    federation = fulcrum.Federation.from_sizes(sizes)
    reply = client.plan(federation, weights=0.5, epsilon_inside=2.0)
    assert "take minutes for more than 1,000 silos. Choose another rule, or use: fulcrum plan" in reply.error
    assert client.plan(federation, weights=0.5).status == 200


def test_the_page_starts_with_the_settings_that_it_is_given():
    first = PageSettings(recipe="joint", parameters=700, weights=0.25, clip_norm=2.0, server="sum", epsilon_inside=3.0)
    app = application(profile("severe"), hosts=hosts_of("127.0.0.1"), settings=first)
    page = Client(app)("GET", "/").body.decode()
    for shown in (
        "<option selected>joint</option>",
        '<option value="between" selected>',
        'id="weights_share" value="0.25"',
        'id="parameters" value="700"',
        'id="clip_norm" value="2.0"',
        "<option selected>sum</option>",
        'id="inside-on" checked',
        'id="epsilon_inside" value="3"',
    ):
        assert shown in page, shown


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_built_in_federation_comes_back_the_same(name):
    from fulcrum.readers.federation_json import federation_of

    assert federation_of(roster_of(profile(name))).digest == profile(name).digest


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"epsilon_inside": 1.5},
        {"colluders": 2},
        {"accountant": "renyi", "rounds": 50},
        {"allocation": "uniform", "delta": 1e-7},
        {"weights": 0.5, "least_influence": 0.8},
        {"recipe": "joint", "parameters": 500},
        {"recipe": "joint", "parameters": 500, "weights": "least-noise", "clip_norm": 2.0, "server": "sum"},
        {"purpose": "deployment", "parameters": 50, "accountant": "renyi"},
    ],
)
def test_a_downloaded_plan_is_the_one_that_the_library_makes_and_verifies(settings, client, tmp_path, capsys):
    (tmp_path / "hospitals.csv").write_bytes(HOSPITALS)
    federation = read_federation(tmp_path / "hospitals.csv")
    reply = client.plan(federation, path="/download/plan.json", **settings)
    assert reply.headers["content-disposition"] == 'attachment; filename="plan.json"'
    (tmp_path / "plan.json").write_bytes(reply.body)
    asked = dict(settings)
    inside = {"aggregator": asked.pop("epsilon_inside")} if "epsilon_inside" in asked else {}
    made = fulcrum.plan(federation, **{"rounds": 10, "delta": 1e-5, **asked}, epsilon={"region": 1.0, **inside})
    assert fulcrum.read_plan(tmp_path / "plan.json").digest == made.digest
    assert cli.run(["verify", str(tmp_path / "plan.json")]) == 0
    assert "Every check holds" in capsys.readouterr().out


def test_the_table_and_the_report_are_downloaded(client):
    table = client.plan(path="/download/plan.csv")
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    assert table.body.decode() == fulcrum.planning.files.exports.export_plan(
        fulcrum.plan("consortium", rounds=10, epsilon=1.0), "csv"
    )
    report = client.plan(path="/download/report.html")
    assert report.body.startswith(b"<!doctype html>")
    assert report.headers["content-disposition"].startswith("attachment")
    assert client.plan(path="/download/passwd").status == 404


def test_files_are_read_as_the_command_line_reads_them(client, tmp_path):
    toml = b'name = "mine"\ntiers = ["region", "country"]\n[region.north]\nlille = 800\n[region.south]\nlyon = 1200\n'
    toml += b'[country]\nfrance = ["north", "south"]\n'
    for name, data in {"hospitals.csv": HOSPITALS, "mine.toml": toml, "bom.CSV": b"\xef\xbb\xbf" + HOSPITALS}.items():
        (tmp_path / name).write_bytes(data)
        reply = client("POST", f"/read?name={name}", data, FILE)
        assert reply.status == 200
        roster = reply.json()["federation"]
        answer = client("POST", "/plan", json.dumps({"federation": roster, "settings": SETTINGS}).encode(), JSON)
        assert answer.status == 200
        assert reading_of_bytes(data, name).federation.digest == read_federation(tmp_path / name).digest


EDITS = [
    ({"kind": "merge", "regions": ["country-1", "country-2"]}, ("country-1 + country-2", "country-3"), 50),
    ({"kind": "split", "regions": ["country-1"]}, ("country-1", "country-1 2"), 50),
    ({"kind": "remove", "regions": ["country-1"]}, ("country-2", "country-3"), 20),
    ({"kind": "add"}, ("country-1", "country-2"), 55),
    ({"kind": "rename", "regions": ["country-1"], "name": " one "}, ("one", "country-2"), 50),
    ({"kind": "silos", "regions": ["country-1"], "number": 31}, ("country-1", "country-2"), 51),
    ({"kind": "records", "regions": ["country-1"], "number": 300}, ("country-1", "country-2"), 50),
]


@pytest.mark.parametrize(
    ("edit", "first", "silos"), EDITS, ids=lambda value: value.get("kind") if isinstance(value, dict) else ""
)
def test_an_edit_gives_the_federation_after_it(edit, first, silos, client):
    answer = client.plan(more={"edit": edit}).json()
    assert tuple(answer["federation"]["tiers"][0]["nodes"][:2]) == first
    assert len(answer["federation"]["silos"]) == silos
    again = client(
        "POST", "/plan", json.dumps({"federation": answer["federation"], "settings": SETTINGS}).encode(), JSON
    )
    assert again.json()["saving"] == answer["saving"]


def test_nothing_is_kept_between_questions(client):
    first = client.plan().body
    client.plan("severe", more={"edit": {"kind": "add"}})
    client("POST", "/read?name=a.csv", HOSPITALS, FILE)
    assert client.plan().body == first
    assert "consortium" in client("GET", "/").body.decode()


def test_nothing_is_written_to_disk(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    big = b"silo,records,region\n" + b"".join(b"silo-%d,%d,region-%d\n" % (k, k + 1, k % 9) for k in range(50_000))
    assert client("POST", "/read?name=big.csv", big, FILE).status == 200
    for name in ("plan.json", "plan.csv", "federation.csv", "report.html"):
        assert client.plan(path=f"/download/{name}").status == 200
    assert list(tmp_path.iterdir()) == []


def test_the_head_says_on_what_terms_and_that_research_protects_nobody(client):
    head = client.plan().json()["head"]
    assert "neighbouring federations replace one silo&#39;s whole dataset" in head
    assert "aggregators are trusted to see what they aggregate" in head
    assert "protects nobody" in head


@pytest.mark.parametrize("source", ["consortium", "hospitals.csv", "nested.csv"])
def test_a_federation_is_taken_home_and_read_to_the_same_digest(source, client, tmp_path):
    nested = 'silo,records,region,country\n"a, b",12,"n, 1",fr\nc,3,s,de\nd,4,"n, 1",fr\n'
    files = {"hospitals.csv": HOSPITALS, "nested.csv": nested.encode()}
    found = reading_of_bytes(files[source], source).federation if source in files else profile(source)
    question = {"federation": json.loads(msgspec.json.encode(roster_of(found))), "settings": SETTINGS}
    reply = client("POST", "/download/federation.csv", json.dumps(question).encode(), JSON)
    assert reply.status == 200
    (tmp_path / "federation.csv").write_bytes(reply.body)
    assert read_federation(str(tmp_path / "federation.csv")).digest == found.digest
    options = ["--rounds", "10", "--epsilon", "1", "-o", str(tmp_path / "plan.json")]
    assert cli.run(["plan", str(tmp_path / "federation.csv"), *options]) == 0
    assert fulcrum.read_plan(tmp_path / "plan.json").federation.digest == found.digest


def test_no_saving_is_not_less_than_none():
    question = PageQuestion(federation=roster_of(profile("mild")), settings=PageSettings(allocation="uniform"))
    answer = PageAnswer.to(question)
    assert answer.saving == "0.0%"
    assert "-0.0%" not in answer.head


def test_a_failure_of_ours_is_told_without_its_details(app, monkeypatch, caplog):
    monkeypatch.setattr("fulcrum.views.page.page_work.read_question", lambda body: 1 / 0)
    reply = answer(Job(kind="plan", body=b"{}"))
    assert (reply.status, json.loads(reply.body)) == (500, {"error": "the server failed. Its log says why"})
    assert "ZeroDivisionError" in caplog.text
    caplog.clear()
    monkeypatch.setattr("fulcrum.views.page.page_workers.Workers.answer", lambda *_: 1 / 0)
    reply = Client(app)("POST", "/plan", b"{}", JSON)
    assert (reply.status, reply.error) == (500, "the server failed. Its log says why")
    assert "ZeroDivisionError" in caplog.text


def test_a_browser_that_goes_away_leaves_nothing_in_the_log(app, caplog):
    async def gone():
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "scheme": "http", "path": "/plan", "raw_path": b"/plan"}
    scope |= {"query_string": b"", "root_path": "", "headers": headers, "client": None, "server": None}
    run_coroutine(app(scope, gone, send))
    assert caplog.text == ""


def test_settings_and_answers_are_plain(app):
    question = PageQuestion(federation=roster_of(profile("mild")), settings=PageSettings())
    assert PageAnswer.to(question).head.count('<h1 id="title">mild</h1>') == 1


def test_the_button_chooses_regions_of_at_most_so_many_silos(client):
    hospitals = "tcga-brca"
    answer = client.plan(hospitals, more={"edit": {"kind": "design", "number": 20}}).json()
    made = fulcrum.design("tcga-brca", most=20, rounds=10, epsilon=1.0)
    assert answer["budget"] == f"{made.proposed.model_noise:.4g}"
    assert max(np.bincount(answer["federation"]["tiers"][0]["codes"])) == 20
    assert "26 silos change the region. The proposed regions need 55.5% less noise." in answer["note"]
    assert "must be" in client.plan(hospitals, more={"edit": {"kind": "design", "number": 2.5}}).error
    assert (
        "cannot be divided" not in client.plan(hospitals, more={"edit": {"kind": "design", "number": 1}}).json()["note"]
    )
