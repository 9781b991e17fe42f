"""Which syncs a file asks for, and in which order."""

import contextlib
import io
import re
import shutil
import subprocess
import sys

import pytest
from logged_files import log_of

from fulcrum.roles.region_file import RegionFile
from fulcrum.storage.log_mark import LogMark


def test_a_new_file_its_name_and_its_log_are_synced_before_anything_is_recorded(kind, tmp_path, syncs):
    path = tmp_path / kind.name
    with contextlib.closing(kind.open(path)):
        content, names, mark = syncs[:3]
        inode, folder = path.stat().st_ino, tmp_path.stat().st_ino
        assert (content.inode, content.size) == (inode, path.stat().st_size)
        assert path.name not in content.names  # it gets its name only then
        assert names.inode == folder
        assert names.names.items() >= {path.name: inode, log_of(path).name: log_of(path).stat().st_ino}.items()
        assert mark.inode == inode


def test_every_write_marks_the_file_with_one_sync_of_its_own_after_the_logs(kind, tmp_path, syncs):
    path = tmp_path / kind.name
    with contextlib.closing(kind.open(path)) as opened:
        inode = path.stat().st_ino
        file = opened if isinstance(opened, RegionFile) else opened._file
        assert file.connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert file.connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)
        for number in (1, 2, 3):
            del syncs[:]
            kind.record(opened, number)
            assert [sync.inode for sync in syncs] == [inode]
            mark = LogMark.read(io.BytesIO(path.read_bytes()))
            assert (mark.whole, mark.length) == (False, log_of(path).stat().st_size)
        del syncs[:]
    assert [sync.inode for sync in syncs] == [inode]
    assert LogMark.read(io.BytesIO(path.read_bytes())).whole


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_release_is_two_syncs_the_log_first_and_a_fold_marks_the_file_before_it_empties_the_log(tmp_path):
    path, trace = tmp_path / "lyon.ledger", tmp_path / "trace"
    script = (
        "import os, sys; from fulcrum.storage import database; from fulcrum.ledger.ledger import *\n"
        "cost = Cost(shift_above=0, shift_inside=0)\n"
        "database.LOG_BYTES = 1_000_000\n"
        "with Ledger.open(sys.argv[1], silo='lyon') as ledger:\n"
        "    plan = Allowance(plan_digest='p', rounds=9, shift_above=1, shift_inside=1)\n"
        "    ledger.enter_plan(plan)\n"
        "    for number in range(1, 6):\n"
        "        os.write(1, b'begin')\n"
        "        ledger.record(plan, round_number=number, basis='m', payload=bytes(500_000), cost=cost)\n"
        "        os.write(1, b'end')\n"
    )
    calls = "trace=fsync,fdatasync,ftruncate,write,unlink"
    command = ["strace", "-f", "-y", "-e", calls, "-o", str(trace), sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and "ptrace" in done.stderr.lower():
        pytest.skip("may not trace")
    assert done.returncode == 0, done.stderr
    events = []
    for line in trace.read_text().splitlines():
        call = re.sub(r"^\d+ +", "", line)
        if match := re.match(r'write\(1<.*"(begin|end)"', call):
            events.append(match[1])
        elif match := re.match(rf"(fsync|fdatasync)\(\d+<{re.escape(str(path))}(-wal)?>", call):
            events.append("sync log" if match[2] else "sync file")
        elif re.match(rf"ftruncate\(\d+<{re.escape(str(path))}-wal>, 0\)", call):
            events.append("empty log")
    releases = []
    for event in events:
        if event == "begin":
            releases.append([])
        elif event == "end" or (releases and releases[-1][-1:] != ["end"]):
            releases[-1].append(event)
    two = ["sync log", "sync file", "end"]
    assert [len(release) == 3 for release in releases] == [True, True, False, True, False], releases
    assert [release for release in releases if len(release) == 3] == [two] * 3
    longest = max(releases, key=len)
    assert longest[-3:] == two
    assert longest[: longest.index("empty log")] == ["sync log", "sync file", "sync file"]  # fold, then the mark
