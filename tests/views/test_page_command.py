"""The command `fulcrum serve`: its arguments, its addresses and its end."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from error_codes import coded
from page_client import HOSPITALS, Client

from fulcrum.cli import command_line as cli
from fulcrum.errors import MissingExtraError

pytest.importorskip("starlette", reason="the page needs starlette")
pytest.importorskip("vl_convert", reason="the page needs vl-convert-python")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--host", "0.0.0.0"], "Give --allow-remote to open the page to other machines"),
        (["--host", "example.org"], "Give --allow-remote to open the page to other machines"),
        (["--port", "70000"], "--port must be from 0 to 65535, got 70000"),
        (["--port", "x"], "--port must be a whole number, got 'x'"),
        (["nowhere.csv"], "no built-in federation or file 'nowhere.csv'"),
        (["--format", "xml"], "unknown format 'xml'"),
        (["--recipe", "best"], "unknown recipe 'best'"),
        (["--recipe", "joint"], "needs the number of trainable parameters. Give: parameters"),
        (["--weights", "2"], "weights must be one of"),
        (["--clip-norm", "-1"], "clip_norm must be 'auto' or from"),
        (["--server", "mean"], "unknown server 'mean'. Known: sum, random-effects, momentum."),
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
    from fulcrum.cli.plan_commands.page import serve_command

    with pytest.raises(MissingExtraError, check=coded("page.extra-missing")):
        serve_command()


def test_the_command_serves_until_it_is_interrupted(tmp_path):
    (tmp_path / "mine.csv").write_bytes(HOSPITALS)
    command = [sys.executable, "-c", "from fulcrum.cli.command_line import main; main()", "serve", "mine.csv"]
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


def test_the_command_starts_the_page_with_recipe_weights_clip_and_server(capsys, monkeypatch):
    uvicorn = pytest.importorskip("uvicorn")
    seen = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: seen.append(server.config.app))
    chosen = ["--recipe", "joint", "--parameters", "66", "--weights", "0.5", "--clip-norm", "auto", "--server", "sum"]
    chosen += ["--least-influence", "0.25"]
    assert cli.run(["serve", "severe", "--port", "0", *chosen]) == 0
    page = Client(seen[0])("GET", "/").body.decode()
    for shown in ("<option selected>joint</option>", 'id="weights_share" value="0.5"', 'id="clip_norm" value="auto"'):
        assert shown in page
    assert re.search(r'id="least_influence"[^>]* value="0.25"', page)
    assert "of its influence by size" in page


def test_the_command_reads_a_messy_file_and_its_page_says_how(tmp_path, capsys, monkeypatch):
    uvicorn = pytest.importorskip("uvicorn")
    seen = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: seen.append(server.config.app))
    (tmp_path / "messy.csv").write_text("phone;hospital;patients;region\n1;lille;800;north\n2;lyon;1 200;south\n")
    assert cli.run(["serve", str(tmp_path / "messy.csv"), "--port", "0", "--column", "ignore=phone"]) == 0
    page = Client(seen[0])("GET", "/").body.decode()
    assert "records: spaces separate thousands, as in 1 200" in page
    assert "note: cells are separated by semicolons" in capsys.readouterr().err


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
