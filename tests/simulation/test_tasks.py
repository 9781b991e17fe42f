import numpy as np
import pytest
from error_codes import coded

from fulcrum.errors import DataError, ParameterError
from fulcrum.simulation.data.tasks import DATA_VARIABLE, load_task

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 5)), np.arange(60) % 3


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    return tmp_path


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_digits_are_the_default_two_class_target():
    task = load_task("digits")
    assert task.classes == ("even", "odd")
    assert task.features_train.shape == (1438, 16)
    assert len(task.labels_test) == 359
    assert abs(task.features_train.mean()) < 1e-9
    assert task.features_train.std(axis=0).mean() == pytest.approx(1)


def test_components_are_principal_and_fitted_on_the_training_split_alone(folder):
    train, test = RNG.normal(size=(300, 4)) * [9, 3, 2, 1], 100 + RNG.normal(size=(50, 4))
    path = saved(folder / "d.npz", X_train=train, y_train=np.arange(300) % 2, X_test=test, y_test=np.arange(50) % 2)
    task = load_task(path, components=2)
    covariance = np.cov(task.features_train.T)
    assert abs(covariance[0, 1]) < 1e-9
    assert covariance[0, 0] > covariance[1, 1]
    other = saved(
        folder / "e.npz", X_train=train, y_train=np.arange(300) % 2, X_test=test - 50, y_test=np.arange(50) % 2
    )
    assert (load_task(other, components=2).features_train == task.features_train).all()


def test_named_data_is_read_from_the_data_folder(folder, monkeypatch):
    labels = np.arange(40) % 10
    saved(
        folder / "cifar10.npz",
        X_train=RNG.normal(size=(40, 40)),
        y_train=labels,
        X_test=RNG.normal(size=(20, 40)),
        y_test=labels[:20],
    )
    task = load_task("cifar10", data_dir=folder)
    assert task.classes == ("vehicle", "animal")
    assert task.features_train.shape == (40, 32)
    assert task.records == 200
    assert task.labels_train.tolist() == [int(label in (2, 3, 4, 5, 6, 7)) for label in labels]
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    assert (load_task("cifar10").features_train == task.features_train).all()


def test_own_data_keeps_its_classes_and_silos(folder):
    task = load_task(saved(folder / "mine.npz", X=X, y=Y, silo=np.array([f"s{k % 4}" for k in range(60)])))
    assert task.classes == ("0", "1", "2")
    assert len(task.silo) == len(task.labels_train) == 48


def test_a_path_is_ones_own_data_whatever_the_file_is_called(folder):
    for name in ("cifar10", "digits"):
        task = load_task(saved(folder / f"{name}.npz", X=X, y=Y))
        assert (task.name, task.classes, task.records) == (name, ("0", "1", "2"), None)
        assert task.features_train.shape == (48, 5)


def test_own_columns_are_standardised_each(folder):
    wide = np.column_stack([X * [1, 1e6, 1e-6, 1, 1], np.full(60, 0.1)])
    test = np.column_stack([X[:20], np.full(20, 7.0)])
    task = load_task(saved(folder / "d.npz", X_train=wide, y_train=Y, X_test=test, y_test=Y[:20]))
    assert task.features_train[:, :5].std(axis=0) == pytest.approx(np.ones(5))
    assert task.features_train[:, :5].mean(axis=0) == pytest.approx(np.zeros(5), abs=1e-9)
    assert not task.features_train[:, 5].any()
    assert not task.features_test[:, 5].any()


def test_every_silo_and_class_keeps_a_record_to_train_on(folder):
    silo = np.array([f"s{k // 2}" for k in range(60)])
    labels = np.where(np.arange(60) == 31, "rare", "common")
    for seed in range(20):
        task = load_task(saved(folder / "d.npz", X=X, y=labels, silo=silo), seed=seed)
        assert set(task.silo) == set(silo)
        assert task.labels_train.tolist().count(1) == 1
        assert len(task.labels_test) == 12
    with pytest.raises(DataError, check=coded("data.split-empty")):
        load_task(saved(folder / "d.npz", X=X, y=Y, silo=np.arange(60)))


def test_numbers_are_classes_in_the_order_of_numbers(folder):
    labels = np.array([2.0, 10.0, 1.0])[Y]
    assert load_task(saved(folder / "d.npz", X=X, y=labels)).classes == ("1", "2", "10")


def test_columns_that_are_not_there_are_refused(folder):
    path = folder / "mine.CSV"
    path.write_text("a,label,silo\n" + "".join(f"{k},{'xy'[k % 2]},s{k % 3}\n" for k in range(30)))
    assert load_task(path).silo is not None
    with pytest.raises(DataError, check=coded("table.silo-column-missing", column="sillo")):
        load_task(path, silo="sillo")
    archive = saved(folder / "d.npz", X=X, y=Y)
    for source in (archive, "digits"):
        for option in ({"label": "kind"}, {"silo": "place"}):
            with pytest.raises(ParameterError, check=coded("data.column-unneeded")):
                load_task(source, **option)


def test_a_null_in_parquet_is_no_label(folder):
    write_parquet(folder / "mine.parquet", table_columns() | {"kind": ["a", None, "b"] * 20})
    with pytest.raises(DataError, check=coded("data.cell-missing", record=2, column="label")):
        load_task(folder / "mine.parquet", label="kind", silo="place")


def write_parquet(path, columns):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), path)


def table_columns():
    return {
        "height": X[:, 0].tolist(),
        "width": X[:, 1].tolist(),
        "kind": [f"class-{label}" for label in Y],
        "place": [f"s{k % 4}" for k in range(60)],
        "split": ["test" if k % 5 == 0 else "train" for k in range(60)],
    }


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_tables_have_a_label_column_and_may_name_silo_and_split(folder, suffix):
    path = folder / f"mine.{suffix}"
    columns = table_columns()
    if suffix == "csv":
        rows = zip(*columns.values(), strict=True)
        path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]))
    else:
        write_parquet(path, columns)
    task = load_task(path, label="kind", silo="place")
    assert task.classes == ("class-0", "class-1", "class-2")
    assert task.features_train.shape == (48, 2)
    assert task.silo[0] == "s1"
    assert len(task.labels_test) == 12


def broken(**change):
    arrays = {"X_train": X, "y_train": Y, "X_test": X[:20], "y_test": Y[:20]}
    return arrays | change


BAD = {
    "nan": (
        broken(X_train=np.where(np.arange(300).reshape(60, 5) == 17, np.nan, X)),
        "training record 4 has a feature that is not finite",
    ),
    "inf in test": (broken(X_test=np.full((20, 5), np.inf)), "test record 1 has a feature that is not finite"),
    "outside": (broken(y_test=np.full(20, 9)), "test label 9 is not a class of the head. Known: 0, 1, 2"),
    "one class": (broken(y_train=np.zeros(60, int), y_test=np.zeros(20, int)), "has one class, '0'"),
    "labels short": (broken(y_train=Y[:-1]), "60 training features and 59 labels"),
    "no records": (broken(X_train=X[:0], y_train=Y[:0]), "has no training records"),
    "other width": (broken(X_test=X[:20, :3]), "training records have 5 features and test records have 3"),
    "words": (broken(X_train=np.full((60, 5), "a")), "features must be a table of numbers"),
    "flat": (broken(X_train=X[:, 0]), "features must be a table of numbers"),
    "constant": (broken(X_train=np.ones((60, 5))), "every training record has the same features"),
    "no features": (broken(X_train=X[:, :0], X_test=X[:20, :0]), "has no features"),
    "too large": (broken(X_train=X * 1e200), "features are too large or too small to be scaled"),
    "too small": (broken(X_train=X * 1e-200), "features are too large or too small to be scaled"),
    "test too large": (broken(X_train=X * 1e-9, X_test=X[:20] * 1e300), "features are too large or too small"),
    "one-hot": (
        broken(y_train=np.eye(3)[Y]),
        "label must have one dimension with one value for each record, got the shape (60, 3)",
    ),
    "a column of labels": (
        broken(y_train=Y[:, None]),
        "label must have one dimension with one value for each record, got the shape (60, 1)",
    ),
    "no label": (broken(y_train=np.where(np.arange(60) == 6, np.nan, Y)), "training record 7 has no label"),
    "no test label": (broken(y_test=np.where(np.arange(20) == 6, "", "1")), "test record 7 has no label"),
    "silos short": (broken(silo=np.full(9, "s")), "60 training features and 9 silos. Give one silo for each record"),
    "one silo": (
        broken(silo=np.array("s")),
        "silo must have one dimension with one value for each record, got the shape ()",
    ),
    "no silo": (broken(silo=np.where(np.arange(60) == 2, " ", "s")), "training record 3 has no silo"),
    "y short": ({"X": X, "y": Y[:-1]}, "60 features and 59 labels"),
    "y long": ({"X": X, "y": np.arange(61) % 2}, "60 features and 61 labels"),
    "y a number": ({"X": X, "y": np.array(1)}, "got the shape ()"),
    "silo long": ({"X": X, "y": Y, "silo": np.full(61, "s")}, "60 features and 61 silos"),
    "wrong names": ({"a": X}, "must hold X_train, y_train, X_test and y_test, or X and y. The file holds: a"),
}


@pytest.mark.parametrize("name", BAD)
def test_data_that_cannot_be_learnt_from_is_refused_in_one_line(folder, name):
    arrays, reason = BAD[name]
    with pytest.raises(DataError) as caught:
        load_task(saved(folder / "d.npz", **arrays))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_class_and_a_label_outside_the_head_of_a_known_task_are_refused(folder):
    labels = np.repeat([0, 1, 8, 9], 10)
    images = RNG.normal(size=(40, 40))
    saved(folder / "cifar10.npz", X_train=images, y_train=labels, X_test=images, y_test=labels)
    with pytest.raises(DataError, check=coded("data.class-untrained", label="animal")):
        load_task("cifar10", data_dir=folder)
    saved(folder / "cifar10.npz", X_train=images, y_train=labels + 5, X_test=images, y_test=labels)
    with pytest.raises(DataError, check=coded("data.label-unknown", label="13")):
        load_task("cifar10", data_dir=folder)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "has no label column 'label'"),
        ("a,label\n", "has no records"),
        ("label\n1\n2\n", "has no features"),
        ("a,label\n1,x,3\n", "line 2 has 3 cells, and the header has 2"),
        ("a,label\n\n\n1,x\n1,x,3\n", "line 5 has 3 cells, and the header has 2"),
        ("a,a,label\n1,2,x\n", "has two columns 'a'"),
        ("a,label\n1,x\n2,\n3,y\n", "record 2 has no label"),
        ("a,label,silo\n1,x,s\n2,y,\n", "record 2 has no silo"),
        ("a,label\ntall,x\n2,y\n", "column 'a' must hold numbers, got 'tall'"),
        ("a,label,split\n1,x,dev\n2,y,train\n", "split must be train or test, got 'dev'"),
        ("a,label,split\n1,x,train\n2,y,train\n", "must have training records and test records"),
    ],
)
def test_tables_that_cannot_be_read_are_refused_in_one_line(folder, text, reason):
    path = folder / "mine.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        load_task(path)
    assert reason in str(caught.value)


def test_files_that_are_not_there_or_not_data_are_refused(folder, monkeypatch):
    (folder / "text.npz").write_text("not an archive")
    (folder / "text.parquet").write_text("not parquet")
    with (folder / "single.npz").open("wb") as file:
        np.save(file, X)
    np.savez_compressed(folder / "whole.npz", X=X, y=Y)
    whole = (folder / "whole.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[:500])
    (folder / "flipped.npz").write_bytes(whole[:300] + bytes(300) + whole[600:])
    for name, reason in (
        ("none.csv", "cannot be read: No such file"),
        ("text.npz", "is not a NumPy archive"),
        ("text.parquet", "is not a Parquet file"),
        ("mine.json", "data must be .npz, .csv or .parquet"),
        ("single.npz", "is a single array, not an archive"),
        ("cut.npz", "is not a NumPy archive"),
        ("flipped.npz", "is not a NumPy archive"),
    ):
        with pytest.raises(DataError, match=reason):
            load_task(folder / name)
    for _ in range(2):
        with pytest.raises(DataError, check=coded("data.name-unknown", variable="FULCRUM_DATA")):
            load_task("cifr10")
        monkeypatch.setenv(DATA_VARIABLE, "")
    with pytest.raises(DataError, check=coded("data.file-missing")):
        load_task("txt", data_dir=folder)
    with pytest.raises(DataError, check=coded("data.feature-file-missing")) as caught:
        load_task("agnews", data_dir=folder)
    assert "paper/make_features.py" in caught.value.remedy
    with pytest.raises(DataError, check=coded("data.components-range", features=64)):
        load_task("digits", components=65)


def test_silos_that_are_called_otherwise_are_not_passed_over(folder):
    labels = np.array([0, 1] * 5)
    rows = np.arange(20.0).reshape(10, 2)
    np.savez(folder / "sites.npz", X=rows, y=labels, silo_train=labels)
    with pytest.raises(DataError, check=coded("data.array-unknown", array="silo_train")):
        load_task(folder / "sites.npz")
    (folder / "sites.csv").write_text("a,Silo,label\n" + "".join(f"{n},{n % 2},{n % 2}\n" for n in range(10)))
    with pytest.raises(DataError, check=coded("table.silo-column-unclear", column="Silo")):
        load_task(folder / "sites.csv")
    assert set(load_task(folder / "sites.csv", silo="Silo").silo) == {"0", "1"}


def test_silos_in_bytes_are_text(folder):
    names = np.array([b"lyon", b"rome"] * 5)
    np.savez(folder / "sites.npz", X=np.arange(20.0).reshape(10, 2), y=np.array([0, 1] * 5), silo=names)
    assert set(load_task(folder / "sites.npz").silo) == {"lyon", "rome"}


def test_a_number_beyond_single_precision_is_refused_without_a_warning(folder):
    photos = np.full((10, 2, 2), 1e300)
    np.savez(folder / "photos.npz", X=photos, y=np.array([0, 1] * 5))
    with pytest.raises(DataError, check=coded("data.feature-not-finite", record=1)):
        load_task(folder / "photos.npz")


# ------------------------------------------------------------------------------------------------ declared classes


def stays_with(path, *labels):
    """Writes one training record of each label, and a test record of the first."""
    rows = [f"{place},{label},train" for place, label in enumerate(labels)]
    path.write_text("\n".join(["a,label,split", *rows, f"9,{labels[0]},test"]) + "\n")
    return path


def test_labels_that_occur_number_the_classes_and_declared_classes_do_not(folder):
    """The only record of a class renumbers the classes after it, unless the classes are declared."""
    everybody, fewer = stays_with(folder / "all.csv", "a", "c", "b"), stays_with(folder / "fewer.csv", "a", "c")
    assert [load_task(file).labels_train.tolist() for file in (everybody, fewer)] == [[0, 2, 1], [0, 1]]
    tasks = [load_task(file, classes="a,b,c") for file in (everybody, fewer)]
    assert [task.labels_train.tolist() for task in tasks] == [[0, 2, 1], [0, 2]]
    assert {task.classes for task in tasks} == {("a", "b", "c")}
    assert load_task(everybody, classes=("c", "b", "a")).labels_train.tolist() == [2, 0, 1]


def test_declared_classes_may_be_without_records_and_refuse_every_other_label(folder):
    file = stays_with(folder / "mine.csv", "1", "1.5")
    assert load_task(file, classes=[0, 1, 1.5]).labels_train.tolist() == [1, 2]
    for classes, part in (("0,1", "training"), (("1.5", "2"), "training")):
        with pytest.raises(DataError, check=coded("data.label-undeclared", data="mine.csv", part=part)):
            load_task(file, classes=classes)


@pytest.mark.parametrize("classes", ["", "1", "1,", "1,1", "1, 1", [], [1], ["1", None], 5])
def test_declared_classes_are_at_least_two_different_names(folder, classes):
    with pytest.raises(ParameterError, check=coded("data.classes-form", classes=classes)):
        load_task(stays_with(folder / "mine.csv", "1", "2"), classes=classes)


def test_data_with_classes_of_its_own_or_other_targets_declares_none(folder):
    with pytest.raises(ParameterError, check=coded("data.classes-unneeded", data="digits")):
        load_task("digits", classes="even,odd")
    file = saved(folder / "d.npz", X=X, y=RNG.normal(size=60))
    with pytest.raises(ParameterError, check=coded("data.classes-unneeded")):
        load_task(file, targets="numbers", classes="0,1")


def test_without_a_seed_the_name_of_a_person_alone_decides_on_the_side(folder):
    names = [f"p{number}" for number in range(400)]
    arrays = {"X": RNG.normal(size=(400, 2)), "y": np.arange(400) % 2}
    everybody = load_task(saved(folder / "all.npz", **arrays, person=names), seed=None, classes="0,1")
    assert 40 < len(everybody.labels_test) < 120  # a fifth is 80; the hash is a fixed public rule
    kept = np.arange(400) % 3 > 0
    some = {name: array[kept] for name, array in arrays.items()} | {"person": np.array(names)[kept]}
    fewer = load_task(saved(folder / "some.npz", **some), seed=None, classes="0,1")
    assert fewer.persons == tuple(name for name in everybody.persons if int(name[1:]) % 3)
    unnamed = load_task(saved(folder / "unnamed.npz", **arrays), seed=None, classes="0,1")
    assert (len(unnamed.labels_train), len(unnamed.labels_test)) == (400, 0)
    with pytest.raises(DataError, check=coded("data.classes-undeclared", data="all.npz")):
        load_task(folder / "all.npz", seed=None)


def test_published_data_keeps_its_split_without_a_seed():
    drawn, fixed = load_task("digits"), load_task("digits", seed=None)
    assert (drawn.features_test == fixed.features_test).all()
    assert drawn.public
