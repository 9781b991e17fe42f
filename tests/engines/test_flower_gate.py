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
from fulcrum.engines.flower.loopback import free_port

HEAD = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: gate\r\n"


class Behind:
    """A gate in a process of its own, and behind it a listener that keeps the bytes of every connection."""

    def __init__(self, folder):
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
        words = ["--host", "127.0.0.1", "--port", self.port, "--superlink", self.listener.getsockname()[1]]
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
def behind(tmp_path):
    made = Behind(tmp_path)
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
