"""The page as a web application, without a browser: what it answers, what it refuses, and what it never does."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

import fulcrum
from fulcrum.cli import app as cli
from fulcrum.errors import FederationError, MissingExtraError
from fulcrum.federation.as_json import roster_of
from fulcrum.federation.profiles import PROFILES, profile
from fulcrum.federation.reading import federation_from_bytes, read_federation
from fulcrum.views.page_answers import PageAnswer, PageQuestion, PageSettings
from fulcrum.views.page_app import application
from fulcrum.views.page_guard import HEADERS, LARGEST_BODY, hosts_of, loopback

pytest.importorskip("starlette", reason="the page needs starlette")
pytest.importorskip("vl_convert", reason="the page needs vl-convert-python")

ATTACK = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"
JSON, FILE = {"content-type": "application/json"}, {"content-type": "application/octet-stream"}
SETTINGS = {"rounds": 10, "epsilon": 1.0, "delta": 1e-5, "colluders": 0, "allocation": "optimal", "accountant": "exact"}
HOSPITALS = b"silo,records,region,epsilon,group\nlille,1200,north,,a\nnice,1500,south,0.5,a\nlyon,900,south,,b\n"


class Reply:
    def __init__(self, messages):
        self.status = messages[0]["status"]
        self.pairs = [(name.decode(), value.decode()) for name, value in messages[0]["headers"]]
        self.headers = dict(self.pairs)
        self.body = b"".join(message.get("body", b"") for message in messages[1:])

    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        assert self.headers["content-type"] == "application/json"
        [(key, reason)] = self.json().items()
        assert key == "error"
        assert len(reason.splitlines()) == 1
        return reason


class Client:
    """Speaks ASGI, in a thread: a browser's tests may hold the loop of this one."""

    def __init__(self, app):
        self.app = app
        self.asked = 0  # pieces of a body that were taken

    def __call__(self, method, path, body=b"", headers=(), host="127.0.0.1:8000"):
        pieces = list(body) if isinstance(body, list) else [body]
        path, _, query = path.partition("?")
        named = {"host": host, **dict(headers)}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in named.items() if value is not None],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
        }
        messages = []

        async def receive():
            self.asked += 1
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        async def send(message):
            messages.append(message)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(lambda: asyncio.run(self.app(scope, receive, send))).result()
        return Reply(messages)

    def plan(self, federation="consortium", path="/plan", more=None, **settings):
        roster = json.loads(msgspec_json(roster_of(read_federation(federation))))
        question = {"federation": roster, "settings": SETTINGS | settings, **(more or {})}
        return self("POST", path, json.dumps(question).encode(), JSON)


def msgspec_json(value):
    import msgspec

    return msgspec.json.encode(value)


@pytest.fixture(scope="module")
def app():
    return application(profile("consortium"), hosts=hosts_of("127.0.0.1"))


@pytest.fixture
def client(app):
    return Client(app)


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
    assert made.statement.split(" epsilon ")[0] in answer["head"].replace("&#39;", "'")
    assert set(answer["charts"]) == {"tree", "epsilon", "trade", "price", "information"}
    assert [column["heading"] for column in answer["columns"]] == ["noise multiplier", "ε above", "ε inside"]
    assert "federation" not in answer  # the page has it
    assert "regions" not in answer
    assert "country-6" in client.plan(more={"whole": True}).json()["regions"]


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_built_in_federation_comes_back_the_same(name):
    from fulcrum.federation.as_json import federation_of

    assert federation_of(roster_of(profile(name))).digest == profile(name).digest


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"epsilon_inside": 1.5},
        {"colluders": 2},
        {"accountant": "renyi", "rounds": 50},
        {"allocation": "uniform", "delta": 1e-7},
    ],
)
def test_a_downloaded_plan_is_the_one_that_the_library_makes_and_verifies(settings, client, tmp_path, capsys):
    (tmp_path / "hospitals.csv").write_bytes(HOSPITALS)
    federation = read_federation(tmp_path / "hospitals.csv")
    reply = client.plan(federation, path="/download/plan.json", **settings)
    assert reply.headers["content-disposition"] == 'attachment; filename="plan.json"'
    (tmp_path / "plan.json").write_bytes(reply.body)
    asked = dict(settings)
    inside = {"silo": asked.pop("epsilon_inside")} if "epsilon_inside" in asked else {}
    made = fulcrum.plan(federation, **{"rounds": 10, "delta": 1e-5, **asked}, epsilon={"region": 1.0, **inside})
    assert fulcrum.read_plan(tmp_path / "plan.json").digest == made.digest
    assert cli.run(["verify", str(tmp_path / "plan.json")]) == 0
    assert "Every check holds" in capsys.readouterr().out


def test_the_table_and_the_report_are_downloaded(client):
    table = client.plan(path="/download/plan.csv")
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    assert table.body.decode() == fulcrum.planning.exporting.exported(
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
        assert federation_from_bytes(data, name).digest == read_federation(tmp_path / name).digest


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.csv", b"silo,records,region\nx,-3,north\n", "a.csv line 2: records=-3 must be at least 1"),
        ("a.csv", b"silo,records\nx,3\n", "a.csv line 1: the column 'region' is missing"),
        ("a.csv", b"", "a.csv is empty"),
        ("a.csv", b"silo,records,region\n\xff,1,north\n", "a.csv line 2 is not UTF-8"),
        ("a.csv", b"silo,records,region\nx,nan,north\n", "a.csv line 2: records=nan must be a finite number"),
        ("a.csv", b"silo,records,region\nx\x00,1,north\n", "a.csv line 2"),
        ("a.csv", b'silo,records,region\n"x,1,north\n', "a.csv line 2: unexpected end of data"),
        ("a.toml", b"[region", "a.toml line 1: not valid TOML"),
        ("a.toml", b"x = " + b"[" * 100_000, "a.toml is nested too deeply to be read"),
        ("a.toml", b"a." * 200_000 + b"a = 1", "a.toml line 1: more than 100 dots on one line"),
        ("a.toml", b"#" * 5_000_001, "a.toml is larger than the 5 MB of TOML"),
        ("a.csv", b"silo,records,region" + b",t" * 300_000, "a.csv line 1: 300,003 columns are more than 100"),
        ("a.csv", b"a" * 1_000_000, "a.csv line 1: field larger than field limit"),
        ("a.exe", b"MZ", "a.exe: it must be a CSV or TOML file"),
        ("", b"silo", "the file's name must be printable"),
        ("..%2F..%2Fetc%2Fpasswd", b"silo", "passwd: it must be a CSV or TOML file"),
        ("..\\x.csv", b"", "x.csv is empty"),
        ("a%0Ab.csv", HOSPITALS, "the file's name must be printable. Rename it"),
        ("%3Cimg%20src=x%3E.csv", b"", "<img src=x>.csv is empty"),
        ("a.csv", b"silo,records,region\n" + b"\n" * 300_000, "a.csv has 300,001 lines"),
        ("a.csv", b"silo,records,region\n" + b"".join(b"%d,1,r\n" % k for k in range(100_001)), "100,001 silos are more"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_in_one_line(name, data, reason, client):
    reply = client("POST", f"/read?name={name}", data, FILE)
    assert reply.status == 422
    assert reply.error.startswith(reason) or reason in reply.error


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": 1e300}, "epsilon"),
        ({"delta": 2.0}, "delta must be in (0, 1)"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": -5}, "rounds"),
        ({"rounds": 10**400}, "rounds"),
        ({"rounds": 2.5}, "rounds"),
        ({"rounds": "10"}, "rounds"),
        ({"colluders": -1}, "colluders"),
        ({"allocation": "os:system"}, "unknown allocation 'os:system'"),
        ({"allocation": ["optimal"]}, "allocation"),
        ({"accountant": "exakt"}, "unknown accountant 'exakt'"),
        ({"epsilon_inside": float("nan")}, "cannot be read"),
        ({"epsilon": float("inf")}, "cannot be read"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings, reason, client):
    reply = client.plan(**settings)
    assert reply.status == 422
    assert reason in reply.error


def changed(change):
    roster = json.loads(msgspec_json(roster_of(read_federation("mild"))))
    change(roster)
    return {"federation": roster, "settings": SETTINGS}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"federation":' * 50_000,
        json.dumps({"settings": SETTINGS}),
        json.dumps({"federation": [], "settings": SETTINGS}),
        json.dumps(changed(lambda roster: roster["silos"].pop())),
        json.dumps(changed(lambda roster: roster["silos"].__setitem__(0, roster["silos"][1]))),
        json.dumps(changed(lambda roster: roster["silos"].__setitem__(0, "a\nb"))),
        json.dumps(changed(lambda roster: roster["silos"].__setitem__(0, "\ud800"))),
        json.dumps(changed(lambda roster: roster["records"].__setitem__(0, -1))),
        json.dumps(changed(lambda roster: roster["records"].__setitem__(0, 1e308))),
        json.dumps(changed(lambda roster: roster["records"].__setitem__(0, 10**400))),
        json.dumps(changed(lambda roster: roster["tiers"][0]["codes"].__setitem__(0, 10**18))),
        json.dumps(changed(lambda roster: roster["tiers"][0]["codes"].__setitem__(0, 10**30))),
        json.dumps(changed(lambda roster: roster["tiers"][0]["codes"].__setitem__(0, -1))),
        json.dumps(changed(lambda roster: roster["tiers"][0]["nodes"].append("empty"))),
        json.dumps(changed(lambda roster: roster["tiers"][0]["nodes"].__setitem__(0, roster["tiers"][0]["nodes"][1]))),
        json.dumps(changed(lambda roster: roster["tiers"][0].update(name="silo"))),
        json.dumps(changed(lambda roster: roster["tiers"].clear())),
        json.dumps(changed(lambda roster: roster["tiers"].append(roster["tiers"][0]))),
        json.dumps(changed(lambda roster: roster.update(silos=[], records=[], tiers=[]))),
        json.dumps(changed(lambda roster: roster.update(name=""))),
        json.dumps(changed(lambda roster: roster.update(epsilon=[0.0] * len(roster["silos"])))),
        json.dumps(changed(lambda roster: roster.update(epsilon=[1.0]))),
        json.dumps(changed(lambda roster: roster.update(__proto__={}))),
        json.dumps(changed(lambda roster: roster.update(silos=["x"] * 100_001, records=[1] * 100_001))),
    ],
)  # fmt: skip
def test_a_malformed_question_is_refused_in_one_line(body, client):
    reply = client("POST", "/plan", body if isinstance(body, bytes) else body.encode(), JSON)
    assert reply.status == 422
    assert reply.error


def test_a_body_that_is_too_large_is_refused_whatever_its_header_says(client):
    reply = client("POST", "/read?name=a.csv", b"", {**FILE, "content-length": str(LARGEST_BODY + 1)})
    assert reply.status == 413
    assert client.asked == 0  # nothing of it was read
    piece = b"x" * 1_000_000
    reply = client("POST", "/read?name=a.csv", [piece] * 40, FILE)
    assert reply.status == 413
    assert "16 MB" in reply.error
    assert client.asked == LARGEST_BODY // len(piece) + 1  # and no more


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8000", "localhost.evil.example", "", None, "[::2]:8000"]
)
def test_another_host_is_refused(host, client):
    reply = client("GET", "/", host=host)
    assert reply.status == 400
    assert "fulcrum serve printed" in reply.error


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "127.0.0.1"])
def test_the_servers_own_names_are_known(host, client):
    assert client("GET", "/", host=host).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:8000"},
        {"origin": "http://127.0.0.1:9000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_another_page_cannot_ask(headers, client):
    reply = client("POST", "/plan", b"{}", {**JSON, **headers})
    assert reply.status == 403


def test_the_pages_own_questions_pass_and_forms_do_not(client):
    own = {"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}
    assert client("POST", "/plan", b"{}", {**JSON, **own}).status == 422
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", None):
        assert client("POST", "/plan", b"{}", {"content-type": kind}).status == 415
        assert client("POST", "/read?name=a.csv", HOSPITALS, {"content-type": kind}).status == 415
    assert client("OPTIONS", "/plan", headers=own).status == 405


def test_unknown_paths_and_methods_are_refused(client):
    for path in ("/nowhere", "/download/", "/../etc/passwd", "/templates/serve.html", "/favicon.ico"):
        assert client("GET", path).status == 404, path
    for method, path in (("GET", "/plan"), ("PUT", "/"), ("POST", "/style.css"), ("GET", "/download/plan.json")):
        reply = client(method, path)
        assert reply.status == 405
        assert reply.error


def test_names_with_scripts_in_them_are_text(client):
    federation = fulcrum.Federation.from_sizes({f"{ATTACK}r": {f"{ATTACK}1": 1, "x": 2}, "s": [3]}, name=ATTACK)
    answer = client.plan(federation, more={"whole": True}).json()
    for part in ("head", "regions"):
        assert "<script" not in answer[part]
        assert "<img" not in answer[part]
    page = Client(application(federation, hosts=hosts_of("0.0.0.0", ["anything"])))(
        "GET", "/", host="anything"
    ).body.decode()
    assert "<img" not in page
    assert page.count("<script") == 3  # the data and two files


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


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        ({"kind": "merge", "regions": ["country-1"]}, "choose two"),
        ({"kind": "merge", "regions": ["country-1", "country-1"]}, "choose two"),
        ({"kind": "split", "regions": ["country-6"]}, "has one silo"),
        ({"kind": "split", "regions": ["contry-1"]}, "Did you mean 'country-1'?"),
        ({"kind": "rename", "regions": ["country-1"], "name": "country-2"}, "already"),
        ({"kind": "rename", "regions": ["country-1"], "name": " "}, "printable and not empty"),
        ({"kind": "silos", "regions": ["country-1"], "number": 0}, "at least 1"),
        ({"kind": "silos", "regions": ["country-1"], "number": 1.5}, "whole"),
        ({"kind": "silos", "regions": ["country-1"], "number": 1e18}, "more than 100,000"),
        ({"kind": "records", "regions": ["country-1"], "number": 0}, "from 1 to"),
        ({"kind": "records", "regions": ["country-1"], "number": 1e300}, "from 1 to"),
        ({"kind": "explode", "regions": []}, "cannot be read"),
        ({"kind": "remove"}, "concerns one region"),
    ],
)
def test_an_edit_that_cannot_be_is_refused_in_one_line(edit, reason, client):
    reply = client.plan(more={"edit": edit})
    assert reply.status == 422
    assert reason in reply.error


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
    nested = 'silo,records,region,country\n"a, b",12.5,"n, 1",fr\nc,3,s,de\nd,4,"n, 1",fr\n'
    files = {"hospitals.csv": HOSPITALS, "nested.csv": nested.encode()}
    found = federation_from_bytes(files[source], source) if source in files else profile(source)
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
    monkeypatch.setattr("fulcrum.views.page_app.asked", lambda body: 1 / 0)
    reply = Client(app)("POST", "/plan", b"{}", JSON)
    assert (reply.status, reply.error) == (500, "the server failed. Its log says why")
    assert "ZeroDivisionError" in caplog.text


def test_too_many_silos_are_refused_at_the_start():
    many = fulcrum.Federation.from_sizes({"r": [1.0] * 100_001})
    with pytest.raises(FederationError, match="100,001 silos are more than the 100,000"):
        application(many, hosts=hosts_of("127.0.0.1"))


def test_what_is_loopback_and_what_is_not():
    assert all(map(loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(loopback, ("0.0.0.0", "::", "192.168.1.1", "example.org", "", "127.0.0.1.example")))
    assert "[fe80::1]" in hosts_of("fe80::1")
    assert "192.168.1.1" not in hosts_of("127.0.0.1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_a_server_that_listens_everywhere_still_answers_to_no_strange_name(host):
    client = Client(application(profile("mild"), hosts=hosts_of(host, ["plans.example"])))
    own = ("127.0.0.1:8000", "192.168.1.7:8000", "[fe80::1]:8000", "localhost", f"{socket.gethostname()}:8000")
    for name in (*own, "Plans.Example:8000"):
        assert client("GET", "/", host=name).status == 200, name
    for name in ("rebound.example:8000", "192.168.1.7.example", "[rebound]", ""):
        assert client("GET", "/", host=name).status == 400, name


def test_a_browser_that_goes_away_leaves_nothing_in_the_log(app, caplog):
    async def gone():
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "scheme": "http", "path": "/plan", "raw_path": b"/plan"}
    scope |= {"query_string": b"", "root_path": "", "headers": headers, "client": None, "server": None}
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(app(scope, gone, send))).result()
    assert caplog.text == ""


def test_settings_and_answers_are_plain(app):
    question = PageQuestion(federation=roster_of(profile("mild")), settings=PageSettings())
    assert PageAnswer.to(question).head.count('<h1 id="title">mild</h1>') == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--host", "0.0.0.0"], "Give --allow-remote if that is meant"),
        (["--host", "example.org"], "Give --allow-remote if that is meant"),
        (["--port", "70000"], "--port must be from 0 to 65535, got 70000"),
        (["--port", "x"], "--port must be a whole number, got 'x'"),
        (["nowhere.csv"], "no built-in federation or file 'nowhere.csv'"),
        (["--format", "xml"], "unknown format 'xml'"),
    ],
)
def test_a_wrong_command_is_one_line(arguments, reason, capsys):
    assert cli.run(["serve", *arguments]) == 2
    told = capsys.readouterr()
    assert reason in told.err
    assert len(told.err.splitlines()) == 1
    assert told.out == ""


def test_a_port_in_use_is_one_line(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.run(["serve", "--port", str(port)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(
        f"fulcrum: cannot listen on 127.0.0.1 port {port}: Address already in use. Give another: --port"
    )
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("package", ["starlette.applications", "uvicorn"])
def test_without_the_extra_it_says_what_to_install(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    from fulcrum.cli.page import serve_command

    with pytest.raises(MissingExtraError, match=r"Run: pip install 'fulcrum-dp\[serve\]'"):
        serve_command()


def test_the_command_serves_until_it_is_interrupted(tmp_path):
    (tmp_path / "mine.csv").write_bytes(HOSPITALS)
    command = [sys.executable, "-c", "from fulcrum.cli.app import main; main()", "serve", "mine.csv"]
    with subprocess.Popen(
        [*command, "--port", "0", "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as served:
        timer = threading.Timer(60, served.kill)
        timer.start()
        try:
            address = json.loads(served.stdout.readline())["address"]
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(address, timeout=30) as page:
                assert "mine" in page.read().decode()
                assert page.headers["Server"] is None
            served.send_signal(signal.SIGINT)
            out, err = served.communicate(timeout=30)
        finally:
            timer.cancel()
    assert (served.returncode, out, err) == (0, "", "")
    assert [path.name for path in Path(tmp_path).iterdir()] == ["mine.csv"]


@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        (["--host", "0.0.0.0", "--allow-remote", "--name", "a.example", "--name", "b.example"], "a.example"),
        (["--host", "0.0.0.0", "--allow-remote"], socket.gethostname()),
    ],
)
def test_a_server_that_listens_everywhere_prints_addresses_that_can_be_opened(arguments, others, capsys, monkeypatch):
    uvicorn = pytest.importorskip("uvicorn")
    seen = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: seen.append(server.config.app))
    assert cli.run(["serve", "mild", "--port", "0", *arguments]) == 0
    told = capsys.readouterr().out
    assert told.startswith("The page is at http://127.0.0.1:")
    assert f", for other machines at http://{others}:" in told
    assert ("b.example" in seen[0].hosts) is ("b.example" in arguments)
    assert "rebound.example" not in seen[0].hosts
