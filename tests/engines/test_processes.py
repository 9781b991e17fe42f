"""Processes on one machine: found by what they were started with, and gone when they were ended."""

import os
import socket
import subprocess
import sys

import pytest

from fulcrum.engines.child_processes import check_running, end_all, processes
from fulcrum.errors import EngineError

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


def test_a_process_that_ended_by_itself_is_told_of_with_its_log(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as ended:
        ended.wait()
        with pytest.raises(EngineError, match=r"the process of 'lille' ended with code 3\. See .*lille/output\.log"):
            check_running({"lille": ended}, tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        check_running({"lille": running}, tmp_path)
