"""Kills and damaged journals at random."""

import json
import os
import subprocess
import sys

import pytest

TRIALS = int(os.environ.get("FULCRUM_TRIALS", "40"))


STRIKE_AT_RANDOM = '''
import collections, hashlib, json, os, random, resource, signal, struct, sys, time
from pathlib import Path
from fulcrum.core.store import ledger_file as ledger_file
from fulcrum.errors import LedgerError
from fulcrum.core.store.ledger import Allowance, Cost, Ledger
from fulcrum.core.store.ledger_checks import verify_ledger

folder, trials, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
cost = Cost(shifts={"silo": 0.01, "region": 0.001})
plan = Allowance(plan_digest="plan", rounds=10**6, shifts={"silo": 1e4, "region": 1e3})
rng = random.Random(seed)


def releasing(path, tell, size, room):
    with Ledger.open(path, silo="lyon") as ledger:
        ledger.enter_plan(plan)
        if room is not None:  # the system kills the process where SQLite writes past that
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, resource.RLIM_INFINITY))
        for number in range(ledger.sequence + 1, 10**6):
            sent = ledger.record(
                plan, round_number=number, input_digest=f"m{number}", payload=os.urandom(size), cost=cost
            ).payload
            os.write(tell, struct.pack("<q32s", number, hashlib.sha256(sent).digest()))


def killed(path, size, room):
    """Releases in a child until it is killed; returns what was sent, by number."""
    receive, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            releasing(path, tell, size, room)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\\n".encode())
        os._exit(1)
    os.close(tell)
    sent = b""
    for _ in range(rng.choice([0, 1, 3, 6, 10])):
        sent += os.read(receive, 40)
    if room is None:
        time.sleep(rng.uniform(0, 0.006))
        os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (-signal.SIGKILL, -signal.SIGXFSZ), "it failed by itself"
    while more := os.read(receive, 4000):
        sent += more
    os.close(receive)
    return {number: digest for number, digest in struct.iter_unpack("<q32s", sent)}


def holds(path, sent):
    with Ledger.open(path, silo="lyon") as ledger:
        kept = {entry.round_number: bytes.fromhex(entry.payload_digest) for entry in ledger.entries()}
        assert all(kept.get(number) == digest for number, digest in sent.items()), "a release that was sent is gone"
        assert all(ledger.stored_payload(plan, number, f"m{number}") is not None for number in sent)
    assert all(check.holds for check in verify_ledger(path)), "the ledger does not hold up"


def damaged(how, journal, stale):
    if how == "deleted":
        return None
    if how == "emptied":
        return b""
    if how == "cut":
        return journal[: rng.randrange(len(journal) + 1)]
    if how == "flipped":
        broken = bytearray(journal)
        for _ in range(rng.choice([1, 1, 3])):
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        return bytes(broken)
    if how == "zeroed":
        place = rng.randrange(len(journal))
        return journal[:place] + bytes(len(journal) - place)
    return rng.choice(stale)


outcomes, stale = collections.Counter(), [b"x" * 100]
for trial in range(trials):
    path = folder / f"{trial % 5}.ledger"
    journal, sents = path.with_name(path.name + "-journal"), path.with_suffix(".sent")
    sent = {int(k): bytes.fromhex(v) for k, v in json.loads(sents.read_text()).items()} if sents.exists() else {}
    size = rng.choice([10, 5_000, 100_000, 300_000, 300_000])
    ledger_file.MOST_AT_ONCE = rng.choice([100, 2**20])
    rooms = [None, size // 2, 4 * size] if path.exists() and size >= 100_000 else [None]
    sent |= killed(path, size, rng.choice(rooms))
    sents.write_text(json.dumps({number: digest.hex() for number, digest in sent.items()}))
    if not path.exists():  # killed before it was made
        continue
    file, data = path.read_bytes(), journal.read_bytes() if journal.exists() else None
    how = rng.choice(["nothing", "deleted", "emptied", "cut", "flipped", "zeroed", "stale", "stale"])
    if data and how != "nothing":
        broken = damaged(how, data, stale)
        journal.unlink()
        if broken is not None:
            journal.write_bytes(broken)
        try:
            holds(path, sent)
            outcomes[how, "harmless"] += 1
        except LedgerError as error:
            assert path.read_bytes() == file, "what was refused was changed"
            assert (journal.read_bytes() if journal.exists() else None) == broken
            assert "\\n" not in str(error)
            outcomes[how, "refused"] += 1
            journal.write_bytes(data)
            holds(path, sent)
    else:
        holds(path, sent)
        outcomes["nothing", "whole"] += 1
    if data:
        stale = [*stale[-9:], data]
print(json.dumps({" ".join(key): count for key, count in sorted(outcomes.items())}))
'''


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_release_that_was_sent_is_lost_to_kills_and_damaged_journals(tmp_path):
    command = [sys.executable, "-c", STRIKE_AT_RANDOM, str(tmp_path), str(TRIALS), "1"]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 3 * TRIALS, env=environment)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    # The test means something only if journals were damaged so that it mattered, and some opened untouched.
    assert sum(count for what, count in outcomes.items() if what.endswith("refused")) >= TRIALS // 5
    assert outcomes["nothing whole"] >= TRIALS // 20
