import os
import stat
import threading

import pytest
from error_codes import coded

from fulcrum.core.store.durable_files import write_whole
from fulcrum.errors import StorageError


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def mask():
    """A umask of our own, put back in the end."""
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


@pytest.mark.parametrize("there", [False, True])
def test_the_bytes_are_synced_before_they_get_their_name_and_the_name_after(tmp_path, syncs, there):
    path = tmp_path / "plan.json"
    if there:
        path.write_bytes(b"old")
    write_whole(path, b"new content")
    bytes_synced, name_synced = syncs
    written = path.stat().st_ino
    assert (bytes_synced.inode, bytes_synced.size) == (written, 11)
    assert bytes_synced.names.get("plan.json") != written
    assert name_synced.inode == tmp_path.stat().st_ino
    assert name_synced.names == {".": tmp_path.stat().st_ino, "plan.json": written}


def test_content_that_is_written_piece_by_piece_is_there_whole_or_not_at_all(tmp_path, syncs):
    path = tmp_path / "checkpoint.npz"
    write_whole(path, lambda file: file.writelines([b"one ", b"two"]))
    assert path.read_bytes() == b"one two"
    assert (syncs[0].inode, syncs[0].size) == (path.stat().st_ino, 7)

    def half(file):
        file.write(b"three")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_whole(path, half)
    assert path.read_bytes() == b"one two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint.npz"]


def test_the_folder_synced_is_that_of_the_file_a_link_leads_to(tmp_path, syncs):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "plan.json")
    write_whole(tmp_path / "link", b"x")
    assert syncs[-1].inode == (tmp_path / "far").stat().st_ino


def test_a_sync_that_fails_leaves_what_stood_there(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    path.write_bytes(b"old")

    def fails(handle):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StorageError, check=coded("storage.write-failed")):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_a_name_that_may_not_last_is_told(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    real = os.fsync

    def fails(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(5, "Input/output error")
        real(handle)

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StorageError, check=coded("storage.folder-not-synced")):
        write_whole(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_new_file_has_the_permissions_of_new_files_and_an_old_one_keeps_its_own(tmp_path, mask):
    path = tmp_path / "plan.json"
    write_whole(path, b"one")
    assert mode(path) == 0o666 & ~mask
    for kept in (0o600, 0o644, 0o666):
        path.chmod(kept)
        write_whole(path, b"two")
        assert mode(path) == kept


def test_a_private_file_is_never_readable_by_others_while_it_is_written(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    path.chmod(0o600)
    seen, real = [], os.open

    def watched(name, flags, *mode_asked, **more):
        handle = real(name, flags, *mode_asked, **more)
        seen.append(stat.S_IMODE(os.fstat(handle).st_mode))
        return handle

    monkeypatch.setattr(os, "open", watched)
    write_whole(path, b"new")
    assert seen[0] == 0o600


def test_the_umask_of_the_process_is_left_alone(tmp_path, mask, monkeypatch):
    def touched(_):
        raise AssertionError("another thread would create its files under this umask")

    with monkeypatch.context() as patch:
        patch.setattr(os, "umask", touched)
        threads = [threading.Thread(target=write_whole, args=(tmp_path / str(n), b"x")) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        write_whole(tmp_path / "here", b"x")
    assert {mode(path) for path in tmp_path.iterdir()} == {0o666 & ~mask}


def test_a_file_written_as_private_is_its_owners_alone_from_the_first_byte_on(tmp_path, monkeypatch, mask):
    os.umask(0)
    path, seen = tmp_path / "note", []
    real = os.fsync

    def noted(handle):
        seen.append(stat.S_IMODE(os.fstat(handle).st_mode))
        real(handle)

    for stood_there in (False, True):
        seen.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", noted)
            write_whole(path, b"secret", private=True)
        assert seen[0] == mode(path) == 0o600, stood_there
        path.chmod(0o644)
