"""Files, settings, questions and edits that the page refuses in one line."""

import json

import pytest
from error_codes import coded
from page_client import FILE, HOSPITALS, JSON, SETTINGS, msgspec_json

import fulcrum
from fulcrum.errors import FederationError
from fulcrum.readers.federation_json import roster_of
from fulcrum.readers.federation_reader import read_federation
from fulcrum.views.page.page_app import application
from fulcrum.views.page.page_guard import LARGEST_BODY, hosts_of

pytest.importorskip("starlette", reason="the page needs starlette")
pytest.importorskip("vl_convert", reason="the page needs vl-convert-python")


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.csv", b"silo,records,region\nx,-3,north\n", "a.csv line 2: records=-3 must be at least 1"),
        ("a.csv", b"silo,records\nx,3\n", "a.csv line 1: the column 'region' is missing"),
        ("a.csv", b"", "a.csv is empty"),
        ("a.csv", b"silo,records,region\n\xff,1,north\n", "a.csv line 2 is neither UTF-8 nor Windows-1252"),
        ("a.csv", b"silo,records,region\nx,nan,north\n", "a.csv line 2: records=nan must be a finite number"),
        ("a.csv", b"silo,records,region\nx\x00,1,north\n", "a.csv line 2"),
        ("a.csv", b'silo,records,region\n"x,1,north\n', "a.csv line 2: unexpected end of data"),
        ("a.toml", b"[region", "a.toml line 1: not valid TOML"),
        ("a.toml", b"x = " + b"[" * 100_000, "a.toml is nested too deeply to be read"),
        ("a.toml", b"a." * 200_000 + b"a = 1", "a.toml line 1: more than 100 dots on one line"),
        ("a.toml", b"x = 1\n" + b"".join(b"[%d.b.c.d.e.f.g.h]\n" % k for k in range(190_000)), "a.toml line 2: a key has more"),
        ("a.toml", b"'a.b' . c.d.e.f = 1", ("a.toml line 1: a key has more than four parts, and a federation has no such key")),
        ("a.toml", b"[region.north]\n'st. a.b.c.d.e' = -1", "a.toml line 2: records=-1 must be at least 1"),
        ("a.toml", b"#" * 5_000_001, "a.toml is larger than the 5 MB of TOML"),
        ("a.csv", b"silo,records,region" + b",t" * 300_000, "a.csv line 1: 300,003 columns are more than 100"),
        ("a.csv", b"a" * 1_000_000, "a.csv line 1: field larger than field limit"),
        ("a.exe", b"MZ", "a.exe: a federation file must be a table or TOML"),
        ("", b"silo", "the file's name must be printable"),
        ("..%2F..%2Fetc%2Fpasswd", b"silo", "passwd: a federation file must be a table or TOML"),
        ("..\\x.csv", b"", "x.csv is empty"),
        ("a%0Ab.csv", HOSPITALS, "the file's name must be printable. Rename the file"),
        ("%3Cimg%20src=x%3E.csv", b"", "<img src=x>.csv is empty"),
        ("a.csv", b"silo,records,region\n" + b"\n" * 300_000, "a.csv has 300,001 lines"),
        ("a.csv", b"silo,records,region\r" + b"\r" * 300_000, "a.csv has 300,001 lines"),
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
        ({"accountant": "exakt"}, "Invalid enum value 'exakt' - at `$.settings.accountant`"),
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
    ("edit", "reason"),
    [
        ({"kind": "merge", "regions": ["country-1"]}, "a merge needs at least two"),
        ({"kind": "merge", "regions": ["country-1", "country-1"]}, "a merge needs at least two"),
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
        ({"kind": "remove"}, "concerns exactly one region"),
    ],
)
def test_an_edit_that_cannot_be_is_refused_in_one_line(edit, reason, client):
    reply = client.plan(more={"edit": edit})
    assert reply.status == 422
    assert reason in reply.error


def test_too_many_silos_are_refused_at_the_start():
    many = fulcrum.Federation.from_sizes({"r": [1.0] * 100_001})
    with pytest.raises(FederationError, check=coded("page.silos-too-many")):
        application(many, hosts=hosts_of("127.0.0.1"))
