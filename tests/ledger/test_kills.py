"""Processes killed while they release."""

import json
import os
import subprocess
import sys

import pytest
from forking import forks

KILLS = int(os.environ.get("FULCRUM_KILLS", "300"))


RELEASE_UNTIL_KILLED = '''
import json, os, random, signal, struct, sys, time
from pathlib import Path
from fulcrum.core.store.ledger import Allowance, Cost, Ledger
from fulcrum.core.store.ledger_checks import verify_ledger

folder, kills, seed, sizes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
cost = Cost(shifts={"silo": 0.01, "region": 0.001})
plan = Allowance(plan_digest="plan", rounds=10**6, shifts={"silo": 1e4, "region": 1e3})
rng = random.Random(seed)


def releasing(path, sent, tell, size, last=10**6):
    """Resends the last release, which may not have left, then releases on until killed."""
    with Ledger.open(path, silo="lyon") as ledger:
        ledger.enter_plan(plan)
        out = os.open(sent, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in range(max(1, ledger.sequence), min(ledger.sequence + last, 10**6) + 1):
            basis = f"model-{number}"
            os.write(tell, b".")
            payload = ledger.stored_payload(plan, number, basis)
            if payload is None:
                fresh = os.urandom(size)
                os.write(tell, b"(")
                payload = ledger.record(plan, round_number=number, input_digest=basis, payload=fresh, cost=cost).payload
                os.write(tell, b")")
            os.write(out, struct.pack("<qq", number, len(payload)) + payload)


def checked(path, sents, totals):
    """Everything sent is in the ledger with the same bytes, and paid for."""
    assert all(check.holds for check in verify_ledger(path)), verify_ledger(path)
    contents = {}
    for sent in sents:
        data, place = sent.read_bytes(), 0
        while place + 16 <= len(data):
            number, size = struct.unpack_from("<qq", data, place)
            payload = data[place + 16 : place + 16 + size]
            contents.setdefault(number, []).append(payload)
            totals["sent"] += 1
            place += 16 + size
    with Ledger.open(path, silo="lyon") as ledger:
        assert len(ledger.entries()) >= len(contents)
        for number, payloads in contents.items():
            stored = ledger.stored_payload(plan, number, f"model-{number}")
            assert stored is not None, number
            # The last bytes of a killed sender may be cut short: what left is a part of what is stored.
            assert all(stored.startswith(payload) for payload in payloads), number
            totals["resent"] += len(payloads) - 1
        assert ledger.total_cost.shifts["region"] >= 0.001 * len(contents) * (1 - 1e-12)
        assert ledger.total_cost.shifts["silo"] >= 0.01 * len(contents) * (1 - 1e-12)
        totals["releases"] += ledger.sequence


totals = {"kills": 0, "in_record": 0, "sent": 0, "resent": 0, "releases": 0}
while totals["kills"] < kills:
    ledger_number = totals["kills"]
    path, sents = folder / f"{ledger_number}.ledger", []
    while totals["kills"] < min(kills, ledger_number + 50):
        sents.append(folder / f"{totals['kills']}.sent")
        size = rng.choice(sizes)
        receive, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                releasing(path, sents[-1], tell, size)
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}\\n".encode())
            os._exit(1)
        os.close(tell)
        for _ in range(rng.choice([0, 1, 2, 2, 3, 5])):  # 0: while it opens, or creates, or rolls back
            while os.read(receive, 1) not in (b".", b""):
                pass
        time.sleep(rng.uniform(0, 0.004))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, "the child failed by itself"
        totals["kills"] += 1
        totals["in_record"] += os.read(receive, 10**6).endswith(b"(")
        os.close(receive)
        sents[-1].touch()
    sents.append(folder / f"{ledger_number}.last")
    receive, tell = os.pipe()
    releasing(path, sents[-1], tell, 1_000, last=3)
    os.close(receive)
    os.close(tell)
    checked(path, sents, totals)
print(json.dumps(totals))
'''


@forks
@pytest.mark.parametrize(
    ("kills", "sizes"),
    [(KILLS, [10, 5_000, 100_000, 400_000]), (KILLS // 3, [10, 1_500_000, 3_000_000])],
    ids=["one commit", "two commits"],
)
def test_a_process_killed_at_any_moment_loses_nothing_that_left(in_memory, kills, sizes):
    done = subprocess.run(
        [sys.executable, "-c", RELEASE_UNTIL_KILLED, str(in_memory), str(kills), "1", json.dumps(sizes)],
        capture_output=True,
        text=True,
        timeout=60 + KILLS,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    totals = json.loads(done.stdout)
    assert totals["kills"] == kills
    # The test means something only if kills fell inside `record` and releases were sent again.
    assert totals["in_record"] >= kills // 20
    assert totals["resent"] >= kills // 20
    assert totals["sent"] > kills // 2
