"""Public ranges of features, and the person column of data files."""

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.errors import DataError, ParameterError
from fulcrum.simulation.data.sources.feature_ranges import read_ranges
from fulcrum.simulation.data.tasks import load_task

ROWS = [
    ("ann", 10, 1.0, "lyon", "no"),
    ("ann", 12, 3.0, "lyon", "yes"),
    ("bob", 200, 2.0, "rome", "no"),
    ("eve", "", 2.0, "rome", "yes"),
    *(
        (f"p{number}", 20 + number, number / 10, "lyon" if number % 2 else "rome", ["no", "yes"][number % 2])
        for number in range(20)
    ),
]


@pytest.fixture
def stays(tmp_path):
    file = tmp_path / "stays.csv"
    lines = ["patient,age,score,silo,label", *(",".join(map(str, row)) for row in ROWS)]
    file.write_text("\n".join(lines) + "\n")
    return file


def test_ranges_scale_and_clamp_without_the_data(stays):
    task = load_task(stays, person="patient", ranges={"age": (18, 90, 60), "score": (0, 4)})
    assert not task.fitted
    row = {person: place for place, person in enumerate(task.persons)}
    features = np.concatenate([task.features_train, task.features_test])
    assert (np.abs(features) <= 1).all()
    for person, age in (("ann", -1.0), ("bob", 30 / 42), ("eve", 0.0)):  # below, above, missing
        if person in row:
            assert task.features_train[row[person], 0] == pytest.approx(age)
    assert {"ann", "bob", "eve"} & set(row)


@pytest.mark.parametrize("form", ["toml", "csv"])
def test_ranges_are_read_from_files(tmp_path, form):
    file = tmp_path / f"ranges.{form}"
    texts = {
        "toml": "age = [18, 90, 60]\nscore = [0, 4]\n",
        "csv": "feature,low,high,reference\nage,18,90,60\nscore,0,4,\n",
    }
    file.write_text(texts[form])
    ranges = read_ranges(file)
    assert (ranges.of("age").reference, ranges.of("score").reference) == (60.0, 2.0)
    assert ranges.scale(np.array([[60.0, 4.0]]), ("age", "score"), "x").tolist() == [[0.0, 1.0]]


def test_one_range_for_all_features_of_an_array():
    task = load_task("digits", ranges="0,16")
    assert task.features_train.shape[1] == 64
    assert (task.features_train.min(), task.features_train.max(), task.fitted) == (-1.0, 1.0, False)


@pytest.mark.parametrize(
    ("ranges", "code"),
    [
        ("16", "ranges.form-invalid"),
        ("a,b", "ranges.form-invalid"),
        ("0,inf", "ranges.form-invalid"),
        ((2, 1), "ranges.order-invalid"),
        ((0, 1, 3), "ranges.order-invalid"),
        ({"age": (0, 1)}, "ranges.names-missing"),
    ],
)
def test_wrong_ranges_are_refused(ranges, code):
    with pytest.raises((ParameterError, DataError), check=coded(code)):
        load_task("digits", ranges=ranges)


def test_ranges_must_fit_the_columns_and_leave_no_room_for_components(stays, tmp_path):
    with pytest.raises(DataError, check=coded("ranges.feature-missing", feature="score")):
        load_task(stays, person="patient", ranges={"age": (0, 1)})
    with pytest.raises(DataError, check=coded("ranges.feature-unknown", feature="agee")):
        load_task(stays, person="patient", ranges={"age": (0, 1), "score": (0, 4), "agee": (0, 1)})
    with pytest.raises(ParameterError, check=coded("ranges.with-components", components=3)):
        load_task("digits", ranges="0,16", components=3)
    broken = tmp_path / "ranges.toml"
    broken.write_text("age = [")
    with pytest.raises(DataError, check=coded("ranges.toml-unreadable")):
        load_task(stays, ranges=broken)
    with pytest.raises(DataError, check=coded("file.unreadable")):
        load_task(stays, ranges=tmp_path / "absent.toml")


def test_a_person_column_is_no_feature_and_persons_are_split_whole(stays):
    ranges = {"age": (18, 90), "score": (0, 4)}
    for seed in range(5):
        task = load_task(stays, person="patient", ranges=ranges, seed=seed)
        assert task.features_train.shape[1] == 2
        assert task.persons.count("ann") in (0, 2)
    with pytest.raises(DataError, check=coded("table.person-column-missing", column="person")):
        load_task(stays, person="person")
    with pytest.raises(ParameterError, check=coded("data.column-unneeded")):
        load_task("digits", person="person")


def test_an_npz_names_persons_by_an_array(tmp_path):
    file = tmp_path / "rows.npz"
    features = np.arange(40.0).reshape(20, 2)
    np.savez(file, X=features, y=np.arange(20) % 2, silo=np.array(["a", "b"] * 10), person=np.arange(20) // 2)
    task = load_task(file, ranges=(0, 40))
    assert all(task.persons.count(person) == 2 for person in task.persons)


def test_a_dataset_names_persons_in_the_fourth_place():
    items = [([float(number), 1.0], number % 2, "ab"[number % 2], f"p{number // 2}") for number in range(20)]
    task = fulcrum.dataset_task(items)
    assert task.persons is not None
    assert all(task.persons.count(person) == 2 for person in task.persons)
    with pytest.raises(DataError, check=coded("dataset.person-unnamed", item=0)):
        fulcrum.dataset_task([([0.0], 0, "a", None), ([1.0], 1, "a", "p")])
