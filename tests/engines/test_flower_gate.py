"""The gate before a SuperLink, as strangers and SuperNodes meet it over raw sockets."""

import contextlib
import datetime
import resource
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
import warnings
from base64 import b64encode
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower")
pytest.importorskip("cryptography", reason="needs the extra flower")

import httpx
from flwr.server.superlink.linkstate.linkstate_factory import LinkStateFactory
from flwr.supercore.date import now
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.supercore.protobuf.client import ProtobufRequestContext
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fulcrum.engines.flower import gate
from fulcrum.engines.flower.gate import (
    _HOLD_INTERVAL,
    _LONGEST_HOLD,
    _MOST_WAITING,
    _PART,
    _REQUESTS_OF_A_PEER,
    _SMALL,
    DATABASE,
    Sizes,
)
from fulcrum.engines.flower.kits.certificates import AUTHORITY, CERTIFICATE, KEY, write_certificates
from fulcrum.engines.flower.server_side import flower_version
from fulcrum.engines.flower.server_side.node_identity import RegisteredNodes
from fulcrum.engines.local_sites import free_port

PRIVATE, PUBLIC = generate_key_pairs()


def registry(database):
    """Flower's own LinkState on a database, where a SuperLink has its nodes."""
    database = str(database)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the migrations that Flower runs
        return LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory(database)).state()


def registered(state, public):
    return state.create_node("owner", "owner", public_key_to_bytes(public), 30)


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A SuperLink's database with one node that is registered, as Flower writes it."""
    path = tmp_path_factory.mktemp("superlink") / DATABASE
    registered(registry(path), PUBLIC)
    with contextlib.closing(sqlite3.connect(path)) as opened:
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


def headers_of(private=PRIVATE, **changed):
    """The headers that a SuperNode of Flower signs; `changed` puts others in their place, None leaves one out."""
    request = httpx.Request("POST", "https://gate/")
    context = ProtobufRequestContext(rpc_method="", message=None, request=request)
    NodeAuthHttpInterceptor(private, private.public_key()).intercept(context, lambda _: None)
    names = ("flwr-public-key", "flwr-timestamp", "flwr-signature")
    found = {name: request.headers[name] for name in names} | {f"flwr-{key}": value for key, value in changed.items()}
    return "".join(f"{name}: {value}\r\n" for name, value in found.items() if value is not None).encode()


def head(question="get-run", *, private=PRIVATE, **changed):
    return f"POST /v1/fleet/{question} HTTP/1.1\r\nHost: gate\r\n".encode() + headers_of(private, **changed)


HEAD = head()


class Behind:
    """A gate in a process of its own, and behind it a listener that keeps the bytes of every connection."""

    def __init__(self, folder, database, *words, files=None, own=None):
        self.home = home = folder / "server"
        home.mkdir()
        write_certificates(folder, home, "127.0.0.1")
        shutil.copy(folder / AUTHORITY, home / AUTHORITY)
        self.trusted = ssl.create_default_context(cafile=folder / AUTHORITY)
        self.own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.own.load_cert_chain((own or home) / CERTIFICATE, (own or home) / KEY)
        if database is not None:
            shutil.copy(database, home / DATABASE)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.seen, self.port = [], free_port()
        self.answers = lambda asked: b""
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
                            if self.seen[-1].endswith(b"whole"):
                                body = self.answers(len(self.seen))
                                head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
                                taken.sendall(head % len(body) + body)

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
def behind(tmp_path, database, request):
    given = getattr(request, "param", ())
    files = given if given and isinstance(given[0], int) else None
    with ending(Behind(tmp_path, database, *(() if files else given), files=files)) as made:
        yield made


@contextlib.contextmanager
def ending(made):
    try:
        yield made
    finally:
        made.process.terminate()
        made.process.wait(30)
        made.listener.close()


WHOLE = HEAD + b"Content-Length: 5\r\n\r\nwhole"


def test_a_request_of_a_registered_supernode_is_handed_on_as_it_came(behind):
    assert behind.status(WHOLE) == b"200"
    [seen] = behind.seen
    assert seen.startswith(b"POST /v1/fleet/get-run HTTP/1.1\r\n")
    assert seen.endswith(b"\r\n\r\nwhole")
    lines = bytes(seen).lower()
    assert all(line in lines for line in headers_of().lower().split(b"\r\n") if line.startswith(b"flwr-public-key"))


NEWS = head("pull-messages") + b"Content-Length: 5\r\n\r\nwhole"


def test_a_question_for_messages_is_held_until_there_is_one(behind):
    behind.answers = lambda asked: b"message" if asked == 4 else b""
    began = time.monotonic()
    with behind.asked(NEWS) as outside:
        answer = b""
        while not answer.endswith(b"message") and (part := outside.recv(2**16)):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\nmessage")
    assert time.monotonic() - began >= 3 * _HOLD_INTERVAL
    assert len(behind.seen) == 4, "the SuperLink gives a message once: it is not asked again"
    assert len({bytes(data) for data in behind.seen}) == 1


def test_a_second_question_of_a_supernode_ends_the_first_and_gets_the_message(behind):
    """The connection of the first may be dead: a message for a dead connection is lost."""
    behind.answers = lambda asked: b"message" if asked == 5 else b""
    with behind.asked(NEWS) as first:
        while not behind.seen:
            time.sleep(0.01)
        began = time.monotonic()
        with behind.asked(NEWS) as second:
            assert b"content-length: 0\r\n" in first.recv(2**16)
            assert time.monotonic() - began < _LONGEST_HOLD / 2
            answer = b""
            while not answer.endswith(b"message") and (part := second.recv(2**16)):
                answer += part
    assert answer.endswith(b"\r\n\r\nmessage")


def test_nobody_asks_for_the_messages_of_a_supernode_that_has_left(behind):
    with behind.asked(NEWS):
        deadline = time.monotonic() + 20
        while not behind.seen and time.monotonic() < deadline:
            time.sleep(0.01)
    time.sleep(2 * _HOLD_INTERVAL)
    asked = len(behind.seen)
    assert asked in (1, 2)
    time.sleep(3 * _HOLD_INTERVAL)
    assert len(behind.seen) == asked


def test_a_request_that_is_cut_short_is_not_handed_on_as_a_whole_one(behind):
    assert behind.status(WHOLE) == b"200"
    with behind.asked(HEAD + b"Content-Length: 10\r\n\r\nbegun"):
        time.sleep(0.5)
    time.sleep(1)
    assert [bytes(data).rpartition(b"\r\n\r\n")[2] for data in behind.seen] == [b"whole", b"begun"]
    assert b"content-length: 10" in bytes(behind.seen[1]).lower()


@pytest.mark.parametrize(
    "framing",
    [b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b""],
    ids=["in chunks", "in two ways", "in none"],
)
def test_a_request_that_does_not_say_how_long_it_is_goes_no_further(behind, framing):
    """In chunks, three of 1 GB each filled the SuperLink's memory."""
    assert behind.status(HEAD + framing + b"\r\na\r\nwhole POST\r\n0\r\n\r\n") in (b"400", b"403", b"411")
    assert behind.seen == []


FOREIGN = generate_key_pairs()[0]


def timed(moment):
    """A time that the registered key signed."""
    text = moment.isoformat()
    return {"timestamp": text, "signature": b64encode(sign_message(PRIVATE, text.encode())).decode()}


STRANGERS = {
    "no key": {"public-key": None},
    "no signature": {"signature": None},
    "no time": {"timestamp": None},
    "another's key": {"private": FOREIGN},
    "a signature by another": {"signature": b64encode(sign_message(FOREIGN, b"2026")).decode()},
    "a signature of another time": {"timestamp": (now() + datetime.timedelta(seconds=1)).isoformat()},
    "no base64": {"signature": "%%%"},
    "a key that is none": {"public-key": b64encode(b"none").decode()},
    "an old time": timed(now() - datetime.timedelta(hours=1)),
    "a time to come": timed(now() + datetime.timedelta(hours=1)),
    "a time without a zone": timed(now().replace(tzinfo=None)),
    "no time at all": {"timestamp": "now"},
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory, database):
    """A gate for tests that leave nothing behind."""
    with ending(Behind(tmp_path_factory.mktemp("shared"), database)) as made:
        yield made


@pytest.mark.parametrize("who", STRANGERS)
def test_nothing_of_a_stranger_is_handed_on(shared, who):
    """Not a byte: the SuperLink takes a request into memory before it looks at who sent it."""
    before = len(shared.seen)
    request = head("push-object", **STRANGERS[who]) + b"Content-Length: 5000000\r\n\r\n" + bytes(60_000)
    assert shared.status(request) == b"401"
    assert len(shared.seen) == before


def test_a_header_that_is_there_twice_is_none(shared):
    """The gate might go by one of them, and the SuperLink by the other."""
    before = len(shared.seen)
    twice = headers_of(FOREIGN).split(b"\r\n")[0] + b"\r\n"
    assert shared.status(HEAD + twice + b"Content-Length: 5\r\n\r\nwhole") == b"401"
    assert len(shared.seen) == before


def test_a_supernode_that_is_not_registered_is_told_so_by_flowers_own_error(shared):
    with shared.asked(head("activate-node", private=FOREIGN) + b"Content-Length: 5\r\n\r\nwhole") as outside:
        said = b""
        while b"}" not in said:
            said += outside.recv(4096)
    assert said.startswith(b"HTTP/1.1 412")
    error = FlowerError.from_json(said.rpartition(b"\r\n\r\n")[2].decode())
    assert (error.code, error.message) == (
        ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED,
        "this SuperNode's key is not registered. On the server's machine: ./register.sh",
    )


def test_a_registered_supernode_whose_clock_is_wrong_is_not_told_that_it_is_not_registered(shared):
    old = timed(now() - datetime.timedelta(hours=1))
    assert shared.status(head("activate-node", **old) + b"Content-Length: 5\r\n\r\nwhole") == b"401"


ELSEWHERE = [
    b"POST /v1/fleet/x/../../control/start-run",
    b"POST /v1/fleet/pull-messages/../../control/start-run",
    b"POST /v1/fleet/pull-messages%2f..%2f..%2fcontrol%2fstart-run",
    b"POST /v1/fleet/../control/start-run",
    b"POST /v1/fleet/pull-messagesx",
    b"POST /v1/fleet/pull-messages/",
    b"POST /v1/fleet/register-node",
    b"POST /v1/fleet/unregister-node",
    b"POST /v1/fleet/",
    b"POST //v1/fleet/pull-messages",
    b"POST /v1/control/start-run",
    b"POST /v1/runtime/push-object",
    b"POST /x?/v1/fleet/pull-messages",
    b"POST /v1/fleet/pull-messages?run=1",
    b"GET /v1/fleet/pull-messages",
    b"PUT /v1/fleet/pull-messages",
]


@pytest.mark.parametrize("line", ELSEWHERE, ids=bytes.decode)
def test_what_no_supernode_asks_is_refused_though_one_asks_it(shared, line):
    before = len(shared.seen)
    request = line + b" HTTP/1.1\r\nHost: gate\r\n" + headers_of() + b"Content-Length: 5\r\n\r\nwhole"
    assert shared.status(request) == b"403"
    assert len(shared.seen) == before


def test_a_superlink_that_another_authority_signed_is_handed_nothing(tmp_path, database):
    """Whoever takes the SuperLink's port on that machine would otherwise get what silos send."""
    (tmp_path / "other" / "server").mkdir(parents=True)
    write_certificates(tmp_path / "other", tmp_path / "other" / "server", "127.0.0.1")
    (tmp_path / "gate").mkdir()
    with ending(Behind(tmp_path / "gate", database, own=tmp_path / "other" / "server")) as made:
        assert made.status(WHOLE) == b"502"
        assert not any(made.seen)


def test_who_is_registered_is_what_the_superlinks_database_says_now(tmp_path, database):
    nodes = RegisteredNodes(tmp_path / DATABASE)
    own, foreign = public_key_to_bytes(PUBLIC), public_key_to_bytes(FOREIGN.public_key())
    assert nodes.has(own) is None, "there is no database yet"
    shutil.copy(database, tmp_path / DATABASE)
    time.sleep(0.1)
    assert (nodes.has(own), nodes.has(foreign), nodes.has(None)) == (True, False, False)
    state = registry(tmp_path / DATABASE)
    node = registered(state, FOREIGN.public_key())
    time.sleep(0.1)
    assert nodes.has(foreign), "a SuperNode may start as soon as it is registered"
    state.delete_node("owner", node)
    time.sleep(1.1)
    assert (nodes.has(own), nodes.has(foreign)) == (True, False)


def test_without_a_database_a_supernode_is_told_to_come_again(tmp_path):
    with ending(Behind(tmp_path, None)) as made:
        assert made.status(WHOLE) == b"502"
        assert made.seen == []


@pytest.mark.parametrize("behind", [("--largest-answer", 100_000)], indirect=True, ids=["answers of 100,000 bytes"])
def test_a_request_is_as_long_as_the_plan_allows_and_no_longer(behind):
    sizes = Sizes(100_000)
    assert sizes.request(b"push-object") == _SMALL + 100_000
    for question, most in ((question, sizes.request(question.encode())) for question in ("push-object", "get-run")):
        for length, status in ((most + 1, b"413"), (2**40, b"413"), (most, b"200")):
            content = bytes(most - 5) + b"whole" if length == most else b""
            assert behind.status(head(question) + f"Content-Length: {length}\r\n\r\n".encode() + content) == status
    assert len(behind.seen) == 2


def test_sizes_follow_from_the_plans_longest_answer():
    few, many, unknown = Sizes(1_000), Sizes(100 * _PART), Sizes()
    assert (
        few.request(b"push-object") < many.request(b"push-object") == unknown.request(b"push-object") == _PART + _SMALL
    )
    assert few.request(b"push-messages") < many.request(b"push-messages") == _SMALL + 100 * 200
    assert {sizes.request(b"pull-object") for sizes in (few, many, unknown)} == {_SMALL}
    assert few.answer(b"pull-object") == _PART + _SMALL


@pytest.mark.parametrize("behind", [("--patience", 8)], indirect=True, ids=["patience 8"])
def test_one_supernode_has_so_many_requests_under_way_and_no_more(behind):
    """Requests that say how long they are and then send nothing hold room, and are given up when they are too slow."""
    begun = head("push-object") + f"Content-Length: {_PART}\r\n\r\n".encode()
    with contextlib.ExitStack() as held:
        for _ in range(_REQUESTS_OF_A_PEER):
            held.enter_context(behind.asked(begun))
        assert _status_once(b"503", behind) == b"503"
    assert _status_once(b"200", behind) == b"200"


def _status_once(wanted, behind):
    """The status of a whole request as soon as it is the wanted one; the last status where that takes too long."""
    deadline = time.monotonic() + 20
    while (status := behind.status(WHOLE)) != wanted and time.monotonic() < deadline:
        time.sleep(0.1)
    return status


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
    "begun", [b"POST /v1/fleet/pull-", head() + b"Content-Length: 5000\r\n\r\n"], ids=["the head", "the content"]
)
def test_whoever_sends_a_byte_now_and_then_is_given_up(behind, begun):
    """A request that never ends costs its sender nothing, and would hold a connection for ever."""
    with behind.asked(begun) as outside:
        assert 1 < seconds_until_dropped(outside, b"x") < 10
    assert not any(data.endswith(b"x" * 5000) for data in behind.seen)


@IMPATIENT
def test_whoever_sends_much_has_the_time_that_it_takes(behind):
    content = bytes(99_995) + b"whole"
    with behind.asked(head("push-object") + b"Content-Length: 100000\r\n\r\n") as outside:
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
    with (
        contextlib.ExitStack() as held,
        behind.asked(head("push-object") + b"Content-Length: 200000\r\n\r\n") as outside,
    ):
        outside.sendall(content[:100_000])
        strangers = [held.enter_context(behind.asked(b"")) for _ in range(_MOST_WAITING + 8)]
        outside.sendall(content[100_000:])
        assert outside.recv(12)[-3:] == b"200"
        assert strangers[0].recv(1) == b""


FEW_FILES = pytest.mark.parametrize("behind", [(128, 256)], indirect=True, ids=["128 of 256 files"])


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


def test_a_gate_in_front_of_another_version_of_flower_does_not_start(monkeypatch):
    words = ["gate", "--host", "127.0.0.1", "--port", "1", "--superlink", "2"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(flower_version, "version", lambda _: "1.42.0")
    with pytest.raises(SystemExit, match=r"1\.42\.0"):
        gate.main()
