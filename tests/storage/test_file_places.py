"""One file under two names, moved, deleted or replaced while it is open."""

import os
import shutil
import subprocess
import sys

import pytest
from error_codes import coded
from journaled_files import Book, journal_of, opens_with, recording, refused

from fulcrum.core.store import file_holding as holding
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.errors import LedgerError, LedgerInUseError, StorageError

unix = pytest.mark.skipif(sys.platform == "win32", reason="needs limits of Unix, where open files may be moved")
LEFT = "was left in the middle of a commit"


def killed_in_a_commit(kind, path, rounds, *before):
    """A process that records so many rounds, and is killed by the system while it writes one more."""
    done = subprocess.run([*before, *recording(kind, path, rounds, end="in a commit")], capture_output=True, text=True)
    if done.returncode == 1 and any(word in done.stderr for word in ("mount", "unshare")):
        pytest.skip(f"may not mount: {done.stderr.strip()}")
    assert done.returncode in (-25, 128 + 25), done.stderr  # SIGXFSZ


@unix
def test_a_file_opened_by_another_hard_link_does_not_forget_its_journal(kind, tmp_path):
    path, other = tmp_path / kind.name, tmp_path / "elsewhere" / "other"
    other.parent.mkdir()
    kind.open(path).close()
    other.hardlink_to(path)
    killed_in_a_commit(kind, path, 3)
    refused(kind, other, LEFT, "other-journal")
    opens_with(kind, path, 3)
    opens_with(kind, other, 3)


@unix
def test_a_file_opened_by_a_symbolic_link_has_one_journal(kind, tmp_path):
    path, other = tmp_path / kind.name, tmp_path / "elsewhere" / "other"
    other.parent.mkdir()
    kind.open(path).close()
    other.symlink_to(path)
    killed_in_a_commit(kind, other, 3)
    assert journal_of(path).exists()
    opens_with(kind, path, 3)


@unix
def test_a_file_moved_without_its_journal_is_refused(kind, tmp_path):
    path, moved = tmp_path / kind.name, tmp_path / "moved"
    killed_in_a_commit(kind, path, 2)
    path.rename(moved)
    refused(kind, moved, LEFT, "moved-journal")
    moved.rename(path)
    opens_with(kind, path, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux mounts")
def test_a_file_mounted_alone_does_not_forget_its_journal(kind, tmp_path):
    path, other = tmp_path / "real" / kind.name, tmp_path / "mounted" / kind.name
    for folder in (path.parent, other.parent):
        folder.mkdir()
    kind.open(path).close()
    other.touch()
    script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    killed_in_a_commit(kind, other, 3, "unshare", "-m", "sh", "-c", script, "sh", str(path), str(other))
    refused(kind, path, LEFT)
    shutil.move(journal_of(other), journal_of(path))
    opens_with(kind, path, 3)


@unix
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
        with pytest.raises(LedgerInUseError, check=coded("storage.file-replaced")):
            Book().open(path)
    opens_with(Book(), path, 0)


def deleted(path):
    path.unlink()


def moved(path):
    path.rename(path.with_name("elsewhere"))


def replaced_by_an_older_copy(path):
    path.with_name("copy").replace(path)


@unix
@pytest.mark.parametrize("change", [deleted, moved, replaced_by_an_older_copy])
@pytest.mark.parametrize("which", ["file", "journal"])
def test_a_write_to_a_file_that_is_no_longer_in_its_place_is_not_sent(kind, change, which, tmp_path):
    """Whoever opens the name next would know nothing of it, and make the same round again."""
    path = tmp_path / kind.name
    kind.open(path).close()
    shutil.copy(path, tmp_path / "copy")
    opened = kind.open(path)
    kind.record(opened, 1)
    change(path if which == "file" else journal_of(path))
    with pytest.raises((LedgerError, StorageError), check=coded("storage.file-moved")):
        kind.record(opened, 2)
    opened.close()
    if which == "journal":  # nothing was written
        journal_of(path).unlink(missing_ok=True)
        opens_with(kind, path, 1)


@unix
def test_a_file_that_was_replaced_leaves_the_journal_of_the_new_one_alone(kind, tmp_path):
    path = tmp_path / kind.name
    kind.open(path).close()
    shutil.copy(path, tmp_path / "copy")
    first = kind.open(path)
    replaced_by_an_older_copy(path)
    second = kind.open(path)
    with pytest.raises((LedgerError, StorageError), check=coded("storage.file-moved")):
        kind.record(first, 1)
    first.close()
    kind.record(second, 1)
    assert journal_of(path).exists()
    second.close()
    opens_with(kind, path, 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_what_is_no_file_in_place_of_a_journal_or_log_is_refused_and_not_waited_for(kind, tmp_path, closed):
    path = tmp_path / kind.name
    if closed:
        subprocess.run(recording(kind, path, 2), check=True)
        opens_with(kind, path, 2)
    else:
        killed_in_a_commit(kind, path, 2)
    journal, aside = journal_of(path), tmp_path / "aside"
    if journal.exists():
        journal.rename(aside)
    works = [kind.open] + ([verify_ledger] if isinstance(kind, Book) else [])
    elsewhere = tmp_path / "elsewhere"
    for place in (journal, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        for make in (os.mkfifo, os.mkdir, lambda place: place.symlink_to(elsewhere)):
            make(place)
            for work in works:
                with pytest.raises(kind.error) as caught:
                    work(path)
                assert str(caught.value).startswith(f"{place} is no")
            place.rmdir() if place.is_dir() else place.unlink()
    assert not elsewhere.exists()
    if aside.exists():
        aside.rename(journal)
    opens_with(kind, path, 2)
