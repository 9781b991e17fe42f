"""A silo answers though its training used up the memory or the disk that the operating system gives it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from site_folder import in_process, released, rewritten

import fulcrum
from fulcrum.core.messages.model_message import pack_model
from fulcrum.core.silo.site import read_site
from fulcrum.core.training.release_room import room_for_release
from fulcrum.errors import StorageError

pytest.importorskip("cryptography", reason="needs the extra secure")
resource = pytest.importorskip("resource", reason="needs limits by process")

ANSWERING = """
import logging, sys
from pathlib import Path
import numpy as np
from site_folder import ImportedWhenTrained
from fulcrum.engines.built_in_training import start
from fulcrum.core.messages.model_message import pack_model
from fulcrum.core.training.in_process_training import InProcessTraining
from fulcrum.core.silo.silo_release import SiloStation
from fulcrum.core.silo.site import read_site

logging.basicConfig(stream=sys.stderr)
station = SiloStation(read_site(Path(sys.argv[1]), "silo"))
if sys.argv[2] == "in process":  # as a silo on Flower trains
    station._training = InProcessTraining(ImportedWhenTrained("their_training"))
model = {"head": np.zeros(station._site.plan.parameters)} if station._site.plan.parameters > 34 else start({})
for number in range(1, int(sys.argv[3]) + 1):
    station.answer(pack_model(model), number)
    print("round", number, "answered", flush=True)
"""

TAKING_MEMORY = """
import resource
from pathlib import Path

taken = []  # outlives the round, as a cache of records does

def start(options): return {}

def train(model, assignment):
    if not taken:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 300 * 2**20,) * 2)
    for size in (2**24, 2**20, 2**16, 2**12, 2**8):
        try:
            while True:
                taken.append(bytes(size))
        except MemoryError:
            pass
    ENDING
"""


KINDS = pytest.mark.parametrize("kind", ["worker", "in process"])


def answered(home, body, kind, words=(), at=None, rounds=2):
    """Has a silo answer some rounds in a process of its own, with its own training."""
    (home.parent / "their_training.py").write_text(body)
    rewritten(home, "fulcrum.engines.built_in_training", "their_training")
    return subprocess.run(
        [*words, sys.executable, "-c", ANSWERING, str(at or home), kind, str(rounds)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(home.parent), *sys.path]), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
@KINDS
@pytest.mark.parametrize("ending", ["return model", "raise MemoryError"])
def test_training_that_keeps_all_memory_does_not_make_a_silo_decline(silo, ending, kind):
    done = answered(silo, TAKING_MEMORY.replace("ENDING", ending), kind)
    assert done.stdout == "round 1 answered\nround 2 answered\n", done.stderr
    assert released(silo) == [1, 2]


FILLING_THE_DISK = """
import os

def start(options): return {}

def train(model, assignment):
    folder = os.environ["SMALL_DISK"]
    with open(f"{folder}/cache", "ab", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                pass
    assert os.statvfs(folder).f_bavail == 0
    ENDING
"""

ON_A_SMALL_DISK = """
mount -t tmpfs -o size=20m tmpfs "$SMALL_DISK" && cp -r "$1" "$SMALL_DISK/site" && shift && exec "$@"
"""


@pytest.fixture
def small_disk(silo, monkeypatch):
    """The words that have a command run with the silo's folder on a disk of 20 MB, and that folder there."""
    disk = silo.parent / "disk"
    disk.mkdir()
    monkeypatch.setenv("SMALL_DISK", str(disk))
    words = ["unshare", "-rm", "sh", "-c", ON_A_SMALL_DISK, "sh", str(silo)]
    try:
        allowed = subprocess.run([*words, "true"], capture_output=True, timeout=20).returncode == 0
    except OSError:
        allowed = False
    if not allowed:
        pytest.skip("needs the right to mount")
    return words, disk / "site"


@KINDS
@pytest.mark.parametrize("ending", ["return model", "raise OSError(28, 'No space left on device')"])
def test_training_that_fills_the_disk_does_not_make_a_silo_decline(silo, small_disk, ending, kind):
    done = answered(silo, FILLING_THE_DISK.replace("ENDING", ending), kind, *small_disk)
    assert done.stdout == "round 1 answered\nround 2 answered\n", done.stderr


@KINDS
def test_training_that_fills_the_disk_leaves_room_for_all_releases_of_the_plan(silo, small_disk, kind):
    """Each release stays on the disk: 300,000 bytes of the ledger in each of ten rounds."""
    planned(silo, parameters=36_000, rounds=10)
    done = answered(silo, FILLING_THE_DISK.replace("ENDING", "return model"), kind, *small_disk, rounds=10)
    assert done.stdout.split("\n")[:-1] == [f"round {number} answered" for number in range(1, 11)], done.stderr


PRINTING_WITHOUT_END = """import time
    threading.active_count() > 2 or threading.Thread(target=flood, daemon=True).start()
    time.sleep(0.1)
    return model

import threading
def flood():
    while True:
        os.write(1, b"warning: a record out of range" * 500)
"""


@pytest.mark.parametrize(
    "ending", ["raise OSError(28, '\\u00e9' * 20_000)", PRINTING_WITHOUT_END], ids=["raises", "prints"]
)
def test_a_log_on_a_disk_that_training_fills_takes_no_room_from_the_next_rounds(silo, small_disk, ending):
    planned(silo, parameters=34, rounds=12)
    (*words, script, name, home), site = small_disk[0], small_disk[1]
    words = [*words, script.rstrip() + ' 2>"$SMALL_DISK/log"', name, home]
    done = answered(silo, FILLING_THE_DISK.replace("ENDING", ending), "worker", words, site, rounds=12)
    assert done.stdout.split("\n")[:-1] == [f"round {number} answered" for number in range(1, 13)], done.stderr


def planned(home, **settings):
    """Gives a silo another plan, for a larger model or more rounds."""
    keys = dict(read_site(home).plan.keys)
    made = fulcrum.plan(str(home.parent / "fed.csv"), epsilon=5.0, purpose="deployment", keys=keys, **settings)
    fulcrum.save_plan(made, home / "plan.json")
    (home / "plan.json.sig").unlink()
    fulcrum.sign_plan(home / "plan.json", home.parent / "issuer.key")


CLOSING_FILES = """
import os

def start(options): return {}

def train(model, assignment):
    os.closerange(3, 4096)  # as code does that makes a process a service
    ENDING
"""

TAKING_THEIR_PLACES = """
import os
from pathlib import Path

kept = []

def start(options): return {}

def train(model, assignment):
    if kept:
        found = {os.pread(file, 9, 0) for file in kept}
        assert found == {b"\\nimport o"}, found
        print("its own files are left alone", flush=True)
    os.closerange(3, 4096)
    copy = __file__ + ".cache"
    Path(copy).write_bytes(Path(__file__).read_bytes())
    kept[:] = [os.open(copy, os.O_RDWR) for _ in range(64)]
    ENDING
"""


@pytest.mark.parametrize("body", [CLOSING_FILES, TAKING_THEIR_PLACES])
@pytest.mark.parametrize("ending", ["return model", "raise OSError"])
def test_training_that_closes_files_does_not_make_a_silo_decline(silo, body, ending):
    done = answered(silo, body.replace("ENDING", ending), "in process")
    told = [line for line in done.stdout.splitlines() if "answered" in line]
    assert told == ["round 1 answered", "round 2 answered"], done.stderr
    assert ("its own files are left alone" in done.stdout) == ("kept" in body)
    assert released(silo) == [1, 2]


def test_what_is_set_aside_is_taken_while_training_runs_and_given_back_after_it(silo, model):
    """By the file itself: it takes up blocks of the disk, and what a child of training holds of it is empty after."""
    found = []

    def look(given, assignment):
        files = [int(path.name) for path in Path("/dev/fd").iterdir()]
        found.extend(os.fstat(file).st_blocks * 512 for file in files if is_open(file))
        return given

    in_process(silo, look).answer(pack_model(model), 1)
    assert max(found) >= 2**22 + 32 * np.size(model["head"])
    assert sorted(path.name for path in (silo / "state").iterdir()) == ["a.ledger", "a.room", "initialised.json"]


def test_the_room_of_later_releases_takes_up_blocks_and_goes_with_the_last_of_them(silo, model):
    station, found = in_process(silo, lambda given, assignment: given), []
    for number in (1, 2, 2, 3, 3):
        station.answer(pack_model(model), number)
        about = (silo / "state" / "a.room").stat() if (silo / "state" / "a.room").exists() else None
        found.append(about and (about.st_size, about.st_blocks * 512 >= about.st_size, about.st_mode & 0o777))
    share = 2 * 8 * 34 + 2**13 + 2**13  # the release in the ledger, its entry, the log of a round
    assert found == [(2 * share, True, 0o600), (share, True, 0o600), (share, True, 0o600), None, None]


def is_open(file):
    try:
        os.fstat(file)
    except OSError:
        return False
    return True


def test_room_that_is_not_there_before_training_is_told_in_one_line(tmp_path):
    for parameters, releases in ((10**15, 1), (10**9, 10**7), (10**15, 10**9)):
        with (
            pytest.raises(StorageError, match=r"has no room for the releases .* Make room there") as told,
            room_for_release(tmp_path / "a.room", parameters=parameters, releases=releases),
        ):
            pytest.fail("trained")
        assert "\n" not in str(told.value)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0
