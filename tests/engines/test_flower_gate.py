"""The gate before a SuperLink, as strangers meet it: what is cut short, framed twice or endless goes no further."""

import contextlib
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("cryptography", reason="needs the extra flower")

from fulcrum.engines.flower.certificates import AUTHORITY, CERTIFICATE, KEY, write_certificates
from fulcrum.engines.flower.gate import _MOST_WAITING
from fulcrum.engines.flower.loopback import free_port

HEAD = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: gate\r\n"


class Behind:
    """A gate in a process of its own, and behind it a listener that keeps the bytes of every connection."""

    def __init__(self, folder, *words):
        home = folder / "server"
        home.mkdir()
        write_certificates(folder, home, "127.0.0.1")
        shutil.copy(folder / AUTHORITY, home / AUTHORITY)
        self.trusted = ssl.create_default_context(cafile=folder / AUTHORITY)
        self.own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.own.load_cert_chain(home / CERTIFICATE, home / KEY)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.seen, self.port = [], free_port()
        threading.Thread(target=self.listen, daemon=True).start()
        words = ["--host", "127.0.0.1", "--port", self.port, "--superlink", self.listener.getsockname()[1], *words]
        gate = [sys.executable, "-m", "fulcrum.engines.flower.gate", *map(str, words)]
        self.process = subprocess.Popen(gate, cwd=home)
        deadline = time.monotonic() + 60
        while not self.listens() and time.monotonic() < deadline:
            time.sleep(0.1)

    def listens(self):
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", self.port)) == 0

    def listen(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with contextlib.suppress(OSError), self.own.wrap_socket(connection, server_side=True) as taken:
                    taken.settimeout(2)
                    self.seen.append(bytearray())
                    with contextlib.suppress(TimeoutError):
                        while data := taken.recv(2**16):
                            self.seen[-1].extend(data)
                            if self.seen[-1].endswith((b"0\r\n\r\n", b"whole")):
                                taken.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")

    @contextlib.contextmanager
    def asked(self, data):
        plain = socket.create_connection(("127.0.0.1", self.port))
        with self.trusted.wrap_socket(plain, server_hostname="127.0.0.1") as outside:
            outside.settimeout(20)
            outside.sendall(data)
            yield outside

    def status(self, data):
        with self.asked(data) as outside:
            return outside.recv(12)[-3:]


@pytest.fixture
def behind(tmp_path, request):
    made = Behind(tmp_path, *getattr(request, "param", ()))
    yield made
    made.process.terminate()
    made.process.wait(30)
    made.listener.close()


def test_a_request_that_is_cut_short_is_not_handed_on_as_a_whole_one(behind):
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n"
    assert behind.status(chunked + b"0\r\n\r\n") == b"200"
    with behind.asked(chunked):
        time.sleep(0.5)
    time.sleep(3)
    assert [bytes(data).endswith(b"begun\r\n0\r\n\r\n") for data in behind.seen] == [True, False]


def test_a_request_that_says_twice_where_it_ends_is_refused(behind):
    assert behind.status(HEAD + b"Content-Length: 5\r\n\r\nwhole") == b"200"
    chunks = b"a\r\nwhole POST\r\n0\r\n\r\n"
    twice = HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    assert behind.status(twice) in (b"400", b"403")
    assert len(behind.seen) == 1


def test_the_head_of_a_request_is_bounded_before_anybody_is_known(behind):
    """Who this is comes with the request: a head without end would be kept in memory for anybody."""
    assert behind.status(HEAD + b"X: " + b"x" * 2**20) == b"400"
    assert behind.seen == []


IMPATIENT = pytest.mark.parametrize("behind", [("--patience", 2)], indirect=True, ids=["patience 2"])


def seconds_until_dropped(outside, drop, most=15.0):
    """Sends a byte now and then, and returns when the gate gave the connection up."""
    began = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() < began + most:
            outside.sendall(drop)
            outside.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                if not outside.recv(1):
                    break
    return time.monotonic() - began


@IMPATIENT
@pytest.mark.parametrize(
    "begun", [b"POST /v1/fleet/pull-", HEAD + b"Content-Length: 5000\r\n\r\n"], ids=["the head", "the content"]
)
def test_whoever_sends_a_byte_now_and_then_is_given_up(behind, begun):
    """A request that never ends costs its sender nothing, and would hold a connection for ever."""
    with behind.asked(begun) as outside:
        assert 1 < seconds_until_dropped(outside, b"x") < 10
    assert not any(data.endswith(b"x" * 5000) for data in behind.seen)


@IMPATIENT
def test_whoever_sends_much_has_the_time_that_it_takes(behind):
    content = bytes(99_995) + b"whole"
    with behind.asked(HEAD + b"Content-Length: 100000\r\n\r\n") as outside:
        for start in range(0, len(content), 10_000):
            outside.sendall(content[start : start + 10_000])
            time.sleep(0.3)
        assert outside.recv(12)[-3:] == b"200"


@IMPATIENT
def test_a_connection_that_says_nothing_is_given_up(behind):
    with behind.asked(b"") as outside:
        began = time.monotonic()
        assert outside.recv(1) == b""
        assert 1 < time.monotonic() - began < 10


def test_silent_strangers_take_the_place_of_each_other_and_not_of_whoever_sends(behind):
    content = bytes(199_995) + b"whole"
    with contextlib.ExitStack() as held, behind.asked(HEAD + b"Content-Length: 200000\r\n\r\n") as outside:
        outside.sendall(content[:100_000])
        strangers = [held.enter_context(behind.asked(b"")) for _ in range(_MOST_WAITING + 8)]
        outside.sendall(content[100_000:])
        assert outside.recv(12)[-3:] == b"200"
        assert strangers[0].recv(1) == b""
