"""Hospital mortality in the eICU Collaborative Research Database, with hospitals, regions and patients of the source.

>>> len(RANGES), RANGES[12].name, RANGES[12].scale(np.array([115.0, 500.0])).tolist()
(25, 'heartrate', [0.5, 1.0])

`read_eicu` reads four tables: patient, hospital, apacheApsVar and apachePatientResult. A record is the first day of a
stay in intensive care: the 24 variables of the APACHE score, and the age. The label is death in hospital. The source
writes -1 for a missing variable. The reference of the range replaces a missing value, because APACHE counts a missing
variable as normal.

The label is `actualhospitalmortality` of apachePatientResult. The table lacks stays without a prediction of APACHE,
for example stays below four hours: 1,838 of the 2,205 stays with variables have a row. For the remaining stays the
label is `hospitaldischargestatus` of the patient table. Both columns must agree wherever a stay has both. In the demo
26 stays with variables have no outcome and are left out: 2,179 records of 1,765 patients in 186 hospitals remain, with
196 deaths. `actualhospitalmortality` alone would give 1,838 records of 1,512 patients in 174 hospitals.

No range and no reference comes from the data. A range of a scored variable ends where the outermost classes of the
APACHE III score begin (Knaus et al., Chest 100, 1991): the score does not distinguish values beyond. The score has no
lowest class for hematocrit, and no class at all for high PaO2, FiO2 and the age of adults by year; these ranges are
wide round numbers. The references are textbook values of healthy adults, and 60 years for the age.
"""

from pathlib import Path

import numpy as np

from fulcrum.errors import DataError
from fulcrum.simulation.data.federated_records import UNKNOWN_REGION, DataSource, FederatedRecords
from fulcrum.simulation.data.sources.feature_ranges import FeatureRange
from fulcrum.simulation.data.sources.record_columns import CsvTable

SOURCE = DataSource(
    title="the eICU Collaborative Research Database Demo 2.0",
    address="https://physionet.org/content/eicu-crd-demo/",
    licence="Open Database License 1.0",
    prefix="eicu_demo_",
)
"""The origin of the tables. The full database has the same tables, for credentialed users under its own terms."""

ROWS = {"patient": 2520, "hospital": 186, "apacheApsVar": 2205, "apachePatientResult": 3676}
"""The published number of rows of the demo by table."""

RANGES = (
    FeatureRange(name="intubated", low=0, high=1, reference=0, coded=True),
    FeatureRange(name="vent", low=0, high=1, reference=0, coded=True),
    FeatureRange(name="dialysis", low=0, high=1, reference=0, coded=True),
    FeatureRange(name="eyes", low=1, high=4, reference=4, coded=True),  # the three parts of the Glasgow coma scale
    FeatureRange(name="motor", low=1, high=6, reference=6, coded=True),
    FeatureRange(name="verbal", low=1, high=5, reference=5, coded=True),
    FeatureRange(name="meds", low=0, high=1, reference=0, coded=True),  # sedation prevents the coma scale
    FeatureRange(name="urine", low=400, high=4000, reference=2000),  # ml a day
    FeatureRange(name="wbc", low=1, high=25, reference=8),  # 1,000 a microlitre
    FeatureRange(name="temperature", low=33, high=40, reference=37),  # degrees Celsius
    FeatureRange(name="respiratoryrate", low=6, high=50, reference=16),  # a minute
    FeatureRange(name="sodium", low=120, high=155, reference=140),  # mmol/l
    FeatureRange(name="heartrate", low=40, high=155, reference=75),  # a minute
    FeatureRange(name="meanbp", low=40, high=140, reference=90),  # mmHg
    FeatureRange(name="ph", low=7.15, high=7.65, reference=7.4),
    FeatureRange(name="hematocrit", low=20, high=50, reference=45),  # per cent
    FeatureRange(name="creatinine", low=0.5, high=1.95, reference=1),  # mg/dl
    FeatureRange(name="albumin", low=2, high=4.5, reference=4),  # g/dl
    FeatureRange(name="pao2", low=50, high=500, reference=90),  # mmHg
    FeatureRange(name="pco2", low=25, high=60, reference=40),  # mmHg
    FeatureRange(name="bun", low=0, high=80, reference=14),  # mg/dl
    FeatureRange(name="glucose", low=40, high=350, reference=100),  # mg/dl
    FeatureRange(name="bilirubin", low=0, high=8, reference=0.7),  # mg/dl
    FeatureRange(name="fio2", low=21, high=100, reference=21),  # per cent
    FeatureRange(name="age", low=16, high=90, reference=60),  # years
)
"""The public range of every feature; the names are columns of apacheApsVar, and `age` of the patient table."""

_STAY, _HOSPITAL, _PERSON = "patientunitstayid", "hospitalid", "uniquepid"
_MISSING = -1.0
_OLDEST = "> 89"  # the source hides higher ages
_OUTCOMES = {"ALIVE": 0, "EXPIRED": 1}


def read_eicu(folder: str | Path, *, check_counts: bool = True) -> FederatedRecords:
    """Returns the stays with APACHE variables and outcome: patients, hospitals, regions, and death in hospital.

    Args:
        folder: The folder with the source's CSV files, packed (.gz) or not. Names may begin with `eicu_demo_`.
        check_counts: True refuses tables without the published number of rows of the demo; False accepts the full
            database, or a part.

    Raises:
        DataError: A file or a column is missing, a cell has the wrong type, a stay occurs twice, a stay or a hospital
            is unknown, or two tables contradict each other. The error names file, line and column.
    """
    patients, hospitals, variables, results = (
        SOURCE.read_table(Path(folder), f"{table}.csv", rows=rows if check_counts else None)
        for table, rows in ROWS.items()
    )
    hospitals.check_unique(_HOSPITAL)
    for table in (patients, variables):
        table.check_unique(_STAY)
    results.check_unique(_STAY, "apacheversion")
    patients.check_reference(_HOSPITAL, hospitals)
    for table in (variables, results):
        table.check_reference(_STAY, patients)

    row_of = {stay: row for row, stay in enumerate(patients.words(_STAY))}
    patient_rows = np.array([row_of[stay] for stay in variables.words(_STAY)], dtype=np.intp)
    outcomes = _read_outcomes(patients, results)
    labels = np.array([outcomes.get(stay, -1) for stay in variables.words(_STAY)], dtype=np.intp)
    columns = [
        feature.scale(variables.numbers(feature.name, limits=feature.limits, missing=_MISSING))
        for feature in RANGES[:-1]
    ]
    age = RANGES[-1]
    columns.append(age.scale(patients.numbers("age", words={_OLDEST: age.high}))[patient_rows])
    used = labels >= 0
    if not used.any():
        raise DataError("source.records-missing", folder=folder, title=SOURCE.title)
    persons, silos = patients.words(_PERSON, required=True), patients.words(_HOSPITAL, required=True)
    chosen = patient_rows[used].tolist()
    present = {silos[row] for row in chosen}
    regions = zip(hospitals.words(_HOSPITAL), hospitals.words("region"), strict=True)
    return FederatedRecords(
        name="eicu",
        features=np.stack(columns, axis=1)[used],
        labels=labels[used],
        classes=("alive", "expired"),
        persons=tuple(persons[row] for row in chosen),
        silos=tuple(_silo_name(silos[row]) for row in chosen),
        region_of={_silo_name(silo): region or UNKNOWN_REGION for silo, region in regions if silo in present},
        ranges=RANGES,
        metric="auc",
        left_out={
            "stay without APACHE variables": len(patients.lines) - len(variables.lines),
            "stay without outcome": int((~used).sum()),
        },
    )


def _silo_name(hospital: str) -> str:
    return f"hospital-{hospital}"


def _read_outcomes(patients: CsvTable, results: CsvTable) -> dict[str, int]:
    """Returns 1 for death in hospital and 0 for survival by stay; refuses two outcomes of the same stay."""
    outcomes: dict[str, int] = {}
    for table, column in ((patients, "hospitaldischargestatus"), (results, "actualhospitalmortality")):
        for row, (stay, word) in enumerate(zip(table.words(_STAY), table.words(column), strict=True)):
            if not word:
                continue
            outcome = _OUTCOMES.get(word.upper())
            if outcome is None:
                raise table.cell_error(row, column, "ALIVE, EXPIRED or empty")
            if outcomes.setdefault(stay, outcome) != outcome:
                raise DataError(
                    "source.outcome-differs",
                    file=table.file,
                    line=table.lines[row],
                    column=column,
                    stay=stay,
                    outcome=word,
                    other=next(name for name, code in _OUTCOMES.items() if code != outcome),
                )
    return outcomes
