"""Ledgers opened to read: for `fulcrum ledger`, replanning, witnesses and the conversion of earlier ledgers.

No silo imports this module: a silo opens its own ledger to release, and no other.
"""

import contextlib
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from fulcrum.core.store.commit_mark import Journal
from fulcrum.core.store.database import PathLike
from fulcrum.core.store.file_holding import OPENING, lock_file
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.store.ledger_file import LedgerFile
from fulcrum.core.store.recovery import mark_and_journal
from fulcrum.core.store.sqlite_connection import TO_READ, BoundedConnection, apply_settings, check_schema, connect
from fulcrum.errors import FileInUseError

_File = TypeVar("_File", bound=LedgerFile)
_READERS: weakref.WeakSet[LedgerFile] = weakref.WeakSet()  # of this process, of files opened to read


def read_ledger(path: PathLike) -> Ledger:
    """Opens a ledger to read; no process can open the ledger to write meanwhile.

    The unfinished write of a killed process is taken back first, as in `Ledger.open`. A ledger that fails a check of
    `verify_ledger` is refused, except for checks of payloads: a forged cost must be neither shown nor planned with.
    """
    with reading(LedgerFile, path) as file:
        ledger = Ledger(file)
        ledger.refuse_damage("Run fulcrum ledger verify for all of its checks")
    return ledger


@contextlib.contextmanager
def reading(kind: type[_File], path: PathLike) -> Iterator[_File]:
    """Opens a file to read, in the same way as `writing`; changes a file only to take back an unfinished commit."""
    file = Path(os.path.realpath(path))  # `check_file` refuses a circle of links
    with kind.translating_errors(file, "read"), OPENING, contextlib.ExitStack() as undo:
        kind.check_file(file, writable=False)
        hold = undo.enter_context(lock_file(file, exclusive=False))
        kind.check_header(file, hold)
        if mark_and_journal(file, hold, kind.advice)[1] is Journal.NEEDED:
            hold.close()
            with lock_file(file, exclusive=True) as locked:
                kind.settle(file, locked)
            hold = undo.enter_context(lock_file(file, exclusive=False))
            if mark_and_journal(file, hold, kind.advice)[1] is Journal.NEEDED:
                raise FileInUseError("storage.file-in-use", file=file)
        connection = undo.enter_context(contextlib.closing(read_only(file, kind.whole_schema())))
        yield (held := kind(file, connection, hold))
        _READERS.add(held)
        undo.pop_all()


def read_only(file: Path, schema: str, *, grown: bool = False) -> BoundedConnection:
    """Connects to a whole file to read; SQLite ignores any journal and log beside the file.

    Args:
        file: The file.
        schema: The tables of the file.
        grown: True if an earlier version of Fulcrum added some tables later: the root pages may then differ.
    """
    with contextlib.ExitStack() as undo:
        connection = undo.enter_context(contextlib.closing(connect(file, "mode=ro&immutable=1", schema)))
        apply_settings(connection, TO_READ)
        connection.execute("BEGIN")
        check_schema(connection, file, schema, grown=grown)
        undo.pop_all()
    return connection


def _after_fork_in_child() -> None:
    for reader in _READERS:
        reader.hold.close()  # a child that outlives the parent would otherwise keep the file locked
    _READERS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
