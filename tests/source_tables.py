"""Made-up tables in the form of eICU, UCI Heart Disease and Fed-TCGA-BRCA, for tests of their readers."""

import csv
import gzip

from fulcrum.simulation.data import tcga_brca
from fulcrum.simulation.data.eicu import RANGES
from fulcrum.simulation.data.heart_disease import ROWS

VARIABLES = [feature.name for feature in RANGES[:-1]]


def eicu_tables():
    """Returns four tables of six stays: patient a has two stays in two hospitals, d has no outcome, e no variables."""
    stays = [
        ("101", "a", "7", "> 89", "Alive"),
        ("102", "a", "9", "89", "Expired"),
        ("103", "b", "7", "60", "Alive"),
        ("104", "c", "8", "", "Expired"),
        ("105", "d", "8", "40", ""),
        ("106", "e", "9", "50", "Alive"),
    ]
    normal = {feature.name: str(feature.reference) for feature in RANGES[:-1]}
    variables = [{"patientunitstayid": stay, **normal} for stay, *_ in stays[:5]]
    variables[0]["heartrate"], variables[1]["heartrate"], variables[2]["heartrate"] = "-1.0", "500", "115"
    results = [
        {"patientunitstayid": stay, "apacheversion": version, "actualhospitalmortality": status.upper()}
        for stay, _, _, _, status in stays[:3]
        for version in ("IV", "IVa")
    ]
    columns = ("patientunitstayid", "uniquepid", "hospitalid", "age", "hospitaldischargestatus")
    return {
        "patient": [dict(zip(columns, stay, strict=True)) for stay in stays],
        "hospital": [
            {"hospitalid": number, "region": region} for number, region in (("7", "West"), ("8", ""), ("9", "South"))
        ],
        "apacheApsVar": variables,
        "apachePatientResult": results,
    }


def write_eicu(folder, tables, *, name="{}.csv.gz"):
    """Writes tables as the source has them, packed if the name ends with .gz."""
    for table, rows in tables.items():
        file = folder / name.format(table)
        with gzip.open(file, "wt", newline="") if file.suffix == ".gz" else file.open("w", newline="") as text:
            writer = csv.DictWriter(text, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return folder


HEART_ROWS = {
    "cleveland": [
        "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0",
        "67,1,4,160,286,0,2,108,1,1.5,2,?,3,2",
    ],
    "hungarian": ["28,1,2,130,132,0,2,185,0,0,?,?,?,0", "29,1,2,120,?,0,0,160,0,0,?,?,?,0"],
    "switzerland": ["32,1,1,95,0,0,0,127,0,.7,1,?,?,1"],
    "va": ["44,0,3,130,209,0,1,127,0,-.5,?,?,?,4"],
}


def write_heart(folder, rows=HEART_ROWS):
    """Writes the four files of UCI Heart Disease."""
    assert list(rows) == list(ROWS)
    for hospital, lines in rows.items():
        (folder / f"processed.{hospital}.data").write_text("\n".join(lines) + "\n")
    return folder


def tcga_tables():
    """Returns two tables of five patients: four at two sites of two regions, and the last at a site without a region."""
    patients = [
        ("TCGA-AA-0001", "30", "1.0", "200.0"),
        ("TCGA-AA-0002", "60", "0.0", "400.0"),
        ("TCGA-BB-0003", "90", "1.0", "5000.0"),
        ("TCGA-BB-0004", "60", "0.0", "0.0"),
        ("TCGA-CC-0005", "60", "0.0", "10.0"),
    ]
    zeros = {feature.name: "0" for feature in tcga_brca.RANGES}
    return {
        "brca": [
            {"pid": person, **zeros, "age_at_index": age, "race_white": "1", "E": event, "T": days}
            for person, age, event, days in patients
        ],
        "centers": [
            {"TSS Code": code, "Source Site": code, "Country": "USA", "State": "NY", "Region": region}
            for code, region in (("AA", "West"), ("BB", "South"), ("CC", "Other"), ("DD", "West"))
        ],
    }
