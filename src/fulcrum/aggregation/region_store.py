"""The file of a region: the format, and the binding to a single region and plan.

`fulcrum.aggregation.regional_aggregator` decides about releases and sums, and is the module to use.
`fulcrum.core.store.database` holds, syncs and copies the file. Erased content is gone from the file and its journal,
but may remain in a copy of the file, in a snapshot of the disk, or in spare cells of a drive.
"""

from typing import Self

from fulcrum.core.store.database import Content, DatabaseFile, PathLike, Statement
from fulcrum.errors import ExchangeError

FORMAT = 5
"""The format of the file. Earlier formats had a write-ahead log, and a separate file for large payloads."""

MOST_ERASED = 2**26
"""The bytes that a commit erases at most, unless a single release is larger: memory and journal hold these bytes."""

_SCHEMA = """
CREATE TABLE region (name TEXT NOT NULL, plan TEXT NOT NULL, layout BLOB);
CREATE TABLE release (
    round INTEGER NOT NULL, silo TEXT NOT NULL, digest TEXT NOT NULL, bytes BLOB, PRIMARY KEY (round, silo)
);
CREATE TABLE answer (round INTEGER PRIMARY KEY, status TEXT NOT NULL, digest TEXT NOT NULL, bytes BLOB NOT NULL);
"""


class RegionFile(DatabaseFile):
    """The file of a region, held and connected; made by `open`."""

    application = 0x46554C52  # "FULR"
    version = FORMAT
    schema = _SCHEMA
    noun = "a region's file of sums"
    wanted = "the region's file of sums"
    advice = "Ask for a new plan"
    older = "Finish its plan with the version that wrote it, or ask for a new plan and begin a new file"
    erases = True
    lost = "the record of the sums that went up"

    @classmethod
    def open(cls, path: PathLike, *, region: str, plan_digest: str, create: bool = True) -> Self:
        """Opens the file of a region under a plan; makes a missing file if `create` is True."""
        first = ("INSERT INTO region VALUES (?, ?, NULL)", (region, plan_digest))
        with cls.writing(path, first if create else None) as file:
            if file.rows("SELECT name, plan FROM region") != [(region, plan_digest)]:
                raise ExchangeError("region.file-foreign", file=file.path, region=region)
        return file

    @property
    def is_unused(self) -> bool:
        """True if the region never stored a model, a release or a sum."""
        queries = (
            "SELECT 1 FROM region WHERE layout IS NOT NULL LIMIT 1",
            "SELECT 1 FROM release LIMIT 1",
            "SELECT 1 FROM answer LIMIT 1",
        )
        return not any(self.rows(query) for query in queries)

    def add_release(self, round_number: int, silo: str, digest: str, data: memoryview) -> None:
        """Stores a release; the release is synced and read back before the return."""
        sql = "INSERT INTO release VALUES (?, ?, ?, zeroblob(?))"
        self.write(content=Content("release", sql, (round_number, silo, digest), data))
        self.in_doubt = False  # the sum in memory is compared with the file later

    def set_answer(self, round_number: int, status: str, digest: str, data: bytes) -> None:
        """Stores the answer for a round; the answer is synced and read back before the return."""
        sql = "INSERT OR REPLACE INTO answer VALUES (?, ?, ?, zeroblob(?))"
        self.write(content=Content("answer", sql, (round_number, status, digest), data))
        self.in_doubt = False

    def set_layout(self, layout: bytes) -> None:
        """Stores the names and shapes of the model; both are synced and read back before the return."""
        proof = ("SELECT layout FROM region", (), [(layout,)])
        self.write(("UPDATE region SET layout = ?", (layout,)), proofs=(proof,))
        self.in_doubt = False

    def release_of(self, round_number: int, silo: str) -> tuple[str, bytes | None]:
        """Returns the digest and the unchecked content of a stored release."""
        row = self.rows("SELECT rowid, digest FROM release WHERE round = ? AND silo = ?", round_number, silo)[0]
        return row[1], self.content("release", row[0])

    def answer_of(self, round_number: int) -> tuple[str, bytes | None] | None:
        """Returns the digest and the unchecked content of a round's answer; None for a round without an answer."""
        rows = self.rows("SELECT digest FROM answer WHERE round = ?", round_number)
        return (rows[0][0], self.content("answer", round_number)) if rows else None

    def forget_releases(self, status: str) -> None:
        """Erases the content of the releases of all rounds with a status."""
        query = (
            "SELECT release.rowid, length(release.bytes) FROM release JOIN answer USING (round) "
            "WHERE status = ? AND release.bytes NOTNULL"
        )
        releases = self.rows(query, status)
        while releases:
            erasures: list[Statement] = []
            size = 0
            while releases and (not erasures or size + releases[-1][1] <= MOST_ERASED):
                row, length = releases.pop()
                size += length
                erasures.append(("UPDATE release SET bytes = NULL WHERE rowid = ?", (row,)))
            self.write(*erasures)
            self.in_doubt = False
