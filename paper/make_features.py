"""Makes features of AG News or CIFAR-10 from public files, and prints the table of the README on them beside ours.

python paper/make_features.py agnews FOLDER -o features          # train.csv and test.csv: class, title, description
python paper/make_features.py cifar10 FOLDER -o features --model resnet18.onnx     # the binary version, *.bin

The files are those of the data sets' authors, and the encoders are public: all-MiniLM-L6-v2 for texts (see `fulcrum
embed`), and for images a ResNet-18 of ImageNet as ONNX without its last layer, which the user gives. The result has the
form of the features that the tables here were made on: 20,000 texts, as many of each class, or 25,000 images, and the
whole test set. The result is not the same file. Our texts are another sample, and our image encoder is a
reconstruction, so the numbers need not agree.
"""

import argparse
import csv
import io
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _printed import title_of

import fulcrum
from fulcrum.core.store.durable_files import check_writable, write_whole
from fulcrum.errors import DataError, FulcrumError
from fulcrum.simulation.data.sources.embedding import embed_images
from fulcrum.simulation.data.sources.sentences import sentence_features
from fulcrum.views.terminal.screen import FORMATS, Result, counting, remarks, show, table
from fulcrum.views.terminal.table_columns import Column
from fulcrum.words.numbers import with_error

TRAINED = {"agnews": 20_000, "cifar10": 25_000}
"""The number of training records."""

CLASSES = {"agnews": 4, "cifar10": 10}
SIDE = 32
IMAGE_BYTES = 3 * SIDE * SIDE

_GET_NEWS = "Get train.csv and test.csv of AG News as its authors publish them"

OURS = {
    "agnews": {"uniform": 0.67, "optimal": 0.81, "joint": 0.91, "no privacy": 0.93},
    "cifar10": {"uniform": 0.73, "optimal": 0.87, "joint": 0.95, "no privacy": 0.97},
}
"""Our accuracies (docs/experiments.md): 10 seeds of `fulcrum compare severe --rounds 10 --epsilon 0.99 --train`."""


def read_news(file: Path) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Returns texts and classes of a CSV file without a header: class from 1, title, description."""
    texts, labels = [], []
    classes = {str(label + 1) for label in range(CLASSES["agnews"])}
    try:
        rows = csv.reader(io.StringIO(_bytes_of(file).decode("utf-8"), newline=""))
        for row in rows:
            if len(row) != 3 or row[0] not in classes:
                raise DataError(
                    f"{file} line {rows.line_num} must have a class from 1 to 4, a title and a description. {_GET_NEWS}"
                )
            texts.append(f"{row[1]} {row[2]}")
            labels.append(int(row[0]) - 1)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is not a CSV file in UTF-8: {error}. {_GET_NEWS}") from None
    if not labels:
        raise DataError(f"{file} is empty. {_GET_NEWS}")
    return texts, np.array(labels)


def balanced_rows(labels: np.ndarray[Any, Any], count: int, classes: int) -> np.ndarray[Any, Any]:
    """Returns the first rows of every class, equally many of each, in the order of the file."""
    share = count // classes
    fewest = int(np.bincount(labels, minlength=classes).min())
    if not 0 < share <= fewest:
        raise DataError(
            f"{count:,} records need {share:,} of each class, and the rarest class has {fewest:,}. Give --records from "
            f"{classes} to {classes * fewest:,}, or the whole file"
        )
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:share] for label in range(classes)]))


def read_images(files: Sequence[Path]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns images (records, 32, 32, 3) and classes of files in the binary form: a byte of class, then the pixels."""
    parts = []
    for file in files:
        content = np.frombuffer(_bytes_of(file), dtype=np.uint8)
        if not len(content) or len(content) % (IMAGE_BYTES + 1):
            raise DataError(f"{file} is not of CIFAR-10's binary version. Get the binary version from its authors")
        parts.append(content.reshape(-1, IMAGE_BYTES + 1))
        if parts[-1][:, 0].max() >= CLASSES["cifar10"]:
            raise DataError(f"{file} has a class above 9. Get the binary version of CIFAR-10 from its authors")
    records = np.concatenate(parts)
    return records[:, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), records[:, 0].astype(np.intp)


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}. Download the data set first") from None


def news_features(folder: Path, records: int, tested: int | None) -> dict[str, Any]:
    """Returns the arrays of AG News by the text encoder."""
    (train, y_train), (test, y_test) = (read_news(folder / f"{part}.csv") for part in ("train", "test"))
    rows = balanced_rows(y_train, records, CLASSES["agnews"])
    test, y_test = test[:tested], y_test[:tested]
    with counting("Texts") as advance:
        features = sentence_features([*(train[row] for row in rows.tolist()), *test], on_batch=advance)
    return _arrays(features, len(rows), y_train[rows], y_test)


def image_features(folder: Path, records: int, tested: int | None, model: Path) -> dict[str, Any]:
    """Returns the arrays of CIFAR-10 by the encoder of an ONNX file."""
    try:
        from PIL import Image
    except ImportError:
        raise fulcrum.MissingExtraError("Images need Pillow. Run: pip install '.[embed]' in the checkout") from None
    batches = [folder / f"data_batch_{number}.bin" for number in range(1, -(-records // 10_000) + 1)]
    (train, y_train), (test, y_test) = read_images(batches), read_images([folder / "test_batch.bin"])
    if len(train) < records:
        raise DataError(
            f"{folder} has {len(train):,} images to train on, fewer than {records:,}. Give --records, or get all"
        )
    sides = {"train": (train[:records], y_train[:records]), "test": (test[:tested], y_test[:tested])}
    parts: dict[str, Any] = {}
    for side, (images, labels) in sides.items():
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch)
            for number, (pixels, label) in enumerate(zip(images, labels.tolist(), strict=True)):
                (place / str(label)).mkdir(exist_ok=True)
                Image.fromarray(np.ascontiguousarray(pixels)).save(place / str(label) / f"{number:06}.png")
            with counting(f"Images to {side}") as advance:
                embedded = embed_images(place, model=model, on_batch=advance)
        parts[side] = embedded.features, embedded.labels.astype(np.intp)
    features = np.concatenate([parts["train"][0], parts["test"][0]])
    return _arrays(features, len(parts["train"][1]), parts["train"][1], parts["test"][1])


def _arrays(features: Any, trained: int, y_train: Any, y_test: Any) -> dict[str, Any]:
    half = np.asarray(features).astype(np.float16)
    return {"X_train": half[:trained], "y_train": y_train, "X_test": half[trained:], "y_test": y_test}


def accuracy_rows(name: str, folder: Path, seeds: int) -> Iterator[dict[str, Any]]:
    """Yields the rows of the README's first table: on these features, and ours."""
    rows = fulcrum.compare_trained(
        "severe", name, rounds=10, epsilon=0.99, seeds=seeds, data_options={"data_dir": folder}
    )
    for row in rows:
        if row.allocation in OURS[name]:
            yield {
                "row": row.allocation,
                "here": with_error(row.accuracy, row.accuracy_se),
                "accuracy": row.accuracy,
                "ours": OURS[name][row.allocation],
            }
    reference = rows[0].reference
    yield {
        "row": "no privacy",
        "here": with_error(reference, None),
        "accuracy": reference,
        "ours": OURS[name]["no privacy"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the features, prints the table, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=OURS, help="the data set")
    parser.add_argument("folder", type=Path, help="folder of the downloaded files")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of feature files to write to")
    parser.add_argument("--model", type=Path, help="ONNX file of a ResNet-18 without its last layer, for cifar10")
    parser.add_argument("--records", type=int, help="number of training records; by default as many as ours")
    parser.add_argument("--tested", type=int, help="number of test records; all by default")
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds of the table; 0 for no table")
    parser.add_argument("--format", choices=FORMATS, default="table", help="how to print")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.data == "cifar10" and chosen.model is None:
            raise DataError(
                "cifar10 needs the encoder. Give --model, an ONNX file of a ResNet-18 without its last layer"
            )
        for name, value, least in (
            ("records", chosen.records, 1),
            ("tested", chosen.tested, 1),
            ("seeds", chosen.seeds, 0),
        ):
            if value is not None and value < least:
                raise DataError(f"--{name} must be at least {least}, got {value}")
        try:
            chosen.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"{chosen.output} cannot be a folder: {error.strerror}. Give another -o") from None
        file = chosen.output / f"{chosen.data}.npz"
        check_writable(file)
        records = chosen.records or TRAINED[chosen.data]
        if chosen.data == "agnews":
            arrays = news_features(chosen.folder, records, chosen.tested)
        else:
            arrays = image_features(chosen.folder, records, chosen.tested, chosen.model)
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **arrays)
        write_whole(file, content.getvalue())
        rows = list(accuracy_rows(chosen.data, chosen.output, chosen.seeds)) if chosen.seeds else []
    except FulcrumError as error:
        print(f"make_features: {error}", file=sys.stderr)
        return 2
    columns = [
        Column(key="row", heading="row", figures=False),
        Column(key="here", heading="these features"),
        Column(key="ours", heading="our features"),
    ]
    note = (
        f"{file} is made from other records, or by another encoder, than our features: it is not the same file, and "
        "the numbers need not agree."
    )
    drawn = [table(f"{title_of(__doc__)}: severe, epsilon 0.99", columns, rows)] if rows else []
    picture = [*drawn, remarks([(False, note)])]
    show(Result(data={"file": str(file), "rows": rows, "note": note}, rows=rows, picture=picture), chosen.format)
    return 0


if __name__ == "__main__":
    sys.exit(main())
