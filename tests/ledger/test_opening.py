"""What a ledger is on disk, what opens as one, and what is refused."""

import contextlib
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from error_codes import coded
from forking import forks, in_child
from ledgers import COST, PLAN, holds, opened, release, says

import fulcrum.core.silo.earlier_names  # noqa: F401 as with the public names
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.core.store.ledger_reading import read_ledger
from fulcrum.errors import LedgerError


def test_reading_changes_nothing_and_records_nothing(path):
    with opened(path) as ledger:
        release(ledger, 1, b"noisy")
    before = path.read_bytes()
    with read_ledger(path) as ledger:
        assert (ledger.silo, ledger.sequence, ledger.total_cost, ledger.allowance) == ("lyon", 1, COST, PLAN)
        with pytest.raises(LedgerError, check=coded("storage.opened-to-read")):
            release(ledger, 2)
        with pytest.raises(LedgerError, check=coded("storage.opened-to-read")):
            ledger.enter_plan(PLAN)
        assert ledger.would_exceed(PLAN, COST, 2).code == "storage.opened-to-read"
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_closed_ledger_still_tells_and_does_nothing(path):
    with opened(path) as ledger:
        release(ledger, 1)
    ledger.close()
    assert (ledger.sequence, ledger.total_cost, len(ledger.entries())) == (1, COST, 1)
    for work in (
        lambda: release(ledger, 2),
        lambda: ledger.stored_payload(PLAN, 1, "model"),
        lambda: ledger.enter_plan(PLAN),
        lambda: verify_ledger(ledger),
    ):
        with pytest.raises(LedgerError, check=coded("ledger.closed")):
            work()


def test_a_ledger_is_one_private_file(path):
    with opened(path) as ledger:
        release(ledger, 1)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_copy_of_an_open_ledger_is_whole_between_two_releases(path, tmp_path):
    with opened(path) as ledger:
        for number in (1, 2):
            release(ledger, number, b"noisy")
            shutil.copy(path, tmp_path / "copy")
            assert all(holds(tmp_path / "copy", least_sequence=number).values())
            shutil.copy(f"{path}-journal", tmp_path / "copy-journal")
            assert all(holds(tmp_path / "copy", least_sequence=number).values())


def test_a_ledger_never_closed_is_read_whole_and_is_one_file_once_it_was_opened(path, tmp_path):
    with opened(path) as ledger:
        release(ledger, 1, b"noisy")
        for suffix in ("", "-journal"):
            shutil.copy(f"{path}{suffix}", tmp_path / f"crashed{suffix}")
    with read_ledger(tmp_path / "crashed") as ledger:
        assert ledger.sequence == 1
    with opened(tmp_path / "crashed") as ledger:
        assert ledger.sequence == 1
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["crashed", path.name]


def test_a_process_that_ends_without_closing_leaves_a_ledger_that_opens_and_reads(path):
    script = (
        "import sys; from fulcrum.core.store.ledger import *; ledger = Ledger.open(sys.argv[1], silo='lyon');"
        "plan = Allowance(plan_digest='plan-a', rounds=5, shifts={'silo': 8.0, 'region': 1.0}); ledger.enter_plan(plan);"
        "cost = Cost(shifts={'silo': 1.0, 'region': 0.25});"
        "ledger.record(plan, round_number=1, input_digest='model', payload=b'noisy', cost=cost)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    assert all(holds(path, least_sequence=1).values())
    with opened(path) as ledger:
        assert ledger.stored_payload(PLAN, 1, "model") == b"noisy"


def test_another_silos_ledger_is_refused(path):
    opened(path).close()
    with pytest.raises(LedgerError, check=coded("ledger.other-silo", owner="lyon", silo="nice")) as error:
        Ledger.open(path, silo="nice")
    says(error)
    opened(path).close()


def test_another_format_is_refused(path):
    opened(path).close()
    whole = path.read_bytes()
    for version, code in ((6, "storage.format-later"), (4, "storage.format-earlier"), (1, "storage.format-earlier")):
        path.write_bytes(whole[:60] + version.to_bytes(4, "big") + whole[64:])
        for work in (opened, verify_ledger):
            with pytest.raises(LedgerError, check=coded(code, format=version)):
                work(path)


def test_another_sqlite_file_is_refused_and_left_alone(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE stock (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(LedgerError, check=coded("storage.sqlite-kind", noun="a ledger")):
        opened(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"x", b"silo,records\nlyon,200\n" * 1000, bytes(100_000)])
def test_a_file_that_is_no_ledger_is_refused_and_left_alone(path, content):
    path.write_bytes(content)
    for work in (opened, verify_ledger):
        with pytest.raises(LedgerError, check=coded("storage.file-kind", "storage.file-empty", noun="a ledger")):
            work(path)
    assert path.read_bytes() == content


def test_a_folder_and_a_missing_one_are_refused(tmp_path):
    with pytest.raises(LedgerError, check=coded("storage.not-a-file", kind="a folder")):
        opened(tmp_path)
    with pytest.raises(LedgerError, check=coded("storage.folder-missing")):
        opened(tmp_path / "missing" / "lyon.ledger")
    with pytest.raises(LedgerError, check=coded("storage.operation-failed")):
        verify_ledger(tmp_path / "missing.ledger")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_refused_without_waiting_for_it(path):
    os.mkfifo(path)
    with pytest.raises(LedgerError, check=coded("storage.not-a-file", kind="not a file")):
        opened(path)


def test_a_link_to_a_ledger_that_is_lost_begins_no_new_one(path, tmp_path):
    """The disk of the ledger may not be mounted: a new one in its place would release its rounds again."""
    path.symlink_to(tmp_path / "elsewhere" / "lyon.ledger")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(LedgerError, check=coded("storage.link-broken")):
        opened(path)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_circle_of_links_is_refused_in_one_line(path):
    path.symlink_to(path)
    for work in (opened, verify_ledger):
        with pytest.raises(LedgerError, check=coded("storage.operation-failed")) as error:
            work(path)
        says(error)


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
            seen += [error.code, str(error.details["file"])]
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
        assert said == str(["storage.read-only", str(target.resolve()), True])


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


@pytest.mark.parametrize(("name", "now"), [("spent", "total_cost"), ("unused", "is_unused")])
def test_a_ledger_answers_to_its_earlier_names_with_a_warning(path, name, now):
    with opened(path) as ledger:
        release(ledger, 1)
        with pytest.deprecated_call(match=f"Ledger.{name} goes with version 0.3. Use {now}"):
            assert getattr(ledger, name) == getattr(ledger, now)


def test_the_earlier_names_of_methods_do_the_same_work(path):
    with opened(path) as ledger:
        release(ledger, 1, b"noisy")
        with pytest.deprecated_call(match="Use stored_payload"):
            assert ledger.stored(PLAN, 1, "model") == b"noisy"
        with pytest.deprecated_call(match="Use holding"), ledger.held():
            assert ledger.sequence == 1
    with pytest.deprecated_call(match="Cost.charged goes with version 0.3. Use charge_to"):
        assert COST.charged(tuple(COST.shifts)) == COST.charge_to(tuple(COST.shifts))


def test_the_two_observers_of_earlier_costs_are_the_innermost(path):
    opened(path).close()
    for owner in (COST, PLAN):
        (inside, shift_inside), (above, shift_above) = list(owner.shifts.items())[:2]
        with pytest.deprecated_call(match=rf"shift_inside goes with version 0.3. Use \w+.shifts\['{inside}'\]"):
            assert owner.shift_inside == shift_inside
        with pytest.deprecated_call(match=rf"shift_above goes with version 0.3. Use \w+.shifts\['{above}'\]"):
            assert owner.shift_above == shift_above
    with pytest.deprecated_call(match=r"Use fulcrum.read_ledger\(path\)"):
        Ledger.read(path).close()
    with opened(path) as ledger, pytest.deprecated_call(match="Use fulcrum.verify_ledger") as caught:
        assert all(check.holds for check in ledger.checks())
    assert caught[0].filename == __file__


def test_a_silo_has_no_earlier_names():
    script = "import sys, fulcrum.core.silo.releasing as r; print('held' in vars(r.Ledger), hasattr(r.Ledger, 'spent'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_ledgers_and_costs_have_no_further_names(path):
    with opened(path) as ledger, pytest.raises(AttributeError, match="'Ledger' object has no attribute 'paid'"):
        ledger.paid  # noqa: B018
    with pytest.raises(AttributeError, match="'Cost' object has no attribute 'paid'"):
        COST.paid  # noqa: B018


def test_an_error_of_the_file_keeps_its_code_and_details_as_an_error_of_the_ledger(path):
    path.write_bytes(b"")
    with pytest.raises(LedgerError) as caught:
        read_ledger(path)
    assert (caught.value.code, caught.value.details["file"]) == ("storage.file-empty", path.resolve())
