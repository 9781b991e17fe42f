"""Processes on one machine: found by what they were started with, and gone when they were ended."""

import os
import socket
import subprocess
import sys
import time

import pytest
from error_codes import coded

import fulcrum
from fulcrum.engines import local_sites
from fulcrum.engines.local_sites import LocalSites, RoundWatch, end_all, free_port, processes, wait_for_ports
from fulcrum.engines.site_folders import Deployment
from fulcrum.errors import EngineError
from fulcrum.server.run_results import RoundResult

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")

LISTENER = """
import socket, threading, time
for _ in range(8):
    threading.Thread(target=time.sleep, args=(600,)).start()
taken = socket.create_server(("127.0.0.1", 0))
room = bytearray(2**28)  # to be given back first, which takes its time
print(taken.getsockname()[1], flush=True)
taken.accept()
"""


def test_no_port_of_processes_that_were_ended_takes_a_connection():
    """A new server waits for its port to be taken: one that is about to go would be mistaken for it."""
    mark = f"FULCRUM_TESTED=by-{os.getpid()}"
    name, _, value = mark.partition("=")
    for _ in range(3):
        started = subprocess.Popen(
            [sys.executable, "-c", LISTENER], env=os.environ | {name: value}, stdout=subprocess.PIPE, text=True
        )
        with started:
            port = int(started.stdout.readline())
            assert processes("environ", mark.encode()) == [started.pid]
            end_all(lambda: processes("environ", mark.encode()))
            with socket.socket() as asking:
                assert asking.connect_ex(("127.0.0.1", port)) != 0
            assert processes("environ", mark.encode()) == []


class Sites(LocalSites):
    """Sites of which each is one line of Python."""

    def command(self, name):
        return [sys.executable, "-c", name]

    def environment(self, name):
        return {"FULCRUM_TESTED_SITE": f"{os.getpid()} {name}"}

    def processes_of(self, name):
        return processes("environ", f"FULCRUM_TESTED_SITE={os.getpid()} {name}".encode())


def _check_until(sites, deadline):
    while time.monotonic() < deadline:
        sites.check()
        time.sleep(0.01)


ENDS, WAITS = (
    "raise SystemExit(3)",
    "import subprocess, sys; subprocess.run([sys.executable, '-c', '{}'])".format(
        "import time; time.sleep(600)"  # not input(), which ends at once where the tests have no standard input
    ),
)


@pytest.fixture
def deployment():
    return Deployment(plan=fulcrum.plan("severe", rounds=2, epsilon=1.0), train="unused")


def sites_in(folder, deployment, *names):
    for name in names:
        (folder / name).mkdir()
    return Sites(folder, deployment, names)


def test_a_process_that_ended_by_itself_is_told_of_with_its_log(tmp_path, deployment):
    with sites_in(tmp_path, deployment, ENDS) as sites:
        sites.start(ENDS)
        with pytest.raises(EngineError, check=coded("engine.site-ended", exit_code=3)):
            _check_until(sites, deadline=time.monotonic() + 10)


def test_no_process_of_a_site_outlives_the_with(tmp_path, deployment):
    """The process that a site started itself is ended too, and so is a site that was started twice."""
    with sites_in(tmp_path, deployment, WAITS) as sites:
        sites.start(WAITS)
        deadline = time.monotonic() + 60
        while len(sites.processes_of(WAITS)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        sites.check()
    assert sites.processes_of(WAITS) == []


def test_all_sites_are_killed_before_any_is_waited_for(tmp_path, deployment, monkeypatch):
    listed = []

    def recorded(list_processes):
        listed.append(set(list_processes()))
        end_all(list_processes)

    monkeypatch.setattr(local_sites, "end_all", recorded)
    first, second = ("import time; time.sleep(600)", "import time; time.sleep(601)")
    with sites_in(tmp_path, deployment, first, second) as sites:
        started = set()
        for name in (first, second):
            sites.start(name)
            started.add(sites._processes[name].pid)
        deadline = time.monotonic() + 60
        while {pid for name in (first, second) for pid in sites.processes_of(name)} != started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert listed == [started, set()]


def test_a_federation_that_finishes_no_round_is_given_up(tmp_path):
    heard = []
    watch = RoundWatch(tmp_path, on_round=heard.append, stall=0.2)
    assert watch.seconds == 0
    time.sleep(0.15)
    watch.hear(RoundResult(round=1))
    time.sleep(0.1)
    watch.check()
    watch.hear(RoundResult(round=2))
    assert [result.round for result in heard] == [1, 2]
    assert watch.seconds >= 0.1
    time.sleep(0.3)
    with pytest.raises(EngineError, check=coded("engine.rounds-stalled", seconds=0.2)):
        watch.check()


def test_a_free_port_has_free_ports_after_it():
    port = free_port(following=2)
    for offset in range(3):
        with socket.socket() as taken:
            taken.bind(("", port + offset))


def test_a_server_is_waited_for_until_it_listens(tmp_path, deployment, monkeypatch):
    port = free_port()
    listens = f"import socket, time; time.sleep(0.5); s = socket.create_server(('127.0.0.1', {port})); time.sleep(60)"
    with sites_in(tmp_path, deployment, "server") as sites:
        monkeypatch.setattr(sites, "command", lambda _: [sys.executable, "-c", listens])
        sites.start("server")
        wait_for_ports([port], sites.check, tmp_path / "log")
        with socket.create_connection(("127.0.0.1", port), 1.0):
            pass


def test_a_server_that_ends_or_never_listens_is_told_of_with_its_log(tmp_path, deployment, monkeypatch):
    with sites_in(tmp_path, deployment, ENDS) as sites:
        sites.start(ENDS)
        with pytest.raises(EngineError, check=coded("engine.site-ended", exit_code=3)):
            wait_for_ports([free_port()], sites.check, tmp_path / "log")
    monkeypatch.setattr(local_sites, "_LONGEST_START", 0.2)
    with pytest.raises(EngineError, check=coded("engine.server-silent", log=tmp_path / "log")):
        wait_for_ports([free_port()], lambda: None, tmp_path / "log")
