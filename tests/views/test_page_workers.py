"""The processes behind the page: what they answer, and how work ends that is late or that nobody waits for."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from coroutines import run_coroutine
from forking import forks, in_child

from fulcrum.readers.federation_json import Place, Roster
from fulcrum.readers.profiles import profile
from fulcrum.views.page.page_app import application
from fulcrum.views.page.page_guard import hosts_of
from fulcrum.views.page.page_work import Job, answer
from fulcrum.views.page.page_worker import MOST_MEMORY
from fulcrum.views.page.page_workers import Workers

pytest.importorskip("vl_convert", reason="the page needs vl-convert-python")


def question(silos, *, regions=20, differ=True, **settings):
    """The body of a question about silos that each declare an epsilon of their own, with a promise inside."""
    declared = np.random.default_rng(1).uniform(0.3, 0.9, silos) if differ else np.full(silos, 0.5)
    nodes = [f"r{number}" for number in range(regions)]
    roster = Roster(
        name="apart",
        silos=[f"s{number}" for number in range(silos)],
        tiers=[Place(name="region", nodes=nodes, codes=[number % regions for number in range(silos)])],
        records=[100.0 + number for number in range(silos)],
        epsilon=declared.tolist(),
    )
    return msgspec.json.encode({"federation": roster, "settings": {"epsilon_inside": 3.0} | settings})


SMALL = Job(kind="plan", body=question(4, regions=2, differ=False))
LONG = Job(kind="download", name="report.html", body=question(60_000))
"""A report that draws 13 choices of weights, each worked out for 60,000 silos: ten times the deadline on any machine."""


@pytest.fixture
def workers():
    made = Workers(deadline=4.0)
    yield made
    made.close()


def processes(workers):
    return [worker._process.pid for worker in workers._all]


def runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_answers_as_the_library_does_and_is_used_again():
    workers = Workers()
    first = workers.answer(SMALL)
    known = processes(workers)
    assert first == answer(SMALL)
    assert first.status == 200
    refused = workers.answer(Job(kind="plan", body=b"{"))
    assert refused == answer(Job(kind="plan", body=b"{"))
    assert (refused.status, "cannot be read" in json.loads(refused.body)["error"]) == (422, True)
    assert processes(workers) == known
    workers.close()
    assert not any(map(runs, known))


def test_work_that_is_late_is_ended_with_its_process(workers):
    assert workers.answer(SMALL).status == 200
    [pid] = processes(workers)
    began = time.monotonic()
    reply = workers.answer(LONG)
    assert 4 < time.monotonic() - began < 9
    told = "this takes longer than the 4 s that the page gives a question. Use: fulcrum plan"
    assert (reply.status, json.loads(reply.body)) == (503, {"error": told})
    assert not runs(pid)
    assert workers.answer(SMALL).status == 200, "another process takes its place"


def test_work_that_nobody_waits_for_is_ended_with_its_process():
    workers = Workers(deadline=60.0)
    assert workers.answer(SMALL).status == 200
    [pid] = processes(workers)
    left = threading.Event()
    threading.Timer(0.5, left.set).start()
    began = time.monotonic()
    workers.answer(LONG, left.is_set)
    assert time.monotonic() - began < 6
    assert not runs(pid)
    workers.close()


def test_a_browser_that_leaves_ends_its_question(tmp_path):
    """The work of a question went on for minutes after its browser had left."""
    pytest.importorskip("starlette", reason="the page needs starlette")
    app = application(profile("severe"), hosts=hosts_of("127.0.0.1"))
    parts = [{"type": "http.request", "body": LONG.body}, {"type": "http.disconnect"}]
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "scheme": "http", "path": "/download/report.html", "headers": headers}
    scope |= {
        "raw_path": b"/download/report.html",
        "query_string": b"",
        "root_path": "",
        "client": None,
        "server": None,
    }
    statuses = []

    async def receive():
        part = parts.pop(0)
        await asyncio.sleep(3.0 if part["type"] == "http.disconnect" else 0.0)
        return part

    async def send(message):
        statuses.append(message.get("status"))

    before, began = children(), time.monotonic()
    run_coroutine(app(scope, receive, send))
    assert time.monotonic() - began < 12
    assert (parts, statuses[0]) == ([], 400)
    assert children() <= before


def children():
    """The processes that work for pages of this process."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            stat, words = path.read_text(), (path.parent / "cmdline").read_bytes()
            if int(stat.rpartition(")")[2].split()[1]) == os.getpid() and b"fulcrum.views.page.page_worker" in words:
                found.add(path.parent.name)
    return found


def test_a_short_question_that_nobody_waits_for_keeps_its_process(workers):
    """A slider leaves many of them behind."""
    assert workers.answer(SMALL).status == 200
    known = processes(workers)
    asked = []

    def left():
        asked.append(True)
        return len(asked) > 1

    workers.answer(SMALL, left)
    assert workers.answer(SMALL).status == 200
    assert processes(workers) == known


def test_what_was_left_before_it_began_is_not_begun(workers):
    assert workers.answer(LONG, lambda: True).status == 400
    assert processes(workers) == []


def test_a_process_that_dies_is_told_in_one_line_and_replaced(workers):
    assert workers.answer(SMALL).status == 200
    [pid] = processes(workers)
    os.kill(pid, 9)
    reply = workers.answer(SMALL)
    if reply.status != 200:  # the death is noticed as it is asked
        assert json.loads(reply.body)["error"].startswith("the process that worked on this ended. Ask again")
        reply = workers.answer(SMALL)
    assert reply.status == 200


def test_no_process_outlives_the_server_that_it_works_for(tmp_path):
    code = (
        "import sys; from fulcrum.views.page.page_workers import Workers; from fulcrum.views.page.page_work import Job\n"
        "workers = Workers(); workers.answer(Job(kind='plan', body=b'{}'))\n"
        "print([worker._process.pid for worker in workers._all][0], flush=True)\n"
    )
    for end in ("sys.exit()", "import os; os._exit(0)"):
        ran = subprocess.run([sys.executable, "-c", code + end], capture_output=True, text=True, timeout=60)
        pid, deadline = int(ran.stdout), time.monotonic() + 10
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the limit needs /proc")
def test_memory_beyond_the_limit_is_refused_and_told_in_one_line():
    code = (
        "import json; from fulcrum.views.page import page_work, page_worker\n"
        f"page_worker._limit_memory(); page_work.read_question = lambda body: bytearray({MOST_MEMORY + 2**26})\n"
        "print(page_work.answer(page_work.Job(kind='plan', body=b'')).body.decode())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(ran.stdout) == {
        "error": "this needs more memory than the page gives a question. Use: fulcrum plan"
    }


def test_nothing_in_the_folder_of_the_page_is_taken_for_a_module(tmp_path, monkeypatch):
    (tmp_path / "msgspec.py").write_text("raise SystemExit('taken')")
    monkeypatch.chdir(tmp_path)
    workers = Workers()
    assert workers.answer(SMALL).status == 200
    workers.close()


@pytest.mark.parametrize("kind", ["plan", "later"])
def test_least_noise_weights_of_silos_that_all_differ_are_bounded_as_weights_between_are(kind):
    """Of 10,000 such silos a question took half a minute, of 100,000 minutes and gigabytes."""
    began = time.monotonic()
    reply = answer(Job(kind=kind, body=question(10_000, weights="least-noise")))
    assert time.monotonic() - began < 5
    assert (reply.status, json.loads(reply.body)["error"]) == (
        422,
        "the page does not compute weights of least noise for two targets, above and inside the region, where more than "
        "1,000 silos differ in their region or their declared epsilon: that takes minutes. Choose another rule for "
        "weights, or run: fulcrum plan",
    )


def test_least_noise_weights_of_many_silos_that_are_alike_are_worked_out():
    reply = answer(Job(kind="plan", body=question(10_000, differ=False, weights="least-noise")))
    assert reply.status == 200


def test_weights_that_would_take_minutes_are_left_out_of_what_comes_later():
    began = time.monotonic()
    reply = answer(Job(kind="later", body=question(10_000)))
    assert time.monotonic() - began < 10
    assert (reply.status, json.loads(reply.body)["weights"]) == (200, None)


@forks
def test_a_forked_child_ends_no_process_of_its_parent():
    workers = Workers(deadline=5.0)
    worker = workers._start()
    try:
        assert in_child(worker.end) == "None"
        assert worker._process.poll() is None
    finally:
        workers.close()
    assert worker._process.poll() is not None
