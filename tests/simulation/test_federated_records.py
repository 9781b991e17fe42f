import gzip
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from error_codes import coded
from hypothesis import given
from hypothesis import strategies as st
from source_tables import HEART_ROWS, eicu_tables, write_eicu, write_heart

import fulcrum
from fulcrum.errors import DataError, ParameterError
from fulcrum.simulation.data import eicu, heart_disease
from fulcrum.simulation.data.eicu import read_eicu
from fulcrum.simulation.data.federated_records import FederatedRecords
from fulcrum.simulation.data.heart_disease import read_heart_disease
from fulcrum.simulation.data.sources.feature_ranges import FeatureRange
from fulcrum.simulation.embedded.metrics import auc
from fulcrum.simulation.training_runs import train

REAL = Path(os.environ.get("FULCRUM_DATA", "")) / "federations"
HAS_REAL = bool(os.environ.get("FULCRUM_DATA")) and REAL.is_dir()
needs_real = pytest.mark.skipif(not HAS_REAL, reason="the source's files are not here")


@pytest.fixture
def small(tmp_path):
    return read_eicu(write_eicu(tmp_path, eicu_tables()), check_counts=False)


def test_stays_with_variables_and_outcome_become_records_of_persons_and_hospitals(small):
    assert small.persons == ("a", "a", "b", "c")
    assert small.silos == ("hospital-7", "hospital-9", "hospital-7", "hospital-8")
    assert small.region_of == {"hospital-7": "West", "hospital-8": "unknown", "hospital-9": "South"}
    assert small.labels.tolist() == [0, 1, 0, 1]
    assert small.left_out == {"stay without APACHE variables": 1, "stay without outcome": 1}
    assert small.silos_per_person == 2


def test_missing_values_are_references_and_far_values_are_cut_to_the_public_range(small):
    place = [feature.name for feature in small.ranges].index("heartrate")
    assert small.features[:, place].tolist() == [0.0, 1.0, 0.5, 0.0]  # missing, 500, 115, reference
    assert small.features[:, -1] == pytest.approx([30 / 44, 29 / 44, 0.0, 0.0])  # 90 for "> 89", 60 for no age
    others = np.delete(small.features, [place, len(small.ranges) - 1], axis=1)
    assert (others == 0).all()


@pytest.mark.parametrize("name", ["{}.csv.gz", "{}.csv", "eicu_demo_{}.csv.gz"])
def test_names_of_files_are_the_sources_or_begin_with_the_databases_name(tmp_path, small, name):
    folder = tmp_path / "again"
    folder.mkdir()
    tables = {table.lower() if "demo" in name else table: rows for table, rows in eicu_tables().items()}
    again = read_eicu(write_eicu(folder, tables, name=name), check_counts=False)
    assert (again.features == small.features).all()
    assert again.silos == small.silos


def test_the_federation_counts_stays_or_persons(small):
    assert small.federation().sizes.tolist() == [2, 1, 1]
    assert small.federation(sizes="persons").sizes.tolist() == [2, 1, 1]
    assert small.federation().innermost.nodes == ("West", "unknown", "South")
    twice = replace(small, persons=("a", "a", "a", "c"))
    assert twice.federation(sizes="persons").sizes.tolist() == [1, 1, 1]


def without(table, name):
    return [{column: cell for column, cell in row.items() if column != name} for row in table]


def changed(table, row, **cells):
    return [{**line, **(cells if number == row else {})} for number, line in enumerate(table)]


@pytest.mark.parametrize(
    ("table", "change", "check"),
    [
        ("patient", lambda rows: without(rows, "uniquepid"), coded("table.column-missing", column="uniquepid")),
        ("patient", lambda rows: [*rows, rows[0]], coded("table.row-repeated", line=8, first=2)),
        ("apacheApsVar", lambda rows: [*rows, rows[1]], coded("table.row-repeated", line=7, first=3)),
        (
            "patient",
            lambda rows: changed(rows, 2, hospitalid="77"),
            coded("table.reference-unknown", line=4, cell="77"),
        ),
        (
            "apacheApsVar",
            lambda rows: changed(rows, 0, patientunitstayid="9"),
            coded("table.reference-unknown", line=2),
        ),
        (
            "patient",
            lambda rows: changed(rows, 1, uniquepid=" "),
            coded("table.cell-wrong", line=3, column="uniquepid"),
        ),
        (
            "patient",
            lambda rows: changed(rows, 1, age="old"),
            coded("table.cell-wrong", line=3, column="age", cell="old"),
        ),
        ("apacheApsVar", lambda rows: changed(rows, 3, ph="acid"), coded("table.cell-wrong", line=5, column="ph")),
        ("apacheApsVar", lambda rows: changed(rows, 3, ph="nan"), coded("table.cell-wrong", line=5, column="ph")),
        ("apacheApsVar", lambda rows: changed(rows, 3, eyes="5"), coded("table.cell-wrong", line=5, column="eyes")),
        ("apacheApsVar", lambda rows: changed(rows, 3, vent="0.5"), coded("table.cell-wrong", line=5, column="vent")),
        (
            "apachePatientResult",
            lambda rows: changed(rows, 1, actualhospitalmortality="gone"),
            coded("table.cell-wrong", line=3, cell="gone"),
        ),
        (
            "apachePatientResult",
            lambda rows: changed(rows, 1, actualhospitalmortality="EXPIRED"),
            coded("source.outcome-differs", line=3, stay="101"),
        ),
        ("hospital", lambda rows: without(rows, "region"), coded("table.column-missing", column="region")),
    ],
)
def test_a_mistake_in_a_table_is_named_with_file_line_and_column(tmp_path, table, change, check):
    tables = eicu_tables()
    tables[table] = change(tables[table])
    with pytest.raises(DataError, check=check) as caught:
        read_eicu(write_eicu(tmp_path, tables), check_counts=False)
    assert f"{table}.csv.gz" in str(caught.value)


def test_missing_files_are_named_with_their_origin_and_licence(tmp_path):
    with pytest.raises(DataError, check=coded("source.folder-missing")) as caught:
        read_eicu(tmp_path / "nowhere")
    assert eicu.SOURCE.address in str(caught.value)
    assert eicu.SOURCE.licence in str(caught.value)
    write_eicu(tmp_path, eicu_tables())
    (tmp_path / "hospital.csv.gz").unlink()
    with pytest.raises(DataError, check=coded("source.file-missing", file="hospital.csv")):
        read_eicu(tmp_path, check_counts=False)
    with pytest.raises(DataError, check=coded("source.file-missing", file="processed.cleveland.data")) as caught:
        read_heart_disease(tmp_path)
    assert heart_disease.SOURCE.address in str(caught.value)
    assert heart_disease.SOURCE.licence in str(caught.value)


def test_a_file_that_is_cut_off_or_there_twice_is_refused(tmp_path):
    write_eicu(tmp_path, eicu_tables())
    with pytest.raises(DataError, check=coded("source.count-differs", rows=6, published=2520)):
        read_eicu(tmp_path)
    packed = (tmp_path / "patient.csv.gz").read_bytes()
    for content in (packed[: len(packed) // 2], b"not packed"):
        (tmp_path / "patient.csv.gz").write_bytes(content)
        with pytest.raises(DataError, check=coded("table.gzip-unreadable")) as caught:
            read_eicu(tmp_path, check_counts=False)
        assert caught.value.remedy.startswith("Download the file again")
    write_eicu(tmp_path, eicu_tables(), name="{}.csv")
    with pytest.raises(DataError, check=coded("source.file-repeated", table="patient.csv")):
        read_eicu(tmp_path, check_counts=False)


def test_a_damaged_file_is_named_with_its_place_and_a_remedy(tmp_path):
    tables = eicu_tables()
    tables["hospital"] = changed(tables["hospital"], 0, region="W\0est")
    with pytest.raises(DataError, check=coded("table.cell-wrong", line=2, column="region", cell="W\0est")):
        read_eicu(write_eicu(tmp_path, tables), check_counts=False)
    packed = gzip.compress("patientunitstayid,region\n1,Nord\xe9\n".encode("latin-1"))
    (tmp_path / "hospital.csv.gz").write_bytes(packed)
    with pytest.raises(DataError, check=coded("table.csv-unreadable")):
        read_eicu(tmp_path, check_counts=False)
    (tmp_path / "hospital.csv.gz").write_bytes(gzip.compress(b"hospitalid,region\n7,West\n8\n"))
    with pytest.raises(DataError, check=coded("table.cells-number", line=3, cells=1)) as caught:
        read_eicu(tmp_path, check_counts=False)
    assert caught.value.remedy
    (tmp_path / "hospital.csv.gz").write_bytes(gzip.compress(b"hospital,region\n7,West\n"))
    with pytest.raises(DataError, check=coded("table.column-missing", column="hospitalid")) as caught:
        read_eicu(tmp_path, check_counts=False)
    assert caught.value.remedy.startswith("Rename or add the column")


@pytest.mark.parametrize("table", ["hospital.csv.gz", "patient.csv.gz"])
def test_a_pipe_or_a_folder_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path, table):
    write_eicu(tmp_path, eicu_tables())
    (tmp_path / table).unlink()
    os.mkfifo(tmp_path / table)
    with pytest.raises(DataError, check=coded("file.unreadable", reason="it is not a regular file")):
        read_eicu(tmp_path, check_counts=False)
    (tmp_path / table).unlink()
    (tmp_path / table).mkdir()
    with pytest.raises(DataError, check=coded("file.unreadable", reason="Is a directory")):
        read_eicu(tmp_path, check_counts=False)


def test_an_empty_file_is_no_hospital_without_records(tmp_path):
    write_heart(tmp_path)
    (tmp_path / "processed.va.data").write_text("")
    with pytest.raises(DataError, check=coded("table.file-empty")):
        read_heart_disease(tmp_path, check_counts=False)


def test_tables_without_any_outcome_have_no_records(tmp_path):
    tables = eicu_tables()
    tables["patient"] = [{**row, "hospitaldischargestatus": ""} for row in tables["patient"]]
    tables["apachePatientResult"] = [{**row, "actualhospitalmortality": ""} for row in tables["apachePatientResult"]]
    with pytest.raises(DataError, check=coded("source.records-missing")):
        read_eicu(write_eicu(tmp_path, tables), check_counts=False)


def test_heart_disease_drops_three_columns_and_then_rows_with_missing_values(tmp_path):
    records = read_heart_disease(write_heart(tmp_path), check_counts=False)
    assert records.persons == ("cleveland-1", "cleveland-2", "hungarian-1", "switzerland-1", "va-1")
    assert records.left_out == {"row with a missing value": 1}
    assert records.labels.tolist() == [0, 1, 0, 1, 1]
    assert records.region_of == dict.fromkeys(heart_disease.ROWS, "unknown")
    names = [feature.name for feature in records.ranges]
    assert names[8:] == ["cp_2", "cp_3", "cp_4", "restecg_1", "restecg_2"]
    assert records.features[:, 8:].tolist() == [
        [0, 0, 0, 0, 1],
        [0, 0, 1, 0, 1],
        [1, 0, 0, 0, 1],
        [0, 0, 0, 0, 0],
        [0, 1, 0, 1, 0],
    ]
    assert records.features[:, names.index("chol")] == pytest.approx([33 / 400, 86 / 400, -68 / 400, -0.5, 9 / 400])


@pytest.mark.parametrize(
    ("line", "check"),
    [
        ("44,0,3,130,209,0,1,127,0,-.5,?,?,?", coded("table.cells-number", line=2, cells=13, columns=14)),
        ("44,0,5,130,209,0,1,127,0,-.5,?,?,?,4", coded("table.cell-wrong", line=2, column="cp", cell="5")),
        ("44,0,3,130,209,0,1,127,0,low,?,?,?,4", coded("table.cell-wrong", line=2, column="oldpeak", cell="low")),
        ("44,0,3,130,209,0,1,127,0,-.5,?,?,?,9", coded("table.cell-wrong", line=2, column="num", cell="9")),
    ],
)
def test_a_wrong_line_of_heart_disease_is_named(tmp_path, line, check):
    rows = HEART_ROWS | {"va": [*HEART_ROWS["va"], line]}
    with pytest.raises(DataError, check=check):
        read_heart_disease(write_heart(tmp_path, rows), check_counts=False)


@given(
    owners=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 1)), min_size=2, max_size=40),
    seed=st.integers(0, 5),
    share=st.floats(0.01, 0.99),
)
def test_no_person_is_on_both_sides_and_every_silo_and_class_is_trained_on(owners, seed, share):
    persons, silos, labels = zip(*owners, strict=True)
    records = drawn_records(persons, silos, labels)
    test = records.split_by_person(seed=seed, share=share)
    assert (test == records.split_by_person(seed=seed, share=share)).all()
    tested, trained = (set(np.array(persons)[mask].tolist()) for mask in (test, ~test))
    assert not tested & trained
    assert set(np.array(silos)[~test].tolist()) == set(silos)
    assert set(np.array(labels)[~test].tolist()) == set(labels)
    assert len(tested) <= round(share * len(set(persons)))


def drawn_records(persons, silos, labels):
    names = [f"s{silo}" for silo in silos]
    return FederatedRecords(
        name="drawn",
        features=np.arange(len(persons), dtype=float)[:, None],
        labels=np.array(labels),
        classes=("alive", "expired"),
        persons=tuple(f"p{person}" for person in persons),
        silos=tuple(names),
        region_of=dict.fromkeys(names, "north"),
        ranges=(FeatureRange(name="x", low=0, high=1, reference=0),),
    )


def test_a_split_has_the_share_of_persons_that_was_asked_for():
    records = drawn_records(range(100), [0, 1] * 50, [0, 1] * 50)
    splits = [records.split_by_person(seed=seed, share=0.3) for seed in range(3)]
    assert [split.sum() for split in splits] == [30, 30, 30]
    assert (splits[0] != splits[1]).any()
    with pytest.raises(ParameterError, check=coded("source.share-range", share=1.0)):
        records.split_by_person(seed=0, share=1.0)


def test_a_task_has_the_records_of_both_sides_with_their_silos(small):
    task = small.task(np.array([False, False, True, False]))
    assert task.silo == ("hospital-7", "hospital-9", "hospital-8")
    assert task.silo_test == ("hospital-7",)
    assert task.labels_train.tolist() == [0, 1, 1]
    assert (task.metric, task.fitted, task.width) == ("auc", False, 25)
    with pytest.raises(DataError, check=coded("source.person-divided", person="a")):
        small.task(np.array([True, False, False, False]))
    with pytest.raises(DataError, check=coded("source.mask-length", records=4)):
        small.task(np.array([True, False]))
    with pytest.raises(DataError, check=coded("data.split-empty")):
        small.task(np.zeros(4, dtype=bool))


@needs_real
def test_the_eicu_demo_has_the_numbers_of_its_module():
    records = read_eicu(REAL)
    assert (len(records), len(set(records.persons)), len(records.region_of)) == (2179, 1765, 186)
    assert records.features.shape == (2179, 25)
    assert np.abs(records.features).max() == 1
    assert int(records.labels.sum()) == 196
    assert records.silos_per_person == 2
    federation = records.federation()
    assert sorted(federation.innermost.nodes) == ["Midwest", "Northeast", "South", "West", "unknown"]
    assert federation.sizes.sum() == 2179
    assert records.left_out == {"stay without APACHE variables": 315, "stay without outcome": 26}


@needs_real
def test_heart_disease_has_the_rows_of_flambys_cleaning():
    records = read_heart_disease(REAL)
    assert records.federation().sizes.tolist() == [303, 261, 46, 130]
    assert records.features.shape == (740, 13)
    assert int(records.labels.sum()) == 139 + 98 + 45 + 101


@needs_real
def test_mortality_is_learnt_without_privacy():
    linear = pytest.importorskip("sklearn.linear_model")
    records, areas = read_eicu(REAL), []
    for seed in range(5):
        test = records.split_by_person(seed=seed)
        model = linear.LogisticRegression(max_iter=1000).fit(records.features[~test], records.labels[~test])
        areas.append(auc(model.predict_log_proba(records.features[test]), records.labels[test]))
    assert 0.75 < np.mean(areas) < 0.88


@needs_real
def test_a_plan_of_186_hospitals_trains_and_is_measured_by_auc():
    records = read_eicu(REAL)
    plan = fulcrum.plan(records.federation(), rounds=20, epsilon=1000.0)
    run = train(plan, records.task(records.split_by_person(seed=0)))
    assert run.metric == "auc"
    assert run.reference[0] > 0.7
    assert any(np.isnan(value) for value in run.by_silo.values())
