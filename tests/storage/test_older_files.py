"""Files of format 1."""

import base64
import contextlib
import sqlite3
import stat
import zlib

import pytest
from logged_files import COST, Book, Sums, opens_with, put, refused, state

from fulcrum.errors import LedgerError
from fulcrum.ledger.ledger import Ledger, verify_ledger
from fulcrum.storage.log_mark import PAGE_BYTES

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
