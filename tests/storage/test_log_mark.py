"""The log beside an open file: that nothing recorded is lost with it, whatever becomes of it."""

import base64
import contextlib
import gc
import io
import json
import os
import random
import re
import shutil
import sqlite3
import stat
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from fulcrum.errors import LedgerError, LedgerInUseError, StorageError
from fulcrum.ledger.ledger import Allowance, Cost, Ledger, verify_ledger
from fulcrum.roles.region_file import RegionFile
from fulcrum.storage import database
from fulcrum.storage.log_mark import PAGE_BYTES, LogMark, _chained

TRIALS = int(os.environ.get("FULCRUM_TRIALS", "40"))
COST = Cost(shift_above=0.25, shift_inside=1.0)
PLAN = Allowance(plan_digest="plan-a", rounds=50, shift_above=100.0, shift_inside=800.0)
SLOTS = (2 * PAGE_BYTES - 8192, 2 * PAGE_BYTES - 4096)


class Book:
    """A ledger: what is recorded, and what is found again."""

    name, advice, error = "lyon.ledger", "witness", LedgerError

    def open(self, path):
        ledger = Ledger.open(path, silo="lyon")
        ledger.enter_plan(PLAN)
        return ledger

    def record(self, ledger, number, payload=b""):
        ledger.record(PLAN, round_number=number, basis="model", payload=payload or b"round %d" % number, cost=COST)

    def found(self, ledger):
        return [entry.round_number for entry in ledger.entries()]


class Sums:
    """A region's file: likewise."""

    name, advice, error = "north.region", "new plan", StorageError

    def open(self, path):
        return RegionFile.bound(path, region="north", plan_digest="p")

    def record(self, file, number, payload=b""):
        file.write(("INSERT INTO answer VALUES (?, 'summed', 'd', ?)", (number, payload or b"round %d" % number)))

    def found(self, file):
        return [row[0] for row in file.rows("SELECT round FROM answer ORDER BY round")]


@pytest.fixture(params=[Book, Sums], ids=["ledger", "region"])
def kind(request):
    return request.param()


def log_of(path):
    return path.with_name(f"{path.name}-wal")


def state(path):
    """A file and its log as they are now."""
    log = log_of(path)
    return path.read_bytes(), log.read_bytes() if log.exists() else None


def put(path, saved):
    """Leaves a file and its log as a killed process does; None is no log."""
    for place, data in zip((path, log_of(path)), saved, strict=True):
        place.unlink(missing_ok=True)
        if data is not None:
            place.write_bytes(data)


def recorded(kind, path, rounds, size=50_000):
    """The states after every write, in turn, by rounds recorded; then the file is closed."""
    states = [(0, None)]
    with contextlib.closing(kind.open(path)) as opened:
        states[0] = state(path)
        for number in range(1, rounds + 1):
            kind.record(opened, number, random.Random(number).randbytes(size))
            states.append(state(path))
    return states


def refused(kind, path, *words):
    """Opening says in one line what is wrong, changes nothing, and so does reading a ledger."""
    before = {entry.name: entry.read_bytes() for entry in path.parent.iterdir()}
    works = [kind.open] + ([verify_ledger] if isinstance(kind, Book) else [])
    for work in works:
        with pytest.raises(kind.error) as error:
            work(path)
        said = str(error.value)
        assert "\n" not in said
        assert str(path.resolve()) in said
        assert all(word in said for word in words), said
    assert {entry.name: entry.read_bytes() for entry in path.parent.iterdir()} == before


def opens_with(kind, path, rounds):
    with contextlib.closing(kind.open(path)) as opened:
        assert kind.found(opened) == list(range(1, rounds + 1))
    if isinstance(kind, Book):
        assert all(check.holds for check in verify_ledger(path, least_sequence=rounds))


# A log that does not belong to its file, or no longer all of it


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda log: None, "is missing"),
        (lambda log: b"", "not the one that it was left with"),
        (lambda log: log[:31], "not the one that it was left with"),
        (lambda log: log[:32], "is cut short"),
        (lambda log: log[:-1], "is cut short"),
        (lambda log: log[: -PAGE_BYTES - 24], "is cut short"),
        (lambda log: log[:-PAGE_BYTES] + bytes(PAGE_BYTES), "is damaged"),
        (lambda log: flipped(log, 17), "not the one that it was left with"),
        (lambda log: flipped(log, 40), "is damaged"),
        (lambda log: flipped(log, 1000), "is damaged"),
        (lambda log: flipped(log, len(log) // 2), "is damaged"),
        (lambda log: flipped(log, len(log) - 1), "is damaged"),
        (lambda log: flipped(log, len(log) - PAGE_BYTES - 20), "is damaged"),
    ],
)
def test_a_log_lost_cut_short_or_damaged_is_refused_until_it_is_put_back(kind, tmp_path, damage, word):
    path = tmp_path / kind.name
    file, log = recorded(kind, path, 3)[-1]
    put(path, (file, damage(log)))
    refused(kind, path, "was not closed", f"{path.name}-wal", word, "Put back the log")
    put(path, (file, log))
    opens_with(kind, path, 3)


def test_a_stale_log_is_refused(kind, tmp_path):
    path = tmp_path / kind.name
    first = recorded(kind, path, 3)
    with contextlib.closing(kind.open(path)) as opened:
        for number in (4, 5):
            kind.record(opened, number)
        last = state(path)
    for _, stale in first:
        put(path, (last[0], stale))
        refused(kind, path, "not the one that it was left with")
    for number in range(3):  # of the same log, before it went on
        put(path, (first[3][0], first[number][1]))
        refused(kind, path, "is cut short")
    put(path, last)
    opens_with(kind, path, 5)


def test_a_log_that_parts_from_the_marked_one_in_its_last_frame_is_refused(kind, tmp_path):
    path = tmp_path / kind.name
    file, log = recorded(kind, path, 3)[-1]
    place = len(log) - PAGE_BYTES - 24
    (sums,) = struct.iter_unpack(">II", log[place - PAGE_BYTES - 8 : place - PAGE_BYTES])
    frame = flipped(log[place:], 5000)
    first, second = sums
    words = struct.unpack(f"{'>' if log[3] & 1 else '<'}{(8 + PAGE_BYTES) // 4}I", frame[:8] + frame[24:])
    for x, y in zip(words[::2], words[1::2], strict=True):
        first = (first + x + second) % 2**32
        second = (second + y + first) % 2**32
    forged = log[:place] + frame[:16] + struct.pack(">II", first, second) + frame[24:]
    put(path, (file, forged))  # SQLite would take it
    refused(kind, path, "not the one that it was left with")


def test_another_files_log_is_refused(kind, tmp_path):
    path, other = tmp_path / kind.name, tmp_path / "other"
    mine, theirs = recorded(kind, path, 3)[-1], recorded(kind, other, 3)[-1]
    other.unlink()
    put(path, (mine[0], theirs[1]))
    refused(kind, path, "not the one that it was left with")
    put(path, mine)
    opens_with(kind, path, 3)


def test_a_whole_file_refuses_a_log_that_is_not_its_own_and_leaves_it(kind, tmp_path):
    path, other = tmp_path / kind.name, tmp_path / "other"
    recorded(kind, path, 3)
    theirs = recorded(kind, other, 2)[-1][1]
    other.unlink()
    log_of(path).write_bytes(theirs)
    with pytest.raises(kind.error, match="is the log of another file, or of this one at another time") as error:
        kind.open(path)
    assert str(error.value).startswith(str(log_of(path)))
    assert log_of(path).read_bytes() == theirs
    log_of(path).unlink()
    opens_with(kind, path, 3)


def test_a_stray_journal_is_refused_and_undoes_nothing(kind, tmp_path):
    path = tmp_path / kind.name
    recorded(kind, path, 2)
    path.with_name(f"{path.name}-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(600))
    with pytest.raises(kind.error, match=r"-journal is not of Fulcrum's making.* Move it away"):
        kind.open(path)
    path.with_name(f"{path.name}-journal").unlink()
    opens_with(kind, path, 2)


# One file under two names


RECORD = """
import os, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import test_log_mark

kind = getattr(test_log_mark, sys.argv[2])()
opened = kind.open(Path(sys.argv[3]))
for number in range(1, int(sys.argv[4]) + 1):
    kind.record(opened, number)
if sys.argv[5] == "killed":
    os._exit(0)
"""


def recording(kind, path, rounds, end="killed"):
    """The command that records in a process of its own, which then ends as if killed, or never closes the file."""
    return [sys.executable, "-c", RECORD, str(Path(__file__).parent), type(kind).__name__, str(path), str(rounds), end]


def test_a_file_opened_by_another_hard_link_does_not_forget_its_log(kind, tmp_path):
    path, other = tmp_path / kind.name, tmp_path / "elsewhere" / "other"
    other.parent.mkdir()
    kind.open(path).close()
    other.hardlink_to(path)
    subprocess.run(recording(kind, path, 3), check=True)
    refused(kind, other, "other-wal is missing")
    opens_with(kind, path, 3)
    opens_with(kind, other, 3)


def test_a_file_opened_by_a_symbolic_link_has_one_log(kind, tmp_path):
    path, other = tmp_path / kind.name, tmp_path / "elsewhere" / "other"
    other.parent.mkdir()
    other.symlink_to(path)
    subprocess.run(recording(kind, other, 3), check=True)
    assert log_of(path).exists()
    opens_with(kind, path, 3)


def test_a_file_moved_without_its_log_is_refused(kind, tmp_path):
    path, moved = tmp_path / kind.name, tmp_path / "moved"
    subprocess.run(recording(kind, path, 2), check=True)
    path.rename(moved)
    refused(kind, moved, "moved-wal is missing")
    moved.rename(path)
    opens_with(kind, path, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux mounts")
def test_a_file_mounted_alone_does_not_forget_its_log(kind, tmp_path):
    path, other = tmp_path / "real" / kind.name, tmp_path / "mounted" / kind.name
    for folder in (path.parent, other.parent):
        folder.mkdir()
    kind.open(path).close()
    other.touch()
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", str(path), str(other), *recording(kind, other, 3)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"may not mount: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    refused(kind, path, "is missing")
    shutil.move(log_of(other), log_of(path))
    opens_with(kind, path, 3)


# Honest crashes


def test_a_crash_between_the_two_syncs_of_a_write_loses_nothing(kind, tmp_path):
    path = tmp_path / kind.name
    states = recorded(kind, path, 3)
    for number in range(3):  # the log has a write that the file does not know of
        put(path, (states[number][0], states[number + 1][1]))
        opens_with(kind, path, number + 1)
        put(path, (states[number][0], states[number + 1][1][:-7]))
        opens_with(kind, path, number)


def test_a_crash_after_the_fold_and_before_the_log_is_emptied_loses_nothing(kind, tmp_path):
    path = tmp_path / kind.name
    log = recorded(kind, path, 3)[-1][1]
    log_of(path).write_bytes(log)
    opens_with(kind, path, 3)


def test_a_crash_while_a_log_is_begun_loses_nothing(kind, tmp_path):
    path = tmp_path / kind.name
    recorded(kind, path, 3)
    closed = path.read_bytes()
    with contextlib.closing(kind.open(path)):
        begun = log_of(path).read_bytes()
    for log in (begun, begun[:32], begun[:100], begun[:-1], b""):
        put(path, (closed, log))
        opens_with(kind, path, 3)


def test_an_old_log_that_was_only_begun_is_not_folded_into_a_whole_file(kind, tmp_path):
    path = tmp_path / kind.name
    begun = recorded(kind, path, 3)[0][1][: 32 + 24 + PAGE_BYTES]
    log_of(path).write_bytes(begun)
    opens_with(kind, path, 3)


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_within_a_fold_needs_the_whole_log_and_then_loses_nothing(kind, tmp_path, seed):
    path, rng = tmp_path / kind.name, random.Random(seed)
    file, log = recorded(kind, path, 3)[-1]
    folded = path.read_bytes()
    pages = [page for page in range(len(folded) // PAGE_BYTES) if page != 1]  # the mark's page is written last
    for _ in range(5):
        half = bytearray(file.ljust(len(folded), b"\0"))
        for page in rng.sample(pages, rng.randrange(1, len(pages) + 1)):
            place = slice(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
            half[place] = folded[place]
        for damaged in (None, log[: len(log) // 2], flipped(log, 50), flipped(log, len(log) // 2)):
            put(path, (bytes(half), damaged))
            refused(kind, path, "was not closed")
        put(path, (bytes(half), log))
        opens_with(kind, path, 3)


def test_a_torn_mark_leaves_the_one_before_it(kind, tmp_path):
    path = tmp_path / kind.name
    states = recorded(kind, path, 3)
    for number, saved in enumerate([*states, (path.read_bytes(), None)]):
        newest = LogMark.read(io.BytesIO(saved[0]))
        assert newest.whole == (number == 4)
        slot = SLOTS[newest.serial % 2]
        torn = saved[0][: slot + 40] + bytes(30) + saved[0][slot + 70 :]
        assert LogMark.read(io.BytesIO(torn)).serial == newest.serial - 1
        if number < 4:
            put(path, (torn, saved[1]))
            opens_with(kind, path, number)
    both = bytearray(states[3][0])
    for slot in SLOTS:
        both[slot : slot + 8] = bytes(8)
    put(path, (bytes(both), states[3][1]))
    refused(kind, path, "does not say how far its log goes", kind.advice)


def test_folding_while_open_loses_nothing_at_any_moment(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(database, "LOG_BYTES", 200_000)
    path = tmp_path / kind.name
    states = recorded(kind, path, 9)
    assert len({log[16:24] for _, log in states}) >= 3  # several logs, one after the other
    for number, saved in enumerate(states):
        put(path, saved)
        opens_with(kind, path, number)
        put(path, (saved[0], None))
        refused(kind, path, "is missing")


def test_a_file_that_is_forgotten_and_never_closed_opens_again(kind, tmp_path):
    path = tmp_path / kind.name
    kind.record(opened := kind.open(path), 1)
    del opened
    gc.collect()
    opens_with(kind, path, 1)


def test_a_process_that_ends_without_closing_leaves_what_it_recorded(kind, tmp_path):
    path = tmp_path / kind.name
    subprocess.run(recording(kind, path, 2, end="without closing"), check=True)
    assert log_of(path).exists()  # SQLite would have folded it in, and the file not known
    opens_with(kind, path, 2)


def test_a_mark_that_cannot_be_synced_is_no_release(tmp_path, monkeypatch):
    path = tmp_path / "lyon.ledger"
    ledger = Book().open(path)
    Book().record(ledger, 1)

    def fails(handle):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, fails)
        with pytest.raises(LedgerError, match=r"nothing may be sent \(Input/output error\)"):
            Book().record(ledger, 2)
    assert ledger.sequence == 1
    with pytest.raises(LedgerError, match="Open it again"):
        Book().record(ledger, 3)
    ledger.close()
    with Book().open(path) as again:
        assert again.stored(PLAN, 2, "model") == b"round 2"  # charged, and what any retry sends


def test_a_file_that_cannot_be_folded_when_it_is_closed_keeps_its_log(kind, tmp_path, monkeypatch):
    path, copy = tmp_path / kind.name, tmp_path / "copy" / kind.name
    copy.parent.mkdir()
    opened = kind.open(path)
    kind.record(opened, 1)

    def fails(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        opened.close()
    put(copy, state(path))
    assert log_of(copy).stat().st_size > 0
    opens_with(kind, copy, 1)
    check = "import sys; sys.path.insert(0, sys.argv[1]); import test_log_mark as t; from pathlib import Path;"
    check += "t.opens_with(getattr(t, sys.argv[2])(), Path(sys.argv[3]), 1)"
    where = [str(Path(__file__).parent), type(kind).__name__, str(path)]
    subprocess.run([sys.executable, "-c", check, *where], check=True)  # in another process


# Syncs


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


# Older files

FORMAT_1 = (
    b"c-rmV&u=4F9RTndC!5p}R!>_iR7i6pL0x2z9sf{OmEFpq73r2Pi9}D)n;&K^dF^!VMdZ*msW|YbaOKFIKY%}hV{fPuaAxeJDI2yNI91)xNAuqE"
    b"yf-uN`~A+`{mYM!C(AM!&!0UF%cK+iE{fymCrJ`TQN3!r(bu-G+gIZ27X9?}_=D)x>d}w$xUu?EwDZ}U(dy4H{=WLdXUi9VsZIa@0000000000"
    b"0000000000000000000000000fN#5eXSezG+wtWOmLZ##=iy>H55@Jc`@!SU{gY90a{s~cD7l_Y4i@F7&&yd}CJ!H-jD9wHoc!YP!w>I2{v`SN"
    b"=#zJn>|$9ik_X2hJxCsXbdo$eJw87C{KM_tX0sXp{$jIBIa@xv*mQSZ+F>)59PA~P|GmliG|ZBd(XUQ!_IM|GHh(@VZZ7|NJ`0P<;?~8REv^$f"
    b"D<;1#7t7m^TRfSJmuDfH|E5f;AdmlRX);?(irZ^fv7c9&e8a7qrB~jXJPC^@x1%_H^zh@;QF5?O_&UYIy~D#hJI(i+aWt6~<!=|CPAALqEIeP%"
    b"H|J-YGM=?J!_MVfwcY03yYc65UcKPzIqSCd@~d5!^Q!LuS&WxTzS(>6iu(Rvh1xs(;nq&`-MinE!#bj~_PXD$KGHYVU+O5{Stl~z<gu7c=j&E`"
    b"DUbC`axe=|%iDFl`Ctwk)uZComr->900000000000000000000000000000000000006-2qY-c2-Jf2}XXn!}yB8YORJ{5!sty1E0000000000"
    b"00000000000000000000000000C;^g;ye3sJwBg?*}ZV*jlF6rUi~Yo4gdfE00000000000000000000000000000000000c+J$e_Uq@<FuNBT"
    b")miPuAEVW2)d2ti00000000000000000000000000000000000@U3_Gqgo@{kDHf`-TH2P*|_@m`r6ZZQBL!;pN8?c)63fJG93@|&`<MLt3B=y"
    b"LpB_?x~))l(yTjZk6TCCxaj2ld^m2GgQDH<r0LQ7f4$n{{l8s}wQ+S-uWYxncK4{&>6V>wFNAhC&%4!3=pPlmVU~8wvRkynF!YA$pv<~unhkox"
    b"yy%RNE)U`=*!oql^{;}xign!2yMs_>?Yv0)tzor8TK0~zcG>Ia{Z82*6rtDeW%(c-7lU3uJ<12eA{~ZS)*6mG!<$&I$8k0&TWNnhC_7aV@-Pm)"
    b"P#hJZ+b@fLHQx_KtDAOPt+bnUL#u4}x`U!sMc)}_!?Kg_t@B-d5v~4NbpQYW00000000000000000000000000000000000@E!NP?fp1DpN84J"
    b"P^;~2@7L>BCyi>Yw)!Gk{iEst00000000000000000000000000000000000007`SZm+f#egE0~`K(CNz4+#L``<hyb3O"
)
HEAD_OF_FORMAT_1 = "f5bf6e10b145034e3f6aa14cc4b14a75d69b24ee4d1a9a6928eb4e2b869cd3f5"


def old_ledger(path):
    path.write_bytes(zlib.decompress(base64.b85decode(FORMAT_1)))
    return path


def test_a_closed_ledger_of_format_1_is_read_as_it_is_and_brought_up_when_opened(tmp_path):
    path = old_ledger(tmp_path / "lyon.ledger")
    path.chmod(0o640)
    before = path.read_bytes()
    with Ledger.read(path) as ledger:
        assert (ledger.sequence, ledger.head) == (2, HEAD_OF_FORMAT_1)
    assert all(check.holds for check in verify_ledger(path, least_sequence=2, witnessed_hash=HEAD_OF_FORMAT_1))
    assert path.read_bytes() == before
    with Ledger.open(path, silo="lyon") as ledger:
        assert (ledger.head, ledger.stored(ledger.allowance, 2, "model")) == (HEAD_OF_FORMAT_1, b"round 2")
        assert ledger.record(ledger.allowance, round_number=3, basis="model", payload=b"round 3", cost=COST).fresh
        saved = state(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert all(check.holds for check in verify_ledger(path, least_sequence=3, witnessed_hash=HEAD_OF_FORMAT_1))
    put(path, (saved[0], None))
    refused(Book(), path, "is missing")


@pytest.mark.parametrize("beside", ["-wal", "-journal"])
def test_a_ledger_of_format_1_that_was_not_closed_is_refused_and_left_alone(tmp_path, beside):
    path = old_ledger(tmp_path / "lyon.ledger")
    path.with_name(path.name + beside).write_bytes(b"something")
    refused(Book(), path, "format 1 that was not closed", "open and close it once with the version of Fulcrum")


def test_a_ledger_of_format_1_with_another_name_is_not_brought_up(tmp_path):
    path = old_ledger(tmp_path / "lyon.ledger")
    (tmp_path / "other").hardlink_to(path)
    with pytest.raises(LedgerError, match="has another name"):
        Ledger.open(path, silo="lyon")
    assert path.read_bytes() == zlib.decompress(base64.b85decode(FORMAT_1))


def test_a_damaged_ledger_of_format_1_is_refused_and_left_alone(tmp_path):
    path = old_ledger(tmp_path / "lyon.ledger")
    for broken in (
        path.read_bytes()[:-1],
        path.read_bytes()[: 3 * PAGE_BYTES] + bytes(len(path.read_bytes()) - 3 * PAGE_BYTES),
    ):
        path.write_bytes(broken)
        with pytest.raises(LedgerError, match="is damaged"):
            Ledger.open(path, silo="lyon")
        assert path.read_bytes() == broken
        assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_ledger_of_format_1_from_which_rows_are_missing_is_not_brought_up_without_them(tmp_path):
    path = old_ledger(tmp_path / "lyon.ledger")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'entry'").fetchone()
    broken = bytearray(path.read_bytes())
    assert broken[(page - 1) * PAGE_BYTES + 4] == 2  # cells of the page
    broken[(page - 1) * PAGE_BYTES + 4] = 1
    path.write_bytes(broken)
    with pytest.raises(LedgerError, match="is damaged"):
        Ledger.open(path, silo="lyon")
    assert path.read_bytes() == broken


FORKED = """
import os, sys
from pathlib import Path
from fulcrum.ledger.ledger import Allowance, Cost, Ledger, verify_ledger

path = Path(sys.argv[1])
plan = Allowance(plan_digest="p", rounds=9, shift_above=9.0, shift_inside=9.0)
ledger = Ledger.open(path, silo="lyon")
ledger.enter_plan(plan)

def record(number):
    ledger.record(plan, round_number=number, basis="m", payload=b"x", cost=Cost(shift_above=0.1, shift_inside=0.1))

def files():
    return path.read_bytes(), path.with_name(path.name + "-wal").read_bytes()

record(1)
before = files()
child = os.fork()
if child == 0:
    END
else:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert files() == before, "the child folded the log of its parent"
    record(2)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("end", ["sys.exit(0)", "pass", "del ledger", "ledger.close()"])
def test_a_forked_child_that_ends_as_programs_do_leaves_the_log_of_its_parent_whole(tmp_path, end):
    path = tmp_path / "lyon.ledger"
    command = [sys.executable, "-c", FORKED.replace("END", end), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
    assert (done.returncode, done.stderr) == (-9, "")
    with Ledger.read(path) as ledger:
        assert ledger.sequence == 2
    assert all(check.holds for check in verify_ledger(path, least_sequence=2))


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_a_file_replaced_while_it_is_being_opened_is_not_taken_for_the_new_one(tmp_path, monkeypatch):
    path, newer = tmp_path / "lyon.ledger", tmp_path / "newer"
    for name in (path, newer):
        Book().open(name).close()
    real = database.fcntl.flock

    def replaced_just_before(*arguments):
        newer.replace(path)
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(database.fcntl, "flock", replaced_just_before)
        with pytest.raises(LedgerInUseError, match=r"was replaced by another process just now. Open it again"):
            Book().open(path)
    opens_with(Book(), path, 0)


def deleted(path):
    path.unlink()


def moved(path):
    path.rename(path.with_name("elsewhere"))


def replaced_by_an_older_copy(path):
    path.with_name("copy").replace(path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps open files in place")
@pytest.mark.parametrize("change", [deleted, moved, replaced_by_an_older_copy])
@pytest.mark.parametrize("which", ["file", "log"])
def test_what_is_written_to_a_file_that_is_no_longer_in_its_place_is_not_sent(kind, change, which, tmp_path):
    """Whoever opens the name next would know nothing of it, and make the same round again."""
    path = tmp_path / kind.name
    kind.open(path).close()
    shutil.copy(path, tmp_path / "copy")
    opened = kind.open(path)
    kind.record(opened, 1)
    change(path if which == "file" else log_of(path))
    with pytest.raises(
        (LedgerError, StorageError), match=r"was deleted, moved or replaced while it was open, so nothing may be sent"
    ):
        kind.record(opened, 2)
    opened.close()
    if which == "log":  # closed, the file is whole without it
        log_of(path).unlink(missing_ok=True)
        opens_with(kind, path, 2)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps open files in place")
def test_a_file_that_was_replaced_leaves_the_log_of_the_new_one_alone(kind, tmp_path):
    path = tmp_path / kind.name
    kind.open(path).close()
    shutil.copy(path, tmp_path / "copy")
    first = kind.open(path)
    replaced_by_an_older_copy(path)
    log_of(path).unlink()
    second = kind.open(path)
    first.close()
    kind.record(second, 1)
    assert log_of(path).exists()
    second.close()
    opens_with(kind, path, 1)


def test_a_regions_file_of_format_1_is_brought_up(tmp_path):
    path = tmp_path / "north.region"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size=32768")
        connection.executescript(
            "PRAGMA application_id=0x46554C52; PRAGMA user_version=1;"
            "CREATE TABLE region (name TEXT NOT NULL, plan TEXT NOT NULL, layout BLOB);"
            "CREATE TABLE release (round INTEGER NOT NULL, silo TEXT NOT NULL, digest TEXT NOT NULL, bytes BLOB,"
            " PRIMARY KEY (round, silo));"
            "CREATE TABLE answer (round INTEGER PRIMARY KEY, status TEXT NOT NULL, digest TEXT NOT NULL,"
            " bytes BLOB NOT NULL);"
            "INSERT INTO region VALUES ('north', 'p', NULL); INSERT INTO answer VALUES (1, 'summed', 'd', x'01');"
        )
    opens_with(Sums(), path, 1)
    opens_with(Sums(), path, 1)


# The checksum


def test_the_checksum_is_sqlites_word_by_word(tmp_path):
    log = recorded(Book(), tmp_path / "lyon.ledger", 2, size=10)[-1][1]
    first, second = struct.unpack(">II", log[24:32])
    order = ">" if log[3] & 1 else "<"
    for place in range(32, len(log), PAGE_BYTES + 24):
        frame = log[place : place + PAGE_BYTES + 24]
        after = _chained(frame, (first, second), log[:32])
        covered = frame[:8] + frame[24:]
        words = struct.unpack(f"{order}{len(covered) // 4}I", covered)
        for x, y in zip(words[::2], words[1::2], strict=True):
            first = (first + x + second) % 2**32
            second = (second + y + first) % 2**32
        assert after == (first, second) == struct.unpack(">II", frame[16:24])


# Kills and damage at random

STRIKE_AT_RANDOM = '''
import collections, hashlib, json, os, random, signal, struct, sys, time
from pathlib import Path
from fulcrum.storage import database
from fulcrum.errors import LedgerError
from fulcrum.ledger.ledger import Allowance, Cost, Ledger, verify_ledger

folder, trials, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
cost = Cost(shift_above=0.001, shift_inside=0.01)
plan = Allowance(plan_digest="plan", rounds=10**6, shift_above=1e3, shift_inside=1e4)
rng = random.Random(seed)


def releasing(path, tell, size):
    with Ledger.open(path, silo="lyon") as ledger:
        ledger.enter_plan(plan)
        for number in range(ledger.sequence + 1, 10**6):
            sent = ledger.record(
                plan, round_number=number, basis=f"m{number}", payload=os.urandom(size), cost=cost
            ).payload
            os.write(tell, struct.pack("<q32s", number, hashlib.sha256(sent).digest()))


def killed(path, size):
    """Releases in a child until it is killed; returns what was sent, by number."""
    receive, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            releasing(path, tell, size)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\\n".encode())
        os._exit(1)
    os.close(tell)
    sent = b""
    for _ in range(rng.choice([0, 1, 3, 6, 10])):
        sent += os.read(receive, 40)
    time.sleep(rng.uniform(0, 0.006))
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, "the child failed by itself"
    while more := os.read(receive, 4000):
        sent += more
    os.close(receive)
    return {number: digest for number, digest in struct.iter_unpack("<q32s", sent)}


def holds(path, sent):
    with Ledger.open(path, silo="lyon") as ledger:
        kept = {entry.round_number: bytes.fromhex(entry.payload_digest) for entry in ledger.entries()}
        assert all(kept.get(number) == digest for number, digest in sent.items()), "a release that was sent is gone"
        assert all(ledger.stored(plan, number, f"m{number}") is not None for number in sent)
    assert all(check.holds for check in verify_ledger(path)), "the ledger does not hold up"


def damaged(how, log, stale):
    if how == "deleted":
        return None
    if how == "emptied":
        return b""
    if how == "cut":
        return log[: rng.randrange(len(log) + 1)]
    if how == "flipped":
        broken = bytearray(log)
        for _ in range(rng.choice([1, 1, 3])):
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        return bytes(broken)
    if how == "zeroed":
        place = rng.randrange(len(log))
        return log[:place] + bytes(len(log) - place)
    return rng.choice(stale)


outcomes, stale = collections.Counter(), [b"x" * 100]
for trial in range(trials):
    path = folder / f"{trial % 5}.ledger"
    log, sents = path.with_name(path.name + "-wal"), path.with_suffix(".sent")
    sent = {int(k): bytes.fromhex(v) for k, v in json.loads(sents.read_text()).items()} if sents.exists() else {}
    size = rng.choice([10, 5_000, 100_000, 300_000])
    database.LOG_BYTES = rng.choice([150_000, 1_000_000, 256_000_000])
    sent |= killed(path, size)
    sents.write_text(json.dumps({number: digest.hex() for number, digest in sent.items()}))
    if not path.exists():  # killed before it was made
        continue
    file, data = path.read_bytes(), log.read_bytes() if log.exists() else None
    how = rng.choice(["nothing", "deleted", "emptied", "cut", "flipped", "zeroed", "stale", "stale"])
    if data and how != "nothing":
        broken = damaged(how, data, stale)
        log.unlink()
        if broken is not None:
            log.write_bytes(broken)
        try:
            holds(path, sent)
            outcomes[how, "harmless"] += 1
        except LedgerError as error:
            assert path.read_bytes() == file, "what was refused was changed"
            assert (log.read_bytes() if log.exists() else None) == broken
            assert "\\n" not in str(error)
            outcomes[how, "refused"] += 1
            log.write_bytes(data)
            holds(path, sent)
    else:
        holds(path, sent)
        outcomes["nothing", "whole"] += 1
    if data:
        stale = [*stale[-9:], data]
print(json.dumps({" ".join(key): count for key, count in sorted(outcomes.items())}))
'''


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_release_that_was_sent_is_lost_to_kills_and_damaged_logs(tmp_path):
    command = [sys.executable, "-c", STRIKE_AT_RANDOM, str(tmp_path), str(TRIALS), "1"]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + TRIALS, env=environment)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    # The test means something only if logs were damaged so that it mattered, and some opened untouched.
    assert sum(count for what, count in outcomes.items() if what.endswith("refused")) >= TRIALS // 4
    assert outcomes["nothing whole"] >= TRIALS // 20
