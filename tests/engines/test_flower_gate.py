"""The gate before a SuperLink, as strangers meet it: what is cut short, framed twice or endless goes no further."""

import contextlib
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("cryptography", reason="needs the extra flower")

from fulcrum.engines.flower.certificates import AUTHORITY, CERTIFICATE, KEY, write_certificates
from fulcrum.engines.flower.gate import _MOST_WAITING
from fulcrum.engines.flower.loopback import free_port

HEAD = b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: gate\r\n"


class Behind:
    """A gate in a process of its own, and behind it a listener that keeps the bytes of every connection."""

    def __init__(self, folder, *words, files=None):
        self.home = home = folder / "server"
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
        limit = None if files is None else lambda: resource.setrlimit(resource.RLIMIT_NOFILE, files)
        self.log = home / "gate.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(gate, cwd=home, preexec_fn=limit, stderr=log)
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
                    taken.settimeout(20)  # longer than a slow machine takes to open hundreds of connections
                    self.seen.append(bytearray())
                    with contextlib.suppress(TimeoutError):
                        while data := taken.recv(2**16):
                            self.seen[-1].extend(data)
                            if self.seen[-1].endswith((b"0\r\n\r\n", b"whole")):
                                taken.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")

    def stranger(self):
        """A connection that never begins TLS."""
        made = socket.create_connection(("127.0.0.1", self.port))
        made.settimeout(20)
        return made

    def all_but_secured(self):
        """A stranger, and the last bytes that its TLS begins with."""
        made, come, to_send = self.stranger(), ssl.MemoryBIO(), ssl.MemoryBIO()
        begun = self.trusted.wrap_bio(come, to_send, server_hostname="127.0.0.1")
        while True:
            try:
                begun.do_handshake()
            except ssl.SSLWantReadError:
                made.sendall(to_send.read())
                come.write(made.recv(2**16))
            else:
                return made, to_send.read()

    def files(self):
        """How many files the gate has open."""
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())

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
    given = getattr(request, "param", ())
    made = Behind(tmp_path, files=given) if given and isinstance(given[0], int) else Behind(tmp_path, *given)
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


BAD_CHUNK = b"5\r\nbegun\r\nno length\r\n"


def test_what_turns_out_to_be_no_request_ends_what_was_begun_for_it(behind):
    """Who sent it is told, and may stay a while; the SuperLink does not wait for the rest of it."""
    with behind.asked(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + BAD_CHUNK) as outside:
        assert outside.recv(12)[-3:] == b"400"
        began = time.monotonic()
        assert behind.status(HEAD + b"Content-Length: 5\r\n\r\nwhole") == b"200"
        assert time.monotonic() - began < 10


def test_what_is_no_request_once_it_is_answered_ends_the_connection_in_silence(behind):
    """Strangers would otherwise fill the log with errors of the gate's own."""
    with behind.asked(b"GET / HTTP/1.1\r\nHost: gate\r\nTransfer-Encoding: chunked\r\n\r\n") as outside:
        assert outside.recv(1000).startswith(b"HTTP/1.1 403")
        outside.sendall(BAD_CHUNK)
        with contextlib.suppress(ConnectionResetError):
            assert outside.recv(1) == b""
    assert behind.status(HEAD + b"Content-Length: 5\r\n\r\nwhole") == b"200"
    told = behind.log.read_text()
    assert "Invalid HTTP request" in told
    assert "Traceback" not in told


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


FEW_FILES = pytest.mark.parametrize("behind", [(128, 256)], indirect=True, ids=["128 of 256 files"])
WHOLE = HEAD + b"Content-Length: 5\r\n\r\nwhole"


@FEW_FILES
def test_the_gate_may_open_as_many_files_as_it_is_allowed_to(behind):
    assert resource.prlimit(behind.process.pid, resource.RLIMIT_NOFILE) == (256, 256)


@FEW_FILES
def test_more_strangers_than_files_that_never_begin_tls_lock_nobody_out(behind):
    """Each holds a file before anybody can know who it is; the gate may open 256, and there are 400."""
    with contextlib.ExitStack() as held, behind.asked(HEAD) as known:
        strangers = [held.enter_context(behind.stranger()) for _ in range(400)]
        began = time.monotonic()
        assert [behind.status(WHOLE) for _ in range(5)] == [b"200"] * 5
        assert time.monotonic() - began < 20
        known.sendall(b"Content-Length: 5\r\n\r\nwhole")
        assert known.recv(12)[-3:] == b"200", "who spoke TLS before them keeps its place"
        assert strangers[0].recv(1) == b"", "the oldest go first"
        strangers[-1].settimeout(0.5)
        with pytest.raises(TimeoutError):
            strangers[-1].recv(1)


@FEW_FILES
def test_strangers_that_begin_tls_and_never_end_its_beginning_lock_nobody_out(behind):
    with contextlib.ExitStack() as held:
        for _ in range(300):
            held.enter_context(behind.stranger()).sendall(b"\x16\x03\x01\x02\x00\x01")  # how a client's hello begins
        assert behind.status(WHOLE) == b"200"


@FEW_FILES
def test_strangers_that_end_the_beginning_of_tls_at_one_time_hold_no_more_places(behind):
    """Each takes the place of another: not all of them that of the one who has the least time left."""
    with contextlib.ExitStack() as held:
        for _ in range(6):
            together = [behind.all_but_secured() for _ in range(28)]
            behind.process.send_signal(signal.SIGSTOP)  # so that all are there when it looks next
            for stranger, last in together:
                held.enter_context(stranger).sendall(last)
            behind.process.send_signal(signal.SIGCONT)
        assert behind.status(WHOLE) == b"200"
        assert behind.files() < 64 + 28 + 20, "64 may be without a request; some are the gate's own"


@IMPATIENT
def test_a_connection_that_never_begins_tls_is_given_up(behind):
    with behind.stranger() as stranger:
        began = time.monotonic()
        assert stranger.recv(1) == b""
        assert 1 < time.monotonic() - began < 10


def test_a_port_that_is_taken_is_told_in_one_line(behind):
    words = ["--host", "127.0.0.1", "--port", str(behind.port), "--superlink", "1"]
    gate = [sys.executable, "-m", "fulcrum.engines.flower.gate", *words]
    done = subprocess.run(gate, cwd=behind.home, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    told = f"cannot listen on 127.0.0.1 port {behind.port}: Address already in use. Give another --port\n"
    assert done.stderr == told


def test_what_is_no_tls_is_not_answered(behind):
    with behind.stranger() as stranger:
        stranger.sendall(WHOLE)
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in stranger.recv(100)
    assert behind.seen == []
    assert behind.status(WHOLE) == b"200"
