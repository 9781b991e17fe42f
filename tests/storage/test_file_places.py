"""One file under two names, moved, deleted or replaced while it is open."""

import os
import shutil
import subprocess
import sys

import pytest
from logged_files import Book, log_of, opens_with, recording, refused

from fulcrum.errors import LedgerError, LedgerInUseError, StorageError
from fulcrum.ledger.ledger import verify_ledger
from fulcrum.storage import holding


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


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_a_file_replaced_while_it_is_being_opened_is_not_taken_for_the_new_one(tmp_path, monkeypatch):
    path, newer = tmp_path / "lyon.ledger", tmp_path / "newer"
    for name in (path, newer):
        Book().open(name).close()
    real = holding.fcntl.flock

    def replaced_just_before(*arguments):
        newer.replace(path)
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(holding.fcntl, "flock", replaced_just_before)
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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_pipe_or_folder_in_place_of_a_log_or_journal_is_refused_and_not_waited_for(kind, tmp_path, closed):
    path = tmp_path / kind.name
    subprocess.run(recording(kind, path, 2), check=True)
    if closed:
        opens_with(kind, path, 2)
    log = log_of(path)
    aside = tmp_path / "aside"
    if log.exists():
        log.rename(aside)
    works = [kind.open] + ([verify_ledger] if isinstance(kind, Book) and not closed else [])
    for place in (log, path.with_name(f"{path.name}-journal")):
        for make in (os.mkfifo, os.mkdir):
            make(place)
            for work in works:
                with pytest.raises(kind.error) as caught:
                    work(path)
                assert f"{place.name} is no file, and stands where one of {path.name} belongs" in str(caught.value)
            place.rmdir() if place.is_dir() else place.unlink()
    if aside.exists():
        aside.rename(log)
    opens_with(kind, path, 2)
