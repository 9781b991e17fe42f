"""The server beneath the page, over real sockets: what is sent by halves, or never taken, holds nobody else up."""

import io
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from fulcrum.views.page_server import web_server

pytest.importorskip("starlette", reason="the page needs starlette")
pytest.importorskip("uvicorn", reason="the page needs uvicorn")
pytest.importorskip("vl_convert", reason="the page needs vl-convert-python")

HEAD = b"POST /plan HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
HALVES = {
    "nothing": b"",
    "half a header": HEAD,
    "half a body": HEAD + b'Content-Length: 1000\r\n\r\n{"federation":',
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n400\r\n{",
}


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """The port of `fulcrum serve` as a process of its own."""
    command = [sys.executable, "-c", "from fulcrum.cli.app import main; main()", "serve", "severe", "--port", "0"]
    with subprocess.Popen(
        [*command, "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path_factory.mktemp("served"),
    ) as served:
        timer = threading.Timer(300, served.kill)
        timer.start()
        try:
            yield urlsplit(json.loads(served.stdout.readline())["address"]).port
            served.send_signal(signal.SIGINT)
            served.communicate(timeout=30)
        finally:
            timer.cancel()
    assert served.returncode == 0


def connected(port, sent=b"", *, buffer=None):
    opened = socket.socket()
    if buffer is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    opened.settimeout(20)
    opened.connect(("127.0.0.1", port))
    opened.sendall(sent.replace(b"%d", str(port).encode()))
    return opened


def answered(port, path="/"):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize("half", HALVES)
def test_seventy_half_sent_requests_hold_up_no_other(half, port):
    with ExitStack() as held:
        for _ in range(70):
            held.enter_context(connected(port, HALVES[half]))
        start = time.monotonic()
        while (status := answered(port)[0]) == 503 and time.monotonic() - start < 30:
            time.sleep(0.1)  # those that were given up are on their way out
        assert status == 200
        assert time.monotonic() - start < 3  # room is made, before any deadline is over


@pytest.mark.parametrize("half", HALVES)
def test_a_half_sent_request_is_dropped_even_where_it_goes_on_byte_by_byte(half, port):
    start = time.monotonic()
    with connected(port, HALVES[half]) as opened:
        opened.settimeout(0.5)
        while time.monotonic() - start < 15:
            try:
                if not opened.recv(1000):
                    break
            except TimeoutError:
                opened.sendall(b"a")
            except ConnectionError:
                break
    assert 4 < time.monotonic() - start < 9


def test_a_request_that_comes_slowly_but_steadily_is_answered(port):
    body = b'{"not": "a question"}' + b" " * 2_000_000
    with connected(port, HEAD + b"Content-Length: %d\r\n\r\n".replace(b"%d", str(len(body)).encode())) as opened:
        start = time.monotonic()
        for piece in range(0, len(body), 250_000):
            opened.sendall(body[piece : piece + 250_000])
            time.sleep(0.9)
        assert time.monotonic() - start > 7
        assert opened.recv(100).startswith(b"HTTP/1.1 422 ")


def test_a_connection_serves_several_requests_after_another(port):
    with connected(port) as opened:
        for _ in range(3):
            opened.sendall(b"GET /style.css HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n".replace(b"%d", str(port).encode()))
            time.sleep(2.5)
            assert opened.recv(1_000_000).startswith(b"HTTP/1.1 200 OK")


def test_a_connection_that_takes_no_answer_is_dropped(port):
    asked, whole = b"GET /vega.js HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", len(answered(port, "/vega.js")[1])
    for patience, dropped in ((0, False), (15, True)):
        with connected(port, 12 * asked, buffer=4096) as opened:
            time.sleep(patience)
            taken = 0
            try:
                while taken < 12 * whole and (piece := opened.recv(1 << 20)):
                    taken += len(piece)
            except ConnectionError:
                pass
        assert (taken < 12 * whole) is dropped


def test_a_server_leaves_the_logging_of_its_process_alone():
    kept = logging.StreamHandler(io.StringIO())
    before = logging.getLogger("uvicorn").handlers[:]
    web_server(lambda: None)
    assert not kept.stream.closed
    assert kept in [handler() for handler in logging._handlerList]
    assert logging.getLogger("uvicorn").handlers == before
