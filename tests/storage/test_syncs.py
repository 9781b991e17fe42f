"""Which syncs a file asks for, and in which order."""

import contextlib
import os
import re
import subprocess
import sys

from journaled_files import journal_of
from recorded_disk import needs_strace

SETTINGS = {
    "synchronous": 1,
    "journal_mode": "persist",
    "locking_mode": "exclusive",
    "cache_spill": 0,
    "secure_delete": 1,
    "temp_store": 2,
    "trusted_schema": 0,
    "cell_size_check": 1,
    "mmap_size": 0,
}


def test_the_settings_that_durability_and_erasure_rest_on_are_in_force(kind, tmp_path):
    with contextlib.closing(kind.open(tmp_path / kind.name)) as opened:
        found = {name: kind.file(opened).rows(f"PRAGMA {name}")[0][0] for name in SETTINGS}
    assert found == SETTINGS


def test_a_new_file_and_the_names_of_file_and_journal_are_synced_before_anything_is_recorded(kind, tmp_path, syncs):
    path = tmp_path / kind.name
    with contextlib.closing(kind.open(path)):
        content, names = syncs[:2]
        inode, folder = path.stat().st_ino, tmp_path.stat().st_ino
        assert (content.inode, content.size) == (inode, path.stat().st_size)
        assert path.name not in content.names  # it gets its name only then
        assert names.inode == folder
        assert names.names.items() >= {path.name: inode, journal_of(path).name: journal_of(path).stat().st_ino}.items()


def test_every_write_syncs_the_journal_and_marks_the_file_before_and_after_the_commit(kind, tmp_path, syncs):
    path = tmp_path / kind.name
    with contextlib.closing(kind.open(path)) as opened:
        file, journal = path.stat().st_ino, journal_of(path).stat().st_ino
        for number in (1, 2, 3):
            del syncs[:]
            kind.record(opened, number)
            erased = [journal] if kind.file(opened).erases else []
            assert [sync.inode for sync in syncs] == [journal, file, file, *erased]
            assert journal_of(path).read_bytes() == b""
        del syncs[:]
    assert not syncs


RELEASES = """
import os, sys
from fulcrum.core.store.ledger import *
cost = Cost(shifts={"silo": 0, "region": 0})
with Ledger.open(sys.argv[1], silo="lyon") as ledger:
    plan = Allowance(plan_digest="p", rounds=9, shifts={"silo": 1, "region": 1})
    ledger.enter_plan(plan)
    for number, size in enumerate((500, 500_000, 500), 1):
        os.write(1, b"begin")
        ledger.record(plan, round_number=number, input_digest="m", payload=bytes(size), cost=cost)
        os.write(1, b"end")
"""


@needs_strace
def test_a_release_syncs_its_journal_and_its_mark_before_the_first_page_is_written(tmp_path):
    path, trace = tmp_path / "lyon.ledger", tmp_path / "trace"
    calls = "trace=fsync,fdatasync,ftruncate,write,pwrite64,unlink"
    command = ["strace", "-f", "-y", "-e", calls, "-o", str(trace), sys.executable, "-c", RELEASES, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    named = re.escape(str(path))
    releases = []
    for line in trace.read_text().splitlines():
        call = re.sub(r"^\d+ +", "", line)
        if match := re.match(r'write\(1<.*"(begin|end)"', call):
            releases.append([]) if match[1] == "begin" else releases[-1].append("end")
        elif not releases or releases[-1][-1:] == ["end"]:
            continue
        elif match := re.match(rf"(\w+)\(\d+<{named}(-journal)?>", call):
            did, what = match[1], "journal" if match[2] else "file"
            event = {"fsync": "sync", "fdatasync": "sync", "ftruncate": "empty"}.get(did, did)
            if releases[-1][-1:] != [f"{event} {what}"]:
                releases[-1].append(f"{event} {what}")
    commit = [
        *("pwrite64 journal", "sync journal", "write file", "sync file"),  # ours: the pages that change, and the mark
        *("pwrite64 journal", "sync journal", "pwrite64 file", "sync file"),  # SQLite's
        *("pwrite64 journal", "sync journal", "write file", "sync file", "empty journal", "end"),
    ]
    assert releases == [commit] * 3


@needs_strace
def test_sqlite_adds_nothing_to_the_synced_journal_but_the_count_of_its_pages(tmp_path):
    """At `synchronous=NORMAL` SQLite syncs count and pages of a journal together: the pages are on disk before."""
    path, trace = tmp_path / "lyon.ledger", tmp_path / "trace"
    command = ["strace", "-f", "-y", "-e", "trace=fsync,write,pwrite64", "-o", str(trace)]
    done = subprocess.run([*command, sys.executable, "-c", RELEASES, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    named, writes, counts = re.escape(str(path)), None, []
    for line in trace.read_text().splitlines():
        if re.search(rf"fsync\(\d+<{named}-journal>", line):  # before the mark; SQLite syncs by fdatasync
            writes = []
        elif match := re.search(rf"pwrite64\(\d+<{named}-journal>.*, (\d+), (\d+)\) +=", line):
            writes is not None and writes.append((int(match[1]), int(match[2])))
        elif re.search(rf"pwrite64\(\d+<{named}>", line) and writes is not None:
            counts.append(writes)
            writes = None
    assert counts == [[(12, 0)]] * 4  # the plan, and three releases: magic and count, at the journal's beginning
