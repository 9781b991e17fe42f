import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fulcrum

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    """An example's module, as Python would import it from where it stands."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def images():
    return example("cifar10_images")


@pytest.fixture(scope="module")
def adapter():
    return example("agnews_adapter")


@pytest.fixture
def package(tmp_path):
    """The npm package's files in small: 40 images to train on, 10 to test on, each with a bright band by its class."""
    image = pytest.importorskip("PIL.Image")
    labels = {"train": np.arange(40) % 10, "test": np.arange(10)}
    for name, file in (("train", "data_batch_1"), ("test", "test_batch")):
        pixels = np.empty((len(labels[name]), 1024, 3), dtype=np.uint8)
        band = (np.arange(1024) // 32 // 3)[None] == labels[name][:, None]
        pixels[:] = np.where(band, 200, 20)[:, :, None] + np.arange(3)
        image.fromarray(pixels).save(tmp_path / f"{file}.png")
        (tmp_path / f"{name}_lables.json").write_text(json.dumps(labels[name].tolist()))
    return tmp_path


def run(example, *arguments):
    command = [sys.executable, str(EXAMPLES / example), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_images_are_read_as_the_package_has_them_one_a_row(images, package):
    images.prepare(package, package / "images.npz", images=35, tested=10)
    task = fulcrum.load_task(package / "images.npz")
    assert task.features_train.shape == (35, 3, 32, 32)
    assert task.labels_train[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert (task.features_train[13, :, 9, 7] * 255).tolist() == pytest.approx([200, 201, 202])
    assert np.flatnonzero(task.features_train[13, 0, :, 7] > 0.5).tolist() == [9, 10, 11]


def test_the_convolutional_network_learns_the_images_of_silos(package):
    done = run("cifar10_images.py", "prepare", package, "--images", 40, "-o", package / "images.npz")
    assert done.stdout.endswith("40 images to train on, 10 to test on\n"), done.stderr
    told = ["--silos", 60, "--records", 4, "--epsilon", "1e6", "--ways", "optimal", "--rounds", 4, "--format", "json"]
    done = run("cifar10_images.py", "train", package / "images.npz", *told)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["network parameters"] == 34_058
    assert row["network"] > 0.4  # 0.1 by chance


def test_the_convolutional_network_learns_with_an_image_as_the_unit(package):
    run("cifar10_images.py", "prepare", package, "--images", 40, "-o", package / "images.npz")
    told = ["--silos", 60, "--records", 4, "--unit", "record", "--ways", "optimal", "--format", "json"]
    done = run("cifar10_images.py", "train", package / "images.npz", *told, "--rounds", 12, "--epsilon", "1", "1e6")
    assert done.returncode == 0, done.stderr
    little, much = json.loads(done.stdout)
    assert much["network"] > 0.4  # 0.1 by chance
    assert little["network noise"] > 100 * much["network noise"]


def test_the_curve_of_both_units_chooses_settings_by_a_seed_that_is_not_reported(package):
    run("cifar10_images.py", "prepare", package, "--images", 40, "-o", package / "images.npz")
    few = ["--silos", 60, "--records", 4, "--seeds", 1, "--most-rounds", 1, "--curve", 30, "-o", package / "curve.json"]
    done = run("image_units.py", package / "images.npz", *few)
    assert done.returncode == 0, done.stderr
    rows = json.loads((package / "curve.json").read_text())
    silo, record = ([row for row in rows if row["unit"] == unit] for unit in ("silo", "record"))
    assert (len(silo), len(record), len(rows)) == (2, 4, 6)
    best = max(record, key=lambda row: row["network by seed"][1])["network by seed"][:1]
    cells = next(line for line in done.stdout.splitlines() if line.startswith("| 30 |")).split("|")
    assert cells[3].split()[0] == f"{np.mean(best):.3f}"
    assert all(of_silo["network noise"] > 2 * record[0]["network noise"] for of_silo in silo)  # in clips


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("test_batch.png", b"no image", "test_batch.png cannot be read"),
        ("train_lables.json", b"[1, 2]", "must be a list of at least 40 whole numbers"),
        ("train_lables.json", b"{", "train_lables.json cannot be read"),
    ],
)
def test_a_package_that_is_not_whole_is_refused_in_one_line(images, package, monkeypatch, capsys, file, content, told):
    (package / file).write_bytes(content)
    words = ["prepare", package, "-o", package / "images.npz", "--images", 40]
    monkeypatch.setattr(sys, "argv", ["cifar10_images.py", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        images.main()
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 1)
    assert told in said
    assert not (package / "images.npz").exists()


def test_an_adapter_begins_where_the_public_network_stands_and_alone_is_trained(adapter):
    random = np.random.default_rng(0)
    labels = np.arange(1400) % 4
    features = random.normal(0, 0.5, (1400, adapter.WIDTH)) + 3 * np.eye(adapter.WIDTH)[labels]
    labels[200:] = np.array([1, 0, 2, 3])[labels[200:]]  # what is public takes two of the classes for each other
    whole = fulcrum.Task(
        name="blobs",
        features_train=features[:1200],
        labels_train=labels[:1200],
        features_test=features[1200:],
        labels_test=labels[1200:],
        classes=("a", "b", "c", "d"),
    )
    known, classes, task = adapter.public_part(whole)
    assert (len(known), len(classes), len(task.labels_train)) == (200, 200, 1000)
    network = adapter.public_network(known, classes)
    before = adapter.accuracy_of(network, task)
    assert before == pytest.approx(0.5, abs=0.05)
    bare = network.head(torch.relu(network.trunk(torch.ones(1, adapter.WIDTH))))
    assert torch.equal(network(torch.ones(1, adapter.WIDTH)), bare)
    model = fulcrum.torch_model(network, trained=adapter.TRAINED["adapter"])
    assert model.parameters == 384 * 4 + 4 + 4 * 64 + 64
    plan = fulcrum.plan("consortium", rounds=8, epsilon=1e5, parameters=model.parameters)
    run = fulcrum.train(plan, task, model=model, records=20, training=fulcrum.LocalTraining(learning_rate=0.5))
    assert run.accuracy[0, -1] > before + 0.2


def test_the_adapter_example_leaves_the_whole_network_out_unless_it_is_asked_for(adapter, monkeypatch):
    asked = []
    monkeypatch.setattr(adapter, "study", lambda task, models, options: asked.append(options.models))
    task = fulcrum.Task(
        name="blobs",
        features_train=np.random.default_rng(0).normal(size=(400, adapter.WIDTH)),
        labels_train=np.arange(400) % 4,
        features_test=np.zeros((4, adapter.WIDTH)),
        labels_test=np.arange(4),
        classes=("a", "b", "c", "d"),
    )
    monkeypatch.setattr(adapter.fulcrum, "load_task", lambda *_, **__: task)
    for more in ([], ["--models", "network", "--learning-rate", "0.05"]):
        monkeypatch.setattr(sys, "argv", ["agnews_adapter.py", *more])
        adapter.main()
    assert asked == [["adapter", "head"], ["network"]]
