"""Images as records: a folder of silos and classes, or the encoded images of a column, as arrays of one shape."""

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
    """Images of one size, and what their folders say of them.

    Attributes:
        pixels: Bytes, (images, 3, height, width).
        labels: The class of each.
        silo: The silo of each, where folders say it.
        split: "train" or "test" of each, where folders say it.
    """

    pixels: Any
    labels: list[str]
    silo: list[str] | None
    split: list[str] | None


def read_image_folder(root: Path) -> Images:
    """Returns the images of class/image or silo/class/image, below train and test where these are the two folders."""
    try:
        below = _folders(root)
        parts = below if {folder.name for folder in below} == _SPLITS else [root]
        by_silo = any(_folders(inner) for part in parts for inner in _folders(part))
        found: list[tuple[Path, str, str, str]] = []
        for part in parts:
            for silo in _folders(part) if by_silo else [part]:
                for group in _folders(silo):
                    files = sorted(
                        file for file in group.iterdir() if not file.is_dir() and not file.name.startswith(".")
                    )
                    found += [(file, group.name, silo.name, part.name) for file in files]
        _check_all_found(root, {file for file, *_ in found}, by_silo=by_silo)
    except OSError as error:
        raise DataError("data.file-unreadable", file=error.filename or root, reason=error.strerror or error) from None
    if not found:
        raise DataError("image.folder-empty", folder=root)
    pixels = decoded([file.read_bytes() for file, *_ in found], [str(file) for file, *_ in found])
    return Images(
        pixels=pixels,
        labels=[label for _, label, _, _ in found],
        silo=[name for _, _, name, _ in found] if by_silo else None,
        split=[name for _, _, _, name in found] if parts != [root] else None,
    )


def _check_all_found(root: Path, found: set[Path], *, by_silo: bool) -> None:
    """Raises `DataError` for an image that stands anywhere else: it would be passed over in silence."""
    stray = next((file for file in sorted(root.rglob("[!.]*")) if _is_image(file) and file not in found), None)
    if stray is not None:
        where = "silo/class/image" if by_silo else "class/image or silo/class/image"
        raise DataError("image.file-stray", file=stray, layout=where)


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in _ENDINGS and not file.is_dir()


def decoded(images: Sequence[bytes], names: Sequence[str]) -> Any:
    """Returns encoded images as bytes, (images, 3, height, width); what is no image or of another size is refused.

    Args:
        images: Of any format that Pillow reads.
        names: Of each, for messages.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("image.pillow-missing") from None
    found: list[Any] = []
    for data, name in zip(images, names, strict=True):
        try:
            with Image.open(io.BytesIO(data)) as image:
                kind = image.mode
                flat = image.convert("RGBA") if "transparency" in image.info else image
                found.append(np.asarray(flat.convert("RGB")).transpose(2, 0, 1))
        except Exception as error:  # a decoder fails in its own way on a broken file
            told = in_one_line(error).partition(" <_io")[0]
            raise DataError("image.file-broken", image=name, reason=told) from None
        if kind.startswith(("I", "F")):  # which Pillow cuts off at 255
            raise DataError("image.depth-unsupported", image=name, mode=kind)
        if found[-1].shape != found[0].shape:
            sizes = [f"{each.shape[2]} x {each.shape[1]}" for each in (found[-1], found[0])]
            raise DataError("image.sizes-differ", image=name, size=sizes[0], other=names[0], other_size=sizes[1])
    return np.stack(found)


def _folders(root: Path) -> list[Path]:
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
