"""Training in a process of its own: real processes that die, hang, fill up, close and fork, and a silo that answers."""

import fcntl
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from site_folder import released, rewritten

from fulcrum.aggregation.release_opening import unseal
from fulcrum.core.messages.model_message import pack_model
from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.core.silo.site import read_site
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.training import training_worker, worker_output
from fulcrum.core.training.assignment import Assignment, TrainingFailedError
from fulcrum.core.training.training_worker import TrainingWorker

pytest.importorskip("cryptography", reason="needs the extra secure")
pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")

MODULE = """
import json, os, signal, sys, time
from pathlib import Path
import numpy as np

trainings = 0  # lives as long as the process

def start(options):
    return {}

def train(model, assignment):
    global trainings
    trainings += 1
    conduct = Path(__file__).with_name("conduct").read_text()
    Path(__file__).with_name("pid").write_text(str(os.getpid()))
    scope = globals() | {"model": model, "assignment": assignment}
    exec(conduct, scope)
    return scope.get("result", {name: array + trainings for name, array in model.items()})
"""
"""Does as a file beside it says, and then adds how often it was called."""


@pytest.fixture
def world(silo, monkeypatch):
    return World(silo, monkeypatch)


class World:
    """A silo that trains by the module above."""

    def __init__(self, home, monkeypatch):
        self.home, self.folder = home, home.parent / "module"
        self.folder.mkdir()
        (self.folder / "conducted_training.py").write_text(MODULE)
        monkeypatch.syspath_prepend(str(self.folder))
        rewritten(home, "fulcrum.engines.built_in_training", "conducted_training")
        self.site = read_site(home, "silo")
        self.worker = TrainingWorker("conducted_training", seconds=60)
        self.model = {"head": np.arange(6.0).reshape(2, 3), "bias": np.full(1, 2.0)}

    def conduct(self, code):
        (self.folder / "conduct").write_text(code)

    def update(self, code="", number=1):
        """The update of a round, as all that training adds."""
        self.conduct(code)
        plan, options = self.site.plan, self.site.settings.options
        told = Assignment(silo="a", round_number=number, plan=plan, seed=0, options=options)
        return self.worker.update(self.model, told)

    def failure(self, code):
        with pytest.raises(TrainingFailedError) as caught:
            self.update(code)
        return caught.value

    def trainings(self):
        """How often the process that serves now has trained, once it has trained again."""
        update = self.update()
        assert {name: array.shape for name, array in update.items()} == {"head": (2, 3), "bias": (1,)}
        assert len({*update["head"].ravel(), *update["bias"]}) == 1
        return update["bias"][0]

    @property
    def pid(self):
        return int((self.folder / "pid").read_text())


def gone(pid):
    """Waits until a process has ended; whether it has."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


def open_files():
    """The names of the files that this process holds open."""
    return [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]


RAISED = [
    "raise ZeroDivisionError",
    "sys.exit(3)",
    "raise KeyboardInterrupt",
    "raise MemoryError",
    "np.zeros(2**50)",
    "raise GeneratorExit",
    "raise StopIteration",
    "raise BaseExceptionGroup('several', [SystemExit(1), ValueError('one')])",
    "raise ValueError('\\ud800\\n' * 10**5)",
    "raise ValueError('\\U0001F600' * 10**5)",
    "raise type('Mute', (Exception,), {'__str__': lambda self: sys.exit(4)})",
    "result = None",
    "result = 7",
    "result = {}",
    "result = {'head': None, 'bias': None}",
    "result = {'head': 'text', 'bias': model['bias']}",
    "result = {'head': model['head'] * 1j, 'bias': model['bias']}",
    "result = {'head': model['head'][1:], 'bias': model['bias']}",
    "result = {'head': model['head'].astype(object), 'bias': model['bias']}",
    "result = {**model, 'more': model['head']}",
    "result = iter(())",
    "(lambda f: f(f))(lambda f: f(f))",
]


def test_a_worker_that_raises_or_returns_what_does_not_fit_tells_why_and_goes_on(world):
    for conduct in RAISED:
        failure = world.failure(conduct)
        assert "\n" not in str(failure)
        assert "Traceback (most recent call last)" in failure.report or len(failure.report) >= 7_900, conduct
    assert "ZeroDivisionError" in world.failure(RAISED[0]).report
    assert world.trainings() == len(RAISED) + 2


DEATHS = {
    "os.kill(os.getpid(), signal.SIGKILL)": "killed by signal 9",
    "os._exit(0)": "exit code 0",
    "os._exit(7)": "exit code 7",
    "os.abort()": "killed by signal 6",
    "os.closerange(3, 4096)": "the training process failed",
    "os.truncate(next(f for f in range(3, 99) if 'memfd' in os.readlink(f'/proc/self/fd/{f}')), 8)": "process failed",
    "signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(9)": "killed by signal 14",
}


@pytest.mark.parametrize("conduct", DEATHS, ids=range(len(DEATHS)))
def test_a_worker_that_dies_is_told_and_started_anew_in_the_next_round(world, conduct):
    assert [world.trainings(), world.trainings()] == [1, 2]
    before = world.pid
    assert DEATHS[conduct] in str(world.failure(conduct))
    assert gone(before)
    assert world.trainings() == 1
    assert world.pid != before


@pytest.mark.parametrize("conduct", ["time.sleep(999)", "while True: pass", "os.kill(os.getpid(), signal.SIGSTOP)"])
def test_a_worker_that_hangs_is_ended_at_its_deadline(world, conduct):
    assert world.trainings() == 1
    before, world.worker._seconds, began = world.pid, 0.5, time.monotonic()
    assert "training was not over after 0.5 seconds" in str(world.failure(conduct))
    assert 0.5 <= time.monotonic() - began < 10
    assert gone(before)
    world.worker._seconds = 60.0
    assert world.trainings() == 1


def test_a_worker_may_take_no_more_memory_than_its_site_says(world):
    world.worker = TrainingWorker("conducted_training", seconds=60, gigabytes=8)
    assert "MemoryError" in world.failure("taken = bytearray(2**34)").report
    assert world.trainings() == 2
    limit = "import resource; assert resource.getrlimit(resource.RLIMIT_AS) == (2**33, 2**33)"
    world.update(f"{limit}; assert Path('/proc/self/oom_score_adj').read_text() == '1000\\n'")


def test_between_rounds_nothing_that_training_started_runs(world):
    """It would take the memory or the disk that is kept for the release."""
    beats = world.folder / "beats"
    beating = f"""
import threading
def beat():
    while True:
        with open({str(beats)!r}, "a") as file: file.write(str(os.getpid()) + " ")
        time.sleep(0.001)
threading.Thread(target=beat, daemon=True).start()
os.fork() or beat()
time.sleep(0.3)
"""
    for conduct in (beating, "time.sleep(0.3)"):  # stopped, and set going again
        before = len(beats.read_text().split()) if beats.exists() else 0
        world.update(conduct)
        after = beats.read_text().split()
        assert len(set(after[before:])) == 2
        time.sleep(0.3)
        assert beats.read_text().split() == after


def test_a_silo_without_memory_for_the_row_fails_the_training_alone(world, monkeypatch):
    assert world.trainings() == 1
    before = world.pid
    limits = resource.getrlimit(resource.RLIMIT_AS)
    world.model = {"head": np.zeros(2**24)}  # 2^27 bytes
    go, done = world.folder / "go", world.folder / "limited"

    def limit():
        while not go.exists():
            time.sleep(0.01)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**25, limits[1]))
        done.touch()

    thread = threading.Thread(target=limit)
    thread.start()
    waiting = "Path(__file__).with_name('go').touch()\nwhile not Path(__file__).with_name('limited').exists(): time.sleep(.01)"
    try:
        told = world.failure(waiting)
    finally:
        thread.join()
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert "the training process failed" in str(told)
    assert gone(before)


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
def test_a_silo_whose_standard_files_are_closed_trains(world, closed):
    world.conduct("print('heard by nobody', flush=True)")
    result = world.folder / "result"
    child = os.fork()
    if not child:
        for file in closed:
            os.close(file)
        try:
            told = Assignment(silo="a", round_number=1, plan=world.site.plan, seed=0, options={})
            worker = TrainingWorker("conducted_training", seconds=60)
            result.write_text(str(worker.update(world.model, told)["bias"]))
            worker.close()
        except BaseException as error:
            result.write_text(repr(error))
        os._exit(0)
    os.waitpid(child, 0)
    assert result.read_text() == "[1.]"


def test_a_child_of_the_silo_that_ends_does_not_end_its_worker(world):
    assert world.trainings() == 1
    child = os.fork()
    if not child:
        world.worker.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert world.trainings() == 2


def test_what_a_worker_prints_reaches_the_silos_log_and_nothing_else(world, capfd):
    world.update("print('o' * 10**6); print('e' * 10**6, file=sys.stderr); os.write(1, b'[\"end\"]\\n' * 9)")
    world.failure("print('last words', end=''); os._exit(3)")  # also without a flush
    out, err = capfd.readouterr()
    assert out == ""
    assert err.endswith("last words")
    assert min(err.count("o"), err.count("e")) >= 10**6


def test_a_silo_answers_whatever_training_prints_to_a_log_that_nobody_reads(world):
    world.conduct("os.write(2, b'printed' * 10**5)\nraise ValueError('x' * 9000)")
    path = os.pathsep.join([str(world.folder), *sys.path])
    reading, writing = os.pipe()
    command = [sys.executable, "-c", f"import logging; logging.basicConfig()\n{KILLED}", str(world.home)]
    silo = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=writing, stderr=writing)
    os.close(writing)
    try:
        assert silo.wait(60) == 0
    finally:
        silo.kill()
        silo.wait()
        with os.fdopen(reading, "rb") as log:
            told = log.read()
    assert released(world.home) == [1]
    assert told.startswith(b"printedprinted")
    assert b"training failed in round 1" in told  # the alarm has room behind what training printed


ALARMED = """
import logging, sys
import numpy as np
from fulcrum.core.silo.releasing import sound_alarm
logging.basicConfig(level=logging.INFO)
for number in range(1, 13):
    logging.info("an engine's own line on round %d", number)
    sound_alarm("training failed in round %d:\\n%s", number, "\\u00e9" * 9000)
"""


def test_alarms_leave_room_for_a_silos_own_lines_in_a_log_that_nobody_reads(world):
    reading, writing = os.pipe()
    silo = subprocess.Popen([sys.executable, "-c", ALARMED], stdout=writing, stderr=writing)
    os.close(writing)
    try:
        assert silo.wait(60) == 0  # neither a later line nor the end of the process waits for the reader
    finally:
        silo.kill()
        silo.wait()
        with os.fdopen(reading, "rb") as log:
            text = log.read().decode()
    assert "own line on round 12" in text
    assert 4 <= text.count("training failed in round") < 12


def test_a_worker_whose_output_has_no_reader_is_replaced_in_the_next_round(world):
    world.update()
    process = world.worker._running._passing_on
    process.kill()
    process.wait()
    world.update("print('o' * 10**6)")


def test_a_log_that_is_read_again_learns_how_much_was_left_out():
    (source, feed), (reading, target) = os.pipe(), os.pipe()
    passing_on = subprocess.Popen([sys.executable, "-IS", worker_output.__file__], stdin=source, stderr=target)
    for file in (source, target):
        os.close(file)
    with os.fdopen(reading, "rb", buffering=0) as log, os.fdopen(feed, "wb", buffering=0) as prints:
        for _ in range(300):
            prints.write(b"x" * 1000)  # goes on, though nobody reads
        deadline = time.monotonic() + 20
        while int.from_bytes(fcntl.ioctl(feed, termios.FIONREAD, bytes(4)), sys.byteorder):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.3)  # the last block is left out by now
        first = log.read(2**16)
        assert 2**14 < len(first) < 2**15
        prints.write(b"again")
        prints.close()
        told = (first + log.readall()).decode()
    assert passing_on.wait(20) == 0
    printed, note, after = told.partition("\n[the log took no more: ")
    assert note
    assert after == f"{300_000 - len(printed)} bytes that training printed are left out]\nagain"


def test_a_log_that_takes_nothing_does_not_keep_training_waiting():
    with Path("/dev/full").open("wb") as full:
        passing_on = subprocess.run(
            [sys.executable, "-IS", worker_output.__file__], input=b"x" * 10**6, stderr=full, timeout=30
        )
    assert passing_on.returncode == 0


LINES = """
import socket
channel = next(int(f.name) for f in Path('/proc/self/fd').iterdir() if f.is_symlink() and 'socket' in os.readlink(f))
channel = socket.socket(fileno=os.dup(channel))
"""


def test_what_training_itself_says_to_the_silo_is_no_answer_and_fails_no_later_round(world):
    assert world.trainings() == 1
    rows, end = """channel.sendall(b'["rows","1"]\\n')""", """channel.sendall(b'["end"]\\n')"""
    lies = f"{LINES}{rows}; time.sleep(0.3); {end}; time.sleep(0.3)"
    assert "answers no question" in str(world.failure(lies))
    assert world.trainings() == 1
    late = f"time.sleep(0.5), {end}, Path(__file__).with_name('late').touch(), os._exit(0)"
    session = "while os.getsid(child) != child: time.sleep(0.01)"  # before that, it would stand still with its parent
    world.update(f"{LINES}child = os.fork() or (os.setsid(), {late})\n{session}")
    deadline = time.monotonic() + 30
    while not (world.folder / "late").exists():  # the child of its own session does not stand still between the rounds
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert world.trainings() == 1


def test_a_child_that_comes_back_does_not_answer_and_one_that_outlives_its_parent_keeps_no_silo_waiting(world):
    world.update("os.fork() or sys.exit(3); assert os.waitstatus_to_exitcode(os.wait()[1]) == 3")
    assert world.update("os.fork()")["bias"] == 2  # the child returns from train as the parent does
    began = time.monotonic()
    told = world.failure("os.fork() or (os.setsid(), time.sleep(20), os._exit(0)); os._exit(5)")
    assert "exit code 5" in str(told)  # its child still holds the socket
    assert time.monotonic() - began < 10
    world.failure("child = os.fork() or time.sleep(99); Path(__file__).with_name('pid').write_text(str(child)); 1 / 0")
    child = world.pid
    world.worker.close()
    assert gone(child)  # of the same group


@pytest.mark.parametrize("value", ["np.nan", "np.inf", "1e308"])
def test_values_that_are_not_finite_come_as_they_are_and_the_release_hides_them(world, value):
    update = world.update(f"result = {{n: a * 0 - {value} for n, a in model.items()}}; model['bias'] -= 1e308")
    assert update["head"].shape == (2, 3)
    assert not np.isfinite(update["head"]).all() or value == "1e308"


def test_rows_are_handed_over_one_at_a_time_as_the_silo_takes_them(world):
    """The unit is a silo, so a module gives one row; here the learner of the process gives three."""
    three = """
from fulcrum.core.training.training_module import TrainingModule
def rows(self, model, assignment):
    for number in (1.0, 2.0, 3.0):
        Path(__file__).with_name("pid").write_text(f"{number:g}")
        yield np.full(7, number)
TrainingModule.rows = rows
"""
    world.update(three)
    plan, options = world.site.plan, world.site.settings.options
    told = Assignment(silo="a", round_number=2, plan=plan, seed=0, options=options)
    rows = []
    for row in world.worker.rows(world.model, told):
        assert world.pid == len(rows) + 1  # the next one is not made yet
        rows.append(row)
    assert [row.tolist() for row in rows] == [[[1.0] * 7], [[2.0] * 7], [[3.0] * 7]]
    assert "more rows than one" in str(world.failure(""))
    assert world.trainings() == 1  # another process, whose learner is whole


def test_an_update_is_bit_for_bit_that_of_training_in_process(world):
    conduct = (
        "rng = np.random.default_rng(3); result = {n: (a + rng.normal(size=a.shape) / 3) for n, a in model.items()}"
    )
    world.model = {"head": np.linspace(-1, 1, 6).reshape(2, 3) / 3, "bias": np.full(1, 1 / 7)}
    update, rng = world.update(conduct), np.random.default_rng(3)
    for name, array in world.model.items():
        assert np.array_equal(update[name], array + rng.normal(size=array.shape) / 3 - array)


def test_an_interrupt_of_the_silo_is_the_operators_and_ends_the_worker(world):
    assert world.trainings() == 1
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs that ignore it
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            world.update("time.sleep(99)")
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert gone(world.pid)
    assert world.trainings() == 1


def test_nothing_is_left_of_workers_that_were_ended(world):
    gc.collect()  # workers of other tests
    before, pids = len(open_files()), []
    for _ in range(2):
        world.update()
        pids.append(world.pid)
        assert len(open_files()) == before + 4  # a socket, the file in memory, and the pipes of watcher and output
        assert os.fstat(world.worker._running._shared).st_nlink == 0  # which has no name to be left behind
        world.failure("os._exit(1)")
        assert len(open_files()) == before
    world.update()
    pids.append(world.pid)
    del world.worker
    gc.collect()  # the tracebacks of failures hold it too
    assert len(open_files()) == before
    assert all(map(gone, pids))


LOOKING = """
found = {
    "files": [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()],
    "told": (Path("/proc/self/environ").read_bytes() + Path("/proc/self/cmdline").read_bytes()).hex(),
    "modules": sorted(name for name in sys.modules if name.startswith("fulcrum.")),
    "assignment": repr(assignment),
}
Path(__file__).with_name("found.json").write_text(json.dumps(found))
"""


def test_a_worker_holds_no_ledger_no_key_and_no_seal(world):
    """Not even of a process that holds the ledger open, and has read the key, while it starts the worker."""
    key = (world.home / "site.key").read_bytes()
    with Ledger.open(world.home / "state" / "a.ledger", silo="a"), (world.home / "site.key").open():
        assert any("a.ledger" in name for name in open_files())
        world.update(LOOKING)
    found = json.loads((world.folder / "found.json").read_text())
    kinds = sorted(file.split(":")[0] for file in found["files"] if not file.startswith(("/dev/", "/tmp/", "/proc/")))
    assert kinds.count("socket") >= 1
    assert not [file for file in found["files"] if str(world.home) in file]
    secrets = [line for line in key.split(b"\n") if len(line) > 20 and b"PRIVATE" not in line]
    assert secrets
    assert not any(line in bytes.fromhex(found["told"]) or line.decode() in found["assignment"] for line in secrets)
    for folder in ("core.store", "core.plan.keys", "core.plan.signatures", "core.messages", "core.silo.site"):
        assert not [name for name in found["modules"] if name.startswith(f"fulcrum.{folder}")], folder


def test_a_worker_imports_nothing_from_the_folder_that_the_silo_was_started_in(world, monkeypatch):
    """The silo's own process does not either: a file there may be anybody's."""
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    elsewhere = world.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "json.py").write_text("raise SystemExit")
    monkeypatch.chdir(elsewhere)
    assert world.trainings() == 1


def test_what_leaves_a_silo_is_the_same_whatever_its_worker_does(world, model, caplog):
    """Three rounds: training that works, that is killed, and that gives numbers that are not finite."""
    station, sealed = SiloStation(world.site), []
    conducts = ["", "os.kill(os.getpid(), signal.SIGKILL)", "result = {'head': model['head'] * np.nan}"]
    for number, conduct in enumerate(conducts, 1):
        world.conduct(conduct)
        sealed.append(station.answer(pack_model(model), number))
    assert released(world.home) == [1, 2, 3]
    assert len(set(map(len, sealed))) == 1
    opened = [unseal(data, world.site.plan, "north", world.home.parent / "north.key") for data in sealed]
    assert len({(release.layout, release.step, release.values.dtype) for release in opened}) == 1
    assert all(release.values.any() for release in opened)
    alarms = [record.getMessage() for record in caplog.records if record.name == "fulcrum.alarm"]
    assert alarms[0].splitlines()[0] == "training failed in round 2: zero plus noise is released in its place"
    assert "killed by signal 9" in alarms[0]
    assert alarms[1] == "the update of round 3 is not finite: zero plus noise is released in its place"
    assert len(alarms) == 2


def test_a_release_is_made_after_a_worker_that_was_ended_at_its_deadline(world, model, caplog):
    rewritten(world.home, "training_seconds = 0.0", "training_seconds = 20.0")
    station = SiloStation(read_site(world.home, "silo"))
    assert station._training._seconds == 20.0
    world.conduct("")
    station.answer(pack_model(model), 1)
    station._training._seconds = 0.5
    world.conduct("time.sleep(99)")
    station.answer(pack_model(model), 2)
    assert "training was not over after 0.5 seconds, and was ended" in caplog.text
    assert released(world.home) == [1, 2]


def test_the_deadline_of_training_leaves_a_region_time_to_wait_for_the_release(world):
    assert world.site.settings.training_deadline == 96.0
    rewritten(world.home, "patience = 120.0", "patience = 600.0")
    assert read_site(world.home).settings.training_deadline == 480.0
    rewritten(world.home, "patience = 600.0", "patience = 10.0")
    assert read_site(world.home).settings.training_deadline == 60.0  # a process must start before it trains
    for wrong in ("-1.0", "nan"):
        path = world.home / "site.toml"
        kept = path.read_text()
        rewritten(world.home, "training_seconds = 0.0", f"training_seconds = {wrong}")
        with pytest.raises(ValueError, match="does not describe a site"):
            read_site(world.home)
        path.write_text(kept)


KILLED = """
import sys
from pathlib import Path
from fulcrum.engines.built_in_training import start
from fulcrum.core.messages.model_message import pack_model
from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.core.silo.site import read_site

SiloStation(read_site(Path(sys.argv[1]), "silo")).answer(pack_model(start({})), 1)
"""


HOLDING_THE_LOCK = "import re; re.match(r'(a+)+$', 'a' * 60 + 'b')"


@pytest.mark.parametrize("conduct", ["time.sleep(99)", "while True: pass", HOLDING_THE_LOCK])
def test_a_silo_that_is_killed_leaves_no_worker_behind(world, conduct):
    world.conduct(f"os.fork() and Path(__file__).with_name('ready').touch()\n{conduct}")
    path = os.pathsep.join([str(world.folder), *sys.path])
    silo = subprocess.Popen([sys.executable, "-c", KILLED, str(world.home)], env={**os.environ, "PYTHONPATH": path})
    try:
        deadline = time.monotonic() + 60
        while not (world.folder / "ready").exists():
            assert silo.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        silo.kill()
        silo.wait()
    assert gone(world.pid)
    group = [path.name for path in Path("/proc").iterdir() if path.name.isdigit() and group_of(path) == world.pid]
    assert all(map(gone, group))  # its children are killed with it, and end a moment later


def test_the_output_of_a_worker_that_ended_before_its_silo_goes_on_to_its_end():
    """A stopped process would hold the silo's log for ever: its reader would never see the end."""
    ended = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    ended.wait()
    output = subprocess.Popen(
        [sys.executable, "-IS", worker_output.__file__], stdin=subprocess.PIPE, start_new_session=True
    )
    os.killpg(output.pid, signal.SIGSTOP)
    output.stdin.close()
    watch = [sys.executable, "-ISc", training_worker._WATCH, str(ended.pid), str(output.pid)]
    try:
        assert subprocess.run(watch, stdin=subprocess.DEVNULL, timeout=60).returncode == 0
        assert output.wait(20) == 0
    finally:
        output.kill()
        output.wait()


def group_of(process):
    try:
        state, _, group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return 0
    return 0 if state in "ZX" else int(group)
