"""Tables as Excel, LibreOffice, R and pandas write them: read and said how, or refused with what to do.

The files in sheets/ are the bytes that these programs write: alphabets, marks, separators, quotes, line ends.
"""

import math
from pathlib import Path

import pytest

from fulcrum.errors import FederationError
from fulcrum.readers.federation_csv import federation_csv
from fulcrum.readers.federation_reader import reading_of, reading_of_bytes

SHEETS = Path(__file__).parent / "sheets"

WINDOWS = "not UTF-8 and was read as Windows-1252"
SEMICOLONS = "cells are separated by semicolons"
TABS = "cells are separated by tabs"
SAVE = "Save it as UTF-8 (in Excel: 'CSV UTF-8'; in LibreOffice: Text CSV, character set Unicode (UTF-8))"
EXPORT = "In Excel: File, Save As, 'CSV UTF-8 (Comma delimited)'; then give that .csv file"


def columns_as(**columns):
    return "columns are read as: " + ", ".join(f"{name} from {given!r}" for name, given in columns.items())


# By file its rows (silo, records, region, then outer tiers), further columns, and what the notes must say, in order.
READ = {
    "excel-en-utf8.csv": (
        [("St Mary's", 2631, "London"), ("Addenbrooke's", 850, "East"), ("Royal Free", 1200, "London")],
        {},
        [columns_as(silo="Hospital", records="Patients", region="Region")],
    ),
    "excel-en-thousands.csv": (
        [("St Mary's", 2631, "London"), ("Royal Free", 850, "London")],
        {},
        [
            columns_as(silo="Hospital", records="Patients", region="Region"),
            "records: commas separate thousands, as in 2,631, as records are whole numbers. If not: --thousands dot",
        ],
    ),
    "excel-de-tausenderpunkt.csv": (
        [("Köln", 850, "NRW"), ("Charité", 2631, "Berlin")],
        {},
        [
            "line 1 is not UTF-8 and was read as Windows-1252: 'Klinik;Fälle;Bundesland'. If a letter is wrong, save "
            "the file as UTF-8",
            SEMICOLONS,
            columns_as(silo="Klinik", records="Fälle", region="Bundesland"),
            "records: dots separate thousands, as in 2.631, as records are whole numbers. If not: --thousands comma",
        ],
    ),
    "excel-en-millions.csv": (
        [("north-1", 2631, "north"), ("south-1", 1250000, "south")],
        {},
        [
            columns_as(silo="SITE", records="RECORDS", region="REGION"),
            "records: commas separate thousands, as in 1,250,000",
        ],
    ),
    "excel-en-short-lines.csv": (
        [("a", 800, "north"), ("b", 900, "north"), ("c", 700, "south")],
        {"epsilon": [0.5, None, 1.0], "group": ["university", "b", "c"]},
        ["line 3 ends early: the cells that it lacks are taken as empty"],
    ),
    "excel-en-secret-sizes.csv": (
        [("St Mary's", None, "London", "UK"), ("Lille", None, "Nord", "France")],
        {},
        [columns_as(silo="Hospital", region="Region")],
    ),
    "excel-en-beds.csv": (
        [("St Mary's", None, "London", "480"), ("Lille", None, "Nord", "310")],
        {},
        [
            columns_as(silo="Hospital", region="Region"),
            "the column 'Beds' is read as an outer tier, with '480', '310'. If it is none: --column ignore=Beds; "
            "if it holds records: --column records=Beds",
        ],
    ),
    "excel-de.csv": (
        [
            ("Universitätsklinikum Köln", 2631, "Nordrhein-Westfalen"),
            ("Charité", 850, "Berlin"),
            ("Klinikum Würzburg", 1200, "Bayern"),
        ],
        {},
        [
            f"line 1 is {WINDOWS}: 'Klinik;Fälle;Bundesland'. If a letter is wrong, save the file as UTF-8",
            SEMICOLONS,
            columns_as(silo="Klinik", records="Fälle", region="Bundesland"),
        ],
    ),
    "excel-de-millionen.csv": (
        [("Köln", 1250000, "NRW"), ("Charité", 2631, "Berlin"), ("Mainz", 850, "Rheinland-Pfalz")],
        {},
        [
            WINDOWS,
            SEMICOLONS,
            columns_as(silo="Klinik", records="Datensätze", region="Bundesland"),
            "records: dots separate thousands, as in 1.250.000",
        ],
    ),
    "excel-de-unicode-text.txt": (
        [("Köln", 2631, "West"), ("Łódź-Partner", 850, "Ost"), ("Würzburg", 1200, "Süd")],
        {},
        [
            "it is UTF-16, which Excel calls Unicode text",
            TABS,
            columns_as(silo="Krankenhaus", records="Patienten", region="Region"),
        ],
    ),
    "excel-de-sep.csv": (
        [("Köln", 2631, "West"), ("Bonn", 850, "West")],
        {},
        [WINDOWS, SEMICOLONS, columns_as(silo="Standort", records="Anzahl Fälle", region="Region")],
    ),
    "excel-de-summe.csv": (
        [("Köln", 2631, "West"), ("Bonn", 850, "West"), ("Dresden", 900, "Ost")],
        {},
        [
            WINDOWS,
            SEMICOLONS,
            columns_as(silo="KLINIK", records="FALLZAHL", region="REGION"),
            "line 5 is left out: 'Gesamt:' has 4381 records, the sum of the lines above",
        ],
    ),
    "excel-de-dezimalkomma.csv": (
        [("Köln", 2631, "West"), ("Bonn", 850, "West"), ("Dresden", 900, "Ost")],
        {"epsilon": [0.5, None, 1.25], "group": ["Uni", "Uni", "Dresden"]},
        [
            WINDOWS,
            SEMICOLONS,
            columns_as(silo="Klinik", records="Fälle", region="Region", epsilon="Epsilon", group="Gruppe"),
            "records: commas separate decimals, as in 2631,00",
            "epsilon: commas separate decimals, as in 0,5",
        ],
    ),
    "excel-de-jahr.csv": (
        [("Köln", 2631, "West", "2025"), ("Dresden", 850, "Ost", "2025")],
        {},
        [
            WINDOWS,
            SEMICOLONS,
            columns_as(silo="Klinik", records="Fälle 2025", region="Region"),
            "column 1 is left out: it only numbers the rows",
            "the column 'Jahr' is read as an outer tier, with '2025'. If it is none: --column ignore=Jahr",
        ],
    ),
    "excel-de-titel.csv": (
        [("Köln", 2631, "West")],
        {},
        [
            WINDOWS,
            SEMICOLONS,
            "line 1 is left out: 'Teilnehmende Kliniken, Stand 31.12.2025' is a title above the header",
            columns_as(silo="Klinik", records="Fälle", region="Region"),
        ],
    ),
    "excel-ch-apostroph.csv": (
        [("Inselspital", 2631, "Bern"), ("Universitätsspital", 12400, "Zürich")],
        {},
        [
            WINDOWS,
            SEMICOLONS,
            columns_as(silo="Spital", records="Fälle", region="Kanton"),
            "records: apostrophes separate thousands, as in 2’631",
        ],
    ),
    "excel-fr.csv": (
        [
            ("Hôpital Édouard-Herriot", 2631, "Auvergne-Rhône-Alpes"),
            ("CHU de Lille", 850, "Hauts-de-France"),
            ("L'Haÿ-les-Roses", 1200, "Île-de-France"),
        ],
        {},
        [
            WINDOWS,
            SEMICOLONS,
            columns_as(silo="Établissement", records="Nombre de patients", region="Région"),
            "records: spaces separate thousands, as in 2 631",
        ],
    ),
    "excel-fr-utf8.csv": (
        [("CHU de Lille", 2631, "Hauts-de-France"), ("Rouen", 850, "Normandie")],
        {"weight": [0.75, 0.25]},
        [
            SEMICOLONS,
            columns_as(silo="Hôpital", records="Cas", region="Région", weight="Poids"),
            "records: spaces separate thousands, as in 2 631",
            "weight: commas separate decimals, as in 0,75",
        ],
    ),
    "excel-es.csv": (
        [
            ("Clínica Niño Jesús", 2631, "Madrid", "España"),
            ("Hospital del Mar", 850, "Cataluña", "España"),
            ("Santa María", 1200, "Lisboa", "Portugal"),
        ],
        {},
        [WINDOWS, SEMICOLONS, columns_as(silo="Hospital", records="Pacientes", region="Comunidad")],
    ),
    "libreoffice-en.csv": (
        [("lille", 2631, "north", "france"), ("lyon", 850, "south", "france"), ("gent", 1200, "flanders", "belgium")],
        {},
        [],
    ),
    "libreoffice-de.csv": (
        [("Köln", 2631, "West"), ("Dresden", 850, "Ost")],
        {"weight": [0.75, 0.25]},
        [
            SEMICOLONS,
            columns_as(silo="Krankenhaus", records="Datensätze", region="Gebiet", weight="Gewicht"),
            "weight: commas separate decimals, as in 0,75",
        ],
    ),
    "libreoffice-de-fast-gleich.csv": (
        [
            ("Köln", 2631, "Nord-Ost"),
            ("Bonn", 850, "Nordost"),
            ("Kiel", 900, "nord"),
            ("Lübeck", 700, "Nord"),
            ("Nord  Klinik", 5, "Nord"),
        ],
        {},
        [
            SEMICOLONS,
            columns_as(silo="Klinik", records="Fälle", region="Region"),
            "regions 'Nord-Ost' and 'Nordost' differ in capitals, accents, spaces and signs alone and are read as two",
            "regions 'nord' and 'Nord' differ in capitals alone and are read as two. If they are one, write them alike",
        ],
    ),
    "libreoffice-de-land-zuerst.csv": (
        [
            ("Köln", 2631, "NRW", "Deutschland"),
            ("Charité", 850, "Berlin", "Deutschland"),
            ("AKH", 1200, "Wien", "Österreich"),
        ],
        {},
        [SEMICOLONS, columns_as(region="Bundesland", silo="Klinik", records="Fälle")],
    ),
    "libreoffice-fr-guillemets.csv": (
        [("Lyon, Est", 2631, "Rhône"), ("Lille", 850, "Nord")],
        {},
        [TABS, columns_as(silo="Centre", records="Effectif", region="Région")],
    ),
    "libreoffice-es-formas.csv": (
        [("Carlos Haya", 2631, "M\u00e1laga"), ("Costa del Sol", 850, "Ma\u0301laga")],
        {},
        [
            columns_as(silo="Centro", records="Registros", region="Región"),
            "differ in how Unicode writes their letters alone and are read as two",
        ],
    ),
    "libreoffice-fr-mojibake.csv": (
        [("OrlÃ©ans", 2631, "Centre"), ("Rouen", 850, "Normandie")],
        {},
        [
            columns_as(silo="Hôpital", records="Cas", region="Région"),
            "silo 'OrlÃ©ans' holds letters of a wrong alphabet. Export the file again, as UTF-8",
        ],
    ),
    "r-write-csv.csv": (
        [("lille", 2631, "north"), ("lyon", 850, "south"), ("gent", 100000, "north")],
        {"epsilon": [0.5, None, None]},
        [
            "records: 1e+05 is read as 100000",
            "epsilon: 'NA' is read as missing",
            "column 1 is left out: it only numbers the rows",
        ],
    ),
    "r-write-csv2-de.csv": (
        [("Köln", 2631, "West"), ("Bonn", 850, "West"), ("Dresden", 900, "Ost")],
        {"weight": [0.5, 0.25, 0.25]},
        [
            SEMICOLONS,
            columns_as(silo="Klinik", records="Faelle", region="Region", weight="Gewicht"),
            "weight: commas separate decimals, as in 0,5",
            "column 1 is left out: it only numbers the rows",
        ],
    ),
    "r-write-csv-na-region.csv": (
        [("lille", 2631, "north"), ("lyon", 850, "NA")],
        {},
        ["region 'NA' is read as a name. If it says that there is none, give the right one"],
    ),
    "pandas-index.csv": (
        [("lille", 2631, "north"), ("lyon", 850, "south")],
        {},
        ["column 1 is left out: it only numbers the rows"],
    ),
}

# By file what its refusal says after the file's name.
REFUSED = {
    "excel-en-two-candidates.csv": (
        " line 1: the columns 'Hospital' and 'Site' can both be 'silo'. Choose one: --column silo=Hospital"
    ),
    "excel-en-broken-formula.csv": (
        " line 3: region=#REF! is an error value of the spreadsheet. Repair the formula and export the file again"
    ),
    "excel-en-workbook-renamed.csv": f" holds a workbook, not text. {EXPORT}",
    "excel-en-workbook.xlsx": (
        " is no workbook that can be opened, or is protected by a password. Open it, and save it as .xlsx or as CSV"
    ),
    "excel-de-msdos.csv": f" line 1 is neither UTF-8 nor Windows-1252. {SAVE}",
    "excel-fr-macintosh.csv": f" line 1 is neither UTF-8 nor Windows-1252. {SAVE}",
    "excel-de-telefon.csv": (
        " line 3: region 'West' is in two nodes of the tier 'Telefon', '0221 4780' and '0228 2870'. Columns after "
        "'region' are outer tiers. Name the same Telefon in every row of a region, or ignore the column 'Telefon': --column ignore=Telefon"
    ),
    "excel-es-observaciones.csv": (
        " line 2: Observaciones is missing. Name the Observaciones of silo 'Niño Jesús', or if the column is no tier: "
        "--column ignore=Observaciones"
    ),
    "excel-de-zwischensumme.csv": (
        " has 2 mistakes: (1) excel-de-zwischensumme.csv line 4: 'Summe West' has no region and looks like the sum of "
        "other lines. Remove the line. (2) excel-de-zwischensumme.csv line 6: 'Summe Ost' has no region and looks like "
        "the sum of other lines. Remove the line."
    ),
    "excel-de-ergebnis-je-region.csv": (
        ": silo 'West Ergebnis' has as many records as the silos above together. Remove the line if the line is a "
        "sum, otherwise give the silo another name"
    ),
    "excel-fr-total-faux.csv": (
        " line 4: 'TOTAL' states 3491 records, and the lines above have 3481 in all. Correct the numbers, or remove "
        "the line"
    ),
    "excel-fr-espace-perdue.csv": (
        " line 2: records='2?631' is not a number. Write the number in plain digits, such as 1200"
    ),
    "r-write-csv2-fr-na.csv": " line 3: records is missing. Give the number of records of silo 'Rouen'",
    "r-write-table.txt": (
        " line 1: cells are separated by spaces. Separate cells by commas; in R: write.csv(table, row.names = FALSE)"
    ),
    "r-write-table-tab.tsv": (
        " line 2 has 4 cells, and the header has 3. Give one cell to each column, and quote a name that holds a tab; "
        "in R, write the table with row.names = FALSE"
    ),
}


def rows_of(federation):
    """The table of a federation: silo, records or None, then its nodes, inner to outer."""
    records = federation.sizes.tolist() if federation.sizes_known else [None] * len(federation)
    tiers = [[tier.nodes[k] for k in federation.membership(tier.name)] for tier in federation.tiers]
    return list(zip(federation.silo_names.tolist(), records, *tiers, strict=True))


def further(federation):
    """What a federation says of silos beyond their sizes and places."""
    found = {}
    if federation.preferences is not None:
        found["epsilon"] = [None if math.isnan(one) else one for one in federation.preferences.tolist()]
    if federation.group is not None:
        found["group"] = [federation.group.nodes[k] for k in federation.group.parent_of]
    if federation.declared_weights is not None:
        found["weight"] = federation.declared_weights.tolist()
    return found


def test_every_spreadsheet_has_something_expected_of_it():
    assert {path.name for path in SHEETS.iterdir()} == {*READ, *REFUSED}
    assert not set(READ) & set(REFUSED)
    assert len(READ) + len(REFUSED) >= 30
    for program in ("excel", "libreoffice", "r"):
        assert sum(name.startswith(f"{program}-") for name in (*READ, *REFUSED)) >= 5
    for language in ("-en", "-de", "-fr", "-es"):
        assert sum(language in name for name in (*READ, *REFUSED)) >= 3


@pytest.mark.parametrize("name", READ)
def test_a_spreadsheet_that_can_mean_one_thing_is_read_and_said_how(name):
    rows, columns, notes = READ[name]
    found = reading_of(SHEETS / name)
    assert rows_of(found.federation) == rows
    assert further(found.federation) == columns
    assert len(found.notes) == len(notes)
    for note, expected in zip(found.notes, notes, strict=True):
        assert expected in note
        assert note.isprintable()


@pytest.mark.parametrize("name", REFUSED)
def test_a_spreadsheet_that_can_mean_two_things_is_refused_with_what_to_do(name):
    with pytest.raises(FederationError) as caught:
        reading_of(SHEETS / name)
    assert str(caught.value) == name + REFUSED[name]


@pytest.mark.parametrize("name", READ)
def test_a_cleaned_spreadsheet_is_read_as_the_same_federation_without_a_word_on_its_form(name):
    found = reading_of(SHEETS / name)
    again = reading_of_bytes(federation_csv(found.federation).encode(), "clean.csv")
    assert again.federation.digest == found.federation.digest
    about_names = [note for note in found.notes if note.startswith(("region", "silo", "the column"))]
    assert list(again.notes) == about_names


@pytest.mark.parametrize(
    ("name", "columns", "first"),
    [
        ("excel-en-two-candidates.csv", {"silo": "Hospital", "ignore": "Site"}, ("St Mary's", 2631, "London")),
        ("excel-en-two-candidates.csv", {"silo": "site", "ignore": ["hospital"]}, ("W2", 2631, "London")),
        ("excel-de-telefon.csv", {"ignore": "TELEFON"}, ("Köln", 2631, "West")),
        ("excel-es-observaciones.csv", {"ignore": "Observaciones"}, ("Niño Jesús", 2631, "Madrid")),
        ("excel-en-beds.csv", {"records": "Beds"}, ("St Mary's", 480, "London")),
        ("excel-de-jahr.csv", {"year": "Jahr"}, ("Köln", 2631, "West", "2025")),
        ("libreoffice-de-land-zuerst.csv", {"country": "Land"}, ("Köln", 2631, "NRW", "Deutschland")),
    ],
)
def test_the_remedy_that_a_message_names_is_one(name, columns, first):
    found = reading_of(SHEETS / name, columns=columns)
    assert rows_of(found.federation)[0] == first
    assert not any("--column" in note for note in found.notes)
