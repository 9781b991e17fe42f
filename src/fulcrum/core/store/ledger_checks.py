"""All checks of a ledger, payloads included: for `fulcrum ledger verify`, replanning and witnesses.

No silo imports this module. `fulcrum.core.store.ledger` makes the checks without payloads at every opening.
"""

from contextlib import closing

from fulcrum.checks import Check
from fulcrum.core.store.database import PathLike
from fulcrum.core.store.ledger import Ledger, genesis
from fulcrum.core.store.ledger_file import LedgerFile
from fulcrum.core.store.ledger_reading import reading
from fulcrum.errors import LedgerError, in_one_line


def verify_ledger(
    path: PathLike | Ledger, *, least_sequence: int | None = None, witnessed_hash: str | None = None
) -> tuple[Check, ...]:
    """Returns the checks of a ledger, every payload read; a ledger is sound if all checks hold.

    A ledger that was restored from an old copy, with all files beside the ledger, passes every check of its content and
    has forgotten releases. Only a witness of a later state can tell: see `least_sequence` and `witnessed_hash`.

    Args:
        path: The file of the ledger, in use by no process; or the ledger, open.
        least_sequence: The highest `Ledger.sequence` that a witness outside of the silo saw.
        witnessed_hash: A `Ledger.head` that a witness saw, and that must still be in the chain. A restored copy that
            released something else afterwards has lost the hash, even if the sequence has caught up.

    Raises:
        LedgerError: The file cannot be read as a ledger, or is closed.
    """
    if not isinstance(path, Ledger):
        return checks_of_file(LedgerFile, path, least_sequence=least_sequence, witnessed_hash=witnessed_hash)
    with path.holding():
        path._check_works(writes=False)
        return _checks(path._file, path, least_sequence, witnessed_hash)


def checks_of_file(
    kind: type[LedgerFile], path: PathLike, *, least_sequence: int | None = None, witnessed_hash: str | None = None
) -> tuple[Check, ...]:
    """Returns the checks of a file as `verify_ledger` does, for a kind of ledger file.

    SQLite's own check comes first. If SQLite's check fails, no row is read: a damaged b-tree may give any rows, and any
    number of rows.
    """
    with reading(kind, path) as file, closing(file):
        return _checks(file, None, least_sequence, witnessed_hash)


def _checks(
    file: LedgerFile, ledger: Ledger | None, least_sequence: int | None, witnessed_hash: str | None
) -> tuple[Check, ...]:
    file_check = _file_check(file)
    if not file_check.holds:
        return (file_check,)
    return (file_check, *_content_checks(ledger or Ledger(file), least_sequence, witnessed_hash))


def _content_checks(ledger: Ledger, least_sequence: int | None, witnessed_hash: str | None) -> tuple[Check, ...]:
    """Returns the checks of all rows and payloads, and of a witness; SQLite has checked the pages before."""
    checks = [*ledger.entry_checks(), _payload_check(ledger)]
    if least_sequence is not None:
        detail = f"{ledger.sequence} releases, {least_sequence} were seen by a witness"
        checks.append(Check(name="witness", holds=ledger.sequence >= least_sequence, detail=detail))
    if witnessed_hash is not None:
        hashes = {hash_ for entry in ledger.entries() for hash_ in (entry.chain_hash, entry.former_hash)}
        seen = witnessed_hash in hashes | {genesis(ledger.silo)}
        detail = f"hash {witnessed_hash[:12]} is {'' if seen else 'not '}in the chain"
        checks.append(Check(name="witnessed hash", holds=seen, detail=detail))
    return tuple(checks)


def _payload_check(ledger: Ledger) -> Check:
    file, entries = ledger._file, ledger.entries()
    damaged = ""
    for entry in entries:
        try:
            ledger.payload_of(entry)
        except LedgerError as error:
            damaged = damaged or str(error).removeprefix(f"{file.path} is damaged: ")
    expected = {entry.sequence for entry in entries}
    expected.add(ledger._recorded + 1)  # a crash between a large payload and its entry leaves a payload, never sent
    more = [number for number in file.payload_numbers() if number not in expected]
    detail = f"{len(entries)} payloads" + (f", {len(more)} too many" if more else "")
    return Check(name="payloads", holds=not damaged and not more, detail=damaged or detail)


def _file_check(file: LedgerFile) -> Check:
    faults = file.integrity()
    return Check(name="file", holds=faults == ["ok"], detail=in_one_line(" ".join(faults)))
