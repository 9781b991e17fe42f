"""Survival with breast cancer at the sites of The Cancer Genome Atlas, as prepared for FLamby's Fed-TCGA-BRCA.

>>> len(RANGES), len(INTERVAL_ENDS), RANGES[0].name
(39, 7, 'age_at_index')

`read_tcga_brca` reads two tables: brca.csv (a patient in every row, 39 features, the event and the days) and
centers.csv (the regions of the sites). Characters 6 and 7 of a patient's barcode are the code of the tissue source
site. A code is a silo: 40 codes have patients. Three codes with eight patients lie in the region "Other", single
countries that share no aggregator, and are left out: 1,088 patients of 37 codes in six regions remain, the structure of
the built-in federation `tcga-brca`.

The columns are those of the source: FLamby chose them on the data of all sites, and several repeat others. No range and
no interval comes from the data: the age is scaled by a wide round range, all other columns are codes 0 and 1, and the
intervals of discrete time are the first five years, the years to the seventh, and the years to the tenth.
"""

import re
from pathlib import Path

import numpy as np

from fulcrum.errors import DataError
from fulcrum.simulation.data.federated_records import DataSource, FederatedRecords
from fulcrum.simulation.data.sources.feature_ranges import FeatureRange

SOURCE = DataSource(
    title="Fed-TCGA-BRCA of FLamby",
    address="https://github.com/owkin/FLamby/tree/main/flamby/datasets/fed_tcga_brca",
    licence="data access terms of the Genomic Data Commons",
    prefix="tcga_brca_",
)
"""The origin of the files."""

ROWS = {"brca": 1096, "centers": 111}
"""The number of rows by table."""

_CODES = (
    *("ethnicity_not hispanic or latino", "ethnicity_not reported"),
    *("race_asian", "race_black or african american", "race_not reported", "race_white"),
    "ajcc_pathologic_m_MX",
    *(f"ajcc_pathologic_n_{code}" for code in ("N0 (i-)", "N1", "N1a", "N2", "N2a")),
    *(f"ajcc_pathologic_stage_Stage {code}" for code in ("IA", "IIA", "IIB", "IIIA", "IIIC")),
    *(f"ajcc_pathologic_t_{code}" for code in ("T1c", "T2", "T3")),
    *(f"ajcc_staging_system_edition_{code}" for code in ("5th", "6th", "7th")),
    *("icd_10_code_C50.9", "morphology_8500/3", "morphology_8520/3"),
    *("primary_diagnosis_Infiltrating duct carcinoma, NOS", "primary_diagnosis_Lobular carcinoma, NOS"),
    *("prior_malignancy_yes", "synchronous_malignancy_Not Reported"),
    *("treatment_or_therapy_not reported", "treatment_or_therapy_yes"),
    *(f"tumor_stage_stage {code}" for code in ("i", "ia", "iia", "iib", "iiia", "iiic")),
)

RANGES = (
    FeatureRange(name="age_at_index", low=18, high=90, reference=60),  # years
    *(FeatureRange(name=column, low=0, high=1, reference=0, coded=True) for column in _CODES),
)
"""The public range of every feature; the names are columns of brca.csv."""

YEAR = 365.25
INTERVAL_ENDS = tuple(YEAR * years for years in (1, 2, 3, 4, 5, 7, 10))
"""The ends of the intervals of discrete time, in days; a patient is followed up to the last end."""

_PERSON, _EVENT, _DAYS = "pid", "E", "T"
_CODE, _REGION = "TSS Code", "Region"
_WITHOUT_REGION = "Other"
_BARCODE = re.compile(r"TCGA-(\w\w)-\w{4}")


def read_tcga_brca(folder: str | Path, *, check_counts: bool = True) -> FederatedRecords:
    """Returns the patients with features, event and time: sites, regions, and survival in discrete time.

    Args:
        folder: The folder with the source's files brca.csv and centers.csv. Names may begin with `tcga_brca_`.
        check_counts: True refuses files without the source's number of rows.

    Raises:
        DataError: A file or a column is missing, a cell has the wrong type, a patient occurs twice, or a site is not in
            the table of sites. The error names file, line and column.
    """
    patients, centres = (
        SOURCE.read_table(Path(folder), f"{table}.csv", rows=rows if check_counts else None)
        for table, rows in ROWS.items()
    )
    patients.check_unique(_PERSON)
    centres.check_unique(_CODE)
    regions = dict(zip(centres.words(_CODE, required=True), centres.words(_REGION, required=True), strict=True))
    persons, silos = patients.words(_PERSON, required=True), list[str]()
    for row, person in enumerate(persons):
        barcode = _BARCODE.fullmatch(person)
        if barcode is None:
            raise patients.cell_error(row, _PERSON, "a barcode such as TCGA-BH-A18U")
        if barcode[1] not in regions:
            raise DataError(
                "source.site-unknown",
                file=patients.file,
                line=patients.lines[row],
                site=barcode[1],
                person=person,
                other=centres.file,
            )
        silos.append(barcode[1])
    columns = [feature.scale(patients.numbers(feature.name, limits=feature.limits)) for feature in RANGES]
    events, days = patients.numbers(_EVENT, limits=(0, 1)), patients.numbers(_DAYS)
    for column, values, rule in ((_EVENT, events, "0 or 1"), (_DAYS, days, "a number of days of at least 0")):
        wrong = np.isnan(values) | (values < 0)
        if wrong.any():
            raise patients.cell_error(int(np.argmax(wrong)), column, rule)
    used = np.array([regions[silo] != _WITHOUT_REGION for silo in silos], dtype=bool)
    if not used.any():
        raise DataError("source.records-missing", folder=folder, title=SOURCE.title)
    chosen = np.flatnonzero(used).tolist()
    present = {silos[row] for row in chosen}
    return FederatedRecords(
        name="tcga-brca",
        features=np.stack(columns, axis=1)[used],
        labels=events[used].astype(np.intp),
        classes=("alive", "dead"),
        persons=tuple(persons[row] for row in chosen),
        silos=tuple(f"site-{silos[row]}" for row in chosen),
        region_of={f"site-{code}": region for code, region in regions.items() if code in present},
        ranges=RANGES,
        metric="concordance",
        left_out={"patient of a site without a region": int((~used).sum())},
        times=days[used],
        interval_ends=INTERVAL_ENDS,
    )
