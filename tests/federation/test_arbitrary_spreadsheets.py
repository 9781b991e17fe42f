"""However a spreadsheet writes its numbers and whatever befalls its bytes: read right, or refused in one line."""

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from test_spreadsheets import SHEETS

from fulcrum.errors import FederationError, FulcrumError
from fulcrum.readers.federation import Federation
from fulcrum.readers.federation_csv import federation_csv
from fulcrum.readers.federation_reader import reading_of_bytes

THOUSANDS = ["", ".", ",", " ", "\xa0", "\u202f", "'", "’"]
ENCODINGS = ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le"]


def grouped(digits, sign):
    """Digits with a sign between their thousands, as spreadsheets write them."""
    return f"{int(digits):,}".replace(",", sign)


def outcome(data, file):
    """The reading of some bytes and None, or None and the line that refuses them."""
    try:
        return reading_of_bytes(data, file), None
    except FulcrumError as error:
        return None, str(error)


def table(header, rows, separator, end, encoding):
    lines = [separator.join(f'"{cell}"' if separator in cell else cell for cell in row) for row in [header, *rows]]
    return (end.join(lines) + end).encode(encoding, "replace")


@given(
    sizes=st.lists(st.integers(1, 10**9), min_size=1, max_size=6),
    thousands=st.sampled_from(THOUSANDS),
    decimals=st.sampled_from(["", ".0", ",00", ".000", ",000"]),
    separator=st.sampled_from([",", ";", "\t"]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    encoding=st.sampled_from(ENCODINGS),
    total=st.booleans(),
)
@example(sizes=[850, 2631], thousands=".", decimals="", separator=";", end="\n", encoding="cp1252", total=True)
@example(sizes=[850, 2631], thousands=".", decimals=",000", separator=";", end="\n", encoding="utf-8", total=False)
@settings(max_examples=400, deadline=None)
def test_records_are_read_as_they_were_meant_or_refused(sizes, thousands, decimals, separator, end, encoding, total):
    assume(not (thousands and decimals.startswith(thousands)))
    rows = [[f"clinic {k}", grouped(size, thousands) + decimals, "north"] for k, size in enumerate(sizes)]
    rows += [["Total", grouped(sum(sizes), thousands) + decimals, ""]] if total else []
    data = table(["Hospital", "Patients", "Region"], rows, separator, end, encoding)
    found, refused = outcome(data, "a.csv")
    if found is None:
        assert refused.startswith(("a.csv line", "a.csv has"))
        assert thousands or decimals  # plain digits are read
    else:
        assert found.federation.sizes.tolist() == sizes


@given(
    values=st.lists(st.integers(1, 99_999), min_size=1, max_size=6),
    places=st.integers(0, 4),
    sign=st.sampled_from([".", ","]),
    separator=st.sampled_from([",", ";", "\t"]),
    column=st.sampled_from(["Epsilon", "Gewicht"]),
)
@settings(max_examples=200, deadline=None)
def test_fractions_are_read_as_they_were_meant_or_refused(values, places, sign, separator, column):
    meant = [value / 10**places for value in values]
    rows = [[f"k{k}", "5", "north", f"{one:.{places}f}".replace(".", sign)] for k, one in enumerate(meant)]
    data = table(["Klinik", "Fälle", "Region", column], rows, separator, "\r\n", "cp1252")
    found, refused = outcome(data, "a.csv")
    if found is None:
        assert (sign, separator) != (".", ",")  # there points are decimal where nothing says otherwise
        assert "can be" in refused
    elif column == "Epsilon":
        assert found.federation.preferences.tolist() == meant
    else:
        expected = Federation.from_columns(
            silo=[row[0] for row in rows],
            records=[5] * len(rows),
            tiers={"region": ["north"] * len(rows)},
            weight=meant,
        )
        assert found.federation.digest == expected.digest


FILES = sorted(SHEETS.iterdir())


@given(
    path=st.sampled_from(FILES),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4), st.binary(max_size=4)), max_size=4),
    pieces=st.lists(st.sampled_from([b";", b",", b"\t", b'"', b"\r", b"\n", b".", b"\xa0", b"\xff\xfe", b"'", b"#"])),
)
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_spreadsheet_is_refused_in_one_line_or_its_clean_table_is_the_same(path, edits, pieces):
    data = path.read_bytes()
    for (where, length, new), piece in zip(edits, [*pieces, *[b""] * len(edits)], strict=False):
        at = int(where * len(data))
        data = data[:at] + new + piece + data[at + length :]
    found, refused = outcome(data, f"a{path.suffix}")
    if found is None:
        assert refused.isprintable()
        return
    assert all(note.isprintable() for note in found.notes)
    try:
        clean = federation_csv(found.federation)
    except FederationError:  # a name that a table would read as something else
        return
    assert reading_of_bytes(clean.encode(), "clean.csv").federation.digest == found.federation.digest
