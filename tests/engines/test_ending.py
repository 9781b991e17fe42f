"""A request to end stops the processes of a run, also if the request comes twice."""

import signal
import subprocess
import sys

RUN = """
import contextlib, sys, time
from fulcrum.engines.local_sites import ending_on_signals

@contextlib.contextmanager
def sites():
    try:
        yield
    finally:
        print("stopping", flush=True)
        time.sleep(1.0)
        print("stopped", flush=True)

with ending_on_signals(), sites():
    print("running", flush=True)
    time.sleep(60)
"""


def test_a_second_request_to_end_does_not_cut_the_end_short():
    process = subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[0] == "stopped\n"
