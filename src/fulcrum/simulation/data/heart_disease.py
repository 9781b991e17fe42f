"""Heart disease in four hospitals (UCI Heart Disease), cleaned as FLamby's Fed-Heart-Disease cleans the files.

>>> len(RANGES), sum(ROWS.values())
(13, 920)

`read_heart_disease` reads processed.cleveland.data, processed.hungarian.data, processed.switzerland.data and
processed.va.data, files of 14 columns without a header; a question mark is a missing value. FLamby's cleaning:

- the columns slope, ca and thal are dropped, because most hospitals lack most of their values;
- rows with a missing value in a remaining column are dropped: 303, 261, 46 and 130 rows remain;
- chest pain (`cp`, 1 to 4) and electrocardiogram (`restecg`, 0 to 2) become columns of 0 and 1 without the first code:
  13 features;
- the label is heart disease: the last column (`num`, 0 to 4) above 0.

Unlike FLamby, which scales nothing, features are scaled by public ranges: limits of common measurements in adults, and
textbook values of healthy adults as references, none from the data. Cholesterol 0 stands for no measurement in two
hospitals; the range begins at 0, so the value stays, as in FLamby. The source has no identifiers, so every row counts
as a person, and no regions: the four hospitals are a single region.
"""

from pathlib import Path

import numpy as np

from fulcrum.errors import DataError, listing
from fulcrum.simulation.data.federated_records import UNKNOWN_REGION, DataSource, FederatedRecords
from fulcrum.simulation.data.sources.feature_ranges import FeatureRange

SOURCE = DataSource(
    title="the UCI Heart Disease data set",
    address="https://archive.ics.uci.edu/dataset/45/heart+disease",
    licence="CC BY 4.0",
)
"""The origin of the files."""

ROWS = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
"""The published number of rows by hospital, before cleaning."""

COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal"),  # dropped
    "num",
)
"""The columns of a file, in order."""

_MEASURED = (
    FeatureRange(name="age", low=18, high=90, reference=50),  # years
    FeatureRange(name="sex", low=0, high=1, reference=0, coded=True),  # 1: male
    FeatureRange(name="trestbps", low=80, high=200, reference=120),  # resting blood pressure, mmHg
    FeatureRange(name="chol", low=0, high=600, reference=200),  # mg/dl
    FeatureRange(name="fbs", low=0, high=1, reference=0, coded=True),  # fasting blood sugar above 120 mg/dl
    FeatureRange(name="thalach", low=60, high=220, reference=150),  # highest heart rate, a minute
    FeatureRange(name="exang", low=0, high=1, reference=0, coded=True),  # angina in exercise
    FeatureRange(name="oldpeak", low=-3, high=6, reference=0),  # ST depression, mm
)
_CODES = {"cp": (1, 4), "restecg": (0, 2)}
_MOST_NUM = 4

RANGES = _MEASURED + tuple(
    FeatureRange(name=f"{column}_{code}", low=0, high=1, reference=0, coded=True)
    for column, (first, last) in _CODES.items()
    for code in range(first + 1, last + 1)
)
"""The public range of every feature."""


def read_heart_disease(folder: str | Path, *, check_counts: bool = True) -> FederatedRecords:
    """Returns the complete rows of the four hospitals, with heart disease as the label.

    Args:
        folder: The folder with the source's files.
        check_counts: True refuses a file without the published number of rows.

    Raises:
        DataError: A file is missing or names an unknown hospital, a row has a wrong number of cells, or a cell has the
            wrong type. The error names file, line and column.
    """
    _check_hospitals(Path(folder))
    parts, labels, persons, silos, left_out = [], [], list[str](), list[str](), 0
    for hospital, rows in ROWS.items():
        table = SOURCE.read_table(
            Path(folder), f"processed.{hospital}.data", header=COLUMNS, rows=rows if check_counts else None
        )
        measured = [table.numbers(feature.name, limits=feature.limits) for feature in _MEASURED]
        codes = {column: table.numbers(column, limits=limits) for column, limits in _CODES.items()}
        num = table.numbers("num", limits=(0, _MOST_NUM))
        complete = ~np.isnan([*measured, *codes.values(), num]).any(axis=0)
        columns = [feature.scale(values) for feature, values in zip(_MEASURED, measured, strict=True)]
        for column, (first, last) in _CODES.items():
            columns += [(codes[column] == code).astype(np.float64) for code in range(first + 1, last + 1)]
        parts.append(np.stack(columns, axis=1)[complete])
        labels.append((num[complete] > 0).astype(np.intp))
        persons += [f"{hospital}-{table.lines[row]}" for row in np.flatnonzero(complete).tolist()]
        silos += [hospital] * int(complete.sum())
        left_out += int((~complete).sum())
    if not persons:
        raise DataError("source.records-missing", folder=folder, title=SOURCE.title)
    present = set(silos)
    return FederatedRecords(
        name="heart",
        features=np.concatenate(parts),
        labels=np.concatenate(labels),
        classes=("no disease", "disease"),
        persons=tuple(persons),
        silos=tuple(silos),
        region_of={hospital: UNKNOWN_REGION for hospital in ROWS if hospital in present},
        ranges=RANGES,
        left_out={"row with a missing value": left_out},
    )


def _check_hospitals(folder: Path) -> None:
    """Raises `DataError` for a file in the source's form that names an unknown hospital."""
    names = {f"processed.{hospital}.data" for hospital in ROWS}
    for file in sorted(folder.glob("processed.*.data")) if folder.is_dir() else ():
        if file.name not in names:
            raise DataError("source.hospital-unknown", folder=folder, file=file.name, known=listing(ROWS))
