"""Texts as records: a folder of silos and classes, with a text on every line."""

from dataclasses import dataclass
from pathlib import Path

from fulcrum.errors import DataError

_SPLITS = {"train", "test"}
_ENDING = ".txt"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Texts:
    """Texts, with the labels, silos and splits named by files and folders.

    Attributes:
        texts: The text of every record.
        labels: The class of every record.
        silo: The silo of every record; None if no folder names silos.
        split: "train" or "test" for every record; None if no folder names a split.
    """

    texts: list[str]
    labels: list[str]
    silo: list[str] | None
    split: list[str] | None


def holds_texts(root: Path) -> bool:
    """Returns true for a folder with .txt files at most two folders deep."""
    return any(any(root.glob(f"{'*/' * depth}[!.]*{_ENDING}")) for depth in range(3))


def read_text_folder(root: Path) -> Texts:
    """Returns the texts of a folder with a file `<class>.txt` for each class, and a text in each line of a file.

    The files stand in the folder itself, or in a folder for each silo: `<silo>/<class>.txt`. If the only folders in
    `root` are called train and test, both have this form inside, and are the two splits.
    """
    below = {folder.name for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith(".")}
    parts = [root / name for name in sorted(below)] if below == _SPLITS else [root]
    by_silo = any(any(part.glob(f"*/[!.]*{_ENDING}")) for part in parts)
    rows: list[tuple[str, str, str, str]] = []
    for part in parts:
        loose = sorted(part.glob(f"[!.]*{_ENDING}"))
        if by_silo and loose:
            raise DataError("text.file-stray", file=loose[0])
        for file in sorted(part.glob(f"*/[!.]*{_ENDING}")) if by_silo else loose:
            try:
                lines = file.read_text(encoding="utf-8-sig").splitlines()
            except UnicodeDecodeError:
                raise DataError("text.file-encoding", file=file) from None
            rows += [(line, file.stem, file.parent.name, part.name) for line in lines if line.strip()]
    files = (file for depth in range(4) for file in sorted(root.glob(f"{'*/' * depth}[!.]*")))
    other = next((file for file in files if file.is_file() and file.suffix != _ENDING), None)
    if other is not None:
        raise DataError("text.folder-mixed", folder=root, ending=_ENDING, other=other)
    if not rows:
        raise DataError("text.folder-empty", folder=root)
    texts, labels, silos, splits = (list(column) for column in zip(*rows, strict=True))
    return Texts(texts=texts, labels=labels, silo=silos if by_silo else None, split=splits if parts != [root] else None)
