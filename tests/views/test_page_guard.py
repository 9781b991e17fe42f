"""Whom the page answers: its own names and its own questions, and no strange page, path or script."""

import socket

import pytest
from page_client import HOSPITALS, JSON, Client

import fulcrum
from fulcrum.readers.profiles import profile
from fulcrum.views.page.page_app import application
from fulcrum.views.page.page_guard import hosts_of, loopback

pytest.importorskip("starlette", reason="the page needs starlette")
pytest.importorskip("vl_convert", reason="the page needs vl-convert-python")

ATTACK = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"


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
