"""Tables as privacy officers have them: thousands, workbooks, all mistakes at once, states within countries."""

import io
import zipfile

import polars as pl
import pytest
from error_codes import coded

import fulcrum
from fulcrum.errors import FederationError, ParameterError
from fulcrum.readers.federation_reader import reading_of_bytes
from fulcrum.readers.sheets import MOST_MISTAKES


def read(text, name="a.csv", **options):
    return reading_of_bytes(text.encode(), name, **options)


@pytest.mark.parametrize(("sign", "other"), [(".", "comma"), (",", "dot")])
def test_whole_records_with_three_digits_after_each_sign_have_thousands_and_a_note_says_so(sign, other):
    text = f"silo;records;region\na;3{sign}365;n\nb;12{sign}400;n\nc;900;s\n"
    reading = read(text)
    assert reading.federation.sizes.tolist() == [3365, 12400, 900]
    assert any(f"If not: --thousands {other}" in note for note in reading.notes)
    with pytest.raises(FederationError, check=coded("sheet.several-mistakes")):  # 3.365 records are not whole
        read(text, thousands=other)


def test_a_declared_sign_settles_fractions_too():
    text = "silo;region;weight\na;r;850\nb;r;2.631\n"
    with pytest.raises(FederationError, check=coded("sheet.number-ambiguous")):
        read(text)
    assert read(text, thousands="dot").federation.declared_weights.tolist() == pytest.approx([850 / 3481, 2631 / 3481])
    assert read(text, thousands="comma").federation.declared_weights[1] == pytest.approx(2.631 / 852.631)
    with pytest.raises(ParameterError):
        read(text, thousands="dot") and fulcrum.read_federation("severe", thousands="space")


def test_three_zeros_after_every_sign_may_be_decimals_and_are_refused():
    with pytest.raises(FederationError, check=coded("sheet.number-ambiguous")):
        read("silo,records,region\na,1.000,n\nb,2.000,n\n")


def test_all_mistakes_of_a_table_are_named_at_once_and_a_mended_table_is_read():
    text = "silo,records,region\na,3x,n\nb,-4,n\nc,5,\nd,1.5,s\ne,4,s\n"
    with pytest.raises(FederationError, check=coded("sheet.several-mistakes")) as refused:
        read(text)
    assert refused.value.details["count"] == 4
    for line in (2, 3, 4, 5):
        assert f"a.csv line {line}:" in str(refused.value)
    assert "line 6" not in str(refused.value)
    with pytest.raises(FederationError, check=coded("sheet.records-type")):  # one mistake is told as before
        read("silo,records,region\na,3x,n\nb,4,n\n")


def test_at_most_ten_mistakes_are_named():
    rows = "".join(f"silo{k},x,n\n" for k in range(30))
    with pytest.raises(FederationError, check=coded("sheet.several-mistakes")) as refused:
        read(f"silo,records,region\n{rows}")
    assert refused.value.details["count"] == MOST_MISTAKES == 10
    assert "at least 10 mistakes" in str(refused.value)


def test_a_sum_that_no_longer_adds_up_without_a_wrong_line_is_no_mistake_of_its_own():
    with pytest.raises(FederationError, check=coded("sheet.records-type")):
        read("silo,records,region\na,3x,n\nb,4,n\nc,5,n\nTotal,12,\n")


@pytest.mark.parametrize("order", [("country", "state"), ("state", "country")])
def test_of_country_and_state_the_column_that_refines_the_other_is_the_region(order):
    cells = {"country": ["DE", "DE", "FR"], "state": ["NRW", "Bayern", "Nord"]}
    rows = "".join(f"h{k},{900 + k},{cells[order[0]][k]},{cells[order[1]][k]}\n" for k in range(3))
    reading = read(f"hospital,patients,{order[0]},{order[1]}\n{rows}")
    assert reading.federation.innermost.nodes == ("NRW", "Bayern", "Nord")
    assert [tier.name for tier in reading.federation.tiers] == ["region", "country"]
    remedy = "If not: --column region=country --column ignore=state"
    assert f"'state' is the region, as it refines 'country'. {remedy}" in reading.notes
    coarser = read(f"hospital,patients,{order[0]},{order[1]}\n{rows}", columns={"region": "country", "ignore": "state"})
    assert coarser.federation.innermost.nodes == ("DE", "FR")


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("Struttura,Numero di ricoveri,Regione", "silo from 'Struttura', records from 'Numero di ricoveri'"),
        ("Presidio,Pazienti,Regione", "silo from 'Presidio', records from 'Pazienti'"),
        ("Hospital,Pacientes,Comunidad autónoma", "silo from 'Hospital', records from 'Pacientes'"),
    ],
)
def test_headers_in_italian_and_spanish_are_read(header, names):
    reading = read(f"{header}\na,900,Lazio\nb,800,Lazio\nc,700,Veneto\n")
    assert reading.federation.innermost.nodes == ("Lazio", "Veneto")
    assert reading.federation.sizes.tolist() == [900, 800, 700]
    assert any(names in note for note in reading.notes)


@pytest.mark.parametrize("columns", [None, {"silo": "Ospedale"}])
def test_a_line_of_two_cells_above_a_header_with_two_columns_for_regions_is_refused_as_no_header(columns):
    text = "Elenco della rete,2025,,\nOspedale,Pazienti,Regione,Provincia\na,900,Lazio,Roma\nb,800,Lazio,Latina\n"
    with pytest.raises(FederationError, check=coded("sheet.header-not-first", line=1, header_line=2)):
        read(text, columns=columns)


GERMAN_ROWS = "Klinik;Patienten;Bundesland\nKöln;3.365;NRW\nBonn;1.200;NRW\nKiel;900;Nord\n"


@pytest.mark.parametrize("title", ["Verbund Südwest, Stand 2025;;\n", "Verbund Südwest, Stand 2025\n", "Verbund\n;;\n"])
def test_a_title_above_the_header_is_left_out_with_a_note(title):
    reading = read(title + GERMAN_ROWS)
    assert reading.federation.sizes.tolist() == [3365, 1200, 900]
    named = title.split("\n")[0].rstrip(";")
    assert f"line 1 is left out: {named!r} is a title above the header" in reading.notes


def test_two_titles_and_a_sum_have_a_note_each_and_messages_name_the_lines_of_the_file():
    titles = "Verbund;;\nStand 31.12.2025;;\n"
    reading = read(f"{titles}{GERMAN_ROWS}Gesamt;5.465;\n")
    assert [note for note in reading.notes if "left out" in note] == [
        "line 1 is left out: 'Verbund' is a title above the header",
        "line 2 is left out: 'Stand 31.12.2025' is a title above the header",
        "line 7 is left out: 'Gesamt' has 5465 records, the sum of the lines above",
    ]
    with pytest.raises(FederationError, check=coded("sheet.records-type", place="a.csv line 6")):
        read(f"{titles}{GERMAN_ROWS.replace('900', 'viele')}")


def test_a_name_of_a_column_above_a_table_is_no_title():
    with pytest.raises(FederationError, check=coded("sheet.column-missing", place="a.csv line 1", column="region")):
        read("silo\na,b\nc,d\n")


@pytest.mark.parametrize("before", ["Summe;5.465;\n", "\n", "Summe;5.465;\n\n"])
def test_remarks_below_a_sum_or_an_empty_line_are_left_out_with_a_note(before):
    reading = read(f"{GERMAN_ROWS}{before}Quelle: Medizincontrolling;;\nohne Tageskliniken\n")
    assert reading.federation.sizes.tolist() == [3365, 1200, 900]
    remarks = [note for note in reading.notes if "a remark below the table" in note]
    assert ["Quelle: Medizincontrolling" in remarks[0], "ohne Tageskliniken" in remarks[1]] == [True, True]


@pytest.mark.parametrize(
    ("text", "line"), [(f"{GERMAN_ROWS}Hamburg;;\n", 5), (f"{GERMAN_ROWS}Bremen\nJena;4;Ost\n", 5)]
)
def test_a_silo_without_records_and_region_is_refused_and_not_taken_for_a_remark(text, line):
    with pytest.raises(FederationError, check=coded("sheet.cell-alone", line=line)):
        read(text.replace("Bremen\n", "Bremen;;\n"))


def test_an_unknown_column_of_numbers_is_offered_as_records():
    numbers = "Klinik,Volumen,Region\na,900,x\nb,800,x\n"
    with pytest.raises(FederationError, check=coded("sheet.column-of-numbers", column="Volumen")) as refused:
        read(numbers)
    assert "--column records=Volumen" in str(refused.value)
    assert read(numbers, columns={"records": "Volumen"}).federation.sizes.tolist() == [900, 800]
    with pytest.raises(FederationError, check=coded("sheet.column-unknown")):
        read("Klinik,Leitung,Region\na,Dr. Ott,x\nb,Dr. Roy,x\n")


@pytest.mark.parametrize(
    "heading", ["Fälle p.a.", "Patienten pro Jahr", "Patients per year", "Cas par an", "Patientenzahl 2025"]
)
def test_a_heading_that_counts_by_year_is_the_column_of_records(heading):
    assert read(f"Klinik,{heading},Region\na,900,x\nb,800,x\n").federation.sizes.tolist() == [900, 800]


def test_a_refusal_for_want_of_columns_names_the_columns_to_choose_from():
    with pytest.raises(FederationError, check=coded("sheet.column-missing")) as refused:
        read("Träger,Patienten,Ort\na,900,x\nb,800,x\n")
    python = "(in Python columns={'silo': 'NAME', 'region': 'NAME'})"
    assert f"--column silo=NAME --column region=NAME {python}, with NAME among: Träger, Ort" in str(refused.value)
    frame = pl.DataFrame({"who": ["a", "b"], "beds": [900, 800], "place": ["x", "x"]})
    with pytest.raises(FederationError, check=coded("sheet.column-missing")) as refused:
        fulcrum.read_federation(frame)
    assert f"{python}, with NAME among: who, beds, place" in str(refused.value)
    assert len(fulcrum.read_federation(frame, columns={"silo": "who", "region": "place", "records": "beds"})) == 2


def test_a_column_that_is_no_outer_tier_is_one_mistake_and_the_remedy_names_the_column():
    typing = "silo,records,region,country\na,9,N,DE\nb,8,N,D\nc,7,N,DEE\n"  # each line is a mistake of its own
    with pytest.raises(FederationError, check=coded("sheet.several-mistakes", count=2)):
        read(typing)
    rows = "a,900,NRW,1500,DE\nb,800,NRW,700,DE\nc,700,Nord,1200,FR\nd,600,Nord,900,FR\n"
    with pytest.raises(FederationError, check=coded("federation.node-overlap", tier="beds")):
        read(f"silo,records,region,beds,country\n{rows}")
    rows = "a,900,NRW,1500,DE\nb,800,Nord,700,DE\nc,700,West,1500,FR\n"
    with pytest.raises(FederationError, check=coded("federation.node-overlap", tier="country")) as refused:
        read(f"silo,records,region,beds,country\n{rows}")
    assert "--column ignore=country, or the column 'beds': --column ignore=beds" in str(refused.value)


def test_columns_that_do_not_refine_each_other_are_refused():
    with pytest.raises(FederationError, check=coded("sheet.column-ambiguous")):
        read("hospital,patients,country,state\na,9,DE,x\nb,9,FR,x\nc,9,FR,y\n")


def workbook(rows, names=("Tabelle1",)):
    """An .xlsx file of one filled sheet after empty ones, made by hand."""
    columns = "ABCDEFG"
    filled = "".join(
        f'<row r="{r}">'
        + "".join(
            f'<c r="{columns[c]}{r}"><v>{cell}</v></c>'
            if isinstance(cell, (int, float))
            else f'<c r="{columns[c]}{r}" t="inlineStr"><is><t>{cell}</t></is></c>'
            for c, cell in enumerate(row)
            if cell is not None
        )
        + "</row>"
        for r, row in enumerate(rows, start=1)
        if row
    )
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    link = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="xml" '
        'ContentType="application/xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r0" '
        f'Type="{link}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{link}"><sheets>'
        + "".join(f'<sheet name="{name}" sheetId="{k}" r:id="r{k}"/>' for k, name in enumerate(names, start=1))
        + "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">'
        + "".join(
            f'<Relationship Id="r{k}" Type="{link}/worksheet" Target="worksheets/sheet{k}.xml"/>'
            for k in range(1, len(names) + 1)
        )
        + "</Relationships>",
    }
    for k in range(1, len(names) + 1):
        content = filled if k == len(names) else ""
        parts[f"xl/worksheets/sheet{k}.xml"] = f'<worksheet xmlns="{main}"><sheetData>{content}</sheetData></worksheet>'
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return data.getvalue()


ROWS = [["Klinik", "Fälle", "Bundesland"], ["Köln", 3365, "NRW"], ["Bonn", 1200.0, "NRW"], [], ["Kiel", 700, "SH"]]


def test_a_workbook_is_the_same_federation_as_its_table(tmp_path):
    pytest.importorskip("python_calamine")
    (tmp_path / "a.xlsx").write_bytes(workbook(ROWS, names=("Deckblatt", "Daten")))
    reading = fulcrum.reading_of(tmp_path / "a.xlsx")
    same = read("Klinik,Fälle,Bundesland\nKöln,3365,NRW\nBonn,1200,NRW\nKiel,700,SH\n").federation
    assert reading.federation.digest == same.digest
    assert reading.notes[0] == "sheet 'Daten' is read, of 2 sheets"


def test_a_mistake_in_a_workbook_has_the_row_of_the_sheet():
    pytest.importorskip("python_calamine")
    rows = [*ROWS, ["Jena", -3, "TH"]]
    with pytest.raises(FederationError, match=r"a\.xlsx line 6: records=-3"):
        reading_of_bytes(workbook(rows), "a.xlsx")
    with pytest.raises(FederationError, check=coded("sheet.workbook-empty")):
        reading_of_bytes(workbook([]), "a.xlsx")
    with pytest.raises(FederationError, check=coded("sheet.workbook-damaged")):
        reading_of_bytes(b"PK\x03\x04 and no more", "a.ods")


def test_a_name_is_the_name_of_the_federation_and_of_its_plan():
    federation = fulcrum.read_federation("severe", name="Unser Verbund")
    assert federation.name == "Unser Verbund"
    assert fulcrum.plan(federation, rounds=10, epsilon=1.0).federation.name == "Unser Verbund"
    with pytest.raises(FederationError, check=coded("federation.name-invalid")):
        fulcrum.read_federation("severe", name="two\nlines")


REMARKS = "Klinik;Fälle;Land;Bemerkung\nKöln;850;West;{}\nBonn;1200;West;{}\nKiel;900;Nord;{}\nRostock;300;Nord;{}\n"


def test_an_empty_column_of_remarks_is_left_out_with_a_note():
    reading = reading_of_bytes(REMARKS.format("", " ", "", "").encode(), "kliniken.csv")
    assert "column 'Bemerkung' is empty and is left out" in reading.notes
    assert [tier.name for tier in reading.federation.tiers] == ["region"]
    assert reading.federation.sizes.tolist() == [850, 1200, 900, 300]


def test_a_column_of_remarks_with_gaps_is_one_mistake_and_hides_no_other():
    table = REMARKS.format("neu", "", "", "").replace("Kiel;900", "Kiel;k. A.").encode()
    with pytest.raises(FederationError) as refused:
        reading_of_bytes(table, "kliniken.csv")
    said = str(refused.value)
    assert refused.value.code == "sheet.several-mistakes"
    assert refused.value.details["count"] == 2
    assert said.count("--column ignore=Bemerkung") == 1
    assert "line 4: records='k. A.'" in said


def test_a_misspelt_file_is_answered_with_the_file_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Fallzahlen.csv").write_text("silo,records,region\na,9,x\n", encoding="utf-8")
    (tmp_path / "Fallzahl.docx").write_bytes(b"")
    for name, near in (
        ("Fallzahlen", "Fallzahlen.csv"),
        (str(tmp_path / "Falzahlen.csv"), str(tmp_path / "Fallzahlen.csv")),
    ):
        with pytest.raises(FederationError, check=coded("federation.name-unknown")) as refused:
            fulcrum.read_federation(name)
        assert str(refused.value).endswith(f"Did you mean {near!r}?")
