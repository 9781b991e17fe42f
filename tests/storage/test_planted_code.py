"""Files that carry code or tables of somebody else's: refused before a row is read, nothing of them run."""

import contextlib
import sqlite3

import pytest
from error_codes import coded
from journaled_files import Book, Rounds, Sums, refused

from fulcrum.core.store import ledger_reading
from fulcrum.core.store import sqlite_connection as connections
from fulcrum.core.store.ledger import Ledger
from fulcrum.core.store.ledger_checks import verify_ledger
from fulcrum.core.store.ledger_reading import read_ledger, read_only
from fulcrum.errors import LedgerError

NOT_OURS = "is damaged: its tables are not those that Fulcrum makes"

TABLE = {Book: "entry", Sums: "answer", Rounds: "round"}
NEXT = {Book: "payload", Sums: "release", Rounds: "silo"}

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT"
PLANTED = {
    "trigger after insert": "CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM {table}; END",
    "trigger before insert": "CREATE TRIGGER t BEFORE INSERT ON {table} BEGIN SELECT RAISE(IGNORE); END",
    "trigger on update": "CREATE TRIGGER t AFTER UPDATE ON {next} BEGIN DELETE FROM {table}; END",
    "trigger on delete": "CREATE TRIGGER t BEFORE DELETE ON {next} BEGIN SELECT RAISE(IGNORE); END",
    "view": "CREATE VIEW v AS SELECT * FROM {table}",
    "view in place of a table": "DROP TABLE {table}; CREATE VIEW {table} AS SELECT 1 AS round",
    "endless view": f"DROP TABLE {{table}}; CREATE VIEW {{table}} AS {ENDLESS} x AS round FROM c",
    "endless view of the silo": f"DROP TABLE {{next}}; CREATE VIEW {{next}} AS {ENDLESS} x AS name FROM c",
    "trigger in place of inserts": (
        "ALTER TABLE {table} RENAME TO kept; CREATE VIEW {table} AS SELECT * FROM kept;"
        "CREATE TRIGGER t INSTEAD OF INSERT ON {table} BEGIN SELECT 1; END"
    ),
    "table": "CREATE TABLE more (x)",
    "virtual table": "CREATE VIRTUAL TABLE more USING fts5(x)",
    "index": "CREATE INDEX more ON {table} (rowid)",
    "index of an expression": "CREATE INDEX more ON {table} (abs(rowid))",
    "partial index": "CREATE UNIQUE INDEX more ON {table} (1) WHERE 0",
    "table without an index": "CREATE TABLE copied AS SELECT * FROM {table}; DROP TABLE {table};"
    "ALTER TABLE copied RENAME TO {table}",
    "column": "ALTER TABLE {table} ADD COLUMN more",
    "column with a default": "ALTER TABLE {table} ADD COLUMN more DEFAULT 7",
    "generated column": "ALTER TABLE {table} ADD COLUMN more AS (1 + 1) VIRTUAL",
    "check": "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', ' NOT NULL CHECK (1)')",
    "statistics": "ANALYZE",
    "counter": "CREATE TABLE counted (x INTEGER PRIMARY KEY AUTOINCREMENT); DROP TABLE counted",
    "a blank in the text": "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = sql || ' ' WHERE name = '{table}'",
    "a comment in the text": (
        "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = sql || '/* x */' WHERE name = '{table}'"
    ),
    "another collation": (
        "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = replace(sql, 'TEXT', 'TEXT COLLATE NOCASE')"
    ),
    "text that is bytes": "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = CAST(sql AS BLOB)",
    "a row that is no object": "PRAGMA writable_schema=ON; INSERT INTO sqlite_master VALUES ('x', 'y', 'z', 0, 'w')",
    "a table twice": (
        "PRAGMA writable_schema=ON; INSERT INTO sqlite_master SELECT type, name, tbl_name, rootpage, sql "
        "FROM sqlite_master WHERE name = '{table}'"
    ),
    "a table in the place of another": (
        "PRAGMA writable_schema=ON; UPDATE sqlite_master SET rootpage = "
        "(SELECT rootpage FROM sqlite_master WHERE name = '{next}') WHERE name = '{table}'"
    ),
    "the mark in the place of another": (
        "PRAGMA writable_schema=ON; UPDATE sqlite_master SET rootpage = "
        "(SELECT rootpage FROM sqlite_master WHERE name = '{next}') WHERE name = 'mark'"
    ),
    "no index": "PRAGMA writable_schema=ON; DELETE FROM sqlite_master WHERE type = 'index'",
    "a trigger by hand": (
        "PRAGMA writable_schema=ON; INSERT INTO sqlite_master VALUES ('trigger', 't', '{table}', 0, "
        "'CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM {table}; END')"
    ),
    "a view in the place of the schema": (
        "PRAGMA writable_schema=ON; INSERT INTO sqlite_master VALUES ('view', 'sqlite_master', 'sqlite_master', 0, "
        "'CREATE VIEW sqlite_master AS SELECT 1')"
    ),
}


@pytest.fixture
def tmp_path(tmp_path_factory):
    """In memory: nothing here waits for a disk."""
    return tmp_path_factory.mktemp("planted")


def planted(kind, path, sql):
    """A file with two rounds, changed by another program; None where SQLite itself does not do it to such a file."""
    with contextlib.closing(kind.open(path)) as opened:
        for number in (1, 2):
            kind.record(opened, number)
    words = {"table": TABLE[type(kind)], "next": NEXT[type(kind)]}
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(sql.format(**words))


@pytest.mark.parametrize("sql", PLANTED.values(), ids=PLANTED.keys())
def test_a_file_whose_tables_are_not_exactly_ours_is_refused_and_nothing_of_it_runs(kind, tmp_path, sql):
    path = tmp_path / kind.name
    if isinstance(kind, Rounds) and sql in (PLANTED["index"], PLANTED["index of an expression"]):
        sql = sql.replace("rowid", "number")
    if "(rowid)" in sql:
        sql = sql.replace("rowid", "round")
    planted(kind, path, sql)
    refused(kind, path, "is damaged")


@pytest.mark.parametrize(
    "name", ["trigger after insert", "view", "generated column", "statistics", "a blank in the text"]
)
def test_the_refusal_says_that_the_tables_are_not_ours(kind, tmp_path, name):
    path = tmp_path / kind.name
    planted(kind, path, PLANTED[name])
    refused(kind, path, NOT_OURS)


def test_another_encoding_or_vacuum_mode_is_refused(kind, tmp_path):
    path = tmp_path / kind.name
    kind.open(path).close()
    whole = path.read_bytes()
    for place in (19, 20, 47, 55, 59, 67, 75):  # the log, reserved bytes, schemas, vacuum, the encoding of texts
        path.write_bytes(whole[:place] + bytes([whole[place] + 1]) + whole[place + 1 :])
        refused(kind, path, "is damaged")


FORGETS = "CREATE TRIGGER t AFTER INSERT ON payload BEGIN DELETE FROM entry; DELETE FROM payload; END"


def test_a_trigger_that_forgets_releases_never_gave_a_fresh_one(tmp_path):
    path = tmp_path / "lyon.ledger"
    planted(Book(), path, FORGETS)
    for work in (read_ledger, verify_ledger, lambda path: Ledger.open(path, silo="lyon")):
        with pytest.raises(LedgerError, match=NOT_OURS):
            work(path)


@pytest.fixture
def unchecked(monkeypatch):
    """Schemas are not compared: what else stands in the way of planted code is on its own."""
    for module in (connections, ledger_reading):
        monkeypatch.setattr(module, "check_schema", lambda *_, **__: None)


@pytest.fixture
def unguarded(monkeypatch):
    """SQLite's own settings let triggers and views run."""
    real = connections.connect

    def with_code(*arguments):
        connection = real(*arguments)
        connection.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 10)
        if hasattr(connection, "setconfig"):
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, True)
            connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, True)
        return connection

    for module in (connections, ledger_reading):
        monkeypatch.setattr(module, "connect", with_code)


FORGETS_EARLIER = "CREATE TRIGGER t AFTER INSERT ON entry BEGIN DELETE FROM entry WHERE sequence < NEW.sequence; END"


@pytest.mark.parametrize("forgets", [FORGETS, FORGETS_EARLIER])
def test_the_authorizer_alone_keeps_a_trigger_from_running(tmp_path, unchecked, unguarded, forgets):
    path = tmp_path / "lyon.ledger"
    planted(Book(), path, forgets)
    with contextlib.closing(Book().open(path)) as ledger:
        with pytest.raises(LedgerError, check=coded("storage.operation-failed")):
            Book().record(ledger, 3)
        assert ledger.sequence == 2
    with contextlib.closing(Book().open(path)) as ledger:
        assert Book().found(ledger) == [1, 2]


def test_the_authorizer_alone_keeps_triggers_and_views_from_tables_that_statements_may_use(
    kind, tmp_path, unchecked, unguarded
):
    path, table, other = tmp_path / kind.name, TABLE[type(kind)], NEXT[type(kind)]
    with contextlib.closing(kind.open(path)) as opened:
        schema = kind.file(opened).whole_schema()
    view = f"DROP TABLE {other}; CREATE VIEW {other} AS SELECT * FROM mark;"
    planted(kind, path, f"{view} CREATE TRIGGER t BEFORE DELETE ON {table} BEGIN SELECT * FROM mark; END")
    with contextlib.closing(read_only(path, schema)) as connection:
        assert connection.execute("SELECT count(*) FROM mark").fetchone() == (1,)
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] > 0
        for sql in (f"SELECT * FROM {other}", f"DELETE FROM {table}"):
            with pytest.raises(sqlite3.DatabaseError, match=r"prohibited|not authorized"):
                connection.execute(sql)


@pytest.mark.parametrize(
    "forgets",
    [
        FORGETS,
        FORGETS_EARLIER,
        "CREATE TRIGGER t AFTER INSERT ON entry BEGIN UPDATE entry SET cost = '[]' WHERE sequence = NEW.sequence; END",
        "CREATE TRIGGER t AFTER INSERT ON payload BEGIN UPDATE payload SET bytes = x'00'; END",
        "CREATE TRIGGER t AFTER UPDATE ON silo BEGIN UPDATE silo SET entries = 1; END",
    ],
)
@pytest.mark.parametrize("size", [10, 1_100_000], ids=["small", "large"])
def test_reading_back_alone_notices_a_trigger_that_ran(tmp_path, unchecked, unguarded, monkeypatch, forgets, size):
    path = tmp_path / "lyon.ledger"
    planted(Book(), path, forgets)
    monkeypatch.setattr(connections, "_authorizer", lambda _: lambda *__: sqlite3.SQLITE_OK)
    with contextlib.closing(Book().open(path)) as ledger:
        with pytest.raises(LedgerError, match="so nothing may be sent"):
            Book().record(ledger, 3, bytes(size))
        with pytest.raises(LedgerError, check=coded("ledger.in-doubt")):
            Book().record(ledger, 3)


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH ':memory:' AS other",
        "CREATE TABLE t (x)",
        "CREATE TEMP TABLE t (x)",
        "CREATE TEMP TRIGGER t AFTER INSERT ON {table} BEGIN SELECT 1; END",
        "CREATE VIEW v AS SELECT 1",
        "DROP TABLE {table}",
        "ALTER TABLE {table} RENAME TO other",
        "ANALYZE",
        "REINDEX",
        "VACUUM",
        "PRAGMA writable_schema=ON",
        "PRAGMA journal_mode=OFF",
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=OFF",
        "PRAGMA secure_delete=OFF",
        "PRAGMA database_list",
        "SELECT load_extension('x')",
        "SELECT writefile('x', 'y')",
        "UPDATE mark SET bytes = zeroblob(8192)",
        "DELETE FROM sqlite_master",
        "SELECT * FROM pragma_table_info('{table}')",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c LIMIT 3",
        "SAVEPOINT s",
    ],
)
def test_the_connection_does_nothing_that_our_statements_do_not_need(kind, tmp_path, sql):
    with contextlib.closing(kind.open(tmp_path / kind.name)) as opened:
        connection = kind.file(opened).connection
        with pytest.raises(sqlite3.Error):
            connection.execute(sql.format(table=TABLE[type(kind)])).fetchall()
