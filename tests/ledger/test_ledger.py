import contextlib
import dataclasses
import gc
import hashlib
import json
import math
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fulcrum.errors import FulcrumError, LedgerError, LedgerInUseError, RefusedReleaseError
from fulcrum.ledger.ledger import Allowance, Cost, Ledger, verify_ledger
from fulcrum.privacy.accounting import epsilon_of, epsilon_of_shift

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

KILLS = int(os.environ.get("FULCRUM_KILLS", "300"))
COST = Cost(shift_above=0.25, shift_inside=1.0)
PLAN = Allowance(plan_digest="plan-a", rounds=5, shift_above=1.0, shift_inside=8.0)


def opened(path: Path, plan: Allowance | None = PLAN, silo: str = "lyon") -> Ledger:
    ledger = Ledger.open(path, silo=silo)
    if plan is not None:
        ledger.enter_plan(plan)
    return ledger


def release(ledger: Ledger, number: int, payload: bytes = b"", basis: str = "model", cost: Cost = COST, plan=None):
    """Records a release under a plan, the one last entered unless it is given."""
    plan = plan or ledger.allowance or PLAN
    return ledger.record(plan, round_number=number, basis=basis, payload=payload or b"round %d" % number, cost=cost)


def holds(path: Path, **witness) -> dict[str, bool]:
    return {check.name: check.holds for check in verify_ledger(path, **witness)}


def says(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def in_child(work) -> str:
    """Runs the work in a forked process and returns what it returned, or the error it raised."""
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            os.close(receive)
            try:
                said = str(work())
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(send, said.encode())
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lyon.ledger"


# What a release costs and what comes back


def test_a_release_is_charged_and_stored(path):
    with opened(path) as ledger:
        first = release(ledger, 1, b"noisy")
        assert (first.sequence, first.payload, first.fresh) == (1, b"noisy", True)
        assert ledger.spent == COST
        assert ledger.stored(PLAN, 1, "model") == b"noisy"


def test_a_retry_gets_the_stored_bytes_verbatim_and_free_of_charge(path):
    with opened(path) as ledger:
        release(ledger, 1, b"noisy")
        head = ledger.head
        again = release(ledger, 1, b"other noise")
        assert (again.sequence, again.payload, again.fresh) == (1, b"noisy", False)
        assert (ledger.spent, ledger.sequence, ledger.head) == (COST, 1, head)


def test_a_retry_after_reopening_gets_the_stored_bytes(path):
    with opened(path) as ledger:
        release(ledger, 1, b"noisy")
    with opened(path) as ledger:
        assert ledger.stored(PLAN, 1, "model") == b"noisy"
        assert not release(ledger, 1, b"other noise").fresh


def test_a_ledger_that_is_not_there_is_begun_only_where_that_is_allowed(path):
    with pytest.raises(LedgerError, match=r"cannot be opened \(No such file or directory\)"):
        Ledger.open(path, silo="lyon", create=False)
    assert not path.exists()
    Ledger.open(path, silo="lyon").close()
    Ledger.open(path, silo="lyon", create=False).close()


def test_a_retry_is_served_even_when_the_budget_is_gone(path):
    plan = dataclasses.replace(PLAN, shift_above=COST.shift_above)
    with opened(path, plan) as ledger:
        release(ledger, 1, b"noisy")
        assert ledger.would_exceed(ledger.allowance, COST, 2) is not None
        assert ledger.would_exceed(ledger.allowance, COST, 1, basis="model") is None
        assert release(ledger, 1).payload == b"noisy"


def test_a_round_is_refused_on_another_basis(path):
    with opened(path) as ledger:
        release(ledger, 1)
        assert "released" in ledger.would_exceed(PLAN, COST, 1)
        assert ledger.stored(PLAN, 1, "another model") is None
        with pytest.raises(RefusedReleaseError, match="round 1 is released, on basis model"):
            release(ledger, 1, basis="another model")
        assert ledger.sequence == 1


@pytest.mark.parametrize("payload", [b"\0", os.urandom(1_000_003), bytes(5_000_000)], ids=["byte", "1MB", "5MB"])
def test_payloads_of_any_size_come_back_bit_for_bit(path, payload):
    with opened(path) as ledger:
        release(ledger, 1, payload)
    with opened(path) as ledger:
        assert ledger.stored(PLAN, 1, "model") == payload


def test_an_empty_payload_is_a_release_too(path):
    with opened(path) as ledger:
        ledger.record(PLAN, round_number=1, basis="model", payload=b"", cost=COST)
        assert ledger.stored(PLAN, 1, "model") == b""
        assert ledger.spent == COST


def test_a_round_past_the_plan_is_refused(path):
    with opened(path, dataclasses.replace(PLAN, shift_above=math.inf, shift_inside=math.inf)) as ledger:
        assert ledger.would_exceed(ledger.allowance, COST, 5) is None
        assert "past the 5 rounds" in ledger.would_exceed(ledger.allowance, COST, 6)
        with pytest.raises(RefusedReleaseError, match="round 6 is past the 5 rounds"):
            release(ledger, 6)


@pytest.mark.parametrize(("observer", "budget"), [("above", {"shift_above": 0.7}), ("inside", {"shift_inside": 2.9})])
def test_each_observers_budget_is_kept(path, observer, budget):
    with opened(path, dataclasses.replace(PLAN, **budget)) as ledger:
        release(ledger, 1)
        release(ledger, 2)
        assert f"shift {observer} the region" in ledger.would_exceed(ledger.allowance, COST, 3)
        with pytest.raises(RefusedReleaseError, match=f"shift {observer} the region"):
            release(ledger, 3)
        assert ledger.sequence == 2


def test_rounding_never_refuses_the_last_round_of_a_plan(path):
    rounds, share = 50, 4 / 23.8115**2
    plan = Allowance(plan_digest="p", rounds=rounds, shift_above=rounds * share, shift_inside=math.inf)
    with opened(path, plan) as ledger:
        for number in range(1, rounds + 1):
            release(ledger, number, cost=Cost(shift_above=share, shift_inside=math.inf))
        spent = ledger.spent
        assert spent.shift_inside == math.inf
        epsilon = float(epsilon_of_shift(math.sqrt(spent.shift_above), delta=1e-5))
        assert epsilon == pytest.approx(epsilon_of(23.8115, rounds=rounds, delta=1e-5), rel=1e-9)


def test_slack_does_not_let_a_real_excess_through(path):
    with opened(path, dataclasses.replace(PLAN, shift_above=1.0)) as ledger:
        assert ledger.would_exceed(ledger.allowance, Cost(shift_above=1 + 1e-13, shift_inside=0), 1) is None
        assert ledger.would_exceed(ledger.allowance, Cost(shift_above=1 + 1e-11, shift_inside=0), 1) is not None


def test_a_ledger_without_a_plan_releases_nothing(path):
    with opened(path, None) as ledger:
        assert ledger.allowance is None
        assert "has not entered plan plan-a" in ledger.would_exceed(PLAN, COST, 1)
        assert ledger.stored(PLAN, 1, "model") is None
        with pytest.raises(RefusedReleaseError, match="has not entered plan plan-a"):
            release(ledger, 1)


# Plans


def test_a_new_plan_continues_from_what_is_spent(path):
    second = dataclasses.replace(PLAN, plan_digest="plan-b", shift_above=0.75)
    with opened(path) as ledger:
        release(ledger, 1, b"under a")
        release(ledger, 2)
        ledger.enter_plan(second)
        assert ledger.spent.shift_above == 0.5
        assert ledger.stored(second, 1, "model") is None
        assert release(ledger, 1, b"under b").fresh
        assert ledger.would_exceed(ledger.allowance, COST, 2) is not None


def test_a_plan_that_does_not_cover_past_spending_is_refused(path):
    with opened(path) as ledger:
        release(ledger, 1)
        release(ledger, 2)
        with pytest.raises(RefusedReleaseError, match="does not cover what silo 'lyon' spent"):
            ledger.enter_plan(dataclasses.replace(PLAN, plan_digest="plan-b", shift_above=0.4))
        assert ledger.allowance == PLAN
        ledger.enter_plan(dataclasses.replace(PLAN, plan_digest="plan-c", shift_above=0.5))


@pytest.mark.parametrize("other", [{"rounds": 6}, {"shift_above": 2.0}, {"shift_inside": 9.0}])
def test_a_plan_is_not_entered_again_with_other_numbers(path, other):
    with opened(path) as ledger, pytest.raises(LedgerError, match="with another allowance"):
        ledger.enter_plan(dataclasses.replace(PLAN, **other))
    with opened(path, None) as ledger, pytest.raises(LedgerError, match="with another allowance"):
        ledger.enter_plan(dataclasses.replace(PLAN, **other))


def test_the_plan_stays_entered_after_reopening(path):
    opened(path).close()
    with opened(path, None) as ledger:
        assert ledger.allowance == PLAN
        assert release(ledger, 1).fresh


def test_an_earlier_plan_may_be_taken_up_again(path):
    with opened(path) as ledger:
        release(ledger, 1, b"under a")
        ledger.enter_plan(dataclasses.replace(PLAN, plan_digest="plan-b"))
        release(ledger, 1, b"under b")
        ledger.enter_plan(PLAN)
        assert ledger.stored(PLAN, 1, "model") == b"under a"


def test_a_release_names_its_plan_whichever_was_entered_last(path):
    other = dataclasses.replace(PLAN, plan_digest="plan-b")
    with opened(path) as ledger:
        ledger.enter_plan(other)
        assert release(ledger, 1, b"under a", plan=PLAN).fresh
        assert release(ledger, 1, b"under b", plan=other).fresh
        assert [entry.plan_digest for entry in ledger.entries()] == ["plan-a", "plan-b"]
        assert (ledger.stored(PLAN, 1, "model"), ledger.stored(other, 1, "model")) == (b"under a", b"under b")
        foreign = dataclasses.replace(PLAN, rounds=6)
        assert ledger.stored(foreign, 1, "model") is None
        with pytest.raises(RefusedReleaseError, match="has not entered plan plan-a with these numbers"):
            release(ledger, 1, plan=foreign)
        assert ledger.sequence == 2


def test_threads_under_two_plans_get_one_content_a_round_filed_where_it_belongs(path):
    rounds, plans = 60, {}
    for name in ("plan-a", "plan-b"):
        plans[name] = Allowance(plan_digest=name, rounds=rounds, shift_above=math.inf, shift_inside=math.inf)
    together = threading.Barrier(4, timeout=20)

    def work(number):
        plan, found = plans["plan-a" if number % 2 else "plan-b"], []
        for round_number in range(1, rounds + 1):
            together.wait()
            ledger.enter_plan(plan)
            payload = f"{plan.plan_digest} {round_number} {number}".encode()
            found.append((plan.plan_digest, round_number, release(ledger, round_number, payload, plan=plan).payload))
        return found

    with opened(path, None) as ledger, ThreadPoolExecutor(4) as pool:
        sent = [item for found in pool.map(work, range(4)) for item in found]
        assert len(set(sent)) == 2 * rounds
        assert all(payload.startswith(f"{plan} {number} ".encode()) for plan, number, payload in sent)
        assert all(ledger.stored(plans[plan], number, "model") == payload for plan, number, payload in sent)
    assert all(holds(path, least_sequence=2 * rounds).values())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Cost(shift_above=-1.0, shift_inside=0.0),
        lambda: Cost(shift_above=0.0, shift_inside=math.nan),
        lambda: Cost(shift_above="much", shift_inside=0.0),
        lambda: Allowance(plan_digest="", rounds=1, shift_above=1, shift_inside=1),
        lambda: Allowance(plan_digest="p", rounds=0, shift_above=1, shift_inside=1),
        lambda: Allowance(plan_digest="p", rounds=True, shift_above=1, shift_inside=1),
        lambda: Allowance(plan_digest="p", rounds=2.5, shift_above=1, shift_inside=1),
        lambda: Allowance(plan_digest="p", rounds=1, shift_above=math.nan, shift_inside=1),
    ],
)
def test_numbers_out_of_range_are_refused(wrong):
    with pytest.raises(LedgerError, match="must be") as error:
        wrong()
    assert isinstance(error.value, FulcrumError)
    assert isinstance(error.value, ValueError)


def test_arguments_out_of_range_are_refused_and_nothing_is_recorded(path):
    with opened(path) as ledger:
        for wrong in ({"number": 0}, {"number": -1}, {"number": 1.5}, {"number": True}, {"number": 2**63}):
            with pytest.raises(LedgerError, match="round must be a whole number"):
                ledger.record(PLAN, round_number=wrong["number"], basis="model", payload=b"x", cost=COST)
        for basis in ("", "a\0b", "\ud800", 7):
            with pytest.raises(LedgerError, match="basis must be text"):
                release(ledger, 1, basis=basis)
        with pytest.raises(LedgerError, match="a payload is bytes"):
            ledger.record(PLAN, round_number=1, basis="model", payload="text", cost=COST)
        assert ledger.sequence == 0
    with pytest.raises(LedgerError, match="silo must be text"):
        Ledger.open(path, silo="")


# The chain and its verification


def test_entries_tell_what_was_released_and_chain_up(path):
    with opened(path) as ledger:
        empty = ledger.head
        release(ledger, 1, b"one")
        release(ledger, 2, b"two", basis="model-1")
        first, second = ledger.entries()
        assert (first.sequence, first.plan_digest, first.round_number, first.basis) == (1, "plan-a", 1, "model")
        assert second.payload_digest == hashlib.sha256(b"two").hexdigest()
        assert (second.cost, second.spent) == (COST, ledger.spent)
        assert len({empty, first.chain_hash, second.chain_hash}) == 3
        assert ledger.head == second.chain_hash


def test_the_hash_covers_the_silo_and_every_field(tmp_path):
    heads = set()
    for number, (silo, plan, round_number, basis, payload, cost) in enumerate(
        [
            ("lyon", "p", 1, "m", b"x", COST),
            ("nice", "p", 1, "m", b"x", COST),
            ("lyon", "q", 1, "m", b"x", COST),
            ("lyon", "p", 2, "m", b"x", COST),
            ("lyon", "p", 1, "n", b"x", COST),
            ("lyon", "p", 1, "m", b"y", COST),
            ("lyon", "p", 1, "m", b"x", Cost(shift_above=0.25, shift_inside=math.nextafter(1.0, 2))),
            ("lyon", "p", 1, "m", b"x", Cost(shift_above=math.nextafter(0.25, 1), shift_inside=1.0)),
        ]
    ):
        with opened(tmp_path / f"{number}", dataclasses.replace(PLAN, plan_digest=plan), silo) as ledger:
            release(ledger, round_number, payload, basis, cost)
            heads.add(ledger.head)
    assert len(heads) == 8


def test_a_sound_ledger_passes_every_check(path):
    with opened(path) as ledger:
        assert all(check.holds for check in ledger.checks())
        release(ledger, 1)
        release(ledger, 2)
        head = ledger.head
        assert all(check.holds for check in ledger.checks(least_sequence=2, witnessed_hash=head))
    seen = holds(path, least_sequence=2, witnessed_hash=head)
    assert list(seen) == [
        "file", "sequence", "chain", "sums", "rounds", "allowance", "payloads", "witness", "witnessed hash",
    ]  # fmt: skip
    assert all(seen.values())


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        ("UPDATE entry SET basis = 'other' WHERE sequence = 2", {"chain"}),
        ("UPDATE entry SET plan = 'plan-z' WHERE sequence = 2", {"chain", "allowance"}),
        ("UPDATE entry SET round = 4 WHERE sequence = 2", {"chain"}),
        ("UPDATE entry SET shift_above = 0.125 WHERE sequence = 2", {"chain", "sums"}),
        ("UPDATE entry SET spent_inside = 0 WHERE sequence = 3", {"chain", "sums"}),
        ("UPDATE entry SET hash = 'f00d' WHERE sequence = 3", {"chain"}),
        ("DELETE FROM entry WHERE sequence = 1", {"sequence", "chain", "sums", "payloads"}),
        ("DELETE FROM entry WHERE sequence = 2", {"sequence", "chain", "sums", "payloads"}),
        ("DELETE FROM entry WHERE sequence = 3", {"payloads"}),
        ("UPDATE payload SET bytes = x'00' WHERE sequence = 2", {"payloads"}),
        ("DELETE FROM payload WHERE sequence = 2", {"payloads"}),
        ("UPDATE plan SET rounds = 2", {"allowance"}),
        ("UPDATE silo SET name = 'nice'", {"chain"}),
        (
            "UPDATE entry SET sequence = 9 WHERE sequence = 1; UPDATE entry SET sequence = 1 WHERE sequence = 2;"
            "UPDATE entry SET sequence = 2 WHERE sequence = 9",
            {"chain", "payloads"},
        ),
    ],
)
def test_a_changed_removed_or_reordered_entry_is_noticed(path, change, failing):
    with opened(path) as ledger:
        for number in (1, 2, 3):
            release(ledger, number)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(change)
    assert {name for name, held in holds(path).items() if not held} == failing
    if failing != {"payloads"}:
        with pytest.raises(LedgerError, match=r"damaged|is the ledger of silo") as error:
            opened(path)
        says(error)


def test_a_round_released_twice_is_noticed(path):
    with opened(path) as ledger:
        release(ledger, 1)
        release(ledger, 2)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE copied AS SELECT * FROM entry; DROP TABLE entry; ALTER TABLE copied RENAME TO entry;"
            "UPDATE entry SET round = 1"
        )
    assert not holds(path)["rounds"]


def test_a_restored_old_copy_is_noticed_by_whoever_saw_the_newer_number(path, tmp_path):
    with opened(path) as ledger:
        release(ledger, 1)
    copy = shutil.copy(path, tmp_path / "backup")
    with opened(path) as ledger:
        release(ledger, 2, b"sent")
        seen, head = ledger.sequence, ledger.head
    assert all(holds(path, least_sequence=seen, witnessed_hash=head).values())
    shutil.copy(copy, path)
    assert all(holds(path).values())
    assert [name for name, held in holds(path, least_sequence=seen).items() if not held] == ["witness"]
    with opened(path) as ledger:
        release(ledger, 2, b"something else")
    assert all(holds(path, least_sequence=seen).values())
    assert not holds(path, witnessed_hash=head)["witnessed hash"]


def test_reading_changes_nothing_and_records_nothing(path):
    with opened(path) as ledger:
        release(ledger, 1, b"noisy")
    before = path.read_bytes()
    with Ledger.read(path) as ledger:
        assert (ledger.silo, ledger.sequence, ledger.spent, ledger.allowance) == ("lyon", 1, COST, PLAN)
        with pytest.raises(LedgerError, match="opened to be read"):
            release(ledger, 2)
        with pytest.raises(LedgerError, match="opened to be read"):
            ledger.enter_plan(PLAN)
        assert "opened to be read" in ledger.would_exceed(PLAN, COST, 2)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_closed_ledger_still_tells_and_does_nothing(path):
    with opened(path) as ledger:
        release(ledger, 1)
    ledger.close()
    assert (ledger.sequence, ledger.spent, len(ledger.entries())) == (1, COST, 1)
    for work in (
        lambda: release(ledger, 2),
        lambda: ledger.stored(PLAN, 1, "model"),
        lambda: ledger.enter_plan(PLAN),
        ledger.checks,
    ):
        with pytest.raises(LedgerError, match="is closed"):
            work()


# Files that are not what they should be


def test_a_ledger_is_one_private_file(path):
    with opened(path) as ledger:
        release(ledger, 1)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_copy_of_an_open_ledger_needs_its_log_and_is_refused_without(path, tmp_path):
    with opened(path) as ledger:
        release(ledger, 1, b"noisy")
        for name in ("whole", "half"):
            shutil.copy(path, tmp_path / name)
        shutil.copy(f"{path}-wal", tmp_path / "whole-wal")
    assert all(holds(tmp_path / "whole", least_sequence=1).values())
    for work in (opened, verify_ledger):
        with pytest.raises(LedgerError, match="half was not closed, and its log half-wal is missing") as error:
            work(tmp_path / "half")
        says(error)


def test_a_ledger_never_closed_is_read_whole_and_then_is_one_file(path, tmp_path):
    with opened(path) as ledger:
        release(ledger, 1, b"noisy")
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", tmp_path / f"crashed{suffix}")
    with Ledger.read(tmp_path / "crashed") as ledger:
        assert ledger.sequence == 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["crashed", path.name]


def test_a_process_that_ends_without_closing_leaves_a_ledger_that_opens_and_reads(path):
    script = (
        "import sys; from fulcrum.ledger.ledger import *; ledger = Ledger.open(sys.argv[1], silo='lyon');"
        "plan = Allowance(plan_digest='plan-a', rounds=5, shift_above=1.0, shift_inside=8.0); ledger.enter_plan(plan);"
        "cost = Cost(shift_above=0.25, shift_inside=1.0);"
        "ledger.record(plan, round_number=1, basis='model', payload=b'noisy', cost=cost)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    assert all(holds(path, least_sequence=1).values())
    with opened(path) as ledger:
        assert ledger.stored(PLAN, 1, "model") == b"noisy"


def test_the_settings_that_durability_rests_on_are_in_force(path):
    with opened(path) as ledger:
        for pragma, value in (("synchronous", 2), ("journal_mode", "wal"), ("locking_mode", "exclusive")):
            assert ledger._file.connection.execute(f"PRAGMA {pragma}").fetchone()[0] == value


def test_another_silos_ledger_is_refused(path):
    opened(path).close()
    with pytest.raises(LedgerError, match="is the ledger of silo 'lyon', not of 'nice'") as error:
        Ledger.open(path, silo="nice")
    says(error)
    opened(path).close()


def test_another_format_is_refused(path):
    opened(path).close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 3")
    for work in (opened, verify_ledger):
        with pytest.raises(LedgerError, match="is a ledger of format 3, this Fulcrum knows format 2") as error:
            work(path)
        says(error)


def test_another_sqlite_file_is_refused_and_left_alone(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE stock (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="is an SQLite file but not a ledger"):
        opened(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"x", b"silo,records\nlyon,200\n" * 1000, bytes(100_000)])
def test_a_file_that_is_no_ledger_is_refused_and_left_alone(path, content):
    path.write_bytes(content)
    for work in (opened, verify_ledger):
        with pytest.raises(LedgerError, match=r"not a ledger|is empty") as error:
            work(path)
        says(error)
    assert path.read_bytes() == content


def test_a_folder_and_a_missing_one_are_refused(tmp_path):
    with pytest.raises(LedgerError, match="is a folder"):
        opened(tmp_path)
    with pytest.raises(LedgerError, match=r"does not exist. Make it first"):
        opened(tmp_path / "missing" / "lyon.ledger")
    with pytest.raises(LedgerError, match="No such file"):
        verify_ledger(tmp_path / "missing.ledger")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_without_waiting_for_it(path):
    os.mkfifo(path)
    with pytest.raises(LedgerError, match="not a file"):
        opened(path)


def test_a_truncated_ledger_is_refused(path):
    with opened(path) as ledger:
        release(ledger, 1, os.urandom(100_000))
    whole = path.read_bytes()
    for size in (1, 50, 99, 100, 512, 4096, 32_768, 98_321, len(whole) - 32_768, len(whole) - 1):
        path.write_bytes(whole[:size])
        for work in (opened, verify_ledger):
            with pytest.raises(LedgerError, match=r"damaged|not a ledger") as error:
                work(path)
            says(error)
        assert path.read_bytes() == whole[:size]


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bytes_are_noticed_and_never_resent(path, seed):
    payloads = {number: random.Random(number).randbytes(40_000) for number in (1, 2, 3)}
    with opened(path) as ledger:
        for number, payload in payloads.items():
            release(ledger, number, payload)
        before = ledger.entries()
    whole = path.read_bytes()
    rng = random.Random(seed)
    lines = []
    for _ in range(30):
        broken = bytearray(whole)
        # Half of the flips hit the header or a page that holds no payload, where the structure is.
        reach = rng.choice([100, 7 * 32_768, len(whole), len(whole)])
        places = [place for place in range(reach) if whole[place]] if reach < len(whole) else range(reach)
        for place in rng.sample(places, rng.choice([1, 1, 4])):
            broken[place] ^= 1 << rng.randrange(8)
        path.write_bytes(broken)
        try:
            sound = all(holds(path).values())
        except LedgerError:
            sound = False
        try:
            with opened(path) as ledger:
                assert ledger.entries() == before
                for number, payload in payloads.items():
                    with contextlib.suppress(LedgerError):
                        assert ledger.stored(PLAN, number, "model") == payload
                    assert not sound or ledger.stored(PLAN, number, "model") == payload
        except LedgerError as error:
            lines.append(str(error))
        for suffix in ("-journal", "-wal"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    assert lines
    assert not [line for line in lines if "\n" in line]


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_log_gives_no_wrong_bytes_and_loses_nothing(path, tmp_path, seed):
    payloads = {number: random.Random(number).randbytes(40_000) for number in (1, 2, 3)}
    with opened(path) as ledger:
        for number, payload in payloads.items():
            release(ledger, number, payload)
        before = ledger.entries()
        file, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    crashed, rng, refused = tmp_path / "crashed", random.Random(seed), 0
    for _ in range(15):
        broken = bytearray(log[: rng.choice([len(log), rng.randrange(len(log))])])
        for place in rng.sample(range(len(broken)), min(len(broken), rng.choice([0, 1, 3]))):
            broken[place] ^= 1 << rng.randrange(8)
        crashed.write_bytes(file)
        Path(f"{crashed}-wal").write_bytes(broken)
        if broken != log:
            with pytest.raises(LedgerError, match="was not closed, and its log crashed-wal is") as error:
                opened(crashed, None)
            says(error)
            assert (crashed.read_bytes(), Path(f"{crashed}-wal").read_bytes()) == (file, broken)
            Path(f"{crashed}-wal").write_bytes(log)
            refused += 1
        with opened(crashed, None) as ledger:
            assert ledger.entries() == before
            for number, payload in payloads.items():
                assert ledger.stored(PLAN, number, "model") == payload
        assert all(holds(crashed, least_sequence=3).values())
    assert refused


@forks
@pytest.mark.parametrize(("what", "mode"), [("file", 0o444), ("folder", 0o555)])
def test_a_read_only_ledger_cannot_be_opened_but_can_be_read(what, mode):
    def work():
        if os.geteuid() == 0:
            os.setuid(65_534)
        seen = []
        try:
            opened(path)
        except LedgerError as error:
            seen.append(str(error))
        seen.append(all(holds(path).values()))
        return seen

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "lyon.ledger"
        with opened(path) as ledger:
            release(ledger, 1)
        folder.chmod(0o777)
        path.chmod(0o666)
        target = path if what == "file" else folder
        target.chmod(mode)
        said = in_child(work)
        folder.chmod(0o777)
        assert said == str([f"{target.resolve()} is read-only: a release cannot be recorded. Make it writable", True])


@forks
def test_a_folder_that_cannot_be_written_gets_no_ledger():
    def work():
        if os.geteuid() == 0:
            os.setuid(65_534)
        return opened(Path(name) / "lyon.ledger")

    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        said = in_child(work)
        Path(name).chmod(0o777)
        assert said.startswith("LedgerError: ")
        assert "Permission denied" in said
        assert not list(Path(name).iterdir())


# Writes that fail


@forks
@pytest.mark.parametrize("room", [0, 4_096, 50_000, 300_000])
def test_a_full_disk_records_nothing_and_loses_nothing(path, room):
    with opened(path) as ledger:
        release(ledger, 1, b"noisy")
        before = (ledger.entries(), ledger.head, ledger.spent)

    def work():
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        ledger = opened(path)
        limit = path.stat().st_size + room
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            release(ledger, 2, os.urandom(1_000_000))
        except LedgerError as error:
            first = str(error)
        same = (ledger.entries(), ledger.head, ledger.spent) == before
        refused = ledger.would_exceed(PLAN, COST, 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        try:
            release(ledger, 2)
        except LedgerError as error:
            second = str(error)
        ledger.close()
        with opened(path, None) as ledger:
            after = (ledger.entries(), ledger.head, ledger.spent) == before and ledger.stored(
                PLAN, 1, "model"
            ) == b"noisy"
        return json.dumps([first, same, refused, second, after])

    first, same, refused, second, after = json.loads(in_child(work))
    assert "cannot be written, so nothing may be sent (" in first
    assert "Open it again" in refused
    assert "Open it again" in second
    assert same
    assert after
    with opened(path) as ledger:
        assert release(ledger, 2, b"second").sequence == 2
    assert all(holds(path, least_sequence=2).values())


@forks
def test_a_disk_too_full_for_a_new_ledger_leaves_no_file(path):
    def work():
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
        return opened(path)

    assert in_child(work).startswith("LedgerError: ")
    assert not list(path.parent.iterdir())


class FailingCommit:
    """A connection whose commit reports a failed sync, before or after the data reached the file."""

    def __init__(self, connection, *, reached: bool):
        self.connection, self.reached = connection, reached

    def __getattr__(self, name):
        return getattr(self.connection, name)

    def execute(self, sql, *values):
        if sql == "COMMIT":
            if self.reached:
                self.connection.execute(sql)
            raise sqlite3.OperationalError("disk I/O error")
        return self.connection.execute(sql, *values)


@pytest.mark.parametrize("reached", [False, True])
def test_a_failed_sync_is_not_a_release_and_stops_the_ledger_until_it_is_reopened(path, reached):
    ledger = opened(path)
    release(ledger, 1)
    before = (ledger.entries(), ledger.head, ledger.spent)
    ledger._file.connection = FailingCommit(ledger._file.connection, reached=reached)
    with pytest.raises(LedgerError, match=r"lyon.ledger"):
        release(ledger, 2, b"never sent")
    assert (ledger.entries(), ledger.head, ledger.spent) == before
    for work in (
        lambda: release(ledger, 2),
        lambda: release(ledger, 1),
        lambda: ledger.stored(PLAN, 1, "model"),
        lambda: ledger.enter_plan(PLAN),
    ):
        with pytest.raises(LedgerError, match=r"could not be written earlier. Open it again"):
            work()
    ledger.close()
    with opened(path) as ledger:
        # What reached the file after all is charged, and is what any retry sends.
        assert ledger.sequence == (2 if reached else 1)
        assert ledger.stored(PLAN, 2, "model") == (b"never sent" if reached else None)
        assert release(ledger, 2, b"retry").payload == (b"never sent" if reached else b"retry")
    assert all(holds(path).values())


def test_an_interrupt_inside_a_write_stops_the_ledger_until_it_is_reopened(path):
    class Interrupted(FailingCommit):
        def execute(self, sql, *values):
            if sql.startswith("INSERT INTO payload"):
                raise KeyboardInterrupt
            return self.connection.execute(sql, *values)

    ledger = opened(path)
    ledger._file.connection = Interrupted(ledger._file.connection, reached=False)
    with pytest.raises(KeyboardInterrupt):
        release(ledger, 1)
    with pytest.raises(LedgerError, match="Open it again"):
        release(ledger, 1)
    ledger.close()
    with opened(path) as ledger:
        assert ledger.sequence == 0


# Processes and threads


@forks
def test_a_second_process_is_refused_until_the_first_lets_go(path):
    ledger = opened(path)
    for work in (lambda: opened(path), lambda: verify_ledger(path)):
        said = in_child(work)
        assert said.startswith("LedgerInUseError: ")
        assert "is in use by another process" in said
    ledger.close()
    assert in_child(lambda: opened(path).sequence) == "0"


def test_a_second_opening_in_one_process_is_refused(path):
    with opened(path):
        for work in (opened, verify_ledger):
            with pytest.raises(LedgerInUseError, match=r"is open in this process. Close it first"):
                work(path)
    opened(path).close()


def test_a_reader_keeps_writers_out_and_lets_readers_in(path):
    opened(path).close()
    with Ledger.read(path), Ledger.read(path) as second:
        assert second.sequence == 0
        with pytest.raises(LedgerInUseError, match="is in use"):
            opened(path)
    opened(path).close()


@forks
def test_copying_an_open_ledger_does_not_let_a_second_process_in(path, tmp_path):
    # POSIX drops SQLite's locks when the process closes any descriptor of the file.
    with opened(path) as ledger:
        shutil.copy(path, tmp_path / "copy")
        assert in_child(lambda: opened(path)).startswith("LedgerInUseError: ")
        release(ledger, 1)
    assert all(holds(path).values())


@forks
def test_other_sqlite_programs_cannot_write_to_an_open_ledger(path):
    def work():
        with contextlib.closing(sqlite3.connect(path, timeout=0)) as connection:
            connection.execute("DELETE FROM entry")

    with opened(path):
        assert "locked" in in_child(work)


@forks
def test_a_forked_child_may_not_use_the_ledger_and_does_not_keep_it(path):
    ledger = opened(path)
    release(ledger, 1)
    assert "opened before a fork" in in_child(lambda: release(ledger, 2))
    assert in_child(ledger.close) == "None"

    def dropped():
        del ledger._file.connection
        return gc.collect() >= 0

    assert in_child(dropped) == "True"
    assert in_child(lambda: opened(path)).startswith("LedgerInUseError: ")
    release(ledger, 2)

    receive, send = os.pipe()
    alive, living = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        os.write(living, b".")
        os.close(send)
        os.read(receive, 1)
        os._exit(0)
    os.read(alive, 1)
    ledger.close()
    with opened(path) as again:  # while the child lives
        assert again.sequence == 2
    for end in (send, receive, alive, living):
        os.close(end)
    os.waitpid(child, 0)


@forks
def test_a_killed_process_lets_the_ledger_go(path):
    opened(path).close()
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        kept = opened(path)
        os.write(send, b"%d" % kept.sequence)
        threading.Event().wait(60)
        os._exit(0)
    os.read(receive, 1)
    try:
        with pytest.raises(LedgerInUseError):
            opened(path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(receive)
        os.close(send)
    opened(path).close()


def test_threads_share_a_ledger(path):
    plan = Allowance(plan_digest="p", rounds=40, shift_above=40.0, shift_inside=40.0)
    with opened(path, plan) as ledger:

        def work(job):
            return release(ledger, job % 40 + 1, os.urandom(2_000))

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(work, range(120)))
        by_round = {}
        for job, result in enumerate(results):
            by_round.setdefault(job % 40, []).append(result)
        for same in by_round.values():
            assert len({result.payload for result in same}) == 1
            assert sum(result.fresh for result in same) == 1
        assert ledger.spent.shift_above == 10.0
    assert all(holds(path).values())


def test_threads_that_create_one_ledger_get_it_once(path):
    def work(_):
        try:
            return opened(path)
        except LedgerInUseError:
            return None

    with ThreadPoolExecutor(8) as pool:
        made = [ledger for ledger in pool.map(work, range(8)) if ledger is not None]
    assert len(made) == 1
    made[0].close()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


# Against a model


class LedgerBesideAModel(RuleBasedStateMachine):
    """A ledger and plain dictionaries, asked the same; quarters add up exactly."""

    quarters = st.integers(0, 8).map(lambda count: count / 4)
    rounds = st.integers(1, 4)
    bases = st.sampled_from(["a", "b"])

    @initialize()
    def make(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "lyon.ledger"
        self.ledger = Ledger.open(self.path, silo="lyon")
        self.plans, self.plan, self.released, self.spent = {}, None, {}, (0.0, 0.0)

    @property
    def current(self):
        """The plan that releases are made under; one that is not entered before the first."""
        return PLAN if self.plan is None else self.plans[self.plan]

    def refusal(self, cost, number):
        if self.plan is None:
            return True
        plan = self.plans[self.plan]
        return (
            number > plan.rounds
            or (self.plan, number) in self.released
            or self.spent[0] + cost.shift_above > plan.shift_above
            or self.spent[1] + cost.shift_inside > plan.shift_inside
        )

    @rule(digest=st.sampled_from("pq"), rounds=st.integers(2, 3), above=st.integers(1, 4), inside=st.just(6))
    def begin(self, digest, rounds, above, inside):
        plan = Allowance(plan_digest=digest, rounds=rounds, shift_above=above, shift_inside=inside)
        known = self.plans.get(digest, plan)
        if known != plan or self.spent[0] > above or self.spent[1] > inside:
            with pytest.raises(LedgerError):
                self.ledger.enter_plan(plan)
        else:
            self.ledger.enter_plan(plan)
            self.plans[digest] = plan
            self.plan = digest

    @rule(number=rounds, basis=bases, payload=st.binary(max_size=30), above=quarters, inside=quarters)
    def record(self, number, basis, payload, above, inside):
        cost = Cost(shift_above=above, shift_inside=inside)
        known = self.released.get((self.plan, number))
        if known is not None and known[0] == basis:
            result = self.ledger.record(self.current, round_number=number, basis=basis, payload=payload, cost=cost)
            assert (result.payload, result.fresh) == (known[1], False)
        elif self.refusal(cost, number):
            with pytest.raises(RefusedReleaseError):
                self.ledger.record(self.current, round_number=number, basis=basis, payload=payload, cost=cost)
        else:
            result = self.ledger.record(self.current, round_number=number, basis=basis, payload=payload, cost=cost)
            self.released[self.plan, number] = (basis, payload)
            self.spent = (self.spent[0] + above, self.spent[1] + inside)
            assert (result.payload, result.fresh, result.sequence) == (payload, True, len(self.released))

    @rule(number=rounds, basis=bases)
    def stored(self, number, basis):
        known = self.released.get((self.plan, number))
        assert self.ledger.stored(self.current, number, basis) == (
            known[1] if known is not None and known[0] == basis else None
        )

    @rule(number=rounds, above=quarters, inside=quarters)
    def would_exceed(self, number, above, inside):
        cost = Cost(shift_above=above, shift_inside=inside)
        assert (self.ledger.would_exceed(self.current, cost, number) is not None) == self.refusal(cost, number)

    @rule()
    def reopen(self):
        self.ledger.close()
        self.ledger = Ledger.open(self.path, silo="lyon")

    @invariant()
    def agree(self):
        assert self.ledger.sequence == len(self.released)
        assert (self.ledger.spent.shift_above, self.ledger.spent.shift_inside) == self.spent
        assert [(e.plan_digest, e.round_number) for e in self.ledger.entries()] == list(self.released)

    def teardown(self):
        self.ledger.close()
        assert all(holds(self.path, least_sequence=len(self.released)).values())
        self.folder.cleanup()


TestLedgerBesideAModel = LedgerBesideAModel.TestCase
TestLedgerBesideAModel.settings = settings(max_examples=30, stateful_step_count=25)


# Kills

RELEASE_UNTIL_KILLED = '''
import json, os, random, signal, struct, sys, time
from pathlib import Path
from fulcrum.ledger.ledger import Allowance, Cost, Ledger, verify_ledger

folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
cost = Cost(shift_above=0.001, shift_inside=0.01)
plan = Allowance(plan_digest="plan", rounds=10**6, shift_above=1e3, shift_inside=1e4)
rng = random.Random(seed)


def releasing(path, sent, tell, size, last=10**6):
    """Resends the last release, which may not have left, then releases on until killed."""
    with Ledger.open(path, silo="lyon") as ledger:
        ledger.enter_plan(plan)
        out = os.open(sent, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in range(max(1, ledger.sequence), min(ledger.sequence + last, 10**6) + 1):
            basis = f"model-{number}"
            os.write(tell, b".")
            payload = ledger.stored(plan, number, basis)
            if payload is None:
                fresh = os.urandom(size)
                os.write(tell, b"(")
                payload = ledger.record(plan, round_number=number, basis=basis, payload=fresh, cost=cost).payload
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
            stored = ledger.stored(plan, number, f"model-{number}")
            assert stored is not None, number
            # The last bytes of a killed sender may be cut short: what left is a part of what is stored.
            assert all(stored.startswith(payload) for payload in payloads), number
            totals["resent"] += len(payloads) - 1
        assert ledger.spent.shift_above >= 0.001 * len(contents) * (1 - 1e-12)
        assert ledger.spent.shift_inside >= 0.01 * len(contents) * (1 - 1e-12)
        totals["releases"] += ledger.sequence


totals = {"kills": 0, "in_record": 0, "sent": 0, "resent": 0, "releases": 0}
while totals["kills"] < kills:
    ledger_number = totals["kills"]
    path, sents = folder / f"{ledger_number}.ledger", []
    while totals["kills"] < min(kills, ledger_number + 50):
        sents.append(folder / f"{totals['kills']}.sent")
        size = rng.choice([10, 5_000, 100_000, 400_000])
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
def test_a_process_killed_at_any_moment_loses_nothing_that_left(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", RELEASE_UNTIL_KILLED, str(tmp_path), str(KILLS), "1"],
        capture_output=True,
        text=True,
        timeout=60 + KILLS,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    totals = json.loads(done.stdout)
    assert totals["kills"] == KILLS
    # The test means something only if kills fell inside `record` and releases were sent again.
    assert totals["in_record"] >= KILLS // 20
    assert totals["resent"] >= KILLS // 20
    assert totals["sent"] > KILLS // 2
