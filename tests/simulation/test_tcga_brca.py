import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from error_codes import coded
from source_tables import tcga_tables, write_eicu, write_heart

import fulcrum
from fulcrum.errors import DataError, ParameterError
from fulcrum.readers.profiles import profile
from fulcrum.simulation.data.datasets import read_data
from fulcrum.simulation.data.heart_disease import read_heart_disease
from fulcrum.simulation.data.real_federations import read_real_federation
from fulcrum.simulation.data.tcga_brca import SOURCE, read_tcga_brca
from fulcrum.simulation.training_runs import train

REAL = Path(os.environ.get("FULCRUM_DATA", "")) / "federations"
needs_real = pytest.mark.skipif("FULCRUM_DATA" not in os.environ, reason="the source's files are not here")


def write(folder, tables):
    return write_eicu(folder, tables, name="tcga_brca_{}.csv")


@pytest.fixture
def small(tmp_path):
    return read_tcga_brca(write(tmp_path, tcga_tables()), check_counts=False)


def test_patients_have_the_site_of_their_barcode_and_the_region_of_the_site(small):
    assert small.silos == ("site-AA", "site-AA", "site-BB", "site-BB")
    assert small.region_of == {"site-AA": "West", "site-BB": "South"}
    assert small.left_out == {"patient of a site without a region": 1}
    assert small.labels.tolist() == [1, 0, 1, 0]
    assert small.times.tolist() == [200, 400, 5000, 0]
    assert small.features[:, 0] == pytest.approx([-30 / 42, 0, 30 / 42, 0])  # the range is 18 to 90, the reference 60
    assert small.features[:, 6].tolist() == [1, 1, 1, 1]


def test_the_task_has_a_record_for_every_interval_and_a_test_record_for_every_patient(small):
    task = small.task(np.array([False, False, False, True]))
    # One interval with the event; two without; all seven without, because the event is after the tenth year.
    assert task.persons == ("TCGA-AA-0001",) + ("TCGA-AA-0002",) * 2 + ("TCGA-BB-0003",) * 7
    assert task.labels_train.tolist() == [1] + [0] * 9
    assert task.features_train[:, 39:].sum(axis=1).tolist() == [0, 0, 1, 0, 1, 1, 1, 1, 1, 1]
    assert task.features_test.shape == (1, 45)
    assert (task.metric, task.times_test.tolist(), task.silo_test) == ("concordance", [0.0], ("site-BB",))


def with_cell(tables, table, row, column, cell):
    rows = [dict(line) for line in tables[table]]
    rows[row][column] = cell
    return tables | {table: rows}


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda tables: tables | {"brca": [*tables["brca"], tables["brca"][0]]}, coded("table.row-repeated", line=7)),
        (
            lambda tables: with_cell(tables, "brca", 1, "pid", "TCGA-ZZ-0002"),
            coded("source.site-unknown", line=3, site="ZZ", person="TCGA-ZZ-0002"),
        ),
        (lambda tables: with_cell(tables, "brca", 1, "pid", "42"), coded("table.cell-wrong", line=3, column="pid")),
        (lambda tables: with_cell(tables, "brca", 2, "E", "2"), coded("table.cell-wrong", line=4, column="E")),
        (lambda tables: with_cell(tables, "brca", 2, "E", ""), coded("table.cell-wrong", line=4, column="E")),
        (lambda tables: with_cell(tables, "brca", 3, "T", "-5"), coded("table.cell-wrong", line=5, column="T")),
        (lambda tables: with_cell(tables, "brca", 0, "race_white", "3"), coded("table.cell-wrong", line=2)),
        (
            lambda tables: (
                tables
                | {
                    "brca": [
                        {("age" if k == "age_at_index" else k): v for k, v in row.items()} for row in tables["brca"]
                    ]
                }
            ),
            coded("table.column-missing", column="age_at_index"),
        ),
        (
            lambda tables: tables | {"centers": [*tables["centers"], tables["centers"][0]]},
            coded("table.row-repeated", line=6),
        ),
    ],
)
def test_a_mistake_in_a_table_is_named_with_its_place(tmp_path, change, check):
    with pytest.raises(DataError, check=check):
        read_tcga_brca(write(tmp_path, change(tcga_tables())), check_counts=False)


def test_a_missing_file_is_named_with_origin_and_licence(tmp_path):
    with pytest.raises(DataError, check=coded("source.file-missing", licence=SOURCE.licence)):
        read_tcga_brca(tmp_path)
    with pytest.raises(DataError, check=coded("source.count-differs", published=1096)):
        read_tcga_brca(write(tmp_path, tcga_tables()))


def test_a_file_of_an_unknown_hospital_is_refused(tmp_path):
    write_heart(tmp_path)
    (tmp_path / "processed.boston.data").write_text("1\n")
    with pytest.raises(DataError, check=coded("source.hospital-unknown", file="processed.boston.data")):
        read_heart_disease(tmp_path, check_counts=False)


def test_real_federations_are_read_by_name(tmp_path, monkeypatch):
    monkeypatch.delenv("FULCRUM_DATA", raising=False)
    with pytest.raises(DataError, check=coded("source.folder-unset")):
        read_real_federation("tcga-brca")
    inner = tmp_path / "federations"
    inner.mkdir()
    write(inner, tcga_tables())
    monkeypatch.setenv("FULCRUM_DATA", str(tmp_path))
    assert len(read_real_federation("tcga-brca", check_counts=False)) == 4
    with pytest.raises(ParameterError, check=coded("source.option-unneeded", option="label")):
        read_data("tcga-brca", label="E")
    np.savez(tmp_path / "heart.npz", X=np.eye(6), y=np.arange(6) % 2)  # the user's own file of the name
    assert read_data("heart").width == 6


def test_the_middle_of_the_range_becomes_zero(small):
    middle = small.scaled_by_middle().features
    assert middle[:, 0] == pytest.approx([(30 - 54) / 36, (60 - 54) / 36, 1.0, (60 - 54) / 36])
    assert middle[:, 6].tolist() == [1, 1, 1, 1]
    assert middle[:, 5].tolist() == [-1, -1, -1, -1]


@needs_real
def test_the_sites_of_the_source_are_those_of_the_built_in_federation():
    federation, stated = read_tcga_brca(REAL).federation(), profile("tcga-brca")
    regions = [
        {
            region: sorted(read.sizes[read.innermost.parent_of == number].tolist())
            for number, region in enumerate(read.innermost.nodes)
        }
        for read in (federation, stated)
    ]
    assert regions[0] == regions[1]


@needs_real
def test_survival_is_learnt_without_privacy():
    records = read_tcga_brca(REAL).scaled_by_middle()
    test = records.split_by_person(seed=0)
    federation = records.select(~test).federation(unit="person")
    plan = fulcrum.plan(federation, rounds=30, epsilon=1000.0, unit="person")
    run = train(plan, records.task(test))
    assert run.metric == "concordance"
    assert run.reference[0] > 0.6  # a coin has 0.5
    shuffled = replace(records, times=np.random.default_rng(0).permutation(records.times))
    assert abs(train(plan, shuffled.task(test)).reference[0] - 0.5) < 0.15
