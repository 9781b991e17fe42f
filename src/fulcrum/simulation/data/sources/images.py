"""Images as records: a folder of silos and classes, or the encoded images of a column, as arrays of equal shape."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fulcrum.errors import DataError, MissingExtraError, in_one_line

_SPLITS = {"train", "test"}
_ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Images:
    """Images of equal size, with the labels, silos and splits named by folders.

    Attributes:
        pixels: Bytes, (images, 3, height, width).
        labels: The class of every image.
        silo: The silo of every image; None if no folder names silos.
        split: "train" or "test" for every image; None if no folder names a split.
    """

    pixels: Any
    labels: list[str]
    silo: list[str] | None
    split: list[str] | None


def read_image_folder(root: Path) -> Images:
    """Returns the images of class/image or silo/class/image, below train and test if exactly these two exist."""
    try:
        below = _folders(root)
        parts = below if {folder.name for folder in below} == _SPLITS else [root]
        by_silo = any(_folders(inner) for part in parts for inner in _folders(part))
        rows: list[tuple[Path, str, str, str]] = []
        for part in parts:
            for silo in _folders(part) if by_silo else [part]:
                for group in _folders(silo):
                    files = sorted(
                        file for file in group.iterdir() if not file.is_dir() and not file.name.startswith(".")
                    )
                    rows += [(file, group.name, silo.name, part.name) for file in files]
        _check_no_stray_image(root, {file for file, *_ in rows}, by_silo=by_silo)
    except OSError as error:
        raise DataError("file.unreadable", file=error.filename or root, reason=error.strerror or error) from None
    if not rows:
        raise DataError("image.folder-empty", folder=root)
    pixels = decode_images([file.read_bytes() for file, *_ in rows], [str(file) for file, *_ in rows])
    return Images(
        pixels=pixels,
        labels=[label for _, label, _, _ in rows],
        silo=[name for _, _, name, _ in rows] if by_silo else None,
        split=[name for _, _, _, name in rows] if parts != [root] else None,
    )


def _check_no_stray_image(root: Path, expected: set[Path], *, by_silo: bool) -> None:
    """Raises `DataError` for an image outside the expected folders, because the image would be ignored in silence."""
    stray = next((file for file in sorted(root.rglob("[!.]*")) if _is_image(file) and file not in expected), None)
    if stray is not None:
        layout = "silo/class/image" if by_silo else "class/image or silo/class/image"
        raise DataError("image.file-stray", file=stray, layout=layout)


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in _ENDINGS and not file.is_dir()


def decode_images(images: Sequence[bytes], names: Sequence[str]) -> Any:
    """Returns encoded images as bytes, (images, 3, height, width), or refuses broken images and unequal sizes.

    Args:
        images: Encoded in any format that Pillow reads.
        names: The name of every image, for messages.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("image.pillow-missing") from None
    arrays: list[Any] = []
    for data, name in zip(images, names, strict=True):
        try:
            with Image.open(io.BytesIO(data)) as image:
                mode = image.mode
                flat = image.convert("RGBA") if "transparency" in image.info else image
                arrays.append(np.asarray(flat.convert("RGB")).transpose(2, 0, 1))
        except Exception as error:  # a decoder fails in its own way on a broken file
            reason = in_one_line(error).partition(" <_io")[0]
            raise DataError("image.file-broken", image=name, reason=reason) from None
        if mode.startswith(("I", "F")):  # Pillow cuts such levels off at 255
            raise DataError("image.depth-unsupported", image=name, mode=mode)
        if arrays[-1].shape != arrays[0].shape:
            sizes = [f"{array.shape[2]} x {array.shape[1]}" for array in (arrays[-1], arrays[0])]
            raise DataError("image.sizes-differ", image=name, size=sizes[0], other=names[0], other_size=sizes[1])
    return np.stack(arrays)


def _folders(root: Path) -> list[Path]:
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
