"""Files that forget: content that was overwritten is in no file any more, whatever interrupted a write."""

import contextlib

import pytest
from error_codes import coded
from journaled_files import (
    Rounds,
    Sums,
    Watched,
    content,
    forgotten_by,
    held,
    hot,
    journal_of,
    kept_by,
    pieces,
    put,
)

from fulcrum.core.store.commit_mark import PAGE_BYTES


@pytest.fixture
def tmp_path(tmp_path_factory):
    """In memory: nothing here waits for a disk."""
    return tmp_path_factory.mktemp("erasing")


@pytest.fixture(params=[Sums, Rounds], ids=["region", "masking"])
def kind(request):
    return request.param()


@pytest.mark.parametrize("size", [300, 20_000, 200_000])
def test_what_is_forgotten_is_in_neither_the_file_nor_its_journal_while_it_is_open(kind, tmp_path, size):
    path = tmp_path / kind.name
    with contextlib.closing(kind.open(path)) as file:
        kept_by(kind, file, 1, content(1, size))
        kept_by(kind, file, 2, content(2, size))
        assert held(path, content(1, size)) == len(pieces(content(1, size)))
        forgotten_by(kind, file, 1)
        assert journal_of(path).exists()
        assert held(path, content(1, size)) == 0
        assert held(path, content(2, size)) == len(pieces(content(2, size)))
    assert held(path, content(1, size)) == 0


def test_room_that_was_given_back_is_used_again(kind, tmp_path):
    path, sizes = tmp_path / kind.name, []
    with contextlib.closing(kind.open(path)) as file:
        for number in range(1, 6):
            kept_by(kind, file, number, content(number))
            forgotten_by(kind, file, number)
            sizes.append(path.stat().st_size)
    assert sizes[-1] == sizes[0]


@pytest.mark.parametrize("again", [False, True], ids=["past the end", "in room given back"])
def test_what_an_interrupted_commit_wrote_is_erased_when_the_file_is_opened(kind, tmp_path, again):
    path, seen = tmp_path / kind.name, []
    with contextlib.closing(kind.open(path)) as file:
        if again:
            kept_by(kind, file, 1, content(1))
            forgotten_by(kind, file, 1)
        file.connection = Watched(file.connection, path, seen)
        kept_by(kind, file, 2, content(2))
    (before, journal), (after, _) = seen[0]
    half = bytearray(before.ljust(len(after), b"\0"))
    for page in range(2, len(after) // PAGE_BYTES):  # the content is written, and what tells of it is not
        place = slice(page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
        if any(piece in after[place] for piece in pieces(content(2))):
            half[place] = after[place]
    put(path, (bytes(half), hot(journal)))
    assert held(path, content(2)) > 20
    with contextlib.closing(kind.open(path, create=False)) as file:
        assert held(path, content(2)) == 0
        assert file.rows("PRAGMA integrity_check") == [("ok",)]
        kept_by(kind, file, 2, content(2))
    assert held(path, content(2)) > 20


def test_a_write_that_fails_leaves_the_file_refusing_and_the_next_opening_erases(kind, tmp_path):
    path = tmp_path / kind.name
    with contextlib.closing(kind.open(path)) as file:
        kept_by(kind, file, 1, content(1))

        class Full(Watched):
            def execute(self, sql, *values):
                if sql == "COMMIT":
                    raise OSError(28, "No space left on device")
                return self.connection.execute(sql, *values)

        file.connection = Full(file.connection, path, [])
        with pytest.raises(kind.error, check=coded("storage.operation-failed")):
            kept_by(kind, file, 2, content(2))
        with pytest.raises(kind.error, check=coded("storage.file-unusable")), file.working():
            pass
    with contextlib.closing(kind.open(path)) as file:
        assert held(path, content(2)) == 0
        assert held(path, content(1)) == len(pieces(content(1)))
