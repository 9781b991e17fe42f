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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from fulcrum.views.page.page_server import web_server

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
    command = [
        sys.executable,
        "-c",
        "from fulcrum.cli.command_line import main; main()",
        "serve",
        "severe",
        "--port",
        "0",
    ]
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


def seconds_until_dropped(port, half):
    """How long half a request is waited for, where it goes on byte by byte."""
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
    return time.monotonic() - start


def sent_slowly(port):
    """How long a request took that was sent in eight pieces, and how its answer begins."""
    body = b'{"not": "a question"}' + b" " * 2_000_000
    with connected(port, HEAD + b"Content-Length: %d\r\n\r\n".replace(b"%d", str(len(body)).encode())) as opened:
        start = time.monotonic()
        for piece in range(0, len(body), 250_000):
            opened.sendall(body[piece : piece + 250_000])
            time.sleep(0.9)
        return time.monotonic() - start, opened.recv(100)


def asked_three_times(port):
    """The answers to three requests on one connection, seconds apart."""
    answers = []
    with connected(port) as opened:
        for _ in range(3):
            opened.sendall(b"GET /style.css HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n".replace(b"%d", str(port).encode()))
            time.sleep(2.5)
            answers.append(opened.recv(1_000_000))
    return answers


def bytes_taken(port, whole, patience):
    """How much of twelve answers is still to be had, for whoever begins to take them after so many seconds."""
    asked, taken = b"GET /vega.js HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", 0
    with connected(port, 12 * asked, buffer=4096) as opened:
        time.sleep(patience)
        try:
            while taken < 12 * whole and (piece := opened.recv(1 << 20)):
                taken += len(piece)
        except ConnectionError:
            pass
    return taken


@pytest.fixture(scope="module")
def met(port):
    """What the slow ones met, who come all at once: each waits for seconds, and none for another."""
    whole = len(answered(port, "/vega.js")[1])
    with ThreadPoolExecutor(max_workers=8) as pool:
        return {
            **{half: pool.submit(seconds_until_dropped, port, half) for half in HALVES},
            "sent slowly": pool.submit(sent_slowly, port),
            "asked three times": pool.submit(asked_three_times, port),
            "taken at once": pool.submit(lambda: bytes_taken(port, whole, 0) / (12 * whole)),
            "taken too late": pool.submit(lambda: bytes_taken(port, whole, 15) / (12 * whole)),
        }


@pytest.mark.parametrize("half", HALVES)
def test_a_half_sent_request_is_dropped_even_where_it_goes_on_byte_by_byte(half, met):
    assert 4 < met[half].result() < 9


def test_a_request_that_comes_slowly_but_steadily_is_answered(met):
    seconds, answer = met["sent slowly"].result()
    assert seconds > 7
    assert answer.startswith(b"HTTP/1.1 422 ")


def test_a_connection_serves_several_requests_after_another(met):
    answers = met["asked three times"].result()
    assert [answer.startswith(b"HTTP/1.1 200 OK") for answer in answers] == [True] * 3


def test_a_connection_that_takes_no_answer_is_dropped(met):
    assert met["taken at once"].result() >= 1
    assert met["taken too late"].result() < 1


def test_a_server_leaves_the_logging_of_its_process_alone():
    kept = logging.StreamHandler(io.StringIO())
    before = logging.getLogger("uvicorn").handlers[:]
    web_server(lambda: None)
    assert not kept.stream.closed
    assert kept in [handler() for handler in logging._handlerList]
    assert logging.getLogger("uvicorn").handlers == before
