"""All checks of a ledger, every payload read: for `fulcrum ledger verify`, replanning and witnesses.

No silo imports this module. `fulcrum.core.store.ledger` makes the checks that need no payload at every opening.
"""

from contextlib import closing

from fulcrum.checks import Check
from fulcrum.core.store.database import PathLike
from fulcrum.core.store.ledger import Ledger, genesis
from fulcrum.core.store.ledger_file import LedgerFile
from fulcrum.errors import LedgerError, in_one_line


def verify_ledger(
    path: PathLike | Ledger, *, least_sequence: int | None = None, witnessed_hash: str | None = None
) -> tuple[Check, ...]:
    """Returns the checks of a ledger file, every payload read; it holds up if all of them do.

    A ledger restored from an old copy, with all files beside it, is sound in itself: only whoever saw a later state can
    tell.

    Args:
        path: The file of the ledger, from which no process may be releasing; or the ledger, open.
        least_sequence: The highest `Ledger.sequence` that a witness outside the silo saw.
        witnessed_hash: A `Ledger.head` that a witness saw, which must still be in the chain: a restored copy that
            went on to release something else has lost it, even where its sequence has caught up.

    Raises:
        LedgerError: It cannot be read as a ledger at all.
    """
    if not isinstance(path, Ledger):
        return checks_of_file(LedgerFile, path, least_sequence=least_sequence, witnessed_hash=witnessed_hash)
    with path.held():
        path._check_works(writes=False)
        return _checks(path._file, path, least_sequence, witnessed_hash)


def checks_of_file(
    kind: type[LedgerFile], path: PathLike, *, least_sequence: int | None = None, witnessed_hash: str | None = None
) -> tuple[Check, ...]:
    """Returns the checks of a file as `verify_ledger` does, for a kind of ledger file.

    SQLite's own check comes first. Where it fails the rows are not read: a damaged b-tree may give any rows, and any
    number of them.
    """
    with kind.reading(path) as file, closing(file):
        return _checks(file, None, least_sequence, witnessed_hash)


def _checks(
    file: LedgerFile, ledger: Ledger | None, least_sequence: int | None, witnessed_hash: str | None
) -> tuple[Check, ...]:
    file_check = _file_check(file)
    if not file_check.holds:
        return (file_check,)
    return (file_check, *_content_checks(ledger or Ledger(file), least_sequence, witnessed_hash))


def _content_checks(ledger: Ledger, least_sequence: int | None, witnessed_hash: str | None) -> tuple[Check, ...]:
    """Returns the checks of all rows and payloads, and of a witness; the pages of the file are sound."""
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
    known = {entry.sequence for entry in entries}
    known.add(ledger._recorded + 1)  # of a release that was interrupted before it was recorded, and sent
    more = [number for number in file.payload_numbers() if number not in known]
    detail = f"{len(entries)} payloads" + (f", {len(more)} too many" if more else "")
    return Check(name="payloads", holds=not damaged and not more, detail=damaged or detail)


def _file_check(file: LedgerFile) -> Check:
    faults = file.integrity()
    return Check(name="file", holds=faults == ["ok"], detail=in_one_line(" ".join(faults)))
