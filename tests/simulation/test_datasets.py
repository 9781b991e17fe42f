import io

import numpy as np
import pytest
from error_codes import coded

import fulcrum
from fulcrum.errors import DataError, ParameterError
from fulcrum.simulation.data.datasets import dataset_task, read_data
from fulcrum.simulation.data.partition import coupled_partition
from fulcrum.simulation.data.tasks import Task, load_task
from fulcrum.simulation.embedded.models import SoftmaxHead
from fulcrum.simulation.embedded.training_settings import LocalTraining

TRAINING = LocalTraining(learning_rate=0.3, steps=20, batch=16)


def images(count=60, seed=0):
    stream = np.random.default_rng(seed)
    labels = stream.integers(0, 3, count)
    bright = np.arange(3)[:, None, None, None] * 60 + 40
    return np.clip(bright[labels] + stream.normal(0, 10, (count, 2, 4, 4)), 0, 255).astype(np.uint8), labels


def test_images_in_an_archive_keep_their_shape_and_become_0_to_1(tmp_path):
    photos, labels = images()
    np.savez(tmp_path / "photos.npz", X=photos, y=labels)
    task = load_task(tmp_path / "photos.npz")
    assert task.features_train.shape[1:] == (2, 4, 4)
    assert task.features_train.dtype == np.float32
    assert 0 <= task.features_train.min() < task.features_train.max() <= 1
    assert not task.fitted
    with pytest.raises(DataError, check=coded("data.head-unfit", data="photos", targets="records of shape (2, 4, 4)")):
        fulcrum.train(fulcrum.plan("isic-paper", rounds=1, epsilon=1.0), task)
    with pytest.raises(DataError, check=coded("data.components-unfit")):
        load_task(tmp_path / "photos.npz", components=2)


@pytest.mark.parametrize(
    ("targets", "y", "told"),
    [
        ("numbers", ["a", "b"], "numbers must have the shape"),
        ("numbers", [1.0, np.nan], "numbers must be finite, and the numbers of record 2 are not"),
        ("numbers", [1.0], "2 features and 1 numbers"),
        ("labels", [0, 1], "labels must have the shape"),
        ("labels", [[0, 1], [0, 2]], "labels must be 0 or 1, and the labels of record 2 are not"),
    ],
)
def test_targets_that_are_no_classes_are_checked(tmp_path, targets, y, told):
    np.savez(tmp_path / "d.npz", X=np.eye(2), y=np.array(y))
    with pytest.raises(DataError, match=told):
        load_task(tmp_path / "d.npz", targets=targets)


def test_targets_that_are_no_classes_are_for_archives():
    with pytest.raises(ParameterError, check=coded("data.targets-file", targets="numbers", data="digits")):
        load_task("digits", targets="numbers")
    with pytest.raises(ParameterError, check=coded("errors.name-unknown", noun="targets")):
        load_task("digits", targets="words")
    with pytest.raises(DataError, check=coded("data.classes-unfit", targets="numbers", whose="no")):
        Task(
            name="t",
            features_train=np.eye(2),
            labels_train=np.ones(2),
            features_test=np.eye(2),
            labels_test=np.ones(2),
            classes=("a",),
            targets="numbers",
        )


def test_records_without_classes_are_dealt_at_random_and_none_twice(tmp_path):
    np.savez(tmp_path / "d.npz", X=np.random.default_rng(0).normal(size=(500, 3)), y=np.arange(500.0))
    task = load_task(tmp_path / "d.npz", targets="numbers")
    assert (len(task.labels_train), len(task.labels_test)) == (400, 100)
    part = coupled_partition(task, fulcrum.read_federation("isic-paper"), seed=0, records=20)
    assert len(set(part.records.tolist())) == part.counts.sum()
    assert part.counts.mean() == pytest.approx(20, abs=1)
    means = [task.labels_train[part.records[a : a + n]].mean() for a, n in zip(part.starts, part.counts, strict=True)]
    assert max(means) < 400
    assert min(means) > 100


def test_items_are_records_targets_and_silos():
    photos, labels = images()
    items = [(photo, label, f"s{label}") for photo, label in zip(photos, labels, strict=True)]
    task = read_data(items, held_out=items[:5], name="photos")
    assert task.features_train.shape == (60, 2, 4, 4)
    assert task.silo == tuple(f"s{label}" for label in labels)
    assert (task.classes, len(task.labels_test)) == (("0", "1", "2"), 5)
    split = dataset_task(items)
    assert (len(split.labels_train), len(split.labels_test), len(split.silo)) == (48, 12, 48)
    assert read_data(task) is task
    assert read_data("digits").name == "digits"


@pytest.mark.parametrize(
    ("items", "told"),
    [
        ([], "list has no records"),
        ([1, 2], r"an item of list must be \(record, target\), \(record, target, silo\)"),
        ([([1.0], 0), ([1.0, 2.0], 1)], r"must be of one shape, got \(1,\) and \(2,\)"),
        ([([np.nan], 0), ([1.0], 1)] * 6, "list: train record 0 has a feature that is not finite"),
        ([([1.0], 0.5)] * 6, r"must be classes 0 \.\. K-1, or names.*got float64.* give targets="),
        ([([1.0], 0)] * 2, "too few to hold test records out. Give held_out"),
        ([([1.0], 0)] * 9, "list has training records of one class, 0, and training needs at least two classes"),
        ([([1.0], [0]), ([1.0], [0, 1])] * 3, r"the targets of list must be of one shape, got \(1,\) and \(2,\)"),
        ([("one", 0), ("two", 1)] * 3, "the records of list must be numbers, got <U3"),
        ([([1.0], 0, None), ([2.0], 1, "b")] * 3, "item 0 of list must name its silo, got 'None'"),
        ([([1.0], 0, " "), ([2.0], 1, "b")] * 3, "item 0 of list must name its silo"),
        (
            {"X": [1.0], "y": [0]},
            r"dict is not a dataset with a length and items\. .* for arrays list\(zip\(X, y, silo\)\)",
        ),
        (iter([([1.0], 0)]), "list_iterator is not a dataset with a length and items"),
        (range(0, 9), r"an item of range must be \(record, target\)"),
    ],
)
def test_datasets_that_cannot_be_used_are_refused(items, told):
    with pytest.raises(DataError, match=told):
        dataset_task(items)


def test_an_item_that_cannot_be_read_is_named():
    class Damaged(list):
        def __getitem__(self, place):
            raise OSError(f"image {place} is\ncut off")

    with pytest.raises(DataError, check=coded("dataset.item-unreadable", item=0, data="Damaged")):
        dataset_task(Damaged([1, 2]))


@pytest.mark.parametrize(
    ("targets", "labels", "told"),
    [
        ("labels", [0.5, 1], r"must be 0 or 1 for each label, of shape \(records, labels\), got float64"),
        ("labels", 1, r"must be 0 or 1 for each label, of shape \(records, labels\), got int64 of shape \(9,\)"),
        ("numbers", "three", "must be numbers, got <U5"),
        ("numbers", np.inf, "must be finite"),
    ],
)
def test_targets_of_datasets_that_are_no_classes_are_checked(targets, labels, told):
    with pytest.raises(DataError, match=told):
        dataset_task([([1.0], labels)] * 9, targets=targets)


def test_what_is_held_out_has_the_shape_and_the_classes_of_what_is_trained_on():
    items = [([1.0, 2.0], 0), ([1.0, 3.0], 1)] * 5
    with pytest.raises(DataError, check=coded("dataset.record-shapes", shapes="(2,) to train on and (1,) to test on")):
        dataset_task(items, held_out=[([1.0], 0)])
    with pytest.raises(DataError, check=coded("dataset.class-untrained", data="list", label=2)):
        dataset_task(items, held_out=[([1.0, 2.0], 2)])


def test_every_silo_and_class_of_a_dataset_keeps_a_record_to_train_on():
    items = [([1.0, 2.0], 0, "large")] * 18 + [([3.0, 4.0], 1, "large"), ([3.0, 4.0], 0, "small")]
    for seed in range(20):
        task = dataset_task(items, seed=seed)
        assert "small" in task.silo
        assert 1 in task.labels_train
        assert len(task.labels_test) == 4


@pytest.mark.torch
def test_silos_and_classes_are_known_by_what_is_written():
    import torch

    names = [torch.tensor(3), 3, 3.0, " 3 ", b"3", np.int64(3)]
    items = [([1.0, 2.0], label, name) for name in names for label in ("dog", "cat")]
    task = dataset_task(items, held_out=items[:1])
    assert set(task.silo) == {"3"}
    assert (task.classes, task.labels_train[:2].tolist(), task.labels_test.tolist()) == (("cat", "dog"), [1, 0], [1])
    with pytest.raises(ParameterError, check=coded("dataset.classes-unnamed")):
        dataset_task(items, held_out=items[:1], classes=("cat", "cow"))


@pytest.mark.torch
def test_tensors_of_any_kind_are_records():
    import torch

    bytes_of_images = torch.full((8, 1, 2, 2), 255, dtype=torch.uint8)
    for records, kind in (
        (torch.ones(8, 3).bfloat16(), np.float32),
        (torch.ones(8, 3, requires_grad=True), np.float32),
        (torch.ones(8, 3) > 0, np.float32),
        (bytes_of_images, np.float32),
        (torch.ones(8, 3, dtype=torch.int64), np.int64),
    ):
        task = dataset_task(list(zip(records, [0, 1] * 4, strict=True)))
        assert task.features_train.dtype == kind
        assert (task.features_train == 1).all()


def test_a_task_whose_parts_do_not_fit_is_refused():
    rows, labels = np.ones((6, 2)), np.array([0, 1] * 3)
    parts = {"features_train": rows, "labels_train": labels, "features_test": rows, "labels_test": labels}
    for change, told in (
        ({"labels_test": labels[:5]}, "own: 6 test records and 5 labels. Give as many labels as records"),
        ({"silo": ("a",) * 5}, "own: 6 train records and 5 silos. Give as many silos as records"),
        ({"labels_train": labels + 1}, r"own: train labels must be classes 0 \.\. 1, one for each record"),
        ({"features_test": rows[:, :1]}, r"own: training records have the shape \(2,\) and test records .* \(1,\)"),
    ):
        with pytest.raises(DataError, match=told):
            Task(name="own", classes=("a", "b"), **{**parts, **change})
    broken = Task(name="own", classes=("a", "b"), **{**parts, "features_test": rows * np.nan})
    with pytest.raises(DataError, check=coded("data.feature-not-finite", data="own", record=0)):
        read_data(broken)


def test_classes_that_are_not_all_named_are_refused():
    with pytest.raises(ParameterError, check=coded("dataset.classes-few", label=1, classes=1)):
        dataset_task([([1.0], 0), ([1.0], 1)] * 5, classes=("a",))
    with pytest.raises(ParameterError, check=coded("dataset.classes-type")):
        dataset_task([([1.0], 0), ([1.0], 1)] * 5, classes="cat")


def photo(colour, size=(4, 3), kind="PNG"):
    image = pytest.importorskip("PIL.Image")
    held = io.BytesIO()
    image.new("RGB", size, colour).save(held, kind)
    return held.getvalue()


@pytest.mark.parametrize("parted", [False, True])
@pytest.mark.parametrize("by_silo", [False, True])
def test_images_are_read_from_folders_of_silos_and_classes(tmp_path, parted, by_silo):
    for split in ("train", "test") if parted else (".",):
        for silo in ("lyon", "rome") if by_silo else (".",):
            for name, colour in (("dark", (0, 0, 51)), ("light", (255, 255, 204))):
                for number in range(4):
                    folder = tmp_path / "photos" / split / silo / name
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / f"{number}.png").write_bytes(photo(colour))
    task = load_task(tmp_path / "photos")
    assert (task.name, task.classes) == ("photos", ("dark", "light"))
    assert task.features_train.shape[1:] == (3, 3, 4)
    assert np.unique(task.features_train[task.labels_train == 0]) == pytest.approx([0, 0.2])
    assert np.unique(task.features_test[task.labels_test == 1]) == pytest.approx([0.8, 1])
    assert (set(task.silo) == {"lyon", "rome"}) if by_silo else task.silo is None
    assert (len(task.labels_train) == len(task.labels_test)) is parted


@pytest.mark.parametrize("stray", ["lyon/one.png", "lyon/dark/more/one.JPG", "dark/one.png", "one.png"])
def test_an_image_that_is_out_of_place_is_not_passed_over(tmp_path, stray):
    for name in ("lyon/dark/1.png", "lyon/light/2.png", "rome/dark/3.png", stray):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(photo((1, 2, 3)))
    with pytest.raises(DataError, check=coded("image.file-stray")):
        load_task(tmp_path)


def test_grey_levels_beyond_8_bits_are_not_cut_off(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name, level in (("dark", 300), ("light", 40_000)):
        (tmp_path / name).mkdir()
        image.fromarray(np.full((4, 4), level, dtype=np.uint16)).save(tmp_path / name / "1.png")
    with pytest.raises(DataError, check=coded("image.depth-unsupported", mode="I;16")):
        load_task(tmp_path)


def test_a_column_that_is_none_of_numbers_is_told_shortly(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for columns, told in (
        (
            {"image": [photo((1, 2, 3))] * 6, "id": range(6)},
            "a column 'image' may have further columns .* alone, not 'id'",
        ),
        ({"scan": [b"x" * 5000] * 6}, r"column 'scan' must hold numbers, got b'x{38}\.\.\. Remove the column, or"),
        ({"scan": [[1.0, 2.0]] * 6}, r"column 'scan' must hold numbers, got \[1\.0, 2\.0\]"),
    ):
        pq.write_table(pa.table({**columns, "label": ["a", "b"] * 3}), tmp_path / "bad.parquet")
        with pytest.raises(DataError, match=told):
            load_task(tmp_path / "bad.parquet")
    with pytest.raises(DataError, check=coded("file.unreadable")):
        load_task(tmp_path / "none.parquet")


def test_images_are_read_from_a_column(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    shades = [photo((value, value, value)) for value in (0, 51, 255, 204)]
    columns = {
        "image": [{"bytes": shade, "path": None} for shade in shades] * 2,
        "label": ["dark", "dark", "light", "light"] * 2,
        "silo": ["lyon"] * 4 + ["rome"] * 4,
        "split": ["train", "test"] * 4,
    }
    pq.write_table(pa.table(columns), tmp_path / "photos.parquet")
    task = load_task(tmp_path / "photos.parquet")
    assert task.features_train[:, 0, 0, 0].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert task.silo == ("lyon", "lyon", "rome", "rome")
    pq.write_table(pa.table({"image": [b"", None], "label": ["a", "b"]}), tmp_path / "bad.parquet")
    with pytest.raises(DataError, check=coded("image.bytes-missing")):
        load_task(tmp_path / "bad.parquet")


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (b"no image", r"Pillow cannot read .*b\.png"),
        (None, r"b\.png has 5 x 5 pixels and .*a\.png has 4 x 3\. Bring all images to one size"),
    ],
)
def test_what_is_no_image_or_of_another_size_is_refused(tmp_path, second, told):
    (tmp_path / "photos" / "dark").mkdir(parents=True)
    with pytest.raises(DataError, check=coded("image.folder-empty")):
        load_task(tmp_path / "photos")
    (tmp_path / "photos" / "dark" / "a.png").write_bytes(photo((0, 0, 0)))
    (tmp_path / "photos" / "dark" / "b.png").write_bytes(photo((0, 0, 0), size=(5, 5)) if second is None else second)
    with pytest.raises(DataError, match=told):
        load_task(tmp_path / "photos")


@pytest.mark.torch
def test_a_convolutional_network_learns_images(tmp_path):
    import torch

    photos, labels = images(600)
    np.savez(tmp_path / "photos.npz", X=photos, y=labels)

    def net():
        return torch.nn.Sequential(
            torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 3)
        )

    run = fulcrum.train(
        fulcrum.plan("isic-paper", rounds=8, epsilon=1e4), tmp_path / "photos.npz", model=net, training=TRAINING
    )
    assert run.reference[0] > 0.9
    assert run.summary()["features"] == 32
    assert not any("outside every epsilon" in note for note in run.notes)


@pytest.mark.torch
@pytest.mark.parametrize(("targets", "metric"), [("numbers", "explained variance"), ("labels", "right labels")])
def test_numbers_and_labels_are_learnt(targets, metric):
    import torch

    stream = np.random.default_rng(0)
    inputs = stream.normal(size=(600, 5))
    truth = inputs @ stream.normal(size=(5, 3))
    targets_of = truth if targets == "numbers" else (truth > 0).astype(float)
    silos = [f"region-{1 + place % 2}-1" for place in range(600)]
    items = list(zip(inputs, targets_of, silos, strict=True))
    federation = fulcrum.Federation.from_sizes({"a": {"region-1-1": 300}, "b": {"region-2-1": 300}})
    run = fulcrum.train(
        fulcrum.plan(federation, rounds=5, epsilon=1e4),
        items,
        model=lambda: torch.nn.Linear(5, 3),
        training=TRAINING,
        targets=targets,
    )
    assert run.metric == metric
    assert run.reference[0] > 0.85


@pytest.mark.torch
def test_a_dataset_of_pytorch_is_taken_as_it_is():
    import torch

    class Photos(torch.utils.data.Dataset):
        def __len__(self):
            return 30

        def __getitem__(self, place):
            return torch.full((2, 3), float(place % 2)), place % 2, f"region-{1 + place % 4}-1"

    federation = fulcrum.Federation.from_sizes({f"region-{r}": {f"region-{r}-1": 5} for r in range(1, 5)})
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 2))
    run = fulcrum.train(fulcrum.plan(federation, rounds=3, epsilon=1e5), Photos(), model=module, training=TRAINING)
    assert run.task.name == "Photos"
    assert run.reference[0] == 1.0


def test_what_is_held_out_by_silo_is_told_by_silo_and_decides_the_worst_region():
    stream = np.random.default_rng(0)
    labels = stream.integers(0, 2, 400)
    features = stream.normal(size=(400, 3)) + 2 * labels[:, None]
    flipped = np.arange(400) % 4 == 3  # one silo's test records are all labelled wrongly
    names = [f"s{place % 4}" for place in range(400)]
    train = list(zip(features, labels, names, strict=True))
    tested = list(zip(features, np.where(flipped, 1 - labels, labels), names, strict=True))
    task = dataset_task(train, held_out=tested)
    federation = fulcrum.Federation.from_sizes({"a": {"s0": 100, "s1": 100}, "b": {"s2": 100, "s3": 100}})
    run = fulcrum.train(fulcrum.plan(federation, rounds=3, epsilon=1e4), task, training=TRAINING)
    assert min(run.by_silo[name] for name in ("s0", "s1", "s2")) > 0.85
    assert run.by_silo["s3"] < 0.15
    assert run.summary()["by_silo"] == run.by_silo
    assert np.mean(list(run.by_silo.values())) == pytest.approx(run.accuracy[0, -1])
    rows = fulcrum.compare_trained(federation, task, seeds=1, training=TRAINING, rounds=3, epsilon=1e4)
    assert rows[0].worst_region == pytest.approx((run.by_silo["s2"] + run.by_silo["s3"]) / 2, abs=0.05)
    slow = SoftmaxHead(features=3, classes=2).as_model(learning_rate=TRAINING.learning_rate)
    again = fulcrum.train(fulcrum.plan(federation, rounds=3, epsilon=1e4), task, training=TRAINING, model=slow)
    assert again.by_silo == run.by_silo
    strange = dataset_task(train, held_out=[(features[0], labels[0], "s9")])
    with pytest.raises(
        DataError, check=coded("partition.silo-unknown", part="test records", silo="s9", federation="federation")
    ):
        fulcrum.compare_trained(federation, strange, seeds=1, training=TRAINING, rounds=1, epsilon=1e4)
    plan = fulcrum.plan(federation, rounds=1, epsilon=1e4)
    unnamed = [item[:2] for item in train]
    for data in (train, unnamed):
        with pytest.raises(DataError, check=coded("partition.silo-unknown", part="test records", silo="S1")):
            fulcrum.train(plan, data, held_out=[(features[0], labels[0], "S1")])
    with pytest.raises(DataError, check=coded("partition.silo-empty", silo="s3", data="list")):
        fulcrum.train(plan, [item for item in train if item[2] != "s3"])
