"""Tables that were once read as something else without a word: read right, refused, or doubted in a note."""

import pytest
from error_codes import coded

from fulcrum.errors import FederationError
from fulcrum.readers.federation_reader import reading_of_bytes


def read(text):
    return reading_of_bytes(text.encode(), "a.csv")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("silo,region\nhôpital,région\nlille,north\n", "line 2: 'hôpital' and 'région' look like a second header"),
        ("Klinik;Region\nHôpital;Région\nBern;West\n", "line 2: 'Hôpital' and 'Région' look like a second header"),
        ("silo,records,region,Region\na,1,x,X\n", "'region' and 'Region' differ only in capitals or accents"),
        ("silo,records,region,Région\na,1,x,X\n", "'region' and 'Région' differ only in capitals or accents"),
        ("silo,records,region\na,10_20,x\n", "line 2: records='10_20' is not a number"),
        ("silo,records,region,weight\na,10,x,1_5\n", "line 2: weight='1_5' must be a finite number"),
        ("silo,records,region,epsilon\na,10,x,1_5\n", "line 2: epsilon='1_5' is not a number"),
        ("silo,region\na," + "x" * 1_001 + "\n", "line 2: a name of 1,001 letters is longer than 1,000"),
        ("silo,region," + "x" * 1_001 + "\na,b,c\n", "line 1: a name of 1,001 letters is longer than 1,000"),
    ],
)
def test_what_can_mean_something_else_is_refused(text, reason):
    with pytest.raises(FederationError) as refusal:
        read(text)
    assert reason in str(refusal.value)


def test_a_silo_may_be_called_like_a_column_where_its_region_is_not():
    assert read("silo,region\nKlinik,West\nBern,West\n").federation.silo_names.tolist() == ["Klinik", "Bern"]


@pytest.mark.parametrize(
    ("rows", "doubted"),
    [
        ("a,10,x\nb,20,y\nc,30,y\nAlle,60,Alle\n", ["Alle"]),
        ("a,10,Nord\nb,20,Nord\nNord,30,Nord\nc,5,Sued\nd,6,Sued\nSüd,11,Sued\n", ["Nord", "Süd"]),
        ("a,10,x\nb,20,x\nc,30,x\n", []),  # three silos of one region
        ("Lyon-Est,800,Lyon\nLyon,800,Lyon\n", []),
        ("a,10,x\nb,20,y\nc,31,z\n", []),
    ],
)
def test_a_sum_that_no_word_tells_is_doubted(rows, doubted):
    found = read("silo,records,region\n" + rows)
    assert len(found.federation) == rows.count("\n")
    assert list(found.notes) == [
        f"silo {name!r} is read as a silo. If it is a sum of others, remove it" for name in doubted
    ]


def test_records_that_only_number_the_rows_are_doubted():
    found = read("n,silo,region\n1,a,x\n2,b,x\n3,c,x\n")
    assert found.notes[-1] == "records are 1, 2, 3 and so on. If column 1 only numbers the rows: --column ignore=n"
    assert read("records,silo,region\n1,a,x\n2,b,x\n3,c,x\n").notes == ()
    assert len(read("n,silo,region\n1,a,x\n2,b,x\n4,c,x\n").notes) == 1


def test_a_name_in_two_alphabets_is_doubted():
    found = read("silo,region\na,Nord\nb,N\u043erd\n")  # a Cyrillic o
    assert found.notes == ("region 'N\u043erd' has letters of two alphabets, Cyrillic and Latin. Write it in one",)
    assert read("silo,region\na,\u041c\u043e\u0441\u043a\u0432\u0430\nb,Köln\n").notes == ()


def test_quotes_after_a_space_are_quotes():
    found = read('"silo", "region"\n"a", "north, east"\n"b", "south"\n').federation
    assert found.innermost.nodes == ("north, east", "south")


def test_a_header_of_a_million_columns_is_refused_before_anything_is_looked_for_in_it():
    with pytest.raises(FederationError, check=coded("sheet.columns-too-many", most=100)):
        reading_of_bytes(b"ab," * 1_000_000, "a.csv", columns={"silo": ["ac"]})


def test_columns_that_are_ignored_or_have_no_name_do_not_count():
    ignored = [f"c{k}" for k in range(150)]
    text = ",".join(["silo", "region", *ignored, *[""] * 300])
    row = ",".join(["a", "x", *["1"] * 150, *[""] * 300])
    found = reading_of_bytes(f"{text}\n{row}\n".encode(), "a.csv", columns={"ignore": ignored})
    assert [tier.name for tier in found.federation.tiers] == ["region"]
    with pytest.raises(FederationError, check=coded("sheet.columns-too-many", columns=102, most=100)):
        reading_of_bytes(f"{text}\n{row}\n".encode(), "a.csv", columns={"ignore": ignored[:50]})
